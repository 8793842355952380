// What a tensor is for, and when an op runs: the words that plans, ledgers and tables share.
#pragma once

#include <cstddef>
#include <cstdint>

namespace plimsoll::models {

enum class Category : std::uint8_t {
  parameters,
  gradients,
  optimizer,
  activations,
  logits,
  temporaries,
  communication,
  workspace,
};
inline constexpr std::size_t kCategories = 8;
const char* name_of(Category category);

enum class Phase : std::uint8_t { forward, recompute, backward, optimizer };
const char* name_of(Phase phase);

}  // namespace plimsoll::models

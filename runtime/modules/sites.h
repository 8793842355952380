// Where dropout draws: a stream of random numbers for each place of the model, counted through all
// tokens of the whole job's step.
#pragma once

#include "runtime/worker.h"

namespace plimsoll::runtime {

enum class Site : std::uint8_t { attention, between, residual, q, k, v, o, gate, up, down };
inline constexpr std::uint32_t kSites = 16;  // of a layer
inline constexpr std::uint32_t kEmbeddingStream = 0;
// Streams from here on belong to the optimizer.
inline constexpr std::uint32_t kFirstOptimizerStream = std::uint32_t{1} << 31;

constexpr std::uint32_t stream_of(std::int64_t layer, Site site) {
  return static_cast<std::uint32_t>(layer + 1) * kSites + static_cast<std::uint32_t>(site);
}

// Of a tensor with `elements` for each sequence, of which the worker's micro-batch is a part.
inline kernels::Dropout dropout_at(const Worker& worker, double rate, std::uint32_t stream,
                                   std::int64_t elements) {
  return {static_cast<float>(rate),
          {worker.seed, worker.step, stream},
          static_cast<std::uint64_t>(checked_multiply(worker.first_sequence, elements))};
}

}  // namespace plimsoll::runtime

#include "models/category.h"

#include <array>

namespace plimsoll::models {

const char* name_of(Category category) {
  constexpr std::array<const char*, kCategories> names{"parameters",    "gradients", "optimizer",
                                                       "activations",   "logits",    "temporaries",
                                                       "communication", "workspace"};
  return names[static_cast<std::size_t>(category)];
}

const char* name_of(Phase phase) {
  constexpr std::array<const char*, 4> names{"forward", "recompute", "backward", "optimizer"};
  return names[static_cast<std::size_t>(phase)];
}

}  // namespace plimsoll::models

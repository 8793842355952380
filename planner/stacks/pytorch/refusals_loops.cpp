// What is not modelled of mixtures whose experts are a loop over modules.
#include <algorithm>

#include "planner/stacks/pytorch/refusals.h"

namespace plimsoll::planner::pytorch {

void refuse_loops(const models::ModelSpec& model, const models::Strategy& s,
                  const models::Batch& batch) {
  const bool loops = s.transformers < models::kExpertsAreStacked &&
                     std::ranges::any_of(model.other_forwards, [](const auto& forward) {
                       return forward.before == models::kExpertsAreStacked;
                     });
  const auto refuse_if = [&](bool it_is, const char* what) {
    check(!(loops && it_is), ErrorKind::unsupported, [&] {
      return "--transformers-version " + models::text_of(s.transformers) + ": " + what +
             " is not modelled yet where experts are modules of a loop, as before " +
             models::text_of(models::kExpertsAreStacked);
    });
  };
  refuse_if(s.lora && !s.lora->modules_to_save.empty(), "--modules-to-save");
  const auto too_few = [&](const std::shared_ptr<const models::Block>& block) {
    return checked_multiply(batch.tokens(), block->loop.active) < block->loop.experts;
  };
  const bool few = std::ranges::any_of(model.other_forwards, [&](const auto& forward) {
    return std::ranges::any_of(forward.blocks, too_few);
  });
  refuse_if(few, "a micro-batch with fewer visits than experts");
}

}  // namespace plimsoll::planner::pytorch

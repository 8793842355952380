// What a program's training loop decides (Rules).
#include "planner/stacks/pytorch/stack.h"

namespace plimsoll::planner::pytorch {

namespace {

// The units of torchtune's configurations: fully_shard of the embedding and the head by themselves
// where a vocabulary of Llama 3 is trained whole (recipes/configs/llama3_1/8B_full.yaml and the
// like, custom_sharded_layers), unless the head is tied.
FsdpUnits torchtune_units(const models::Decoder& decoder, const models::Strategy& s) {
  constexpr std::int64_t kLlama3 = 128256;
  return decoder.vocab >= kLlama3 && !decoder.tied_head && !s.lora ? FsdpUnits::ends
                                                                   : FsdpUnits::root;
}

}  // namespace

// torchtitan's batch is of inputs and labels; its units are Accelerate's since the embedding has
// one of its own. torchtune's loop lets go of the labels when they are shifted.
void set_loop(Rules& rules, const models::Decoder& decoder, const models::Strategy& s) {
  rules.fsdp_autocast = is_fsdp1(s);
  rules.hold_outputs = s.hold_outputs;
  rules.batch_tensors = models::is_torchtune(s.code) ? 1 : models::is_torchtitan(s.code) ? 2 : 3;
  rules.fsdp_units = models::is_torchtune(s.code)                      ? torchtune_units(decoder, s)
                     : s.code == models::ModelCode::torchtitan_2024_12 ? FsdpUnits::root
                                                                       : FsdpUnits::accelerate;
}

}  // namespace plimsoll::planner::pytorch

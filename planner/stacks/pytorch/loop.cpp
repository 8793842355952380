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

// torchtitan's batch and LitGPT's are of inputs and labels; torchtitan's units are Accelerate's
// since the embedding has one of its own. torchtune's loop lets go of the labels when they are
// shifted.
void set_loop(Rules& rules, const models::Decoder& decoder, const models::Strategy& s) {
  rules.fsdp_autocast = is_fsdp1(s);
  rules.hold_outputs = s.hold_outputs;
  rules.batch_tensors = models::is_torchtune(s.code) ? 1 : models::is_transformers(s.code) ? 3 : 2;
  rules.fsdp_units = models::is_torchtune(s.code)            ? torchtune_units(decoder, s)
                     : models::is_torchtitan_of_2024(s.code) ? FsdpUnits::root
                                                             : FsdpUnits::accelerate;
}

void assume_litgpt(const models::Strategy& s, std::vector<reports::Assumption>& out) {
  if (!models::is_litgpt(s.code)) return;
  out.push_back({"logits between steps", "\"in fp32, until the next forward has returned\"",
                 "derived",
                 "litgpt 0.5.13, finetune/lora.py, fit; lightning 2.6.6, "
                 "fabric/plugins/precision/half.py, convert_output"});
  out.push_back({"head", "\"of its own, also where the checkpoint ties it to the embedding\"",
                 "derived", "litgpt 0.5.13, model.py, GPT"});
  if (s.lora)
    out.push_back({"adapters of queries, keys and values", "\"convolutions without a workspace\"",
                   "assumed", "not measured: cuDNN says on a GPU what it takes"});
}

}  // namespace plimsoll::planner::pytorch

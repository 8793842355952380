// What is not planned of a classifier of sequences in the head's place.
#include "models/prompt_adapters.h"
#include "models/run_names.h"
#include "planner/stacks/pytorch/refusals.h"
#include "planner/stacks/pytorch/stack.h"

namespace plimsoll::planner::pytorch {

void refuse_classifier(const Question& question) {
  const models::Strategy& s = question.strategy;
  const models::Decoder& d = *question.model->decoder;
  if (d.labels == 0) return;
  const auto refuse_if = [&](bool is, const std::string& what) {
    check(!is, ErrorKind::unsupported, [&] {
      return what + " with --task classification (" + question.model->architecture +
             ") is not modelled yet";
    });
  };
  refuse_if(s.stack == models::Stack::deepspeed, "--stack deepspeed");
  refuse_if(s.kernels != models::Kernels::eager,
            "--kernels " + std::string(models::name_of(s.kernels)));
  refuse_if(s.compile != models::Compile::no, "--compile");
  refuse_if(s.attention == models::Attention::flex, "--attention flex");
  refuse_if(s.precision == models::Precision::fp8_mixed, "--precision fp8-mixed");
  refuse_if(s.rows == models::Rows::flattened, "a batch of several samples in a row");
  refuse_if(s.lora && models::learns_prompt(s.lora->kind), "--adapter with a learned prompt");
  refuse_if(s.offload.activations, "--offload activations");
  refuse_if(s.transformers < models::Release{5, 0, 0}, "--transformers-version before 5.0");
}

}  // namespace plimsoll::planner::pytorch

// What stack pytorch does not plan of --precision fp8-mixed (torchao's Float8Linear).
#include <algorithm>
#include <string>

#include "models/recompute.h"
#include "models/run_names.h"
#include "models/stack_versions.h"
#include "planner/stacks/pytorch/refusals.h"
#include "planner/stacks/pytorch/rules.h"

namespace plimsoll::planner::pytorch {

namespace {

struct Refusal {
  ErrorKind kind = ErrorKind::unsupported;
  void operator()(bool it_is, const std::string& what) const {
    check(!it_is, kind, [&] { return "--precision fp8-mixed " + what; });
  }
};

// Conv1D of GPT-2 stays as it is; what stands outside of layers was not compared.
void refuse_model(const models::ModelSpec& model) {
  const Refusal refuse_if;
  bool linears = false, experts = false;
  for (const auto& block : model.blocks)
    for (const models::Module& module : block->modules) {
      linears = linears || module.kind == models::ModuleClass::linear;
      experts = experts || module.kind == models::ModuleClass::experts || block->loop.experts > 0;
    }
  refuse_if(!linears, "with " + model.model_type +
                          ": torchao casts nn.Linear, and its layers have none (Conv1D)");
  refuse_if(experts, "with a mixture of experts is not modelled yet");
  refuse_if(model.decoder && model.decoder->embedding_width > 0,
            "with projections around the layers (" + model.model_type + ") is not modelled yet");
}

// torchao/float8/config.py; accelerate 1.15, accelerator.py, _prepare_ao.
void refuse_gather(const models::Strategy& s) {
  if (!s.fp8_all_gather) return;
  const auto refuse_if = [](bool it_is, const char* what) {
    check(!it_is, ErrorKind::bad_input,
          [&] { return "--fp8-all-gather yes " + std::string(what); });
  };
  refuse_if(s.data.zero < 2 || s.data.fsdp_version != 2,
            "is of FSDP2 (--zero 2 or 3): nothing else gathers weights");
  refuse_if(s.fp8_recipe != models::Fp8Recipe::tensorwise,
            "needs --fp8-recipe tensorwise: torchao gathers weights of one scale alone");
}

}  // namespace

void refuse_float8(const models::ModelSpec& model, const models::Strategy& s,
                   const models::Batch& batch) {
  if (s.precision != models::Precision::fp8_mixed) return;
  const Refusal refuse_if;
  refuse_gather(s);
  refuse_model(model);
  refuse_if(models::is_torchtune(s.code), "with torchtune's code is not modelled yet");
  refuse_if(is_fsdp1(s), "with --fsdp-version 1 is not modelled yet (2 is)");
  refuse_if(s.lora || s.quantize || !s.freeze.empty() || !s.train.empty(),
            "with adapters, a quantized base, --freeze or --train is not modelled yet");
  refuse_if(s.kernels != models::Kernels::eager,
            "with --kernels other than eager is not modelled yet");
  refuse_if(s.param_dtype.value_or(DType::fp32) != DType::fp32,
            "is modelled on fp32 weights alone (--param-dtype fp32)");
  refuse_if(s.offload.any(), "with --offload is not modelled yet");
  refuse_if(s.optimizer_in_backward, "with --optimizer-in-backward is not modelled yet");
  refuse_if(s.use_reentrant.value_or(false), "with --use-reentrant yes is not modelled yet");
  refuse_if(s.rows != models::Rows::full,
            "with rows that hold padding or several samples is not modelled yet");
  refuse_if(s.torch != models::kTorch,
            "is modelled with PyTorch " + models::text_of(models::kTorch) + " alone");
  const bool compiled = s.compile != models::Compile::no;
  refuse_if(compiled && models::is_transformers(s.code),
            "with --compile is modelled with --model-code torchtitan@2024-12");
  refuse_if(compiled && s.fp8_recipe != models::Fp8Recipe::tensorwise,
            "with --compile is modelled with --fp8-recipe tensorwise");
  refuse_if(!compiled && s.recompute.kind == models::RecomputeKind::ops,
            "with --recompute " + models::text_of(s.recompute) +
                " is modelled with --compile alone: eagerly torchtitan's policy keeps magnitudes");
  // torch._scaled_mm: the inner size of a product is a multiple of 16, the weights' gradients' are
  // the tokens. Accelerate's own config pads them.
  const bool pads =
      models::is_transformers(s.code) && s.fp8_recipe == models::Fp8Recipe::tensorwise;
  const std::int64_t tokens = checked_multiply(batch.seq_len, batch.micro_batch);
  const Refusal bad{ErrorKind::bad_input};
  bad(!pads && s.fp8_recipe != models::Fp8Recipe::rowwise_with_gw_hp && tokens % 16 != 0,
      "with " + std::to_string(tokens) +
          " tokens in a micro-batch: torch._scaled_mm wants a multiple of 16");
}

}  // namespace plimsoll::planner::pytorch

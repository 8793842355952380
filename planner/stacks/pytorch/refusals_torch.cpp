// What is not modelled of other releases of PyTorch than the usual one: what no run of theirs was
// compared with (tests/golden/dry_runs_torch_*.json, reports/memory_accuracy.md).
#include <algorithm>

#include "models/optimizers.h"
#include "models/storages.h"
#include "planner/stacks/pytorch/refusals.h"

namespace plimsoll::planner::pytorch {

namespace {
constexpr std::string_view kFamilies[] = {"llama", "mistral", "qwen2",       "qwen3",
                                          "gpt2",  "granite", "gpt_bigcode", "mixtral"};

// accelerate 1.15, utils/constants.py, FSDP2_PYTORCH_VERSION.
constexpr models::Release kFsdp2{2, 6, 0};
// Transformers 5.17 does not use an older one (utils/import_utils.py, is_torch_available).
constexpr models::Release kOfTransformers5{2, 5, 0};
}  // namespace

void refuse_torch(const models::ModelSpec& model, const models::Strategy& s) {
  if (s.torch == models::kTorch) return;
  const auto refuse = [&](bool it_is, ErrorKind kind, const std::string& what) {
    check(!it_is, kind, [&] { return "--torch-version " + models::text_of(s.torch) + " " + what; });
  };
  const auto refuse_if = [&](bool it_is, const std::string& what) {
    refuse(it_is, ErrorKind::unsupported,
           "with " + what + " is not modelled yet (" + models::text_of(models::kTorch) + " is)");
  };
  refuse(s.torch == models::Release{2, 5, 0}, ErrorKind::unsupported,
         "is not modelled (2.5.1 is): which kernel its SDPA asks first was not read");
  refuse(s.data.zero >= 2 && s.data.fsdp_version == 2 && s.torch < kFsdp2, ErrorKind::bad_input,
         "with FSDP2: Accelerate has it from " + models::text_of(kFsdp2) +
             " on; --fsdp-version 1 is what older ones run");
  refuse(s.torch < kOfTransformers5 && s.transformers >= models::Release{5, 0, 0} &&
             models::is_transformers(s.code),
         ErrorKind::bad_input,
         "with Transformers " + models::text_of(s.transformers) + ", which needs " +
             models::text_of(kOfTransformers5) + "; say --transformers-version");
  refuse_if(std::ranges::find(kFamilies, model.model_type) == std::end(kFamilies),
            "steps of " + model.model_type);
  // tests/golden/dry_runs_litgpt_0.3.json and its kin: PyTorch 2.4.1.
  const bool litgpt = models::is_litgpt_of_2024(s.code) && s.torch < kFsdp2;
  refuse_if(!models::is_transformers(s.code) && !litgpt, "--model-code");
  refuse_if(s.compile != models::Compile::no, "--compile");
  refuse_if(s.kernels == models::Kernels::liger, "--kernels liger");
  refuse_if((s.loss == models::Loss::chunked && !litgpt) ||
                (s.loss == models::Loss::fused && s.kernels != models::Kernels::fused),
            "--loss chunked or fused");
  refuse_if(s.rows != models::Rows::full, "rows that hold padding or several samples");
  refuse_if(s.attention == models::Attention::math || s.attention == models::Attention::flash_1,
            "--attention math or flash-1");
  refuse_if(models::is_sdpa_kernel(s.attention), "--attention cudnn or efficient");
  using models::RecomputeKind;
  refuse_if(s.recompute.kind == RecomputeKind::ops, "--recompute by operator");
  using models::Optimizer;
  const bool q_galore = s.optimizer == Optimizer::q_galore;  // tests/golden/dry_runs_q_galore.json
  refuse_if(s.optimizer_in_backward && !q_galore, "--optimizer-in-backward");
  refuse_if(s.offload.any(), "--offload");
  refuse_if(text_of(s.allocator).has_value(), "--allocator-conf");
  const char* const package = models::rule_of(s.optimizer).torch.package;
  const bool own = package != nullptr && std::string_view(package) == "bitsandbytes";
  refuse_if(s.optimizer != Optimizer::adamw && s.optimizer != Optimizer::sgd &&
                s.optimizer != Optimizer::momentum && !own && !q_galore,
            "optimizers other than adamw, sgd, momentum, q-galore and those of bitsandbytes");
  refuse_if(s.lora && (s.lora->kind != models::AdapterKind::lora || s.lora->dora ||
                       !s.lora->parameters.empty()),
            "adapters other than LoRA of linear layers");
  refuse_if(s.quantize && s.quantize->storage->gemm == models::PackedGemm::int8, "--quantize int8");
}

}  // namespace plimsoll::planner::pytorch

// What stack pytorch does not plan of PEFT's adapters beyond plain ones.
#include <string>

#include "models/decisions/layer.h"
#include "models/model_spec.h"
#include "models/prompt_adapters.h"
#include "models/run_names.h"
#include "models/storages.h"
#include "planner/stacks/pytorch/refusals.h"
#include "planner/stacks/pytorch/regime.h"

namespace plimsoll::planner::pytorch {

namespace {

void refuse_dora(const models::Strategy& s) {
  if (!s.lora->dora) return;
  const auto refuse_if = [](bool it_is, const char* with) {
    check(!it_is, ErrorKind::unsupported,
          [&] { return std::string("--use-dora yes with ") + with + " is not modelled yet"; });
  };
  const bool sharded = s.data.zero >= 2;
  refuse_if(is_fsdp1(s), "--fsdp-version 1");
  refuse_if(s.kernels == models::Kernels::fused, "--kernels fused");
  refuse_if(s.recompute.kind == models::RecomputeKind::ops, "--recompute ops:");
  refuse_if(s.optimizer_in_backward, "--optimizer-in-backward");
  refuse_if(s.offload.any(), "--offload");
  refuse_if(sharded && s.quantize.has_value(), "--quantize under FSDP");
  refuse_if(s.quantize && s.quantize->storage->gemm != models::PackedGemm::dequantizes,
            "--quantize int8, gptq, gptq-row, awq, hqq or torchao-int8");
  // tuners/lora/bnb.py, Linear4bit.forward: under autocast the sum keeps its own dtype, fp32, and
  // with it everything behind.
  refuse_if(s.quantize && is_mixed(s.precision) && !models::kbit_prepared(s) &&
                s.param_dtype.value_or(DType::fp32) != DType::fp32,
            "--quantize and --kbit-prep no, which widens the residual stream behind the first "
            "adapter,");
}

// IA3, VeRA, prompts, and stacked experts with adapters: what they were not compared with.
void refuse_vectors(const models::Strategy& s) {
  const models::Lora& lora = *s.lora;
  const bool plain = lora.kind == models::AdapterKind::lora, several = lora.adapters > 1;
  if (plain && lora.parameters.empty() && !several) return;
  const std::string asked = several ? "--adapters"
                            : plain ? "--target-parameters"
                                    : "--adapter " + std::string(models::name_of(lora.kind));
  const auto refuse_if = [&](bool it_is, const char* with) {
    check(!it_is, ErrorKind::unsupported,
          [&] { return asked + " with " + with + " is not modelled yet"; });
  };
  refuse_if(s.data.zero >= 2, "FSDP");
  refuse_if(s.kernels != models::Kernels::eager, "--kernels other than eager");
  refuse_if(s.recompute.kind == models::RecomputeKind::ops, "--recompute ops:");
  refuse_if(s.optimizer_in_backward, "--optimizer-in-backward");
  refuse_if(s.offload.any(), "--offload");
  refuse_if(s.quantize.has_value(), "--quantize");
  refuse_if(s.transformers < models::Release{5, 0, 0}, "Transformers before 5.0");
}

// Learned keys and values (peft 0.21, peft_model.py, _setup_prompt_encoder and get_prompt).
void refuse_prefix(const models::Decoder& d, const std::string& model_type,
                   const models::Strategy& s) {
  if (s.lora->kind != models::AdapterKind::prefix_tuning) return;
  const auto refuse_if = [](bool it_is, const char* what) {
    check(!it_is, ErrorKind::unsupported,
          [&] { return std::string("--adapter prefix-tuning ") + what; });
  };
  refuse_if(models::decisions::recomputes_layers(s.recompute.kind),
            "with --recompute: PEFT refuses it (\"PREFIX_TUNING does not work with gradient "
            "checkpointing\"); --recompute none, or --adapter prompt-tuning");
  refuse_if(s.recompute.kind != models::RecomputeKind::none,
            "with --recompute selective is not modelled yet");
  const bool packaged = s.attention == models::Attention::flash_2;
  refuse_if(!packaged && s.attention != models::Attention::flash &&
                s.attention != models::Attention::eager,
            "is modelled with --attention flash (PyTorch's scaled_dot_product_attention, whose "
            "memory-efficient kernel runs behind a mask), flash-2 and eager");
  refuse_if(packaged && s.rows != models::Rows::full,
            "with --attention flash-2 is modelled with rows that are full");
  refuse_if(packaged && d.counts_positions(),
            "with --attention flash-2 of OPT is not modelled yet: the mask that it makes decides");
  refuse_if(d.position == models::PositionKind::alibi,
            "of BLOOM is not modelled yet: it lays out its queries behind the cache");
  refuse_if(
      models::fills_own_cache(model_type) && d.window > 0 && s.lora->virtual_tokens >= d.window,
      "with --virtual-tokens that fill a layer's sliding window is not modelled");
}

// A prompt that is learned. PEFT's forward for it is of the Transformers model that it wraps.
void refuse_prompt(const models::ModelSpec& model, const models::Strategy& s) {
  if (!models::learns_prompt(s.lora->kind)) return;
  const auto refuse_if = [&](bool it_is, const char* what) {
    check(!it_is, ErrorKind::unsupported,
          [&] { return "--adapter " + std::string(models::name_of(s.lora->kind)) + " " + what; });
  };
  const models::Decoder& d = *model.decoder;
  refuse_if(!models::is_transformers(s.code), "is modelled with Transformers' own code");
  refuse_if(d.masked_loss || d.bidirectional || d.token_types > 0,
            "is modelled for causal language models");
  refuse_if(d.embedding_width > 0,
            "does not fit a model whose embeddings are projected: PEFT makes them as wide as the "
            "layers");
  const bool prefix = s.lora->kind == models::AdapterKind::prefix_tuning;
  refuse_if(prefix ? s.rows == models::Rows::flattened : s.rows != models::Rows::full,
            prefix ? "is modelled with rows that are full or padded"
                   : "is modelled with rows that are full");
  refuse_if(s.loss != models::Loss::full, "is modelled with --loss full");
  refuse_if(!s.train.empty(), "with --train is not modelled yet");
  refuse_prefix(d, model.model_type, s);
}

}  // namespace

void refuse_adapters(const models::ModelSpec& model, const models::Strategy& s) {
  if (!s.lora) return;
  const auto refuse_if = [](bool it_is, const char* what) {
    check(!it_is, ErrorKind::unsupported,
          [&] { return std::string(what) + " is not modelled yet"; });
  };
  const bool sharded = s.data.zero >= 2;
  refuse_if(sharded && !s.lora->modules_to_save.empty(), "--modules-to-save with FSDP");
  refuse_if(sharded && s.lora->bias, "--lora-bias yes with FSDP");
  refuse_dora(s);
  refuse_vectors(s);
  refuse_prompt(model, s);
}

}  // namespace plimsoll::planner::pytorch

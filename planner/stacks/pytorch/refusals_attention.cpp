// What stack pytorch does not plan of kernels of attention that are asked for by name.
#include <algorithm>
#include <array>
#include <bit>
#include <string>
#include <string_view>

#include "models/decisions/layer.h"
#include "models/gpu_catalog.h"
#include "models/prompt_adapters.h"
#include "models/run_names.h"
#include "planner/stacks/pytorch/kernel_patch.h"
#include "planner/stacks/pytorch/refusals.h"
#include "planner/stacks/pytorch/regime.h"
#include "planner/stacks/pytorch/sdpa_workspaces.h"
#include "planner/stacks/pytorch/stack.h"

namespace plimsoll::planner::pytorch {

namespace {

using models::Attention;

// Whether Transformers hands SDPA grouped keys and values as they are: where a layer has no mask.
bool hands_over_groups(const Question& question) {
  const models::Decoder& d = *question.model->decoder;
  const models::Strategy& s = question.strategy;
  const bool windows = d.window > 0 && d.full_layers == 0 && question.batch.seq_len >= d.window;
  return d.kv_heads < d.heads && s.transformers >= models::kSdpaTakesGroups && !windows &&
         s.rows == models::Rows::full && models::prefix_tokens(s) == 0;
}

// torch 2.11, aten/src/ATen/native/transformers/cuda/sdp_utils.cpp: can_use_cudnn_attention,
// can_use_mem_efficient_attention.
void refuse_sdpa_kernel(const Question& question, const std::string& option) {
  const models::Decoder& d = *question.model->decoder;
  const models::Strategy& s = question.strategy;
  const std::optional<models::Gpu>& gpu = question.cluster.gpu;
  const bool cudnn = s.attention == Attention::cudnn;
  const bool half = s.precision != models::Precision::fp32;
  const auto refuse_if = [&](bool it_is, const std::string& why) {
    check(!it_is, ErrorKind::bad_input, [&] { return option + ": " + why; });
  };
  check(!gpu || gpu->vendor == "nvidia", ErrorKind::unsupported, [&] {
    return option + " is not modelled on " + gpu->name + " (another kernel on GPUs of AMD)";
  });
  const Processors card = gpu ? processors_of(*gpu) : Processors{};
  const std::string size = std::to_string(d.head_dim);
  if (cudnn) {
    refuse_if(!half, "cuDNN's attention computes in fp16 and bf16 only, not in --precision fp32");
    refuse_if(card.major < 8, "cuDNN's attention runs from compute capability 8.0 on, and " +
                                  (gpu ? gpu->name + " has " + gpu->compute_capability : ""));
    refuse_if(!cudnn_has(d.head_dim, question.batch.seq_len, card),
              question.batch.seq_len == 1
                  ? "cuDNN's attention takes no sequence of one token"
                  : "cuDNN's attention takes heads of a multiple of 8, up to 128 (on compute "
                    "capability 9.0 up to 256), and this model's are of " +
                        size);
    return;
  }
  const bool bf16 = half && low_dtype(s.precision) == DType::bf16;
  refuse_if(bf16 && card.major < 8,
            "the memory-efficient kernel computes in bf16 from compute capability 8.0 on");
  refuse_if(d.head_dim % (half ? 8 : 4) != 0,
            "the memory-efficient kernel takes heads of a multiple of " +
                std::string(half ? "8" : "4") + ", and this model's are of " + size);
  refuse_if(hands_over_groups(question),
            "PyTorch's memory-efficient kernel takes no grouped queries, which Transformers " +
                models::text_of(s.transformers) +
                " hands to scaled_dot_product_attention where there is no mask");
}

// transformers 5.17, _supports_flex_attn; not GPT-2 nor BLOOM. GPT-OSS, which adds its sinks to
// what flex_attention returns, is not modelled.
constexpr std::array<std::string_view, 16> kFlex{
    "llama",   "mistral", "qwen2", "qwen3", "gemma", "gemma2",  "gemma3_text", "gpt_neox",
    "granite", "olmo2",   "opt",   "phi",   "phi3",  "mixtral", "qwen3_moe",   "bert"};
constexpr std::int64_t kFlexTile = 128, kLeastHead = 16;

void refuse_flex_model(const Question& question) {
  const models::Decoder& d = *question.model->decoder;
  const std::string& type = question.model->model_type;
  const auto refuse_if = [&](bool it_is, ErrorKind kind, const std::string& why) {
    check(!it_is, kind, [&] { return "--attention flex: " + why; });
  };
  const bool known = std::ranges::find(kFlex, type) != kFlex.end();
  refuse_if(type == "gpt_oss", ErrorKind::unsupported,
            "attention sinks, which gpt_oss adds behind it, are not modelled yet");
  refuse_if(!known, ErrorKind::bad_input,
            "Transformers' " + type + " does not support flex_attention");
  refuse_if(d.attention_dropout > 0, ErrorKind::bad_input,
            "Transformers takes it without attention dropout alone; set " + type +
                "'s to 0 in the config");
  refuse_if(d.head_dim < kLeastHead, ErrorKind::bad_input,
            "flex_attention takes heads of 16 and more, and this model's are of " +
                std::to_string(d.head_dim));
  const bool power = std::has_single_bit(static_cast<std::uint64_t>(d.heads));
  refuse_if(d.heads == 1, ErrorKind::unsupported, "a single head is not modelled");
  refuse_if(!power && d.kv_heads == 1, ErrorKind::unsupported,
            "one head of keys for a number of heads that is no power of two is not modelled yet");
}

// Of what people run beside it: what was traced, and nothing else.
void refuse_flex(const Question& question) {
  const models::Strategy& s = question.strategy;
  const auto refuse_if = [&](bool it_is, const std::string& why) {
    check(!it_is, ErrorKind::unsupported, [&] { return "--attention flex " + why; });
  };
  refuse_if(s.stack != models::Stack::pytorch, "with DeepSpeed is not modelled yet");
  refuse_if(!models::is_transformers(s.code), "is modelled of Transformers' own code alone");
  refuse_flex_model(question);
  refuse_if(s.transformers != models::kTransformers || s.torch != models::kTorch,
            "is modelled with Transformers " + models::text_of(models::kTransformers) +
                " and torch " + models::text_of(models::kTorch) +
                ", whose Inductor compiles it, alone");
  refuse_if(s.compile != models::Compile::no,
            "with --compile, which compiles it with the layer, is not modelled yet");
  refuse_if(s.kernels != models::Kernels::eager && s.kernels != models::Kernels::liger,
            "with --kernels " + std::string(models::name_of(s.kernels)) + " is not modelled");
  refuse_if(s.recompute.kind == models::RecomputeKind::ops,
            "with --recompute by operator is not modelled: operators inside compiled code are not "
            "seen");
  refuse_if(s.recompute.kind != models::RecomputeKind::none &&
                models::decisions::reentrant_checkpoints(s),
            "with --use-reentrant yes is not modelled yet");
  refuse_if(s.precision == models::Precision::fp8_mixed,
            "with --precision fp8-mixed is not modelled yet");
  refuse_if(s.offload.activations, "with --offload activations is not modelled yet");
  refuse_if(models::prefix_tokens(s) > 0, "with prefix tuning is not modelled yet");
  const bool one_row = s.rows == models::Rows::flattened;
  const std::int64_t tokens = question.batch.seq_len * (one_row ? question.batch.micro_batch : 1);
  refuse_if(tokens < kFlexTile,
            "of sequences of less than 128 tokens, which go to another kernel (flex_decoding), is "
            "not modelled yet");
  const std::optional<models::Gpu>& gpu = question.cluster.gpu;
  refuse_if(gpu && (gpu->vendor != "nvidia" || processors_of(*gpu).major < 8),
            "is modelled on GPUs of NVIDIA from compute capability 8.0 on");
}

// Unsloth's call of it, on the cards where its operators are PyTorch's own kernel: from Ampere on
// xformers takes FlashAttention, of the package that it finds.
void refuse_xformers(const Question& question) {
  const models::Decoder& d = *question.model->decoder;
  const models::Strategy& s = question.strategy;
  const std::optional<models::Gpu>& gpu = question.cluster.gpu;
  constexpr auto kUnsupported = ErrorKind::unsupported, kBad = ErrorKind::bad_input;
  const auto refuse_if = [&](bool it_is, ErrorKind kind, const std::string& why) {
    check(!it_is, kind, [&] { return "--attention xformers " + why; });
  };
  refuse_if(s.kernels != models::Kernels::unsloth, kBad,
            "is what Unsloth calls (--trainer unsloth): Transformers has no such implementation "
            "(--attention efficient is PyTorch's copy of its kernel)");
  kernel_patch(question.model->model_type, s);  // of Unsloth's families
  refuse_if(!gpu, kBad, "calls other kernels on other cards: name one (--gpu)");
  refuse_if(gpu->vendor != "nvidia" || processors_of(*gpu).major >= 8, kUnsupported,
            "is modelled on GPUs of NVIDIA below compute capability 8.0, and " + gpu->name +
                (gpu->vendor == "nvidia" ? " has " + gpu->compute_capability : " is none") +
                ": xformers takes FlashAttention there, which --attention flash-2 plans");
  refuse_if(low_dtype(s.precision) == DType::bf16, kBad,
            "computes in bf16 from compute capability 8.0 on; on " + gpu->name +
                " Unsloth trains in fp16 (--precision fp16-mixed --param-dtype fp16)");
  refuse_if(d.window > 0 && question.batch.seq_len > d.window, kUnsupported,
            "with sequences longer than the model's sliding window of " + std::to_string(d.window) +
                " is not modelled yet");
  refuse_if(
      d.head_dim % 8 != 0, kBad,
      "takes heads of a multiple of 8, and this model's are of " + std::to_string(d.head_dim));
  refuse_if(d.head_dim > 128, kUnsupported, "with heads of more than 128 is not modelled yet");
}

}  // namespace

void refuse_attention(const Question& question) {
  const Attention kind = question.strategy.attention;
  const std::string option = "--attention " + std::string(models::name_of(kind));
  if (kind == Attention::flex) refuse_flex(question);
  if (kind == Attention::xformers) refuse_xformers(question);
  check(!question.model->decoder->eager_attention || kind == Attention::eager, ErrorKind::bad_input,
        [&] {
          return option + ": Transformers runs " + question.model->model_type +
                 " with eager attention alone";
        });
  check(!models::is_flash_package(kind) || question.strategy.precision != models::Precision::fp32,
        ErrorKind::bad_input, [&] {
          return option + ": flash_attn computes in fp16 and bf16 only, not in --precision fp32";
        });
  check(kind != Attention::flash_3 || question.strategy.transformers >= models::kFlash3,
        ErrorKind::bad_input, [&] {
          return option + " needs Transformers " + models::text_of(models::kFlash3) +
                 " or newer (--transformers-version)";
        });
  const std::optional<models::Gpu>& gpu = question.cluster.gpu;
  check(kind != Attention::flash_3 || !gpu || gpu->compute_capability == "9.0",
        ErrorKind::unsupported, [&] {
          return option + ": its kernels for Hopper are modelled (compute capability 9.0), and " +
                 gpu->name + " has " + gpu->compute_capability;
        });
  if (models::is_sdpa_kernel(kind)) refuse_sdpa_kernel(question, option);
}

void refuse_on_gpu(const Question& question, Rules::Sdpa sdpa) {
  if (question.cluster.gpu)
    models::check_products(*question.cluster.gpu, question.strategy.precision);
  check(question.strategy.attention != models::Attention::flash_2 || sdpa != Rules::Sdpa::efficient,
        ErrorKind::bad_input, [&] {
          const bool unsloth = question.strategy.kernels == models::Kernels::unsloth;
          return "--attention flash-2: flash_attn does not run on " + question.cluster.gpu->name +
                 (unsloth ? "; Unsloth calls xformers there (--attention xformers)" : "");
        });
  // Older cards take the memory-efficient kernel or the math path.
  check(!hooks_take_all(question.strategy) || sdpa != Rules::Sdpa::efficient,
        ErrorKind::unsupported, [&] {
          return "--offload activations without --recompute full is modelled from compute "
                 "capability 8.0 on, with FlashAttention or cuDNN's, and " +
                 question.cluster.gpu->name + " has " + question.cluster.gpu->compute_capability;
        });
}

}  // namespace plimsoll::planner::pytorch

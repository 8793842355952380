#include "planner/stacks/pytorch/kernel_patch.h"

#include <algorithm>
#include <array>
#include <string>

#include "models/base/error.h"

namespace plimsoll::planner::pytorch {

namespace {

struct Row {
  std::string_view model_type;
  KernelPatch patch;
};

constexpr auto kEager = NormKernel::eager;
constexpr auto kBeside = NormKernel::liger, kInPlace = NormKernel::liger_in_place;
constexpr KernelPatch kLlama{kInPlace, kEager, kInPlace, true, true};
constexpr KernelPatch kFms{.norms = kInPlace,
                           .last = kInPlace,
                           .rotary = true,
                           .cross_entropy = KernelPatch::CrossEntropy::fms,
                           .norm_gradients = false,
                           .adapters = KernelPatch::Adapters::fms};
constexpr std::array<std::string_view, 4> kFmsFamilies{"llama", "mistral", "granite", "mixtral"};
// models/gpt_bigcode.py of the plugin: of a model with LayerNorms the loss alone.
constexpr KernelPatch kFmsLoss{.cross_entropy = KernelPatch::CrossEntropy::fms};

// Llama, Mistral and Qwen2 have no norms of queries and keys; OLMo 2's keep theirs, and its last
// norm is patched with the default, in place. Granite's logits are scaled, which the fused loss
// cannot: its cross entropy is patched instead.
constexpr std::array kPatched{
    Row{"llama", kLlama},
    Row{"mistral", kLlama},
    Row{"qwen2", kLlama},
    Row{"qwen3", {kInPlace, kInPlace, kInPlace, true, true}},
    Row{"gemma", kLlama},
    Row{"gemma2", {kBeside, kEager, kBeside, true, true}},
    Row{"gemma3_text", {kBeside, kBeside, kBeside, true, true, {}, true}},
    Row{"olmo2", {kBeside, kEager, kInPlace, true, true}},
    Row{"granite", {kInPlace, kEager, kInPlace, true, true, KernelPatch::CrossEntropy::liger}},
};

// Those of MODEL_TYPE_TO_APPLY_LIGER_FN that replace other things, too.
constexpr std::array<std::string_view, 6> kNotModelled{"deepseek_v2", "deepseek_v3", "gpt_oss",
                                                       "mixtral",     "phi3",        "qwen3_moe"};

// FastLanguageModel's (unsloth/models/): norms whose weights are frozen, so that none of their
// kernels makes a gradient of them; SwiGLU inside the MLP's function.
constexpr KernelPatch kUnsloth{.norms = kInPlace,
                               .last = kInPlace,
                               .gated = true,
                               .rotary = true,
                               .norm_gradients = false,
                               .adapters = KernelPatch::Adapters::unsloth,
                               .own_decoder = true,
                               .sums_apart = true};
constexpr std::array<std::string_view, 4> kUnslothFamilies{"llama", "mistral", "qwen2", "qwen3"};

}  // namespace

namespace {
KernelPatch unsloth_patch(std::string_view model_type) {
  check(std::ranges::find(kUnslothFamilies, model_type) != kUnslothFamilies.end(),
        ErrorKind::unsupported, [&] {
          return "--kernels unsloth: Unsloth's models are modelled for llama, mistral, qwen2 and "
                 "qwen3, not for " +
                 std::string(model_type);
        });
  KernelPatch patch = kUnsloth;
  if (model_type == "qwen3") patch.heads = kInPlace;
  return patch;
}

KernelPatch patch_of(std::string_view model_type, const models::Strategy& strategy) {
  if (strategy.kernels == models::Kernels::fused) {
    if (model_type == "gpt_bigcode") return kFmsLoss;
    check(std::ranges::find(kFmsFamilies, model_type) != kFmsFamilies.end(), ErrorKind::unsupported,
          [&] {
            return "--kernels fused: fms-acceleration's kernels are modelled for llama, mistral, "
                   "granite, mixtral and gpt_bigcode, not for " +
                   std::string(model_type);
          });
    return kFms;
  }
  if (strategy.kernels == models::Kernels::unsloth) return unsloth_patch(model_type);
  if (strategy.kernels != models::Kernels::liger) return {};
  const auto found = std::ranges::find(kPatched, model_type, &Row::model_type);
  if (found != kPatched.end()) return found->patch;
  const bool known = std::ranges::find(kNotModelled, model_type) != kNotModelled.end();
  fail(ErrorKind::unsupported,
       "--kernels liger: Liger " + std::string(known ? "has kernels for " : "has no kernels for ") +
           std::string(model_type) + (known ? " that are not modelled yet" : ""));
}

}  // namespace

// transformers 4.45, modeling_mistral.py, MistralFlashAttention2.forward, where Llama's hands
// groups on; from 4.48 on one function serves both.
KernelPatch kernel_patch(std::string_view model_type, const models::Strategy& strategy) {
  KernelPatch patch = patch_of(model_type, strategy);
  patch.repeats_groups =
      model_type == "mistral" && strategy.transformers < models::kContiguousForSdpa;
  return patch;
}

}  // namespace plimsoll::planner::pytorch

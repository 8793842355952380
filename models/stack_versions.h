// The releases whose source the stacks were read from; plans name them.
#pragma once

#include <compare>
#include <optional>
#include <string>
#include <string_view>

namespace plimsoll::models {

inline constexpr std::string_view kDeepSpeedVersion = "0.19.8";

// "4.48.1"; "4.48" is its first release, 4.48.0.
struct Release {
  int major = 0, minor = 0, patch = 0;
  auto operator<=>(const Release&) const = default;
};
std::optional<Release> release_from(std::string_view text);
std::string text_of(const Release& release);

// PyTorch: the one that plans are of where nothing is said, which is the newest, and the oldest.
// What changed between them, by the first release that has it:
// - 2.9: an index `:` is no slice (ATen/TensorIndexing.h, applySlice: `length.sym_le(stop)`, before
//   `sym_eq`, and `:` stops at 2^63 - 1). Before, autograd records one for each `:`, whose backward
//   writes its gradient into zeros of the whole;
// - 2.9: cuBLASLt keeps a workspace for each thread; before, each GEMM takes one and gives it back
//   (dry runs of 2.8.0 and 2.9.1);
// - 2.11: SDPA asks cuDNN first on compute capability 9 and 10 (overheads.json).
inline constexpr Release kTorch{2, 11, 0}, kOldestTorch{2, 4, 0};
inline constexpr Release kWholeAxisIsNoSlice{2, 9, 0}, kLtKeepsWorkspace{2, 9, 0};

// Transformers: the one that plans are of where nothing is said, and the oldest and the newest
// whose steps were compared with the plan (tests/golden/dry_runs*.json). What changed between them,
// by the first release that has it:
// - 4.46: the caller keeps the low logits beside those that the loss upcasts; before, the model
//   upcast them itself under the same name;
// - 4.48: queries, keys and values are made contiguous for SDPA; 4.56 leaves that out again;
// - 4.49: ForCausalLMLoss pads the labels; before, it shifts the logits, by a copy;
// - 4.52: a decoder layer checkpoints itself; before, the model's loop does, around what wraps it;
// - 4.53: SDPA's masks are booleans; before, they are added, in the dtype of the stream; a mixture
//   asks which experts are visited, and loops over those;
// - 4.54: SDPA itself takes grouped queries; before, keys and values are repeated for it;
// - 5.0: checkpoints are not reentrant unless that is asked for, and ask a frozen embedding for a
//   gradient themselves; a second buffer of frequencies; the experts of a mixture are two
//   parameters, before a loop over modules;
// - 5.2: GPT-2's layers keep no causal masks of their own;
// - 5.18 or later: rotary angles are products of elements, and positions in fp32 die before them.
// GPT-2's and Qwen3's code is the planned one from 4.51 on. Qwen2's from 4.56: releases from 4.49
// on give it a mask although no window is reached. Mixtral's from 4.48: each of its layers had
// rotary tables of its own before.
inline constexpr Release kTransformers{5, 17, 0};
inline constexpr Release kOldestTransformers{4, 45, 0}, kNewestTransformers{5, 23, 0};
inline constexpr Release kLossUpcasts{4, 46, 0};
inline constexpr Release kContiguousForSdpa{4, 48, 0}, kStridedForSdpa{4, 56, 0};
inline constexpr Release kLossPadsLabels{4, 49, 0};
inline constexpr Release kFlash3{4, 53, 0};  // attn_implementation="flash_attention_3"
inline constexpr Release kLayersCheckpointThemselves{4, 52, 0}, kCheckpointsNotReentrant{5, 0, 0},
    kAsksEmbeddingForGradient{5, 0, 0};
inline constexpr Release kMasksAreBoolean{4, 53, 0};
inline constexpr Release kSdpaTakesGroups{4, 54, 0};
inline constexpr Release kRotaryCopiesFrequencies{5, 0, 0}, kExpertsAreStacked{5, 0, 0};
inline constexpr Release kLoopsOverVisited{4, 53, 0};  // Mixtral from 4.52 on
inline constexpr Release kGpt2WithoutMasks{5, 2, 0};
inline constexpr Release kRotaryMultiplies{5, 18, 0};
inline constexpr Release kOldestGpt2{4, 51, 0}, kOldestQwen3{4, 51, 0}, kOldestQwen2{4, 56, 0};
inline constexpr Release kOldestMixtures{4, 48, 0};

// bitsandbytes: the one that plans are of where nothing is said, and the oldest whose wheel was
// read and run. What changed between them, by the first release that has it (sources of its wheels
// 0.41.0, 0.42.0, 0.43.0 to 0.43.3, 0.44.1, 0.45.0, 0.45.5, 0.46.1, 0.49.2, 0.50.0):
// - 0.43.0: a weight is packed in the dtype it was loaded in, and not in halves (nn/modules.py,
//   Params4bit.cuda); packed values in other dtypes than uint8 (bnb_4bit_quant_storage);
// - 0.43.2: MatMul4Bit's context lets its input go (autograd/_functions.py, ctx.tensors);
// - 0.44: states in 8 bits have a scale for each 256 values, before for each 2,048
//   (optim/optimizer.py, init_state); AdEMAMix;
// - 0.45: LLM.int8() without layouts of Turing's and Ampere's tensor cores;
// - 0.45.2 or later: imports nothing of triton.ops, which PyTorch 2.6 comes without;
// - 0.50: a fused kernel for few rows, and scales that live as long as the product; before, the
//   forward unpacks a weight as the backward does (autograd/_functions.py, MatMul4Bit).
inline constexpr Release kBitsandbytes{0, 50, 2}, kOldestBitsandbytes{0, 41, 0};
inline constexpr Release kPacksAsLoaded{0, 43, 0}, kMatMul4BitKeepsNoInput{0, 43, 2};
inline constexpr Release kBlocksOf256{0, 44, 0}, kInt8WithoutLayouts{0, 45, 0};
inline constexpr Release kLastWithTritonOps{0, 45, 0}, kFuses4Bit{0, 50, 0};
// Transformers 5.17 asks for it (utils/import_utils.py, BITSANDBYTES_MIN_VERSION).
inline constexpr Release kOldestForTransformers5{0, 46, 1};

}  // namespace plimsoll::models

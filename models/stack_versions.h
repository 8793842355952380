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

}  // namespace plimsoll::models

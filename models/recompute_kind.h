// What of the forward a step computes again instead of keeping it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace plimsoll::models {

// block: a checkpoint around each of the first layers, none around the others (Megatron's
// --recompute-method block). nth: around every Nth layer alone, the Nth first (torchtitan's
// selective_ac_option). recursive: of all layers, from inputs of a few (decisions/recursion.h).
// ops: a checkpoint around each layer that keeps what chosen operators make (selective activation
// checkpointing by operator).
enum class RecomputeKind : std::uint8_t {
  none,
  selective,
  full,
  sqrt,
  every,
  block,
  nth,
  recursive,
  ops
};
constexpr bool groups_layers(RecomputeKind kind) {  // several in a checkpoint
  return kind == RecomputeKind::every || kind == RecomputeKind::sqrt;
}
constexpr bool leaves_layers(RecomputeKind kind) {  // without a checkpoint, beside those with one
  return kind == RecomputeKind::block || kind == RecomputeKind::nth;
}
inline constexpr const char* kTorchtitanOps = "torchtitan";
struct Recompute {
  RecomputeKind kind = RecomputeKind::none;
  // every: in each checkpoint; block: that are checkpoints; nth: from one checkpoint to the next;
  // recursive: whose inputs are held at a time.
  std::int64_t layers = 1;
  // For RecomputeKind::ops, sorted: "attention", and modules whose GEMM is kept, by their last
  // parts as LoRA targets are ("q_proj", "mlp.c_proj"); or the one name kTorchtitanOps.
  std::vector<std::string> kept;
  bool operator==(const Recompute&) const = default;
};

}  // namespace plimsoll::models

#include "planner/stacks/pytorch/attention_hopper.h"

#include "planner/stacks/pytorch/attention.h"

namespace plimsoll::planner::pytorch {

namespace {

// round_up_headdim: the widths that there are kernels for.
std::int64_t kernel_width(std::int64_t head_dim) {
  for (const std::int64_t width : {64, 96, 128, 192})
    if (head_dim <= width) return width;
  return 256;
}

// kBlockM_sm90: queries of a tile of the backward.
std::int64_t tile_queries(std::int64_t width, const HopperAttention& of) {
  if (width <= 64) return of.causal && of.soft_cap ? 96 : 128;
  return width == 128 && !of.causal && !of.windowed && !of.soft_cap ? 80 : 64;
}

// kBlockN_sm90: its keys.
std::int64_t tile_keys(std::int64_t width) {
  if (width <= 128) return 128;
  return width <= 192 ? 96 : 80;
}

// Rows of all samples, each in whole tiles, or with a tile more.
SymInt rows_in(std::int64_t tile, const HopperAttention& of) {
  if (!of.varies) return checked_multiply(of.samples, round_up(of.length, tile));
  return round_up(of.tokens + checked_multiply(of.samples, tile), tile);
}

}  // namespace

// A counter of tiles, behind vectors of as many numbers as there are samples, rounded to 4: one for
// their order, one where rows end early, two that plan samples of several lengths.
SymInt hopper_schedule(const HopperAttention& of) {
  if (!of.causal && !of.windowed && !of.varies) return 0;
  const std::int64_t vectors =
      (of.windowed ? 0 : 1) + (of.causal || of.windowed ? 1 : 0) + (of.varies ? 2 : 0);
  return checked_multiply(round_up(of.samples, 4), vectors) + 1;
}

// [heads, rows] twice, [heads, rows, width] and, with groups, [key heads, keys, width] twice, fp32;
// a number for each tile of each head.
std::array<SymInt, 6> hopper_backward(const HopperAttention& of) {
  const std::int64_t width = kernel_width(of.head_dim), tile = tile_queries(width, of);
  const SymInt rows = checked_multiply(rows_in(tile, of), of.heads);
  const SymInt of_keys =
      of.groups ? checked_multiply(rows_in(tile_keys(width), of), of.kv_heads * width) : SymInt(0);
  const SymInt tiles = checked_multiply(ceil_divide(of.length, tile), of.samples);
  return {rows,    rows,    checked_multiply(rows, width),
          of_keys, of_keys, checked_multiply(tiles, of.heads)};
}

HopperAttention AttentionWriter::hopper(bool soft_cap) const {
  const bool one_row = varies() && !unpads();
  const bool windowed = sliding_ && tokens_.length > d_.window;  // else it is not handed over
  return {.samples = varies() ? tokens_.samples : tokens_.sequences,
          .tokens = real(tokens_.total()),
          .length = one_row ? ceil_divide(tokens_.total(), tokens_.samples) : tokens_.length,
          .varies = varies(),
          .causal = !d_.bidirectional && !windowed,
          .windowed = windowed,
          .soft_cap = soft_cap,
          .groups = grouped() && !repeats(),
          .heads = d_.heads,
          .kv_heads = d_.kv_heads,
          .head_dim = d_.head_dim};
}

}  // namespace plimsoll::planner::pytorch

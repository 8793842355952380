#include "planner/stacks/pytorch/sdpa_workspaces.h"

#include "planner/program/symbolic.h"

namespace plimsoll::planner::pytorch {

namespace {

SymInt rows(const SdpaShape& of) {
  return checked_multiply(of.sequences, of.heads);
}

// Bytes of one bit for each score, in tiles of 128 × 128: which of them dropout keeps.
SymInt kept_scores(const SdpaShape& of) {
  return checked_multiply(rows(of),
                          checked_multiply(round_up(of.length, 128), round_up(of.keys, 128))) /
         8;
}

// Of a forward and a backward: which of them are there is the engine's choice.
constexpr std::int64_t kHopperEngine = 256, kEngine = 128;

}  // namespace

bool cudnn_has(std::int64_t head_dim, SymInt keys, const Processors& gpu) {
  const std::int64_t widest = gpu.major == 9 && gpu.minor == 0 ? 256 : 128;
  return gpu.major >= 8 && head_dim % 8 == 0 && head_dim <= widest && keys > 1;
}

SymBytes cudnn_forward(const SdpaShape& of, const Processors& gpu) {
  if (gpu.major == 9) return Bytes(kHopperEngine);
  if (gpu.major == 10 && of.dropout) return SymBytes(kEngine + kept_scores(of));
  return Bytes(0);
}

// The graph's own tensors (cudnn_frontend, CompositeSDPABackwardNode): dQ and the row sums in fp32
// and, with groups, dK and dV of all query heads. Beside these the engine's: on Blackwell none but
// for groups and dropout, unless sequences are of 128 tokens or less, which the engine of other
// cards runs, with a dQ of its own in rows of 8.
SymBytes cudnn_backward(const SdpaShape& of, const Processors& gpu) {
  const SymInt queries = checked_multiply(rows(of), of.length);
  SymBytes graph(checked_multiply(queries, 4 * (of.head_dim + 1)));
  if (of.groups)
    graph += SymBytes(checked_multiply(checked_multiply(rows(of), of.keys), 2 * 2 * of.head_dim));
  if (gpu.major == 9) return graph + Bytes(kHopperEngine);
  if (gpu.major == 10 && of.dropout) return graph + SymBytes(kEngine + kept_scores(of));
  if (gpu.major == 10 && of.length > 128 && of.keys > 128)
    return graph + Bytes(of.groups ? kEngine : 0);
  const SymInt own = checked_multiply(rows(of), round_up(of.length, 8));
  return graph + SymBytes(checked_multiply(own, 4 * of.head_dim) + kEngine);
}

SymBytes efficient_forward(const SdpaShape& of) {
  if (!of.half || of.head_dim <= 128) return Bytes(0);
  return SymBytes(checked_multiply(checked_multiply(rows(of), of.length), 4 * of.head_dim));
}

namespace {

// mem_eff_attention/kernels/cutlassB.h: the first kernel of a card that has a head's width and fits
// in its shared memory. `sums_keys`: dK and dV do not stay in registers, and are of less bits than
// their sums.
struct Tile {
  std::int64_t queries = 64, keys = 64;
  bool sums_keys = false;
};

Tile backward_tile(const SdpaShape& of, const Processors& gpu) {
  if (of.head_dim <= 64) return {};
  if (!of.half) return gpu.major < 8 ? Tile{} : Tile{128, 64};
  if (of.head_dim > 128) return {128, 64, true};
  const bool smaller_memory = gpu.major == 8 && (gpu.minor == 6 || gpu.minor == 9);
  if (gpu.major < 8 || (smaller_memory && of.head_dim <= 96 && !of.dropout)) return {128, 64};
  return {128, 128};
}

}  // namespace

// For every head: dQ in tiles, each behind 16 bytes of locks, and where keys are summed dK and dV
// for each of the parts into which the keys are divided, so that 200 blocks run
// (attention_backward.cu, num_splits_key).
SymBytes efficient_backward(const SdpaShape& of, const Processors& gpu) {
  const Tile tile = backward_tile(of, gpu);
  const std::int64_t columns = ceil_divide(of.head_dim, tile.keys);
  const SymInt tiles = checked_multiply(ceil_divide(of.length, tile.queries), columns);
  SymInt numbers = checked_multiply(tiles, 4 + tile.queries * tile.keys);
  if (tile.sums_keys) {
    const SymInt most = SymInt(200) / rows(of);
    const SymInt parts = larger(smaller(ceil_divide(of.keys, tile.keys), most), SymInt(1));
    const std::int64_t width = ceil_divide(of.head_dim, tile.queries) * tile.queries;
    numbers = numbers + checked_multiply(parts, 2 * tile.keys * width);
  }
  return SymBytes(checked_multiply(checked_multiply(rows(of), numbers), 4));
}

}  // namespace plimsoll::planner::pytorch

#include "planner/stacks/pytorch/kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string_view>

#include "models/base/dtype.h"

namespace plimsoll::planner::pytorch {

namespace {
// ATen/native/cuda/GroupedBlas.cpp: only 9.x and 10.x have a kernel of their own. The workspace on
// 10.0 is one of two, by shape: the larger one (both seen with torch 2.11 on the dry runtime).
std::int64_t grouped_bytes(std::string_view capability) {
  if (capability.starts_with("9.")) return 512;
  return capability.starts_with("10.") ? 5888 : 0;
}
}  // namespace

// CUDA C++ Programming Guide, technical specifications per compute capability: 2048 threads in a
// multiprocessor; 1024 in 7.5, 1536 in 8.6, 8.7, 8.9 and 12.x.
Processors processors_of(const models::Gpu& gpu) {
  Processors out;
  if (gpu.multiprocessors) out.count = *gpu.multiprocessors;
  const std::string_view capability = gpu.compute_capability;
  const std::size_t point = capability.find('.');
  if (gpu.vendor == "nvidia" && point != std::string_view::npos) {
    out.major = std::stoi(gpu.compute_capability);
    out.minor = std::stoi(gpu.compute_capability.substr(point + 1));
  }
  out.grouped = grouped_bytes(capability);
  if (capability == "7.5")
    out.threads = 1024;
  else if (capability == "8.6" || capability == "8.7" || capability == "8.9" ||
           capability.starts_with("12."))
    out.threads = 1536;
  return out;
}

namespace {
constexpr std::int64_t kBlockThreads = 512, kWarp = 32;

std::int64_t power_of_two_up_to(std::int64_t n, std::int64_t most) {
  return static_cast<std::int64_t>(
      std::bit_floor(static_cast<std::uint64_t>(std::clamp<std::int64_t>(n, 1, most))));
}
}  // namespace

// ATen/native/cuda/Reduce.cuh (setReduceConfig, ReduceConfig::global_memory_size): a block of 512
// threads, or that over the number of neighbouring columns a thread takes (4 where they divide),
// is up to 32 wide and as high as is left. Where a thread would still add 256 values or more and
// the blocks do not fill the GPU, blocks share a column: enough of them to fill it, but 16 values
// a thread at least. Then every thread leaves a partial sum for each of its columns, and every
// column of blocks has a counter.
namespace {
struct ColumnSums {
  std::int64_t partial = 0, counters = 0;  // values
};
ColumnSums column_sums(const Processors& gpu, std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t kFewest = 16, kMost = 256;
  const std::int64_t together = columns % 4 == 0 ? 4 : columns % 2 == 0 ? 2 : 1;
  const std::int64_t threads = kBlockThreads / together;
  std::int64_t width = power_of_two_up_to(columns / together, threads);
  const std::int64_t height =
      std::min(power_of_two_up_to(rows, threads), threads / std::min(width, kWarp));
  width = std::min(width, threads / height);
  const std::int64_t grid = ceil_divide(columns / together, width);
  const std::int64_t fills = gpu.count * (gpu.threads / (width * height));
  const std::int64_t added = ceil_divide(rows, height);
  const bool across_warps = rows >= std::min(height * kFewest, kMost);
  if (!across_warps || added < kMost || grid > fills) return {};
  const std::int64_t sharing = std::max(
      std::min(ceil_divide(fills, grid), ceil_divide(added, kFewest)), ceil_divide(added, kMost));
  if (sharing <= 1) return {};
  return {checked_multiply(columns * sharing, width * together), grid};
}
template <std::int64_t ColumnSums::*part>
SymInt column_sums(const Processors& gpu, SymInt rows, SymInt columns) {
  const auto of = [](std::int64_t r, std::int64_t c, std::int64_t count, std::int64_t threads) {
    return column_sums({.count = count, .threads = threads}, r, c).*part;
  };
  return called(of, rows, columns, gpu.count, gpu.threads);
}
}  // namespace

ColumnSumScratch column_sum_scratch(const ProgramBuilder& allocator, const Processors& gpu,
                                    SymInt rows, SymInt columns, DType of) {
  const auto partial = column_sums<&ColumnSums::partial>(gpu, rows, columns);
  const auto counters = column_sums<&ColumnSums::counters>(gpu, rows, columns);
  return {allocator.rounded(storage(partial, of)),
          allocator.rounded(storage(counters, DType::fp32))};
}

// The same rules for one result: a block of 512 threads, and as many blocks as leave each thread 16
// values, at most as many as run at once, but never more than 256 values a thread.
ColumnSumScratch whole_reduction_scratch(const ProgramBuilder& allocator, const Processors& gpu,
                                         SymInt values, DType of) {
  const auto blocks = [](std::int64_t n, std::int64_t count, std::int64_t threads, std::int64_t) {
    constexpr std::int64_t kFewest = 16, kMost = 256;
    const std::int64_t added = ceil_divide(n, kBlockThreads);
    if (added < kMost) return std::int64_t{0};
    const std::int64_t fills = count * (threads / kBlockThreads);
    return std::max(std::min(fills, ceil_divide(added, kFewest)), ceil_divide(added, kMost));
  };
  const SymInt sharing = called(blocks, values, gpu.count, gpu.threads);
  if (sharing == 0) return {};
  return {allocator.rounded(storage(sharing, of)),
          allocator.rounded(storage(SymInt(1), DType::fp32))};
}

// ATen/native/cuda/Embedding.cu, EmbeddingBackwardKernel.cu: up to 3072 ids one kernel does it.
// Beyond, ids are sorted beside their places; every id met is a segment, cut into parts of 10
// rows, and each part is summed in fp32. Standing together at the highest moment: three arrays
// of the ids, two of the segments, one of the parts, two counters, and the parts' sums.
EmbeddingScratch embedding_scratch(const ProgramBuilder& allocator, SymInt ids, SymInt table_rows,
                                   SymInt width) {
  constexpr std::int64_t kOneKernel = 3072, kPartRows = 10;
  if (ids <= kOneKernel) return {};
  const SymInt segments = smaller(ids, table_rows), parts = ids / kPartRows + segments;
  const auto of = [&](SymInt values, DType dtype) {
    return allocator.rounded(storage(values, dtype));
  };
  const SymBytes places = of(ids, DType::int64), starts = of(segments, DType::int64);
  const SymBytes counter = of(1, DType::int64);
  return {places,
          places,
          places,
          counter,
          starts,
          starts,
          counter,
          of(parts, DType::int64),
          of(checked_multiply(parts, width), DType::fp32)};
}

// aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, set_params_splitkv and
// num_splits_heuristic: the fewest parts whose last wave of blocks is filled to 0.85 of the best.
namespace {
std::int64_t key_splits(std::int64_t tiles, std::int64_t keys, std::int64_t head_dim,
                        std::int64_t processors) {
  constexpr std::int64_t kMostSplits = 128;
  const std::int64_t of_block = head_dim <= 64 ? 256 : head_dim <= 128 ? 128 : 64;
  const std::int64_t of_keys = ceil_divide(keys, of_block), blocks = 2 * processors;
  if (static_cast<float>(tiles) >= 0.8F * static_cast<float>(blocks)) return 1;
  const std::int64_t most = std::min({kMostSplits, blocks, of_keys});
  const auto filled = [&](std::int64_t splits) {
    const bool as_before =
        splits > 1 && ceil_divide(of_keys, splits) == ceil_divide(of_keys, splits - 1);
    const float waves = static_cast<float>(tiles * splits) / static_cast<float>(blocks);
    return as_before ? 0.0F : waves / std::ceil(waves);
  };
  float best = 0;
  for (std::int64_t splits = 1; splits <= most; ++splits) best = std::max(best, filled(splits));
  for (std::int64_t splits = 1; splits <= most; ++splits)
    if (filled(splits) > 0 && filled(splits) >= 0.85F * best) return splits;
  return 1;
}
}  // namespace

SymInt flash_key_splits(const Processors& gpu, SymInt rows, SymInt queries, SymInt keys,
                        std::int64_t head_dim) {
  constexpr std::int64_t kTile = 64;
  return called(key_splits, checked_multiply(rows, ceil_divide(queries, kTile)), keys, head_dim,
                gpu.count);
}

// cub/device/dispatch/dispatch_radix_sort.cuh, InvokeOnesweep: 8 bits a pass; digit counts of each
// pass (8 bytes), of each block of pairs (4 bytes), counters of blocks, and where there is more
// than one pass other arrays for keys and values; each part begins at a multiple of 256 bytes, and
// so may the first. What fits a block takes nothing: one byte.
SymInt pair_sort_bytes(SymInt pairs, SymInt bits) {
  constexpr std::int64_t kOneBlock = 2304, kBlockPairs = 4608, kDigits = 256, kPassBits = 8,
                         kAlignment = 256;
  if (pairs <= kOneBlock) return 1;
  const auto part = [&](SymInt bytes) {
    return checked_multiply(ceil_divide(bytes, kAlignment), kAlignment);
  };
  const SymInt passes = ceil_divide(bits, kPassBits);
  const SymInt array = passes > 1 ? part(checked_multiply(8, pairs)) : SymInt(0);
  const SymInt blocks = ceil_divide(pairs, kBlockPairs);
  return kAlignment - 1 + part(8 * kDigits * passes) + part(4 * kDigits * blocks) + 2 * array +
         part(4 * passes);
}

std::int64_t bits_of(SymInt most) {
  return std::max<std::int64_t>(1, std::bit_width(static_cast<std::uint64_t>(most)));
}

void take_blocks(ProgramBuilder& builder, OpBuilder op, std::span<const SymBytes> blocks,
                 SymBytes before) {
  SymBytes all = before;
  BlockEvents events;
  if (before > Bytes(0)) events.take(before);
  for (const SymBytes block : blocks) {
    all += block;
    events.take(block);
  }
  op.scratch(all);
  if (all > Bytes(0) && builder.keeps_blocks()) builder.blocks(std::move(events));
}

}  // namespace plimsoll::planner::pytorch

// What single CUDA kernels of PyTorch allocate for themselves, by the sizes they run on.
#pragma once

#include <array>
#include <span>

#include "models/base/quantity.h"
#include "models/cluster_spec.h"
#include "planner/program/program_builder.h"

namespace plimsoll::planner::pytorch {

struct Processors {
  int major = 9, minor = 0;  // compute capability
  std::int64_t count = 132;  // streaming multiprocessors
  std::int64_t threads = 2048;  // that one of them holds at a time
  // Bytes of each for a grouped GEMM in bf16; 0: that is a loop of GEMMs.
  std::int64_t grouped = 512;
};
Processors processors_of(const models::Gpu& gpu);

// What a sum over the rows of `rows` × `columns` values takes, in this order, beside its result.
struct ColumnSumScratch {
  SymBytes partial;  // in what is summed in
  SymBytes counters;
  SymBytes total() const { return partial + counters; }
};
ColumnSumScratch column_sum_scratch(const ProgramBuilder& allocator, const Processors& gpu,
                                    SymInt rows, SymInt columns, DType of = DType::fp32);

// The same of all values of a tensor, contiguous and less than 2 GiB.
ColumnSumScratch whole_reduction_scratch(const ProgramBuilder& allocator, const Processors& gpu,
                                         SymInt values, DType of);

// Into how many parts flash-attention 2's forward divides the keys of a tile of 64 queries, where
// such tiles (of `rows` sequences and heads, of so many queries and keys) fill less than 0.8 of the
// processors. Without dropout.
SymInt flash_key_splits(const Processors& gpu, SymInt rows, SymInt queries, SymInt keys,
                        std::int64_t head_dim);

// The gradient of a table of `table_rows` × `width` from `ids` looked-up rows: blocks that stand
// together at the highest moment.
using EmbeddingScratch = std::array<SymBytes, 9>;
EmbeddingScratch embedding_scratch(const ProgramBuilder& allocator, SymInt ids, SymInt table_rows,
                                   SymInt width);
// cub's temporary storage for sorting pairs of int64 by the lowest `bits` of the first.
SymInt pair_sort_bytes(SymInt pairs, SymInt bits);
// Where values up to `most` are sorted, how many bits they have.
std::int64_t bits_of(SymInt most);

// As the op's scratch, in their order, with another one `before` them.
void take_blocks(ProgramBuilder& builder, OpBuilder op, std::span<const SymBytes> blocks,
                 SymBytes before = {});

}  // namespace plimsoll::planner::pytorch

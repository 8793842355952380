// What single CUDA kernels of PyTorch allocate for themselves, by the sizes they run on.
#pragma once

#include "models/base/quantity.h"
#include "planner/program_builder.h"

namespace plimsoll::planner::pytorch {

struct Processors {
  std::int64_t count = 132;  // streaming multiprocessors
  std::int64_t threads = 2048;  // that one of them holds at a time
};

// A sum over the rows of `rows` × `columns` values, into fp32 and then into the result.
Bytes column_sum_scratch(const ProgramBuilder& allocator, const Processors& gpu, std::int64_t rows,
                         std::int64_t columns);

// The gradient of a table of `table_rows` × `width` from `ids` looked-up rows.
Bytes embedding_scratch(const ProgramBuilder& allocator, std::int64_t ids, std::int64_t table_rows,
                        std::int64_t width);

}  // namespace plimsoll::planner::pytorch

// A GEMM of ours in cuBLASLt's words, and what identifies it: no library is needed for that.
#pragma once

#include <tuple>
#include <vector>

#include "kernels/cuda/gemms.h"

namespace plimsoll::kernels::cuda {

// A column-major matrix of `rows` by `columns` elements as stored, `stride` from column to column.
struct LibraryMatrix {
  const void* data = nullptr;
  DType dtype = DType::fp32;
  std::int64_t rows = 0, columns = 0, stride = 0;
  bool transposed = false;

  // What is stored is no part of what a plan depends on.
  auto key() const { return std::tuple(dtype, rows, columns, stride, transposed); }
};

// d = alpha · op(a) · op(b) + beta · d + bias, with one value of the bias for each row of d: the
// transpose of our row-major GEMM, because a row-major matrix is the column-major transpose.
struct LibraryCall {
  LibraryMatrix a, b, d;
  bool bias = false;
  bool accumulate = false;  // beta: 1, else 0
  bool tf32 = false;
  bool scaled = false;  // operands of 8 bits with a scale each
  bool fast_sums = false;
  std::int64_t alignment = 16;  // all operands begin at a multiple of this many bytes; at most 16
  std::int64_t workspace_bytes = 0;

  // One line that identifies the plan: without spaces at the ends, tabs or line breaks.
  std::string key() const;
  auto comparable() const {
    return std::tuple(a.key(), b.key(), d.key(), bias, accumulate, tf32, scaled, fast_sums,
                      alignment, workspace_bytes);
  }
  bool operator<(const LibraryCall& other) const { return comparable() < other.comparable(); }
};

LibraryCall library_call(const Gemm& gemm, const Columns& c, const TensorView& workspace,
                         bool tf32);

// One of the calls that together are a call. Its bias, where it has one, begins so many elements
// further on.
struct LibraryPart {
  LibraryCall call;
  std::int64_t bias_offset = 0;
};

// The call, or where an operand's rows are long but no multiple of 16 bytes, what is a multiple and
// the rest, in the order in which they are queued. cuBLASLt has no kernel of Hopper's for such
// rows, whatever their stride: GPT-2's 50257 logits came at 103 TFLOP/s forward and 134 backward on
// an H100 where 50256 come at some 700
// (reports/evidence/2026-11-26-h100-80gb-hbm3/speed-gpt2.json). Of a sum that is cut, the rest
// comes first: what is rounded between the two is small.
std::vector<LibraryPart> parts_of(const LibraryCall& call);

// Why the library cannot take the call's dtypes or lengths, or nothing. It multiplies two matrices
// of one storage type into one of that type or fp32, and two of 8 bits that have scales, of which
// at least one is e4m3, into any storage type; a bias has the result's type.
std::string refusal(const LibraryCall& call, const Gemm& gemm);

}  // namespace plimsoll::kernels::cuda

// The masks of flex_attention: which tiles of 128 queries and 128 keys are computed.
#include <array>
#include <vector>

#include "planner/stacks/pytorch/ends/embedding.h"
#include "planner/stacks/pytorch/ends/masks.h"

namespace plimsoll::planner::pytorch {

namespace {

constexpr std::int64_t kTile = 128;  // torch/nn/attention/flex_attention.py

// What torch.compile(create_block_mask) asks for: the square of booleans is never there. Counts of
// each tile; numbers of the tiles that are whole and of those that are not, by rows and, from a
// copy with a column more, by columns.
class BlockMask {
 public:
  BlockMask(KernelsOfOp& kernels, const ModuleWriter& of, Tokens tokens)
      : kernels_(kernels), of_(of), row_(ceil_divide(tokens.length, kTile)) {
    rows_ = checked_multiply(tokens.sequences, row_);
    tiles_ = checked_multiply(rows_, row_);
  }
  // Four vectors of how many, four squares of which ones.
  std::vector<SymBytes> parts() const {
    std::vector<SymBytes> parts(4, numbers(rows_));
    parts.insert(parts.end(), 4, numbers(tiles_));
    return parts;
  }
  void make() {
    if (row_ > 512)
      sort_by_library();
    else
      sort_in_registers();
    for (const std::int32_t block : kept_) kernels_.drop(block);
  }

 private:
  SymBytes numbers(SymInt values) const { return of_.bytes(values, DType::int32); }
  std::int32_t take(SymInt values, DType dtype = DType::int32) {
    return kernels_.take(of_.bytes(values, dtype));
  }
  void keep(SymInt values) { kept_.push_back(take(values)); }
  std::int32_t widened() { return take(tiles_ + rows_); }
  // Sums of a row in int64, 128 tiles each (torch 2.11, _inductor/choices.py,
  // reduction_split_factor: 4 values a thread, 32 threads).
  std::int32_t partial_sums() {
    return take(checked_multiply(rows_, ceil_divide(row_, 128)), DType::int64);
  }

  // Rows of up to 512 tiles: one kernel sorts each.
  void sort_in_registers() {
    const auto counts = take(tiles_, DType::int64);
    const auto whole = widened(), partial = widened();
    for (const SymInt values : {rows_, rows_, tiles_, tiles_}) keep(values);
    kernels_.drop(counts);
    if (row_ > 128) {
      keep(tiles_);
      keep(tiles_);
      const auto sums = partial_sums();
      kernels_.drop(partial);
      keep(rows_);
      kernels_.drop(whole);
      keep(rows_);
      kernels_.drop(sums);
      return;
    }
    for (const std::int32_t copy : {partial, whole}) {
      keep(tiles_);
      keep(rows_);
      kernels_.drop(copy);
    }
  }
  // Longer rows go to ATen's sort, which also returns where each stood, in int64.
  void sort_by_library() {
    const std::array<std::int32_t, 2> copies{widened(), widened()};
    keep(tiles_);
    keep(tiles_);
    for (const std::int32_t copy : copies) {
      const auto by_rows = sorted();
      keep(rows_);
      keep(tiles_);
      kernels_.drop(by_rows);
      kernels_.drop(copy);
      const auto sums = partial_sums();
      keep(rows_);
      kernels_.drop(sums);
      kernels_.drop(sorted());
    }
  }
  // The squares are alike: the oldest stands for what was sorted.
  std::int32_t sorted() {
    keep(tiles_);
    const auto places = take(tiles_, DType::int64);
    kernels_.drop(take(row_, DType::int64));
    kernels_.drop(kept_.front());
    kept_.erase(kept_.begin());
    return places;
  }

  KernelsOfOp& kernels_;
  const ModuleWriter& of_;
  SymInt row_, rows_, tiles_;
  std::vector<std::int32_t> kept_;
};

}  // namespace

// flex_attention_mask (transformers masking_utils.py), which makes one of the batch's own padding,
// where not all of it are ones, and of a row's samples, whose numbers the mask's function keeps.
TensorId EmbeddingWriter::block_mask() {
  const SymInt ids = tokens_.total();
  const bool one_row = tokens_.rows == models::Rows::flattened;
  auto op = b_.op(one_row ? "attention_mask.packing" : "attention_mask", Phase::forward);
  KernelsOfOp kernels(b_);
  std::vector<SymBytes> parts;
  std::vector<std::int32_t> kept;
  if (one_row) {
    kept.push_back(number_samples(kernels, layer_, tokens_));
    parts.push_back(layer_.bytes(ids, DType::int64));
  } else if (tokens_.rows == models::Rows::padded || d_.counts_positions()) {
    const SymBytes booleans = layer_.bytes(ids, DType::boolean);
    if (tokens_.rows == models::Rows::padded) parts.push_back(booleans);
    kept.push_back(kernels.take(booleans));
    const auto sum = kernels.take(layer_.bytes(1, DType::int64));
    kernels.drop(kernels.take(layer_.bytes(ids, DType::int64)));
    kernels.drop(sum);
  }
  BlockMask blocks(kernels, layer_, tokens_);
  blocks.make();
  for (const std::int32_t block : kept) kernels.drop(block);
  const std::vector<SymBytes> of_blocks = blocks.parts();
  parts.insert(parts.end(), of_blocks.begin(), of_blocks.end());
  SymBytes all;
  std::vector<Bytes> now;
  for (const SymBytes part : parts) {
    all += part;
    now.push_back(part.now());
  }
  const TensorId mask =
      b_.tensor_in(models::kNoGroup, "attention_mask", all, Category::activations);
  op.write(mask);
  if (b_.keeps_blocks()) b_.parts(mask, std::move(now));
  kernels.birth(mask, all);
  kernels.finish(op);
  return mask;
}

}  // namespace plimsoll::planner::pytorch

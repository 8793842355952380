// TRL's head and loss (trl 1.16, trainer/utils.py, add_fused_lm_head; kernels/chunked_logprob.py;
// SFTTrainer.compute_loss). Of the rows whose next token is a label, which are all but each
// sequence's last one, the log-probability of that label, the entropy, and whether the label is the
// likeliest, from tiles of logits, of which one lives at a time. The backward makes each tile
// again, writes its gradient over it, and adds into both gradients in fp32.
#include <algorithm>
#include <array>

#include "planner/stacks/pytorch/ends/head.h"

namespace plimsoll::planner::pytorch {

namespace {

const LinearNames& kHead = end_names().head;

constexpr std::int64_t kTileRows = 4096;  // TOKEN_CHUNK_SIZE
constexpr std::int64_t kTileWords = 32768;  // _CHUNKED_LOGPROB_CHUNK_SIZE
constexpr std::size_t kStatistics = 7;  // of each row, in fp32, while its tiles pass
constexpr std::int64_t kIndices = 16;  // bytes of a row's place, two 64-bit numbers (nonzero)
// aten/src/ATen/native/cuda/Indexing.cu, index_put_with_sort_kernel: five numbers of each row while
// its place is computed; keys and places, sorted and not, while cub sorts.
constexpr std::int64_t kPlaced = 40, kSorted = 32;

// What is cast for the GEMMs: rows of a tile, and slices of the weight. In elements of the hidden
// size, at most at one time beside the last tile's rows. A name holds what was cast for the tile
// before until its next value is there; forward lets go of each slice, backward of none sooner.
constexpr std::int64_t kRows = 1, kWeight = 2;
std::int64_t last_rows(std::int64_t n, std::int64_t, std::int64_t, std::int64_t) {
  return n - (ceil_divide(n, kTileRows) - 1) * kTileRows;
}
std::int64_t last_words(std::int64_t words) {
  return words - (ceil_divide(words, kTileWords) - 1) * kTileWords;
}
struct Casts {
  std::int64_t rows, next_rows, last_rows, slice, last_slice, two_slices;
};
Casts casts_of(std::int64_t n, std::int64_t words, std::int64_t casts) {
  const auto rows = [&](std::int64_t of) { return (casts & kRows) != 0 ? of : 0; };
  const auto weight = [&](std::int64_t of) { return (casts & kWeight) != 0 ? of : 0; };
  const std::int64_t next = std::clamp<std::int64_t>(n - kTileRows, 0, kTileRows);
  return {rows(std::min(n, kTileRows)), rows(next),
          rows(last_rows(n, 0, 0, 0)),  weight(std::min(words, kTileWords)),
          weight(last_words(words)),    weight(std::min(words, 2 * kTileWords))};
}
std::int64_t cast_in_forward(std::int64_t n, std::int64_t words, std::int64_t casts, std::int64_t) {
  const Casts c = casts_of(n, words, casts);
  return c.rows + std::max(c.slice, c.next_rows) - c.last_rows;
}
std::int64_t cast_in_backward(std::int64_t n, std::int64_t words, std::int64_t casts,
                              std::int64_t) {
  const Casts c = casts_of(n, words, casts);
  std::int64_t most = c.rows + c.two_slices;
  if (n > kTileRows)
    most =
        std::max({most, c.rows + c.next_rows + c.last_slice, c.next_rows + c.last_slice + c.slice});
  return most - c.last_rows;
}

}  // namespace

SymInt HeadWriter::tiled_rows() const {
  return checked_multiply(tokens_.sequences, tokens_.length - 1);
}

TensorId HeadWriter::of_rows(const char* name, DType dtype, Category category) {
  return b_.tensor(name, storage(tiled_rows(), dtype), category);
}

// The tile, and the rows of the last one as the GEMM reads them, which live as long.
HeadWriter::Tile HeadWriter::begin_tile(Phase phase) {
  const SymInt n = tiled_rows(), rows = smaller(n, SymInt(kTileRows));
  Tile tile;
  tile.logits =
      b_.tensor("loss.logits.tile", storage(checked_multiply(rows, kTileWords), regime_.compute),
                Category::logits);
  b_.op("loss.logits.tile", phase).write(tile.logits);
  b_.work().moves(0, 0);
  const std::int64_t casts =
      (head_input() != regime_.compute ? kRows : 0) | (regime_.casts_weights() ? kWeight : 0);
  const auto low = [&](SymInt elements) {
    return layer_.bytes(checked_multiply(elements, d_.hidden), regime_.compute);
  };
  if ((casts & kRows) != 0)
    tile.rows =
        b_.tensor("loss.rows.cast",
                  storage(checked_multiply(called(last_rows, n), d_.hidden), regime_.compute),
                  Category::temporaries);
  tile.casts =
      low(called(phase == Phase::forward ? cast_in_forward : cast_in_backward, n, d_.vocab, casts));
  if ((casts & kWeight) != 0) tile.last_slice = low(last_words(d_.vocab));
  return tile;
}

void HeadWriter::tile_gemm(double m, double n, double k) {
  b_.work().gemm({regime_.compute, m, n, k});
}

// hidden_states[:, :-1][mask], labels[:, 1:][mask].
void HeadWriter::score_rows() {
  const SymInt n = tiled_rows();
  const SymBytes indices{checked_multiply(n, kIndices)};
  s_.end.mask = of_rows("loss.mask", DType::boolean, Category::activations);
  b_.op("loss.mask", Phase::forward).write(s_.end.mask);
  s_.end.rows = b_.tensor("loss.rows", storage(checked_multiply(n, d_.hidden), head_input()),
                          Category::activations);
  b_.op("loss.rows", Phase::forward).read(s_.final_norm.out).write(s_.end.rows).scratch(indices);
  s_.end.targets = of_rows("loss.labels.scored", DType::int64, Category::activations);
  b_.op("loss.labels", Phase::forward).write(s_.end.targets).scratch(indices);
}

void HeadWriter::tiled_forward() {
  const double n = tiled_rows().real(), v = static_cast<double>(d_.vocab);
  s_.head = {};
  score_rows();
  const SymBytes fp32 = layer_.fp32(tiled_rows()), one = layer_.bytes(tiled_rows(), DType::boolean);
  std::array<TensorId, kStatistics> statistics;
  auto begin = b_.op("loss.statistics", Phase::forward);
  for (TensorId& each : statistics)
    begin.write(each = of_rows("loss.statistics", DType::fp32, Category::temporaries));
  const Tile tile = begin_tile(Phase::forward);
  b_.op("lm_head", Phase::forward)
      .read(s_.end.rows)
      .write(tile.rows)
      .update(tile.logits)
      .scratch(tile.casts);
  tile_gemm(n, v, static_cast<double>(d_.hidden));
  b_.work().moves(2 *
                  layer_.bytes(checked_multiply(tiled_rows(), d_.vocab), regime_.compute).real());
  const auto made = [&](const char* name, DType dtype, SymBytes scratch) {
    const TensorId tensor = of_rows(name, dtype, Category::activations);
    b_.op(name, Phase::forward).write(tensor).scratch(scratch);
    return tensor;
  };
  s_.end.log_z = made("loss.log_z", DType::fp32, fp32);
  const TensorId log_probs = made("loss.log_probs", DType::fp32, SymBytes());
  s_.end.entropy_of_rows = made("loss.entropy", DType::fp32, fp32);
  const TensorId top = of_rows("loss.is_top1", DType::boolean, Category::activations);
  auto last = b_.op("loss.is_top1", Phase::forward).write(top).scratch(one * 2);
  for (const TensorId each : statistics) last.release(each);
  last.release(tile.logits).release(tile.rows);
  scatter_scores(log_probs, top);
}

// new_zeros(mask.shape).masked_scatter(mask, x) of each, which counts the mask; and the loss of the
// model's own, of which nobody asks.
void HeadWriter::scatter_scores(TensorId log_probs, TensorId top) {
  const SymBytes count = layer_.bytes(tiled_rows(), DType::int64);
  const auto scattered = [&](TensorId from, DType dtype) {
    const TensorId to = of_rows("loss.scattered", dtype, Category::activations);
    b_.op("loss.scattered", Phase::forward)
        .read(from)
        .write(to)
        .scratch(layer_.bytes(tiled_rows(), dtype) + count);
    return to;
  };
  s_.end.scattered = {scattered(log_probs, DType::fp32),
                      scattered(s_.end.entropy_of_rows, DType::fp32)};
  s_.end.scattered[2] = scattered(top, DType::boolean);
  b_.op("loss.scattered", Phase::forward).release(log_probs).release(top);
  s_.end.own_loss = b_.tensor("loss.own", SymBytes(Bytes(12)), Category::activations);
  b_.op("loss.own", Phase::forward).write(s_.end.own_loss).scratch(count);
}

// SFTTrainer.compute_loss: the sum by how many rows there are, the metrics, and all of it goes.
void HeadWriter::tiled_sums() {
  const SymBytes count = layer_.bytes(tiled_rows(), DType::int64);
  const auto scalar = [&](const char* name, std::int64_t bytes) {
    return b_.tensor(name, SymBytes(Bytes(bytes)), Category::activations);
  };
  const TensorId by_token = of_rows("loss.by_token", DType::fp32, Category::activations);
  b_.op("loss.by_token", Phase::forward).read(s_.end.scattered[0]).write(by_token);
  s_.end.counted = scalar("loss.tokens", 8);
  s_.end.loss = scalar("loss", 4);
  b_.op("loss", Phase::forward)
      .read(by_token)
      .write(s_.end.counted)
      .write(s_.end.loss)
      .scratch(SymBytes(Bytes(4)));
  const TensorId tokens = scalar("metrics.tokens", 8), entropy = scalar("metrics.entropy", 4),
                 correct = scalar("metrics.correct", 8);
  b_.op("metrics.tokens", Phase::forward).write(tokens).scratch(count);
  b_.op("metrics.entropy", Phase::forward).write(entropy).scratch(SymBytes(Bytes(4)));
  b_.op("metrics.correct", Phase::forward).write(correct).scratch(count);
  auto end = b_.op("metrics", Phase::forward).scratch(SymBytes(Bytes(8)));
  for (const TensorId scattered : s_.end.scattered) end.release(scattered);
  end.release(by_token).release(s_.end.own_loss).release(tokens).release(entropy).release(correct);
}

// Both gradients are sums in fp32, and become the operands' dtypes while all that made them is
// there.
TensorId HeadWriter::tiled_gradients(TensorId d_log_probs) {
  const SymInt n = tiled_rows(), weights = checked_multiply(d_.vocab, d_.hidden);
  const bool trains = parts_.head.train_weight;
  const bool narrows = regime_.weight != DType::fp32;
  TensorId d_rows = b_.tensor("loss.rows.grad.fp32", layer_.fp32(checked_multiply(n, d_.hidden)),
                              Category::temporaries);
  TensorId d_weight = kNoTensor;
  if (trains)
    d_weight =
        narrows ? b_.tensor("lm_head.weight.grad.fp32", layer_.fp32(weights), Category::temporaries)
                : wrapper_.begin(kHead.base, weights, false);
  b_.op("loss.zeros", Phase::backward).write(d_rows).write(d_weight);
  b_.work().moves(0, 0);
  const Tile tile = begin_tile(Phase::backward);
  b_.op("lm_head", Phase::backward)
      .read(s_.end.rows)
      .read(s_.end.targets)
      .read(s_.end.log_z)
      .read(s_.end.entropy_of_rows)
      .read(d_log_probs)
      .write(tile.rows)
      .update(tile.logits)
      .update(d_rows)
      .update(d_weight)
      .scratch(tile.casts);
  const double rows = n.real(), v = static_cast<double>(d_.vocab),
               h = static_cast<double>(d_.hidden);
  tile_gemm(rows, v, h);
  tile_gemm(rows, h, v);
  if (trains) tile_gemm(v, h, rows);
  b_.work().moves(3 * layer_.bytes(checked_multiply(n, d_.vocab), regime_.compute).real());
  if (head_input() != DType::fp32 || (trains && narrows)) {
    auto cast = b_.op("loss.grads.cast", Phase::backward).read(d_rows).read(d_weight);
    cast.scratch(tile.last_slice);
    for (const TensorId held : {s_.end.rows, s_.end.targets, s_.end.log_z, s_.end.entropy_of_rows,
                                d_log_probs, tile.rows, tile.logits})
      cast.release(held);
    if (head_input() != DType::fp32)
      cast.write(d_rows = b_.tensor("loss.rows.grad",
                                    storage(checked_multiply(n, d_.hidden), head_input()),
                                    Category::temporaries));
    if (trains && narrows) cast.write(d_weight = wrapper_.begin(kHead.base, weights, false));
  }
  if (trains) wrapper_.end(kHead.base, d_weight);
  return d_rows;
}

// The rows' gradient among zeros (IndexBackward), and with each sequence's last row
// (SliceBackward).
TensorId HeadWriter::tiled_backward() {
  const SymInt n = tiled_rows();
  const auto step = [&](const char* name, TensorId from, SymBytes scratch) {
    const TensorId d = of_rows(name, DType::fp32, Category::temporaries);
    b_.op(name, Phase::backward).read(from).write(d).scratch(scratch);
    return d;
  };
  const TensorId d_sum = b_.tensor("loss.sum.grad", SymBytes(Bytes(4)), Category::temporaries);
  b_.op("loss", Phase::backward).read(s_.end.seed).read(s_.end.counted).write(d_sum);
  const TensorId d_by_token = step("loss.by_token.grad", d_sum, SymBytes());
  const TensorId d_log_probs =
      step("loss.log_probs.grad", d_by_token, SymBytes{checked_multiply(n, kIndices)});
  s_.unit = s_.head_unit;
  const TensorId d_rows = tiled_gradients(d_log_probs);
  const TensorId d_cut =
      b_.tensor("loss.rows.grad.put", storage(checked_multiply(n, d_.hidden), head_input()),
                Category::temporaries);
  b_.op("loss.rows", Phase::backward)
      .read(d_rows)
      .read(s_.end.mask)
      .write(d_cut)
      .scratch(SymBytes{larger(checked_multiply(n, kPlaced),
                               checked_multiply(n, kSorted) + pair_sort_bytes(n, bits_of(n)))});
  const TensorId d_norm = b_.tensor(
      kHead.base.input_grad, storage(checked_multiply(tokens_.total(), d_.hidden), head_input()),
      Category::temporaries);
  b_.op(kHead.base.input_grad, Phase::backward).read(d_cut).write(d_norm);
  return d_norm;
}

}  // namespace plimsoll::planner::pytorch

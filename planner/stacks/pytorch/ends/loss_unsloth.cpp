// --loss fused with Unsloth: unsloth_zoo 2025.11.6, fused_losses/cross_entropy_loss.py,
// unsloth_fused_ce_loss with its defaults, whose chunks Inductor compiled (torch 2.11).
#include <algorithm>
#include <cmath>

#include "planner/stacks/pytorch/ends/head.h"
#include "planner/stacks/pytorch/ends/loss_unsloth.h"

namespace plimsoll::planner::pytorch {

// get_chunk_size and torch.chunk: rows of a chunk of so many, of so many values each, where so much
// of the card is free when the process first asks: a multiple of four of them, or one. Python
// rounds halves to even.
std::int64_t unsloth_chunk_rows(std::int64_t rows, std::int64_t vocab, std::int64_t free,
                                std::int64_t) {
  if (free <= 0) return rows;
  const double target = 0.5 * static_cast<double>(free);
  const double of_a_row = 4 * static_cast<double>(vocab) / target / 4;
  const auto chunks = std::max<std::int64_t>(
      4 * static_cast<std::int64_t>(std::nearbyint(static_cast<double>(rows) * of_a_row)), 1);
  return ceil_divide(rows, chunks);
}

// What is free in the first step's loss: neither gradients nor the optimizer's states are there.
SymInt HeadWriter::unsloth_rows() const {
  const Bytes held = s_.states.parameters + workspaces_in_all(rules_.blas, strategy_);
  const Bytes free = rules_.card > held ? rules_.card - held : Bytes(0);
  return called(unsloth_chunk_rows, tokens_.total(), d_.vocab, free.value());
}

// The labels, shifted; how many of them count: a mask, and its sum, which casts it. Then chunk by
// chunk: the logits, their rows' maxima and sums, their gradient, and the input's.
void HeadWriter::unsloth_forward() {
  const SymInt t = tokens_.total(), h = d_.hidden;
  const auto tensor = [&](const char* name, SymInt values, DType dtype, Category category) {
    return b_.tensor(name, storage(values, dtype), category);
  };
  s_.head = {};
  s_.end.fused_weight_grad = kNoTensor;
  s_.end.targets = tensor("loss.labels.shifted", t, DType::int64, Category::activations);
  b_.op("loss.labels", Phase::forward)
      .write(s_.end.targets)
      .scratch(layer_.bytes(t, DType::boolean) + layer_.bytes(t, DType::int64) +
               layer_.bytes(1, DType::int64));
  s_.end.counted = tensor("loss.count", 1, DType::fp32, Category::activations);
  s_.end.loss = b_.tensor("loss", Bytes(4), Category::activations);
  s_.end.fused_input_grad = norm_gradient_into();
  const Ref d_hidden = s_.end.fused_input_grad;
  b_.op("loss.fused", Phase::forward)
      .write(s_.end.counted)
      .touch(d_hidden.tensor, d_hidden.delta, d_hidden.beyond, models::Access::write)
      .write(s_.end.loss);
  const SymInt rows = unsloth_rows(), logits_of = checked_multiply(rows, d_.vocab);
  const DType low = regime_.compute;
  const TensorId logits = tensor("loss.logits.chunk", logits_of, low, Category::logits);
  auto head = b_.op("loss.fused", Phase::forward).read(s_.final_norm.out).write(logits);
  b_.work().gemm({low, t.real(), static_cast<double>(d_.vocab), h.real()});
  layer_.take_workspace(head, false);
  const TensorId d_logits = tensor("loss.logits.grad.chunk", logits_of, low, Category::logits);
  b_.op("loss.fused", Phase::forward).read(logits).write(d_logits).scratch(layer_.fp32(rows) * 2);
  b_.work().moves(3 * layer_.bytes(checked_multiply(t, d_.vocab), low).real());
  const TensorId d_rows =
      tensor("loss.hidden.grad.chunk", checked_multiply(rows, h), low, Category::temporaries);
  b_.op("loss.fused", Phase::forward).read(d_logits).write(d_rows);
  b_.work().gemm({low, t.real(), h.real(), static_cast<double>(d_.vocab)});
  b_.op("loss.fused", Phase::forward)
      .read(d_logits)
      .read(d_rows)
      .read(s_.final_norm.out)
      .read(s_.end.targets)
      .read(s_.end.counted)
      .touch(d_hidden.tensor, d_hidden.delta, d_hidden.beyond, models::Access::update);
}

}  // namespace plimsoll::planner::pytorch

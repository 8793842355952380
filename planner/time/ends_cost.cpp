// The embedding, the head and the loss.
#include <algorithm>
#include <bit>
#include <cmath>

#include "models/decisions/loss.h"
#include "planner/time/compute_cost.h"
#include "planner/time/row_traffic.h"

namespace plimsoll::planner {

namespace {

// How the head is cut: rows of a chunk of tokens, and where its products run.
struct Chunks {
  double count = 1;
  bool at_once = false;  // forward and backward of a chunk in the forward
  bool twice = false;  // the logits are made again in backward
};

// torchtune's CEWithChunkedOutputLoss: one product, 8 parts of its gradient. Liger 0.8.5:
// ops/fused_linear_cross_entropy.py. plimsoll: models/decisions/loss.h.
Chunks chunks_of(const EndsCost& ends, const Execution& e) {
  if (e.loss == models::Loss::full) return {};
  if (e.own) {
    const auto vocab = static_cast<std::int64_t>(ends.vocab);
    const auto rows = static_cast<double>(models::decisions::loss_chunk_rows(vocab, e.compute));
    const bool at_once = e.loss == models::Loss::fused;
    return {std::max(1.0, e.tokens / rows), at_once, !at_once};
  }
  if (e.loss == models::Loss::chunked) return {8, false, false};
  const double wanted = std::ceil(e.tokens / std::ceil(ends.vocab / ends.hidden));
  const auto rows = static_cast<double>(std::bit_ceil(static_cast<std::uint64_t>(wanted)));
  return {std::max(1.0, e.tokens / rows), true, false};
}

}  // namespace

EndsCost ends_cost(const ModelParts& parts) {
  EndsCost ends;
  ends.head = {static_cast<double>(parts.head.in), static_cast<double>(parts.head.out),
               static_cast<double>(parts.head.lora_rank), parts.head.train_weight, true};
  ends.hidden = static_cast<double>(parts.decoder.hidden);
  ends.vocab = static_cast<double>(parts.decoder.vocab);
  ends.tied = parts.decoder.tied_head;
  const auto add = [&](const std::vector<Parameter>& from, double& all, double& trained) {
    for (const Parameter& p : from) {
      all += static_cast<double>(p.elements);
      if (!p.trainable) continue;
      trained += static_cast<double>(p.elements);
      ends.tensors += 1;
    }
  };
  add(parts.embedding, ends.embedding, ends.embedding_trainable);
  add(parts.tail, ends.tail, ends.tail_trainable);
  return ends;
}

EndsWork ends_work(const GpuRates& gpu, const EndsCost& ends, const Execution& e) {
  const Chunks chunks = chunks_of(ends, e);
  Execution one = e;
  one.tokens = e.tokens / chunks.count;
  one.casts = e.casts && chunks.count == 1;
  const ProductWork head = linear_work(gpu, one, ends.head, true);
  EndsWork work{chunks.count * head.forward, chunks.count * head.backward};
  const double weight = ends.head.in * ends.head.out;
  // Each chunk but the first reads and writes the weight's gradient once more.
  if (ends.head.train_weight)
    work.backward.memory += (chunks.count - 1) * 2 * e.low * weight / gpu.memory;
  if (e.casts && chunks.count > 1)
    work.forward.memory += (e.residual + e.low) * weight / gpu.memory;
  if (chunks.twice) work.backward += chunks.count * head.forward;
  const RowTraffic loss = loss_traffic(ends.vocab, e);
  work.forward.memory += loss.forward * e.tokens / gpu.memory;
  work.backward.memory += loss.backward * e.tokens / gpu.memory;
  if (chunks.at_once) {
    work.forward += work.backward;
    work.backward = {};
  }
  // A row of the table read and written; backward the gradient's rows added.
  const double row = 2 * e.residual * ends.hidden * e.tokens / gpu.memory;
  work.forward.memory += row;
  if (ends.embedding_trainable > 0) work.backward.memory += 1.5 * row;
  return work;
}

}  // namespace plimsoll::planner

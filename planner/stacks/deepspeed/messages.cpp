// What the engine sends (deepspeed 0.19.8, runtime/engine.py and zero/stage_1_and_2.py, stage3.py).
//
// Stage 0 all-reduces flat copies when the backward is over (engine.py,
// buffered_allreduce_fallback), each of parameters from the front of the model until they are more
// than kPlainBucket. Stages 1 and 2 all-reduce whole buckets (use_multi_rank_bucket_allreduce),
// each reduced when the next parameter finds no room in it: stage 1 from the front of the model
// when the last backward is over, or with overlap_comm as its gradients come; stage 2 as those of
// every micro-batch come. Without overlap_comm they wait for each bucket. Then each rank's part of
// what was stepped is gathered, as one message. Stage 3 reduce-scatters its buckets as gradients
// come, each parameter padded to a multiple of the ranks; it gathers as fetches.h says; and when
// the step has been taken, the small parameters, which stay gathered, anew, one by one (stage3.py,
// _post_step).
#include "planner/stacks/deepspeed/engine_wrapper.h"
#include "planner/stacks/deepspeed/fetches.h"

namespace plimsoll::planner::deepspeed {

using Kind = Message::Kind;
using Part = Message::Part;
using When = Message::When;
using Beside = Message::Beside;

void EngineWrapper::add_bucket(const Bucket& bucket, Messages& out) const {
  const bool scatters = engine_.stage == 3;
  Message m{.kind = scatters ? Kind::reduce_scatter : Kind::all_reduce,
            .array = storage(Count(scatters ? bucket.padded : bucket.content), engine_.model),
            .group = engine_.group,
            .part = bucket.part,
            .when = When::reduction};
  if (m.part == Part::layer) m.layer = Message::kAnyLayer;
  m.micros = engine_.stage >= 2 ? Message::Micros::each : Message::Micros::last;
  if (engine_.overlap && engine_.stage > 0 && m.part != Part::front)
    m.beside = m.part == Part::layer ? Beside::neighbour : Beside::backward;
  if (scatters) m.copied = 2 * m.array.real();
  add(out, m);
}

// As modules registered them, where a tied table is the embedding's; nothing runs beside them.
void EngineWrapper::add_from_front(Messages& out) const {
  const std::int64_t size = engine_.options.reduce_bucket_size;
  Bucket bucket;
  const auto reduce = [&] {
    add_bucket(bucket, out);
    bucket = {};
  };
  const auto add_all = [&](const std::vector<Parameter>& parameters, auto takes) {
    for (const Parameter& p : parameters) {
      if (!p.trainable || !takes(p)) continue;
      if (engine_.stage > 0 && bucket.content > 0 && bucket.content + p.elements > size) reduce();
      bucket.content += p.elements;
      if (engine_.stage == 0 && bucket.content > kPlainBucket) reduce();
    }
  };
  const auto tied = [&](const Parameter& p) {
    return d_.tied_head && p.elements == checked_multiply(d_.vocab, d_.table_width());
  };
  const auto every = [](const Parameter&) { return true; };
  add_all(parts_.tail, tied);
  add_all(parts_.embedding, every);
  for (const LayerRun& run : parts_.runs)
    for (std::int64_t i = 0; i < run.count; ++i) add_all(run.layer(i).parameters, every);
  add_all(parts_.tail, [&](const Parameter& p) { return !tied(p); });
  reduce();
}

void EngineWrapper::add_persistent(Messages& out) const {
  for (const FlatLayout::Block& block : layout_.blocks())
    for (std::size_t i = 0; i < block.all.size(); ++i) {
      const Parameter& p = block.all[i];
      if (!block.persistent[i]) continue;
      const Count padded(ceil_divide(p.elements, engine_.ranks) * engine_.ranks);
      add(out, {.array = storage(padded, layout_.stored(p)),
                .count = block.count,
                .group = engine_.group,
                .when = When::step});
    }
}

// Gradients that go to the bucket as they come are those that the backward's hooks are planned
// from (hooks.cpp).
void EngineWrapper::write_messages(Messages& out) {
  if (engine_.ranks == 1) return;
  if (engine_.stage == 3) add_fetches(parts_, layout_, engine_, strategy_, out);
  if (moves_any()) {
    plan_hooks();
    for (const Bucket& bucket : buckets_) add_bucket(bucket, out);
  } else {
    add_from_front(out);
  }
  if (engine_.stage == 3) return add_persistent(out);
  if (engine_.stage > 0)
    add(out, {.array = storage(Count(layout_.aligned()), engine_.model),
              .group = engine_.group,
              .when = When::step});
}

}  // namespace plimsoll::planner::deepspeed

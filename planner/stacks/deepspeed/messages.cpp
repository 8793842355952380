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
#include <algorithm>

#include "planner/stacks/deepspeed/fetches.h"
#include "planner/stacks/deepspeed/stack.h"

namespace plimsoll::planner::deepspeed {

namespace {

using Kind = Message::Kind;
using Part = Message::Part;
using When = Message::When;
using Beside = Message::Beside;

class Buckets {
 public:
  Buckets(const ModelParts& parts, const Engine& engine, Messages& out)
      : parts_(parts), engine_(engine), out_(out) {}

  // As gradients come: from the back of the model. A table that is tied to the head comes last.
  void from_back() {
    at_.part = Part::tail;
    for (const Parameter& p : in_backward_order(parts_.tail))
      if (!tied(p)) add_parameter(p);
    at_.part = Part::layer;
    at_.layer = Message::kAnyLayer;
    for (auto run = parts_.runs.rbegin(); run != parts_.runs.rend(); ++run) {
      std::vector<std::vector<Parameter>> layers;
      for (const LayerPart& layer : run->pattern)
        layers.push_back(in_backward_order(layer.parameters));
      for (auto i = static_cast<std::size_t>(run->count); i-- > 0;)
        for (const Parameter& p : layers[i % layers.size()]) add_parameter(p);
    }
    at_ = {};
    for (const Parameter& p : in_backward_order(parts_.embedding)) add_parameter(p);
    for (const Parameter& p : parts_.tail)
      if (tied(p)) add_parameter(p);
    reduce();
  }

  // As modules registered them, where a tied table is the embedding's; nothing runs beside them.
  void from_front() {
    for (const Parameter& p : parts_.tail)
      if (tied(p)) add_parameter(p);
    for (const Parameter& p : parts_.embedding) add_parameter(p);
    for (const LayerRun& run : parts_.runs)
      for (std::int64_t i = 0; i < run.count; ++i)
        for (const Parameter& p : run.layer(i).parameters) add_parameter(p);
    for (const Parameter& p : parts_.tail)
      if (!tied(p)) add_parameter(p);
    reduce();
  }

 private:
  bool tied(const Parameter& p) const {
    const models::Decoder& d = parts_.decoder;
    return d.tied_head && p.elements == checked_multiply(d.vocab, d.table_width());
  }

  void add_parameter(const Parameter& p) {
    if (!p.trainable) return;
    const std::int64_t size = engine_.options.reduce_bucket_size;
    if (engine_.stage > 0 && content_ > 0 && content_ + p.elements > size) reduce();
    content_ += p.elements;
    padded_ += ceil_divide(p.elements, engine_.ranks) * engine_.ranks;
    if (engine_.stage == 0 && content_ > kPlainBucket) reduce();
  }

  void reduce() {
    Message m = at_;
    const bool scatters = engine_.stage == 3;
    m.kind = scatters ? Kind::reduce_scatter : Kind::all_reduce;
    m.array = storage(Count(scatters ? padded_ : content_), engine_.model);
    m.group = {.ranks = engine_.ranks};
    m.when = When::reduction;
    m.micros = engine_.stage >= 2 ? Message::Micros::each : Message::Micros::last;
    if (engine_.overlap && engine_.stage > 0 && m.part != Part::front)
      m.beside = m.part == Part::layer ? Beside::neighbour : Beside::backward;
    if (scatters) m.copied = 2 * m.array.real();
    add(out_, m);
    content_ = padded_ = 0;
  }

  const ModelParts& parts_;
  const Engine& engine_;
  Messages& out_;
  Message at_;
  std::int64_t content_ = 0, padded_ = 0;  // elements of the bucket
};

void add_persistent(const FlatLayout& layout, const Engine& engine, const models::Strategy& s,
                    Messages& out) {
  for (const FlatLayout::Block& block : layout.blocks())
    for (std::size_t i = 0; i < block.all.size(); ++i) {
      const Parameter& p = block.all[i];
      if (!block.persistent[i]) continue;
      const Count padded(ceil_divide(p.elements, engine.ranks) * engine.ranks);
      add(out, {.array = storage(padded, p.adapter && s.lora ? s.lora->dtype : engine.model),
                .count = block.count,
                .group = {.ranks = engine.ranks},
                .when = When::step});
    }
}

}  // namespace

void write_messages(const ModelParts& parts, const models::Strategy& strategy, Messages& out) {
  models::Strategy whole = strategy;
  whole.data.shard_group = 0;
  const Engine engine = engine_of(whole);
  if (engine.ranks == 1) return;
  const FlatLayout layout(parts, engine);
  if (engine.stage == 3) add_fetches(parts, layout, engine, whole, out);
  Buckets buckets(parts, engine, out);
  if (engine.stage >= 2 || (engine.stage == 1 && engine.overlap))
    buckets.from_back();
  else
    buckets.from_front();
  if (engine.stage == 3) return add_persistent(layout, engine, whole, out);
  if (engine.stage > 0)
    add(out, {.array = storage(Count(layout.aligned()), engine.model),
              .group = {.ranks = engine.ranks},
              .when = When::step});
}

}  // namespace plimsoll::planner::deepspeed

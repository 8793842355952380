// What DDP, ZeroRedundancyOptimizer and FSDP2 send (fsdp1_adapters.cpp: FSDP1).
//
// DDP: one all-reduce a bucket, at the last micro-batch, while the backward goes on (reducer.cpp).
// ZeroRedundancyOptimizer: DDP, and owners broadcast each parameter that they stepped
// (zero_redundancy_optimizer.py, _sync_params).
// FSDP2: an all-gather per unit and pass of every micro-batch (the tail's once: it is not
// resharded), each issued while the unit before it computes, and copied out of; a reduce-scatter
// per unit at the last one, copied into, beside the backward of the next; hybrid sharding
// all-reduces the shards across groups.
#include "planner/stacks/pytorch/stack.h"
#include "planner/stacks/pytorch/step.h"

namespace plimsoll::planner::pytorch {

using Kind = Message::Kind;
using Part = Message::Part;
using When = Message::When;
using Micros = Message::Micros;
using Beside = Message::Beside;

namespace {

// Of a run's first layer, among those of every run's pattern.
std::size_t place_of(const ModelParts& parts, const Run& run) {
  std::size_t place = 0;
  for (const LayerRun* before = parts.runs.data(); before != run.layers; ++before)
    place += before->pattern.size();
  return place;
}

}  // namespace

// Gradients are reduced within a group, and what comes of that (all of them without shards) across
// its copies.
Message StepWriter::message(const Unit& unit, Kind kind, When when, Bytes array) const {
  Message m{.kind = kind, .array = array, .count = unit.copies, .group = {.ranks = shards_}};
  if (kind == Kind::all_reduce) m.group = {.ranks = strategy_.gpus / shards_, .stride = shards_};
  m.part = unit.part;
  m.layer = unit.layer;
  m.when = when;
  m.micros = when == When::reduction ? Micros::last : Micros::each;
  // The front's comes first in the forward and last in the backward.
  const bool back = when != When::forward;
  if (unit.part == Part::layer || (unit.part == Part::tail && !back))
    m.beside = Beside::neighbour;
  else if (unit.part == Part::tail || when == When::backward)
    m.beside = Beside::backward;
  return m;
}

void StepWriter::add_messages(const Unit& unit, Messages& out) const {
  Bytes read, full;  // of gradients; of parameters
  for (const Parameter& p : *unit.parameters) {
    const std::int64_t rows = checked_multiply(ceil_divide(p.rows, shards_), shards_);
    const Bytes whole = storage(Count(checked_multiply(rows, p.elements / p.rows)), seen(p));
    full += whole;
    if (p.trainable) read += whole;
  }
  Message gather = message(unit, Kind::all_gather, When::forward, unit.gathered);
  gather.copied = 2 * full.real();
  add(out, gather);
  Message again = message(unit, Kind::all_gather, When::backward, unit.gathered);
  again.copied = gather.copied;
  again.count = unit.regathered;
  add(out, again);
  Message reduce = message(unit, Kind::reduce_scatter, When::reduction, unit.reduce_input);
  reduce.copied = (read + unit.reduce_input).real();
  add(out, reduce);
  add(out, message(unit, Kind::all_reduce, When::reduction, unit.reduce_output));
}

void StepWriter::add_bucket_messages(Messages& out) const {
  Unit unit;
  unit.layer = Message::kAnyLayer;
  for (const Bucket& bucket : ddp_buckets()) {
    unit.part = bucket.part;
    add(out, message(unit, Kind::all_reduce, When::reduction, bucket.bytes));
  }
  if (parallelism_ != DataParallelism::zero_redundancy) return;
  const auto broadcast = [&](const std::vector<Parameter>& parameters, std::int64_t copies) {
    for (const Parameter& p : parameters)
      if (p.trainable)
        add(out, {.kind = Kind::broadcast,
                  .array = storage(Count(p.elements), stored(p)),
                  .count = copies,
                  .group = {.ranks = strategy_.gpus},
                  .when = When::step});
  };
  broadcast(parts_.embedding, 1);
  for (const LayerRun& run : parts_.runs)
    for (const LayerPart& layer : run.pattern) broadcast(layer.parameters, run.repeats());
  broadcast(parts_.tail, 1);
}

// What the backward gathers is what its pass comes by, and the unit that stands before that one,
// which it has fetched ahead.
void StepWriter::write_messages(Messages& out) {
  plan_end_units();
  add_runs();
  if (!fsdp()) return add_bucket_messages(out);
  tail_.part = Part::tail;
  bool fetched = true;
  for (std::size_t r = runs_.size(); r-- > 0;) {
    Run& run = runs_[r];
    const bool goes_back = run.layers->input_grad || run.layers->trains();
    const auto period = static_cast<std::int64_t>(run.plans.size());
    for (std::size_t j = 0; j < run.plans.size(); ++j) {
      Unit& unit = run.units[j];
      unit.part = Part::layer;
      unit.layer = place_of(parts_, run) + j;
      unit.copies = run.count * (std::ssize(run.units) / period);
      unit.regathered = !unit.reshards ? 0 : goes_back ? unit.copies : 0;
      if (unit.reshards && !goes_back && fetched && j + 1 == run.plans.size()) unit.regathered = 1;
    }
    fetched = goes_back;
  }
  if (embedding_.reshards && fetched) embedding_.regathered = 1;
  for (const Unit* unit : {&root_, &embedding_})
    if (!unit->empty()) add_messages(*unit, out);
  for (const Run& run : runs_)
    for (std::size_t j = 0; j < run.plans.size(); ++j) add_messages(run.units[j], out);
  if (!tail_.empty()) add_messages(tail_, out);
}

void write_messages(const ModelParts& parts, const models::Strategy& strategy, Messages& out) {
  models::StepProgram program;
  Rules rules;
  rules.granularity = 1;  // what is sent is not rounded to blocks
  set_loop(rules, strategy);
  models::Strategy s = strategy;
  // Checkpoints of several layers gather as those of one.
  if (repeats_layers(s.recompute)) s.recompute = {models::RecomputeKind::full, 1};
  step_writer(program, parts, s, {}, rules)->write_messages(out);
}

}  // namespace plimsoll::planner::pytorch

// Moving parameters and gradients between ranks (models/decisions/sharding.h).
#include <algorithm>

#include "planner/stacks/plimsoll/step.h"

namespace plimsoll::planner::plimsoll_stack {

using models::Access;
namespace decisions = models::decisions;

// Parameters --------------------------------------------------------------------------------------

// The use of `at` begins: the unit of the next use is gathered.
void StepWriter::gather(const Unit& at, Phase phase, Ref target) {
  if (!gathers()) return;
  op(at.names->gather, phase).touch(target.tensor, target.delta, target.beyond, Access::write);
}

void StepWriter::free_gathered(const Unit& unit, Phase phase, TensorId gathered) {
  if (gathers()) op(unit.names->free, phase).release(gathered);
}

Ref StepWriter::next_forward(std::size_t r, std::size_t layer) const {
  const Run& run = runs_[r];
  if (layer + 1 < run.stride()) return {run.units[layer + 1].gathered_forward};
  return {run.units[0].gathered_forward, +1,
          r + 1 < runs_.size() ? runs_[r + 1].units[0].gathered_forward : tail_.gathered_forward};
}

// The unit that the backward of a run's instance uses first.
TensorId StepWriter::first_backward(std::size_t r) const {
  const Run& run = runs_[r];
  if (!run.any()) return kNoTensor;
  const std::size_t end = run.stride() - 1;
  return run.recomputed ? run.units[run.first_made_again(end)].gathered_again
                        : run.units[end].gathered_backward;
}

Ref StepWriter::next_backward(std::size_t r, std::size_t layer) const {
  if (layer > 0) return {runs_[r].units[layer - 1].gathered_backward};
  return {first_backward(r), -1, r > 0 ? first_backward(r - 1) : kNoTensor};
}

// Gradients ---------------------------------------------------------------------------------------

bool StepWriter::reduces_now() const {
  return sharding_.reduces() && (reduces_each_ || micro_ + 1 == micros_);
}

bool StepWriter::holds() const {
  const bool whole_ends = reduces_each_ && (sharding_.stage >= 2 || micro_ > 0);
  return reduces_now() && (regime_.reduce || whole_ends);
}

TensorId Unit::*StepWriter::exchanged() const {
  return regime_.reduce ? &Unit::compressed : &Unit::written;
}

// A tensor of the unit whose reduction began before that of layer `layer` of run `run`.
Ref StepWriter::reduced_before(TensorId Unit::*tensor, std::size_t r, std::size_t layer) const {
  const Run& run = runs_[r];
  for (std::size_t above = layer + 1; above < run.stride(); ++above)
    if (run.units[above].trains()) return {run.units[above].*tensor};
  TensorId beyond = d_.tied_head ? kNoTensor : tail_.*tensor;
  for (std::size_t above = runs_.size(); above-- > r + 1;)
    if (const Unit* first = runs_[above].first_trained()) beyond = first->*tensor;
  const Unit* first = run.first_trained();
  return {first != nullptr ? first->*tensor : kNoTensor, +1, beyond};
}

// The same, when the layers are done.
Ref StepWriter::reduced_last(TensorId Unit::*tensor) const {
  for (const Run& run : runs_)
    if (const Unit* first = run.first_trained()) return {first->*tensor, +1};
  return {d_.tied_head ? kNoTensor : tail_.*tensor};
}

void StepWriter::reduce(const Unit& unit, Ref held_before, Ref kept_before) {
  if (!unit.trains()) return;
  if (strategy_.optimizer_in_backward) return reduce_and_step(unit);
  if (!reduces_now()) return;
  if (holds()) take_reduced(unit.names->reduced, held_before, kept_before);
  start_reduce(unit);
}

void StepWriter::start_reduce(const Unit& unit) {
  auto reduce = op(unit.names->reduce, Phase::backward);
  if (!holds())
    reduce.update(unit.kept);  // in place
  else
    reduce.read(unit.written);
  if (regime_.reduce) reduce.write(unit.compressed);
}

void StepWriter::reduce_and_step(const Unit& unit) {
  if (reduces_now()) start_reduce(unit);
  if (holds()) take_reduced(unit.names->reduced, {unit.*exchanged()}, {unit.kept});
  step(unit);
}

// This rank's piece of a reduction goes into the gradients that are kept; what was held dies.
void StepWriter::take_reduced(const char* name, Ref held, Ref kept) {
  op(name, Phase::backward)
      .touch(held.tensor, held.delta, held.beyond)
      .touch(kept.tensor, kept.delta, kept.beyond, Access::update);
}

// Messages ----------------------------------------------------------------------------------------

namespace {

// `pieces` equal pieces of `elements` each, in messages of at most the bucket's size.
void add_buckets(Messages& out, Message message, std::int64_t elements, std::int64_t pieces,
                 DType dtype, Bytes cap) {
  const std::int64_t most = decisions::message_elements(cap, dtype, pieces);
  const auto send = [&](std::int64_t of_piece, std::int64_t times) {
    Message one = message;
    one.array = storage(Count(of_piece * pieces), dtype);
    one.count = message.count * times;
    add(out, one);
  };
  send(std::min(most, elements), elements / most);
  send(elements % most, 1);
}

}  // namespace

// Each flat part of a unit is sent on its own.
void StepWriter::add_gathers(const Unit& unit, Message at, Messages& out) const {
  at.group = decisions::mesh_of(strategy_)[decisions::Axis::shard];
  const Bytes trained = storage(Count(unit.trained), regime_.base.weight);
  const Bytes adapters = storage(Count(unit.adapters), regime_.adapters.weight);
  const bool steps = at.when == Message::When::step;
  const Bytes frozen = unit.whole - unit.packed - trained - adapters;
  for (const Bytes part :
       {steps ? Bytes(0) : frozen, steps ? Bytes(0) : unit.packed, trained, adapters}) {
    at.array = part;
    add(out, at);
  }
}

// Taken when the backward of the next unit is done.
void StepWriter::add_reductions(const Unit& unit, Message at, Messages& out) const {
  at.when = Message::When::reduction;
  at.micros = reduces_each_ ? Message::Micros::each : Message::Micros::last;
  at.beside = strategy_.optimizer_in_backward                   ? Message::Beside::nothing
              : at.part == Message::Part::layer                 ? Message::Beside::neighbour
              : at.part == Message::Part::front || d_.tied_head ? Message::Beside::nothing
                                                                : Message::Beside::backward;
  const decisions::Mesh mesh = decisions::mesh_of(strategy_);
  const std::int64_t shards = sharding_.shards;
  const auto part = [&](std::int64_t elements, DType gradient) {
    const DType dtype = regime_.reduce.value_or(gradient);
    at.kind = Message::Kind::reduce_scatter;
    at.group = mesh[decisions::Axis::shard];
    add_buckets(out, at, elements / shards, shards, dtype, strategy_.data.bucket_cap);
    at.kind = Message::Kind::all_reduce;
    at.group = mesh[decisions::Axis::replicate];
    add_buckets(out, at, elements / shards, 1, dtype, strategy_.data.bucket_cap);
    if (!regime_.reduce) return;
    // Kernels read the gradients and write the cast, and read the sum and write it back.
    Message casts = at;
    casts.group = {};
    casts.array = Bytes(0);
    casts.copied =
        (storage(Count(elements), gradient) + storage(Count(elements), dtype) +
         storage(Count(elements / shards), gradient) + storage(Count(elements / shards), dtype))
            .real();
    add(out, casts);
  };
  part(unit.trained, regime_.base.gradient);
  part(unit.adapters, regime_.adapters.gradient);
}

// What is gathered for a use is asked for when the use of the unit before begins. `again`: for the
// backward, and for what it makes again.
void StepWriter::add_messages(const Unit& unit, Message at, std::int64_t again,
                              Messages& out) const {
  if (gathers()) {
    add_gathers(unit, at, out);
    Message more = at;
    more.when = Message::When::backward;
    more.count = again;
    add_gathers(unit, more, out);
  }
  add_reductions(unit, at, out);
  at.when = Message::When::step;
  at.beside = Message::Beside::nothing;
  if (sharding_.stage == 1 || sharding_.stage == 2) add_gathers(unit, at, out);
}

// Stage 3: a tied table belongs to the tail, and is gathered for the embedding, and anew for the
// head. Made again: all but a checkpoint's last layer are gathered a third time, and recursively
// for each visit.
void StepWriter::write_messages(Messages& out) {
  using Part = Message::Part;
  size_units();
  if (!sharding_.reduces()) return;
  const auto place = [](Part part, std::size_t layer, std::int64_t copies) {
    return Message{
        .count = copies,
        .part = part,
        .layer = layer,
        .beside = part == Part::front ? Message::Beside::nothing : Message::Beside::neighbour};
  };
  add_messages(embedding_, place(Part::front, 0, 1), 0, out);
  if (gathers() && d_.tied_head) add_gathers(tail_, place(Part::front, 0, 1), out);
  const std::vector<Visit> visits = recurses() ? visits_of_backward() : std::vector<Visit>{};
  for (const Run& run : runs_) {
    std::size_t first = 0;  // place among the layers of every run's pattern
    for (const LayerRun* before = parts_.runs.data(); before != run.layers; ++before)
      first += before->pattern.size();
    const std::size_t layers = run.pattern->size();
    const auto of_each = static_cast<std::int64_t>(run.stride() / layers);
    const auto visited =
        std::ranges::count(visits, static_cast<std::size_t>(&run - runs_.data()), &Visit::run);
    const std::int64_t again = visited > 0 ? visited : run.recomputed ? 2 * of_each - 1 : of_each;
    for (std::size_t j = 0; j < layers; ++j)
      add_messages(run.units[j], place(Part::layer, first + j, run.count * of_each),
                   run.any() ? run.count * again : 0, out);
  }
  add_messages(tail_, place(Part::tail, 0, 1), 0, out);
}

}  // namespace plimsoll::planner::plimsoll_stack

// Moving parameters and gradients between ranks (models/decisions/sharding.h).
#include "planner/stacks/plimsoll/step.h"

namespace plimsoll::planner::own {

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
  if (!run.own->any()) return kNoTensor;
  return recomputes() ? run.units.front().gathered_again : run.units.back().gathered_backward;
}

Ref StepWriter::next_backward(std::size_t r, std::size_t layer) const {
  if (layer > 0) return {runs_[r].units[layer - 1].gathered_backward};
  return {first_backward(r), -1, r > 0 ? first_backward(r - 1) : kNoTensor};
}

// Gradients ---------------------------------------------------------------------------------------

// A tensor of the unit whose reduction began before that of layer `layer` of run `run`.
Ref StepWriter::reduced_before(TensorId Unit::*tensor, std::size_t r, std::size_t layer) const {
  const Run& run = runs_[r];
  if (layer + 1 < run.stride()) return {run.units[layer + 1].*tensor};
  TensorId beyond = d_.tied_head ? kNoTensor : tail_.*tensor;
  for (std::size_t above = runs_.size(); above-- > r + 1;)
    if (runs_[above].trains()) beyond = runs_[above].units[0].*tensor;
  return {run.units[0].*tensor, +1, beyond};
}

// The same, when the layers are done.
Ref StepWriter::reduced_last(TensorId Unit::*tensor) const {
  for (const Run& run : runs_)
    if (run.trains()) return {run.units[0].*tensor, +1};
  return {d_.tied_head ? kNoTensor : tail_.*tensor};
}

void StepWriter::reduce(const Unit& unit, Ref written_before, Ref kept_before) {
  if (!unit.trains() || !sharding_.reduces()) return;
  if (unit.written == unit.kept) {  // in place
    if (reduces_each_ || micro_ + 1 == micros_)
      op(unit.names->reduce, Phase::backward).update(unit.kept);
    return;
  }
  take_reduced(unit.names->reduced, written_before, kept_before);
  op(unit.names->reduce, Phase::backward).read(unit.written);
}

// This rank's piece of a reduction goes into the gradients that are kept; the whole ones die.
void StepWriter::take_reduced(const char* name, Ref written, Ref kept) {
  op(name, Phase::backward)
      .touch(written.tensor, written.delta, written.beyond)
      .touch(kept.tensor, kept.delta, kept.beyond, Access::update);
}

// Collectives -------------------------------------------------------------------------------------

void StepWriter::add_collectives(std::vector<reports::Collective>& out) const {
  const std::int64_t shards = sharding_.shards, replicas = sharding_.replicas;
  const std::int64_t reductions = reduces_each_ ? batch_.grad_accum : 1;
  const auto add = [&](const char* kind, std::int64_t count, Bytes array, std::int64_t group) {
    if (count > 0 && array > Bytes(0) && group > 1) out.push_back({kind, count, array, group});
  };
  // `gathers`: how often a micro-batch gathers the unit in stage 3.
  const auto unit = [&](const Unit& u, std::int64_t copies, std::int64_t uses) {
    if (sharding_.stage == 3)
      add("all_gather", checked_multiply(copies, uses * batch_.grad_accum), u.whole, shards);
    if (!u.trains()) return;
    const Bytes whole = u.whole_gradients, piece(whole.value() / shards);
    const auto reduce = [&](const char* kind, Bytes array, std::int64_t group) {
      const std::int64_t cap = std::max<std::int64_t>(1, strategy_.data.bucket_cap.value());
      const std::int64_t buckets = ceil_divide(array.value(), cap);
      add(kind, checked_multiply(copies * reductions, buckets),
          Bytes(ceil_divide(array.value(), buckets)), group);
    };
    if (sharding_.stage > 0) reduce("reduce_scatter", whole, shards);
    reduce("all_reduce", sharding_.stage > 0 ? piece : whole, replicas);
    // What the optimizer has stepped; frozen parameters are where they were.
    const Bytes stepped = storage(Count(u.trained), regime_.base.weight) +
                          storage(Count(u.adapters), regime_.adapters.weight);
    if (sharding_.stage == 1 || sharding_.stage == 2) add("all_gather", copies, stepped, shards);
  };
  unit(embedding_, 1, 1);
  for (const Run& run : runs_) {
    const auto stride = static_cast<std::int64_t>(run.stride());
    const std::int64_t backward = run.own->any() ? 1 : 0;
    // Made again: all but a checkpoint's last layer are gathered a third time.
    unit(run.units.front(), run.count, 1 + backward);
    unit(run.units.front(), run.count * (stride - 1), 1 + backward + (recomputes() ? 1 : 0));
  }
  unit(tail_, 1, d_.tied_head ? 2 : 1);
}

}  // namespace plimsoll::planner::own

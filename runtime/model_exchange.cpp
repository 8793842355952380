// Parameters and gradients of units as they move between ranks, and the optimizer behind them.
#include "models/decisions/unit_names.h"
#include "runtime/model.h"

namespace plimsoll::runtime {

namespace decisions = models::decisions;
using shard::Unit;

void Model::begin_use(Unit& unit, Phase phase) {
  worker_.prefix = unit.prefix();
  worker_.phase = phase;
  if (!unit.gathers()) return;
  check(use_ < uses_.size() && uses_[use_] == &unit, ErrorKind::internal,
        "units are used in the order in which they are gathered");
  Op op(worker_, unit.names().gather, phase);
  if (++use_ < uses_.size()) uses_[use_]->start_gather(op);
}

void Model::end_use(Unit& unit, Phase phase) {
  if (!unit.gathers()) return;
  worker_.prefix = unit.prefix();
  Op op(worker_, unit.names().free, phase);
  unit.free_gathered(op);
}

// What the first use of the step reads.
void Model::first_gather() {
  use_ = 0;
  worker_.prefix.clear();
  worker_.phase = Phase::forward;
  if (!embedding_unit_->gathers()) return;
  Op op(worker_, decisions::kFirstGather, Phase::forward);
  if (layout_.tied) tail_unit_->start_gather(op);
  embedding_unit_->start_gather(op);
}

// The unit's backward is done.
void Model::reduce(Unit& unit) {
  if (!unit.trains()) return;
  if (step_ != nullptr) return reduce_and_step(unit);
  if (!unit.reduces()) return;
  worker_.prefix = unit.prefix();
  if (unit.holds()) {
    Op op(worker_, unit.names().reduced, Phase::backward);
    if (reducing_ != nullptr) reducing_->take_reduced(op);
    reducing_ = &unit;
  }
  Op op(worker_, unit.names().reduce, Phase::backward);
  unit.start_reduce(op);
  if (unit.holds()) return;
  in_place_.push_back(&unit);
  if (&unit != last_reduced_) return;
  for (Unit* pending : in_place_) pending->take_reduced(op);
  in_place_.clear();
}

void Model::reduce_and_step(Unit& unit) {
  worker_.prefix = unit.prefix();
  if (unit.reduces()) {
    Op op(worker_, unit.names().reduce, Phase::backward);
    unit.start_reduce(op);
    if (!unit.holds()) unit.take_reduced(op);
  }
  if (unit.holds()) {
    Op op(worker_, unit.names().reduced, Phase::backward);
    unit.take_reduced(op);
  }
  step(unit, *step_);
}

void Model::step(Unit& unit, const OptimizerStep& step) {
  worker_.prefix = unit.prefix();
  worker_.phase = Phase::optimizer;
  {
    Op op(worker_, unit.names().step);
    unit.step(op, step);
  }
  if (!unit.gathers_stepped()) return;
  Op op(worker_, unit.names().gather_stepped);
  unit.gather_stepped(op);
}

void Model::end_reductions() {
  if (reducing_ == nullptr) return;
  worker_.prefix.clear();
  Op op(worker_, decisions::kLastReduced, Phase::backward);
  reducing_->take_reduced(op);
  reducing_ = nullptr;
}

}  // namespace plimsoll::runtime

#include "planner/stacks/pytorch/optimizer_states.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>

namespace plimsoll::planner::pytorch {

using models::Category;
using models::Moment;
using models::Residency;
using models::SteppedTensor;

// Where a limit decides, for so many elements alone.
const models::OptimizerRule& OptimizerStates::rule_for(const OwnPart& tensor) const {
  const models::OptimizerRule& rule = models::rule_of(strategy_.optimizer);
  return rule.rest ? models::rule_for(strategy_.optimizer, tensor) : rule;
}

bool OptimizerStates::lists(const OwnPart& tensor) const {
  return rule_for(tensor).torch.makes(models::OptimizerImpl::foreach, strategy_);
}

KeptStates OptimizerStates::kept_of(const OwnPart& tensor) {
  KeptStates kept;
  const bool none = tensor.elements() == 0;
  const models::KeptStates now = models::kept_states(strategy_, tensor.now());
  for (const models::KeptState& state : now) {
    SymBytes bytes = state.bytes;
    if (state.bytes_each > 0 && !none)
      bytes = SymBytes(tensor.elements() * state.bytes_each);
    else
      tensor.guard();
    kept.add({state.name, state.managed ? bytes : b_.rounded(bytes), state.managed});
  }
  const models::TorchOptimizer& rule = rule_for(tensor).torch;
  const bool in_blocks = rule.blocks.tables > 0 && models::in_blocks(rule.blocks, tensor);
  if (in_blocks && strategy_.optimizer_in_backward)  // an optimizer of its own has its own
    kept.add({"state_maps", b_.rounded(Bytes(rule.blocks.tables))});
  else
    in_blocks_ = in_blocks_ || in_blocks;
  if (rule.has_counters(strategy_)) kept.add({"step", b_.rounded(Bytes(4))});
  return kept;
}

void OptimizerStates::declare(models::GroupId group, const KeptStates& kept) {
  for (const KeptState& state : kept)
    if (!state.managed)
      b_.tensor_in(group, state.name, state.bytes, Category::optimizer, Residency::persistent);
}

void OptimizerStates::declare(models::GroupId group, const SteppedTensor& tensor,
                              const KeptStates& kept) {
  Own own{group, tensor.elements, {}};
  for (const KeptState& state : kept)
    if (!state.managed)
      own.states.push_back(
          b_.tensor_in(group, state.name, state.bytes, Category::optimizer, Residency::persistent));
  own_.push_back(std::move(own));
}

void OptimizerStates::read_own(OpBuilder step, const SteppedTensor& tensor) {
  const auto own = std::ranges::find_if(own_, [&](const Own& o) {
    return o.group == b_.open_group() && o.elements == tensor.elements;
  });
  if (own == own_.end()) return;
  for (const models::TensorId state : own->states) step.read(state);
  own_.erase(own);
}

void OptimizerStates::count(const KeptStates& kept, std::int64_t copies) {
  for (const KeptState& state : kept)
    (state.managed ? managed_ : in_allocator_) += state.bytes.now() * copies;
}

void OptimizerStates::declare_tables() {
  if (!in_blocks_) return;
  const Bytes tables(models::rule_of(strategy_.optimizer).torch.blocks.tables);
  b_.tensor_in(models::kNoGroup, "state_maps", tables, Category::optimizer, Residency::persistent);
  in_allocator_ += tables;
}

// Slots of one loop over parameters.
struct OptimizerStates::Slots {
  struct Held {
    Bytes bytes;
    Bytes reused;  // of what was given: in the events no block of its own
    std::int32_t block = 0;
  };
  std::array<Held, models::kMomentSlots> held{};
  Bytes now, most;
  BlockEvents* events = nullptr;
  Ref given;
  // What was given of gradients whose blocks the events know nothing of, and not reused yet.
  Bytes left;

  Held taken(Bytes bytes) {
    now += bytes;
    most = std::max(most, now);
    if (events == nullptr) return {bytes};
    const Bytes reused = std::min(bytes, left);
    left -= reused;
    return {bytes, reused, events->take(bytes - reused)};
  }
  void let_go(std::size_t slot) {
    if (held[slot].bytes == Bytes(0)) return;
    if (events != nullptr) events->drop(held[slot].block);
    left += held[slot].reused;
    now -= held[slot].bytes;
    held[slot] = {};
  }
  // What the slot named goes when the new value is there.
  void put(std::size_t slot, const Held& value) {
    let_go(slot);
    held[slot] = value;
  }
  void make(std::size_t slot, Bytes bytes) {
    if (bytes > Bytes(0)) put(slot, taken(bytes));
  }
  void pass_on(std::size_t from, std::size_t slot) {
    if (held[from].bytes > Bytes(0)) put(slot, std::exchange(held[from], Held{}));
  }
  void use(const ColumnSumScratch& scratch) {
    most = std::max<Bytes>(most, now + scratch.total());
    if (events == nullptr || scratch.total() == Bytes(0)) return;
    const std::int32_t partial = events->take(scratch.partial);
    const std::int32_t counters = events->take(scratch.counters);
    events->drop(partial);
    events->drop(counters);
  }
  void give(Bytes bytes) {
    now -= bytes;
    if (events == nullptr) return;
    if (given.tensor == models::kNoTensor) left += bytes;
    events->death(given.tensor);
    events->death(given.beyond);
  }
  void keep(Bytes bytes) { taken(bytes); }
};

// torch.optim makes all states before it steps (_init_group). The packages' loops make a
// parameter's in its own turn of the first step, behind what those before it made and let go:
// torchao 0.18, optim/adam.py; bitsandbytes 0.50, optim/optimizer.py; galore_torch, apollo_torch,
// adam_mini.
bool OptimizerStates::makes_in_turn() const {
  const char* const package = models::rule_of(strategy_.optimizer).torch.package;
  return package != nullptr && !std::string_view(package).starts_with("torch.optim") &&
         !strategy_.optimizer_in_backward;
}

// Which of several equal parameters it is makes no difference: the one that has had fewest turns.
void OptimizerStates::make_states(const SteppedTensor& tensor, std::vector<std::int64_t>& turns,
                                  BlockEvents& events) const {
  turns.resize(own_.size());
  std::size_t next = own_.size();
  for (std::size_t i = 0; i < own_.size(); ++i) {
    const bool has_had = own_[i].group == models::kNoGroup && turns[i] > 0;
    if (own_[i].elements == tensor.elements && !has_had &&
        (next == own_.size() || turns[i] < turns[next]))
      next = i;
  }
  if (next == own_.size()) return;
  ++turns[next];
  for (const models::TensorId state : own_[next].states) events.birth(state);
}

Bytes OptimizerStates::step_one_by_one(const std::vector<SteppedTensor>& tensors,
                                       BlockEvents* events, const Ref& given) const {
  Slots slots;
  slots.events = events;
  slots.given = given;
  const bool projects = models::rule_of(strategy_.optimizer).torch.projects_to > 0;
  const bool in_turn = events != nullptr && makes_in_turn();
  std::vector<std::int64_t> turns;
  for (const bool projected : {false, true})
    for (const SteppedTensor& tensor : tensors)
      if ((projects && tensor.rank > 0) == projected) {
        if (in_turn) make_states(tensor, turns, *events);
        step_one(tensor, slots);
      }
  return slots.most;
}

namespace {

// torch/optim/_muon.py: each iteration multiplies X by its transpose, that by itself and by X.
void add_iterations(const SteppedTensor& tensor, int iterations, const WorkOfOp& op) {
  if (!tensor.is_matrix()) return;
  const auto s = static_cast<double>(std::min(tensor.rows, tensor.columns));
  const auto l = static_cast<double>(std::max(tensor.rows, tensor.columns));
  const double count = static_cast<double>(tensor.elements) / (s * l);
  for (int i = 0; i < iterations; ++i)
    op.gemm({.m = s, .n = s, .k = l, .count = count})
        .gemm({.m = s, .n = s, .k = s, .count = count})
        .gemm({.m = s, .n = l, .k = s, .count = count});
}

}  // namespace

// Lists of tensors go to multi-tensor kernels of up to 320 at a time (ForeachUtils, chunk
// metadata), a loop launches each tensor's own.
void OptimizerStates::say_work(const std::vector<SteppedTensor>& tensors,
                               const WorkOfOp& op) const {
  if (!op.asked()) return;
  constexpr double kListed = 320;
  double bytes = 0, kernels = 0, listed = 0, passes = 0;
  for (const SteppedTensor& tensor : tensors) {
    if (tensor.elements == 0) continue;
    const models::OptimizerRule& rule = models::rule_for(strategy_.optimizer, tensor);
    const models::StepPasses& steps = rule.passes_of(strategy_.optimizer_impl);
    const double one = storage(Count(tensor.elements), tensor.dtype).real();
    if (steps.in_one_kernel()) {
      bytes += 3 * one;  // the gradient is read, the parameter and its states read and written
      for (const models::KeptState& state : models::kept_states(strategy_, tensor))
        bytes += 2 * state.bytes.real();
    } else {
      bytes += steps.values * one;
    }
    const bool one_by_one = rule.torch.one_by_one(strategy_);
    (one_by_one ? kernels : listed) += one_by_one ? steps.passes : 1;
    if (!one_by_one) passes = steps.passes;
    add_iterations(tensor, static_cast<int>(steps.iterations), op);
  }
  op.moves(bytes, kernels + passes * std::ceil(listed / kListed));
}

namespace {
// Behind a gradient's accumulation PyTorch 2.4's autograd holds it until the hooks are done
// (tests/golden/dry_runs_q_galore.json); 2.11's does not (the traces of galore8bit).
bool holds_gradient(const models::TorchOptimizer& rule, const models::Strategy& s) {
  return s.optimizer_in_backward && !rule.behind && s.torch < models::kTorch;
}
}  // namespace

void OptimizerStates::step_one(SteppedTensor tensor, Slots& slots) const {
  const models::TorchOptimizer& rule = models::rule_for(strategy_.optimizer, tensor).torch;
  if (!rule.one_by_one(strategy_)) return;
  tensor.block =
      models::in_blocks(rule.blocks, tensor) ? models::block_of(rule.blocks, strategy_) : 0;
  for (const Moment& moment : rule.moments) {
    const Count count = models::count_of(moment.extent, moment.of, tensor);
    if (count == Count(0)) continue;
    const Bytes bytes = b_.rounded(storage(count, moment.dtype.value_or(tensor.dtype)));
    switch (moment.does) {
      case Moment::Does::make:
        slots.make(moment.slot, bytes);
        break;
      case Moment::Does::let_go:
        slots.let_go(moment.slot);
        break;
      case Moment::Does::pass_on:
        slots.pass_on(moment.from, moment.slot);
        break;
      case Moment::Does::give:
        if (!holds_gradient(rule, strategy_)) slots.give(bytes);
        break;
      case Moment::Does::keep:
        slots.keep(bytes);
        break;
      case Moment::Does::sum_rows:
        slots.use(column_sum_scratch(b_, gpu_, tensor.rows, tensor.elements / tensor.rows));
        break;
    }
  }
}

}  // namespace plimsoll::planner::pytorch

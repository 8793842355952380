#include "planner/stacks/pytorch/offloading.h"

#include <algorithm>
#include <utility>

#include "models/bitsandbytes.h"
#include "planner/stacks/pytorch/functions.h"

namespace plimsoll::planner::pytorch {

using models::Access;
using models::kBlockInput;
using models::OpKind;
using models::Residency;

namespace {

// OffloadActivations.__init__
// Numbers of a checkpoint: the empty tensor and its input. So an input goes with the third one
// behind it.
constexpr std::int64_t kOfCheckpoint = 2, kInputsHeld = 3;
static_assert(kOfCheckpoint * kInputsHeld >= Offloading::kStash &&
              kOfCheckpoint * (kInputsHeld - 1) < Offloading::kStash);

std::ptrdiff_t index_of(const std::vector<tape::ValueId>& all, tape::ValueId value) {
  const auto found = std::ranges::find(all, value);
  return found == all.end() ? -1 : found - all.begin();
}

}  // namespace

void Offloading::pin(SymBytes bytes, std::int64_t times) {
  if (!s_.first_micro()) return;  // the next one's take their places
  for (std::int64_t i = 0; i < times; ++i) s_.host.pin(bytes);
}

// The node that asked last is remembered (curr_autograd_node) until one of the next backward asks,
// and with it the graph behind: where the embedding's output is a leaf, that and its gradient.
std::array<TensorId, 2> Offloading::leaf_and_gradient(Residency residency) {
  if (!s_.leaf_input()) return {kNoTensor, kNoTensor};
  const SymBytes bytes = layer_.bytes(s_.text.total() * d_.table_width(), regime_.weight);
  const auto tensor = [&](const char* name) {
    return b_.tensor_in(models::kNoGroup, name, bytes, Category::activations, residency);
  };
  return {tensor("embeddings.before"), tensor("embeddings.before.grad")};
}

// OffloadActivations.__enter__: `if "bitsandbytes" in sys.modules`.
void Offloading::empty_cache() {
  if (!models::runs_bitsandbytes(strategy_)) return;
  b_.open(models::kNoGroup, false, s_.times);
  b_.op("activations.enter", Phase::forward);
  b_.work().moves(0, 0);
  if (b_.keeps_blocks()) {
    BlockEvents events;
    events.flush();
    b_.blocks(std::move(events));
  }
  b_.close();
}

void Offloading::begin() {
  empty_cache();
  graph_ = leaf_and_gradient(Residency::step);
  if (graph_.front() == kNoTensor) return;
  b_.open(models::kNoGroup, false, s_.times);
  b_.op("activations.graph", Phase::forward).write(graph_.front()).write(graph_.back());
  b_.work().moves(0, 0);
  b_.close();
}

// Layer i's input goes before layer i + 3 runs; it is what layer i - 1 made.
void Offloading::before_layer(std::size_t r, std::size_t j) {
  const Run& run = s_.runs[r];
  const auto stride = static_cast<std::int64_t>(run.stride());
  std::int64_t made = static_cast<std::int64_t>(j) - kInputsHeld - 1;
  int instances = 0;
  for (; made < 0; made += stride) --instances;
  const TensorId out = made + 1 == stride ? run.out : run.inner[static_cast<std::size_t>(made)];
  b_.op("activations.stash", Phase::forward)
      .touch(out, instances, r == 0 ? s_.hidden : s_.runs[r - 1].out, Access::release);
  b_.work().moves(0, 0);
  if (run.group == s_.runs.front().group && j == 0) {
    std::int64_t layers = 0;
    for (const Run& each : s_.runs) layers += each.count * static_cast<std::int64_t>(each.stride());
    pin(s_.stream_bytes(), layers);
    if (parts_.train_embedding) pin(storage(tokens_.total(), DType::int64));  // what it looked up
  }
}

// The inputs of the last layers, of which no later layer lets go.
void Offloading::leave_layers() {
  number_ = 0;
  stash_.clear();
  evicted_.clear();
  loaded_.clear();
  if (takes_all()) {
    for (const Stashed& left : layers_.back().left)
      stash_.push_back({left.number, {left.tensor.tensor, -1}});
    return;
  }
  auto op = b_.op("activations.stash", Phase::forward);
  for (std::int64_t behind = std::min(kInputsHeld, d_.layers) - 1; behind >= 0; --behind) {
    const TensorId input = b_.tensor("activations.stash", s_.stream_bytes(), Category::activations);
    op.write(input);
    stash_.push_back({-kOfCheckpoint * behind, {input}});
  }
  b_.work().moves(0, 0);
}

void Offloading::take(const TapePart& part, const TapeCounts& counts, std::span<const Ref> given,
                      const TapeSaved& saved, tape::ValueId id, Packed& packed) {
  if (id == tape::kNone) return;
  const tape::Function& f = part.rule->function();
  const tape::ValueId of = f.value(id).storage;
  const tape::Value& value = f.value(of);
  ++number_;
  const auto known = std::ranges::find(packed.values, of, &Packed::Value::storage);
  if (known != packed.values.end()) {
    known->again = true;
    return;
  }
  const SymBytes bytes = storage(counts[value.size.extent], value.size.dtype);
  if (value.parameter || bytes < kLeast) return;
  const Ref device =
      value.made ? Ref{saved.kept[static_cast<std::size_t>(index_of(part.rule->kept(), of))]}
                 : given[static_cast<std::size_t>(of)];
  for (; !stash_.empty() && stash_.front().number <= number_ - kStash; stash_.erase(stash_.begin()))
    evicted_.push_back(stash_.front().tensor);
  stash_.push_back({number_, device});
  packed.values.push_back({of, device, bytes});
  pin(bytes);
}

// Of a node's operands the last one is saved first.
Packed Offloading::pack(const TapePart& part, const TapeCounts& counts, std::span<const Ref> given,
                        const TapeSaved& saved) {
  Packed packed;
  const tape::Function& f = part.rule->function();
  for (const tape::Operation& operation : f.operations()) {
    if (operation.out == tape::kNone || !f.value(operation.out).grad) continue;
    const bool first = packed.values.empty();
    const tape::Function::Keeps keeps = f.kept_by(operation);
    for (std::size_t i = keeps.in.size(); i-- > 0;)
      take(part, counts, given, saved, keeps.in[i], packed);
    if (keeps.out) take(part, counts, given, saved, operation.out, packed);
    if (keeps.beside) take(part, counts, given, saved, operation.beside, packed);
    if (first)
      for (Packed::Value& value : packed.values) value.last = true;
  }
  if (!evicted_.empty()) {
    auto op = b_.op("activations.stash", Phase::forward);
    for (const Ref r : evicted_) op.touch(r.tensor, r.delta, r.beyond, Access::release);
    b_.work().moves(0, 0);
    evicted_.clear();
  }
  return packed;
}

// All that a function's nodes read at once; what it held of the nodes behind it, and of the
// forward, goes.
void Offloading::load(const Packed& packed, const TapePart& part, std::span<Ref> given,
                      TapeSaved& saved) {
  if (packed.values.empty()) return;
  std::vector<TensorId> held;
  std::vector<TensorId> made;
  for (const Packed::Value& value : packed.values)
    made.push_back(b_.tensor("activations.loaded", value.bytes, Category::activations, kCopies));
  auto op = b_.op("activations.load", Phase::backward);
  for (const Stashed& stashed : stash_)
    op.touch(stashed.tensor.tensor, stashed.tensor.delta, stashed.tensor.beyond, Access::release);
  stash_.clear();
  for (TensorId& left : graph_) op.release(std::exchange(left, kNoTensor));
  for (const TensorId loaded : loaded_) op.release(loaded);
  for (std::size_t i = 0; i < made.size(); ++i) {
    const Packed::Value& value = packed.values[i];
    op.write(made[i]);
    if (value.again)
      op.touch(value.device.tensor, value.device.delta, value.device.beyond, Access::release);
    if (value.last) held.push_back(made[i]);
    const std::ptrdiff_t kept = index_of(part.rule->kept(), value.storage);
    (kept >= 0 ? saved.kept[static_cast<std::size_t>(kept)]
               : given[static_cast<std::size_t>(value.storage)].tensor) = made[i];
    if (kept < 0) given[static_cast<std::size_t>(value.storage)] = Ref{made[i]};
  }
  b_.work().moves(0, 0);
  loaded_ = std::move(held);
}

void Offloading::declare(Run& run) {
  run.loaded.resize(run.stride());
  for (std::size_t j = 0; j < run.stride(); ++j) {
    b_.at_layer(static_cast<std::uint16_t>(j));
    run.loaded[j] = b_.tensor_in(run.group, "in.loaded", b_.rounded(s_.stream_bytes()),
                                 Category::activations, Residency::step, kCopies);
  }
  b_.at_layer(0);
}

void Offloading::load_input(const Run& run, std::size_t j) {
  b_.op("activations.load", Phase::recompute).write(run.loaded[j]);
  b_.work().moves(0, 0);
}

// Whether what the layer saves is its input itself, and so refers to what was loaded.
bool Offloading::keeps_input(const BlockPlan& plan) const {
  const ValuePlan& input = plan.value(kBlockInput);
  return std::ranges::any_of(plan.nodes, [&](const NodePlan& at) {
    if (std::ranges::find(at.node->in, kBlockInput) == at.node->in.end()) return false;
    if (at.node->kind == OpKind::linear) return input.dtype == regime_.compute;
    if (at.node->kind != OpKind::norm) return false;
    const TapePart part =
        norm_tape(*at.norm_names, *at.norm, {tokens_.total(), input.dtype, input.grad}, regime_);
    const tape::Function& f = part.rule->function();
    return std::ranges::any_of(f.operations(), [&](const tape::Operation& operation) {
      const tape::Operands in = f.kept_by(operation).in;
      return std::ranges::any_of(
          in, [&](tape::ValueId id) { return id != tape::kNone && f.value(id).storage == 0; });
    });
  });
}

// The input that was loaded before it goes, unless what was saved of it does later.
void Offloading::node_done(std::size_t r, std::size_t j) {
  const Run& run = s_.runs[r];
  const bool inside = j + 1 < run.stride(), last = r + 1 == s_.runs.size();
  const bool kept = keeps_input(run.plan(inside ? j + 1 : 0));
  auto op = b_.op("activations.load", Phase::backward);
  if (inside) {
    if (!kept) op.release(run.loaded[j + 1]);
  } else {
    const Run* const next = last ? nullptr : &s_.runs[r + 1];
    const TensorId beyond =
        next != nullptr && !keeps_input(next->plan(0)) ? next->loaded.front() : kNoTensor;
    op.touch(kept ? kNoTensor : run.loaded.front(), +1, beyond, Access::release);
    if (last)
      for (const TensorId loaded : loaded_) op.touch(kNoTensor, +1, loaded, Access::release);
  }
  b_.work().moves(0, 0);
}

// The first layer's input, which the embedding's node lets go of, or the end of the backward.
void Offloading::finish() {
  const Run& run = s_.runs.front();
  b_.open(models::kNoGroup, true, s_.times);
  auto op = b_.op("activations.load", Phase::backward);
  if (takes_all())
    for (const TensorId oldest : layers_.front().oldest)
      op.touch(oldest, +1, kNoTensor, Access::release);
  else if (!keeps_input(run.plan(0)))
    op.touch(run.loaded.front(), +1, kNoTensor, Access::release);
  for (const TensorId held :
       leaf_and_gradient(s_.last_micro() ? Residency::carried : Residency::step))
    op.write(held);
  b_.work().moves(0, 0);
  b_.close();
}

}  // namespace plimsoll::planner::pytorch

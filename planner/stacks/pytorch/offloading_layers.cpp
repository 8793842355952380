// What the layers' nodes save without checkpoints, on its way to the host and back.
#include <algorithm>
#include <limits>

#include "planner/stacks/pytorch/offloading.h"

namespace plimsoll::planner::pytorch {

using models::Access;

namespace {
bool same(Ref a, Ref b) {
  return a.tensor == b.tensor && a.delta == b.delta;
}
}  // namespace

// Numbers are counted from the layer before on: what that one's last saved is 0.
void Offloading::enter_layer(std::size_t run) {
  run_ = run;
  layers_.resize(s_.runs.size());
  layers_[run] = {};
  number_ = 0;
  evicted_before_ = std::numeric_limits<std::int64_t>::min();
  stash_.clear();
  again_.clear();
  blanks_.clear();
  if (run > 0) return;
  if (parts_.train_embedding) pin(storage(tokens_.total(), DType::int64));  // what it looked up
  // Cosines and sines, which stay on the device because each layer saves them again; the first
  // layer's backward brings copies of them back, for a moment of small sizes that is not planned.
  if (d_.position == models::PositionKind::rope)
    pin(storage(tokens_.length * d_.rotated(), d_.fp32_rotary ? DType::fp32 : regime_.residual), 2);
}

bool Offloading::is_held(Ref tensor) const {
  const auto is = [&](const Stashed& one) { return same(one.saved, tensor); };
  return std::ranges::any_of(stash_, is) ||
         std::ranges::any_of(again_, [&](Ref one) { return same(one, tensor); });
}

// What is held goes with the last op, up to this number. `alive`: there now, whatever happens.
void Offloading::evict(std::int64_t upto, Ref alive) {
  OpBuilder op = b_.last_op();
  if (const std::int64_t before = std::min<std::int64_t>(upto, 0); evicted_before_ < before) {
    if (run_ > 0)
      for (const Stashed& left : layers_[run_ - 1].left)
        if (left.number > evicted_before_ && left.number <= before)
          op.touch(kNoTensor, -1, left.tensor.tensor, Access::release);
    for (std::int64_t i = 0; instances() > 1 && i < kStash; ++i) {
      blanks_.push_back({b_.operands(), evicted_before_, before});
      op.touch(alive.tensor, alive.delta, alive.beyond, Access::release);
    }
    evicted_before_ = before;
  }
  for (; !stash_.empty() && stash_.front().number <= upto; stash_.erase(stash_.begin())) {
    const Ref held = stash_.front().tensor;
    op.touch(held.tensor, held.delta, held.beyond, Access::release);
  }
}

void Offloading::save(Ref tensor, SymBytes bytes, const char* copied) {
  ++number_;
  if (is_held(tensor)) return again_.push_back(tensor);
  if (bytes < kLeast) return;
  Ref held = tensor;
  if (copied != nullptr) {
    held = {b_.tensor(copied, bytes, Category::activations)};
    b_.last_op().write(held.tensor);
  }
  evict(number_ - kStash, held);
  stash_.push_back({number_, held, tensor});
  node_.push_back({tensor, bytes});
  pin(bytes, instances());
}

std::int32_t Offloading::end_node() {
  std::vector<std::vector<Held>>& nodes = layers_[run_].nodes;
  nodes.push_back(std::move(node_));
  node_.clear();
  return static_cast<std::int32_t>(nodes.size() - 1);
}

// What the layer leaves is let go of in the next one, as this layer does with the last one's.
void Offloading::leave_layer() {
  Layer& layer = layers_[run_];
  for (const Stashed& one : stash_) {
    const std::int64_t number = one.number - number_;
    check(one.tensor.delta == 0, ErrorKind::internal, "a layer that saves next to nothing");
    layer.left.push_back({number, one.tensor});
    if (instances() <= 1) continue;
    const auto blank = std::ranges::find_if(
        blanks_, [&](const Blank& b) { return number > b.above && number <= b.upto; });
    check(blank != blanks_.end(), ErrorKind::internal, "a layer that saves next to nothing");
    b_.set_before(blank->operand, one.tensor.tensor);
    blanks_.erase(blank);
  }
  stash_.clear();
}

void Offloading::enter_layer_backward(std::size_t run) {
  run_ = run;
  enters_ = true;
  Layer& layer = layers_[run];
  const auto oldest = std::ranges::find_if(layer.nodes, [](const auto& n) { return !n.empty(); });
  if (oldest == layer.nodes.end()) return;
  bring(static_cast<std::int32_t>(oldest - layer.nodes.begin()));
  for (const Held& held : *oldest) layer.oldest.push_back(held.loaded);
  beyond_ = std::move(loaded_);
}

void Offloading::leave_layer_backward() {
  loaded_ = layers_[run_].oldest;
}

void Offloading::bring(std::int32_t node) {
  for (Held& held : layers_[run_].nodes[static_cast<std::size_t>(node)])
    if (held.loaded == kNoTensor)
      held.loaded = b_.tensor("activations.loaded", held.bytes, Category::activations, kCopies);
}

Ref Offloading::brought(std::int32_t node, Ref saved) const {
  const std::vector<Held>& all = layers_[run_].nodes[static_cast<std::size_t>(node)];
  const auto found =
      std::ranges::find_if(all, [&](const Held& held) { return same(held.saved, saved); });
  return found == all.end() ? saved : Ref{found->loaded};
}

// What the node before brought back goes when this one is done.
void Offloading::attach(OpBuilder op, std::int32_t node) {
  const std::vector<Held>& all = layers_[run_].nodes[static_cast<std::size_t>(node)];
  if (all.empty()) return;
  for (const Held& held : all) op.write(held.loaded);
  if (std::exchange(enters_, false)) {
    for (const TensorId before : layers_[run_].oldest)
      op.touch(before, +1, kNoTensor, Access::release);
    for (const TensorId before : beyond_) op.touch(kNoTensor, +1, before, Access::release);
  } else {
    for (const TensorId before : loaded_) op.release(before);
  }
  loaded_.clear();
  for (const Held& held : all) loaded_.push_back(held.loaded);
}

}  // namespace plimsoll::planner::pytorch

// Functions that a tape describes (tape/rule.h), written as ops of the step.
#include <algorithm>

#include "models/decisions/layer.h"
#include "planner/stacks/pytorch/modules.h"

namespace plimsoll::planner::pytorch {

using tape::Event;
using tape::Role;

void ModuleWriter::set_checkpoint(Recomputation* waits, bool on) {
  recomputation_ = waits;
  checkpointed_ = on;
  checkpoint_hooks_ = on && !models::decisions::reentrant_checkpoints(strategy_);
}

void ModuleWriter::unpack() {
  Recomputation* const waiting = std::exchange(recomputation_, nullptr);
  if (waiting == nullptr) return;
  waiting->recompute();
  unpacked_ = waiting;
}

void ModuleWriter::node_done() {
  if (Recomputation* const asked = std::exchange(unpacked_, nullptr)) asked->node_done();
}

// Blocks of no bytes are not asked for.
BlockEvents ModuleWriter::tape_blocks(const tape::OpOf& op, std::span<const SymBytes> bytes,
                                      std::span<const Ref> slots) {
  BlockEvents events;
  std::vector<std::int32_t> numbers;
  for (const Event& event : op.events) switch (event.what) {
      case Event::What::take:
        numbers.push_back(bytes[event.at] > Bytes(0) ? events.take(bytes[event.at]) : -1);
        break;
      case Event::What::drop:
        if (numbers[event.at] >= 0) events.drop(numbers[event.at]);
        break;
      case Event::What::birth:
        events.birth(slots[event.at].tensor);
        events.birth(slots[event.at].beyond);
        break;
      case Event::What::death:
        events.death(slots[event.at].tensor);
        break;
      case Event::What::adopt:
        events.adopt(slots[event.at].tensor, slots[event.from].tensor);
        events.adopt(slots[event.at].beyond, slots[event.from].tensor);
        break;
    }
  return events;
}

// Layers of a model have the same functions of the same counts.
const TapeBytes& ModuleWriter::evaluated(const tape::Lowered& of, const TapeCounts& counts) {
  const auto found = std::ranges::find_if(evaluated_, [&](const TapeBytes& one) {
    return one.of == &of && std::ranges::all_of(of.sizes, [&](const tape::Size& size) {
             return same_expression(one.counts[size.extent], counts[size.extent]);
           });
  });
  if (found != evaluated_.end()) return *found;
  TapeBytes& fresh = evaluated_.emplace_back(TapeBytes{&of, counts, {}});
  fresh.all.reserve(of.sizes.size() + of.ops.size());
  for (const tape::Size& size : of.sizes)
    fresh.all.push_back(bytes(counts[size.extent], size.dtype));
  for (const tape::OpOf& op : of.ops) fresh.all.push_back(highest_sum(fresh.bytes(), op.highest));
  return fresh;
}

OpBuilder ModuleWriter::write_tape(const TapePart& part, const tape::Lowered& of, std::size_t i,
                                   const TapeCounts& counts, const TapeBytes& known,
                                   const TapeSlots& slots) {
  const std::span<const SymBytes> bytes = known.bytes();
  const tape::OpOf& kernels = of.ops[i];
  const bool named = kernels.part.value != tape::kNone;
  auto op = ModuleWriter::op(
      named ? part.names->values[static_cast<std::size_t>(kernels.part.value)] : part.names->op);
  for (const std::uint8_t slot : kernels.reads) read(op, slots[slot]);
  for (const std::uint8_t slot : kernels.writes) write(op, slots[slot]);
  op.scratch(known.scratch(i));
  if (const WorkOfOp work = b_.work(); work.asked()) {
    double moved = 0;
    for (std::size_t k = 0; k < bytes.size(); ++k) moved += kernels.moved[k] * bytes[k].real();
    work.moves(moved, kernels.kernels);
    const auto dimension = [&](tape::Extent extent) { return counts[extent].real(); };
    for (const auto& [at, dtype, shape] : kernels.multiplied)
      work.gemm({dtype, dimension(shape[0]), dimension(shape[1]), dimension(shape[2]),
                 dimension(shape[3])});
    if (named && kernels.part.fused) work.compiled(0);
    if (kernels.part.compiled != tape::kAll) work.compiled(dimension(kernels.part.compiled));
  }
  if (b_.keeps_blocks()) b_.blocks(tape_blocks(kernels, bytes, slots));
  return op;
}

// Tensors are made right before the op that writes them, in the order of its kernels. What autograd
// would keep, and what is returned, counts as an activation.
void ModuleWriter::tape_forward(const TapePart& part, const TapeCounts& counts,
                                std::span<const Ref> given, TapeSaved& s, bool stops,
                                std::span<const Ref> also, Ref into) {
  s = {};
  const tape::Lowered& of = part.rule->forward(saves_, stops);
  const TapeBytes& known = evaluated(of, counts);
  TapeSlots& slots = slots_[0];
  std::size_t at = 0;
  for (std::size_t i = 0; i < of.ops.size(); ++i) {
    for (; at < of.ops[i].slots_end; ++at) {
      const tape::Slot& slot = of.slots[at];
      const auto value = static_cast<std::uint8_t>(slot.value);
      if (slot.role == Role::given) {
        slots[at] = given[value];
        continue;
      }
      if (slot.role == Role::result && !into.none()) {
        slots[at] = into;
        continue;
      }
      const bool passes = slot.kept < 0 && slot.role == Role::crossing;
      const TensorId made =
          make(part.names->values[value], counts[slot.size.extent], slot.size.dtype,
               slot.size.extent < counts.logits ? Category::logits
               : passes                         ? Category::temporaries
                                                : Category::activations);
      slots[at] = {made};
      if (slot.kept >= 0) s.kept[static_cast<std::size_t>(slot.kept)] = made;
      if (slot.role != Role::result) continue;
      if (slot.also >= 0) s.also[static_cast<std::size_t>(slot.also)] = made;
      const tape::Function& f = part.rule->function();  // what was made in place is its owner's
      if (f.value(slot.value).storage == f.value(f.result()).storage) s.out = made;
    }
    auto op = write_tape(part, of, i, counts, known, slots);
    if (i == 0)
      for (const Ref r : also) read(op, r);
  }
  if (hooks_.any() && saves_) hooks_.save_function(part, counts, given, s);
}

namespace {
// Of the function's first parameter.
std::int64_t parameter_elements(const TapePart& part, const TapeCounts& counts) {
  const std::vector<tape::Value>& values = part.rule->function().values();
  const auto first = std::ranges::find_if(values, &tape::Value::parameter);
  return first == values.end() ? 0 : static_cast<std::int64_t>(counts[first->size.extent]);
}
}  // namespace

TensorId ModuleWriter::tape_backward(const TapePart& part, const TapeCounts& counts,
                                     std::span<const Ref> given, const TapeSaved& s,
                                     const TapeGradients& d) {
  const bool sinks = d.parameters[0] != nullptr;
  const tape::Lowered& of =
      part.rule->backward({d.flowing != kNoTensor, through_hooks(),
                           !sinks || sink_->keeps(parameter_elements(part, counts)),
                           sinks && sink_->acts(), d.result_shared, d.flowing_shared});
  const TapeBytes& known = evaluated(of, counts);
  TapeSlots& slots = slots_[1];  // a recomputation in the middle is a forward
  TensorId d_in = kNoTensor;
  std::int32_t node = kNoNode;
  std::size_t at = 0;
  for (std::size_t i = 0; i < of.ops.size(); ++i) {
    if (of.ops[i].unpacks) unpack();
    std::array<std::pair<const ModuleNames*, TensorId>, 6> parameters{};
    std::size_t made = 0;
    for (; at < of.ops[i].slots_end; ++at) {
      const tape::Slot& slot = of.slots[at];
      const auto value = static_cast<std::uint8_t>(slot.value);
      switch (slot.role) {
        case Role::given:
          slots[at] = given[value];
          break;
        case Role::kept:
          slots[at] = {s.kept[static_cast<std::size_t>(slot.kept)]};
          break;
        case Role::d_result:
          slots[at] = {d.result};
          break;
        case Role::flowing:
          slots[at] = {d.flowing};
          break;
        case Role::d_parameter: {
          const std::size_t which = part.rule->parameter_at(slot.value);
          const ModuleNames& names = *d.parameters[which];
          const std::int64_t elements = counts[slot.size.extent];
          parameters[made] = {&names, sink_->begin(names, elements, which >= d.adapters)};
          slots[at] = {parameters[made++].second};
          break;
        }
        default: {
          const bool ends = slot.role == Role::d_given;
          if (ends && value == 0 && !d.into.none()) {
            slots[at] = d.into;
            break;
          }
          const TensorId gradient =
              make(part.names->gradients[value], counts[slot.size.extent], slot.size.dtype,
                   slot.size.extent < counts.logits ? Category::logits : Category::temporaries);
          slots[at] = {gradient};
          if (ends) (value == 0 ? d_in : d.others[value - 1]) = gradient;
        }
      }
    }
    const std::int32_t node_before = node;
    node = hooks_.any() ? NodeHooks::node_of(part, of.ops[i], s, node) : kNoNode;
    hooks_.bring(node);
    TapeSlots brought;
    if (node != kNoNode)
      std::transform(slots.begin(), slots.begin() + static_cast<std::ptrdiff_t>(at),
                     brought.begin(), [&](Ref slot) { return hooks_.brought(node, slot); });
    auto op = write_tape(part, of, i, counts, known, node == kNoNode ? slots : brought);
    if (node != node_before) hooks_.attach(op, node);
    if (i == of.oldest) release(op, d.held);
    node_done();
    for (std::size_t k = 0; k < made; ++k) sink_->end(*parameters[k].first, parameters[k].second);
  }
  return d_in;
}

}  // namespace plimsoll::planner::pytorch

// Functions that a tape describes (tape/rule.h), written as ops of the step.
#include <algorithm>

#include "planner/stacks/pytorch/modules.h"

namespace plimsoll::planner::pytorch {

using tape::Event;
using tape::Role;

namespace {
Bytes highest(const tape::OpOf& op, std::span<const Bytes> bytes) {
  Bytes most(0);
  for (const tape::Moment& moment : op.highest) {
    Bytes sum(0);
    for (std::size_t i = 0; i < moment.size(); ++i)
      if (moment[i] != 0) sum += bytes[i] * moment[i];
    most = std::max(most, sum);
  }
  return most;
}

}  // namespace

// Blocks of no bytes are not asked for.
BlockEvents ModuleWriter::tape_blocks(const tape::OpOf& op, std::span<const Bytes> bytes,
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

// The bytes of each of the sizes.
void ModuleWriter::evaluate(const tape::Lowered& of, const TapeCounts& counts, TapeRoom& room) {
  for (std::size_t i = 0; i < of.sizes.size(); ++i)
    room.bytes[i] = bytes(counts[of.sizes[i].extent], of.sizes[i].dtype);
}

OpBuilder ModuleWriter::write_tape(const TapePart& part, const tape::Lowered& of, std::size_t i,
                                   const TapeRoom& room) {
  const std::span<const Bytes> bytes(room.bytes.data(), of.sizes.size());
  const std::span<const Ref> slots = room.slots;
  const tape::OpOf& kernels = of.ops[i];
  auto op = this->op(part.names->op);
  for (const std::uint8_t slot : kernels.reads) read(op, slots[slot]);
  for (const std::uint8_t slot : kernels.writes) write(op, slots[slot]);
  op.scratch(highest(kernels, bytes));
  if (const WorkOfOp work = b_.work(); work.asked()) {
    double moved = 0;
    for (std::size_t k = 0; k < bytes.size(); ++k) moved += kernels.moved[k] * bytes[k].real();
    work.moves(moved, kernels.kernels);
  }
  if (b_.keeps_blocks()) b_.blocks(tape_blocks(kernels, bytes, slots));
  return op;
}

void ModuleWriter::tape_forward(const TapePart& part, const TapeCounts& counts,
                                std::span<const Ref> given, TapeSaved& s, bool stops,
                                std::span<const Ref> also, Ref into) {
  s = {};
  const tape::Lowered& of = part.rule->forward(saves_, stops);
  TapeRoom& room = rooms_[0];
  auto& slots = room.slots;
  evaluate(of, counts, room);
  for (std::size_t i = 0; i < of.slots.size(); ++i) {
    const tape::Slot& slot = of.slots[i];
    const auto value = static_cast<std::size_t>(slot.value);
    if (slot.role == Role::given) {
      slots[i] = given[value];
      continue;
    }
    if (slot.role == Role::result && !into.none()) {
      slots[i] = into;
      continue;
    }
    const TensorId made =
        make(part.names->values[value], counts[slot.size.extent], slot.size.dtype);
    slots[i] = {made};
    if (slot.role == Role::result) s.out = made;
    const std::size_t kept = part.rule->kept_at(slot.value);
    if (kept < part.rule->kept().size()) s.kept[kept] = made;
  }
  auto op = write_tape(part, of, 0, room);
  for (const Ref r : also) read(op, r);
}

// Tensors are made right before the op that writes them, in the order of its kernels.
TensorId ModuleWriter::tape_backward(const TapePart& part, const TapeCounts& counts,
                                     std::span<const Ref> given, const TapeSaved& s,
                                     const TapeGradients& d) {
  const bool sinks = d.parameters[0] != nullptr;
  const tape::Lowered& of =
      part.rule->backward({d.flowing != kNoTensor, checkpointed_, !sinks || sink_->keeps()});
  TapeRoom& room = rooms_[1];  // a recomputation in the middle is a forward
  auto& slots = room.slots;
  evaluate(of, counts, room);
  TensorId d_in = kNoTensor;
  for (std::size_t i = 0; i < of.ops.size(); ++i) {
    if (of.ops[i].unpacks) unpack();
    std::array<std::pair<const ModuleNames*, TensorId>, 2> parameters{};
    std::size_t made = 0;
    for (const std::uint8_t at : of.ops[i].writes) {
      const tape::Slot& slot = of.slots[at];
      const auto value = static_cast<std::size_t>(slot.value);
      const bool second = slot.role == Role::d_given && value == 1;
      if (slot.role == Role::d_parameter) {
        const ModuleNames& names = *d.parameters[part.rule->parameter_at(slot.value)];
        const TensorId gradient = sink_->begin(names, counts[slot.size.extent]);
        parameters[made++] = {&names, gradient};
        slots[at] = {gradient};
      } else if (slot.role == Role::d_given && !second && !d.into.none()) {
        slots[at] = d.into;
      } else {
        slots[at] = {
            temporary(part.names->gradients[value], counts[slot.size.extent], slot.size.dtype)};
      }
      if (second)
        *d.second = slots[at].tensor;
      else if (slot.role == Role::d_given && d.into.none())
        d_in = slots[at].tensor;
    }
    for (const std::uint8_t at : of.ops[i].reads) {
      const tape::Slot& slot = of.slots[at];
      const auto value = static_cast<std::size_t>(slot.value);
      if (slot.role == Role::given)
        slots[at] = given[value];
      else if (slot.role == Role::kept)
        slots[at] = {s.kept[part.rule->kept_at(slot.value)]};
      else if (slot.role == Role::d_result)
        slots[at] = {d.result};
      else if (slot.role == Role::flowing)
        slots[at] = {d.flowing};
    }
    auto op = write_tape(part, of, i, room);
    if (i + 1 == of.ops.size()) release(op, d.held);
    for (std::size_t k = 0; k < made; ++k) sink_->end(*parameters[k].first, parameters[k].second);
  }
  return d_in;
}

}  // namespace plimsoll::planner::pytorch

// What ZeRO-3 has gathered at a time, along the trace of modules (coordinator.h), beside parameters
// that stay and packed weights that others have (gather_by_layer.cpp).
#include <algorithm>

#include "planner/stacks/deepspeed/coordinator.h"

namespace plimsoll::planner::deepspeed {

using Part = Message::Part;
using When = Message::When;

Gathered Coordinator::gathered(bool blocks) {
  Messages ignored;
  run(ignored);  // decides what goes
  const bool graph = engine_.packed_copy == PackedCopy::graph;
  std::int64_t count = 0;
  std::size_t head = 0, layers = 0, last = 0;  // the first step at the head; behind the layers'
  for (std::size_t s = 0; s < t_.steps.size(); ++s) {
    const Step& step = t_.steps[s];
    count = std::max(count, step.number + 1);
    if (step.part == Part::tail && step.when == When::forward) head = s;
    if (step.number >= 0 && step.when == When::backward && layers == 0) layers = s;
    if (step.number >= 0) last = s;
  }
  Gathered out;
  out.backward.resize(static_cast<std::size_t>(count));
  out_ = &ignored;
  const auto level_of = [&](std::size_t s) -> GatheredBlocks* {
    const std::int64_t layer = t_.steps[s].number;
    // Activations grow: what the embedding finds beside the first layers is not the most.
    if (s < head) return layer < count / 2 ? nullptr : &out.forward;
    if (s < layers) return s == head ? &out.head : &out.head_backward;
    if (layer >= 0) return &out.backward[static_cast<std::size_t>(layer)];
    return s > last ? &out.end : nullptr;
  };
  at_step_ = [&](std::size_t s) {
    GatheredBlocks* const level = level_of(s);
    const Bytes there = s < head && graph ? plain_ : alone_;
    if (level != nullptr && there > level->bytes) *level = {there, {}, s};
  };
  begin(true);
  pass();
  if (blocks) {
    at_step_ = [&](std::size_t s) {
      GatheredBlocks* const level = level_of(s);
      if (level != nullptr && level->step == s) level->blocks = blocks_there(s < head && graph);
    };
    begin(true);
    pass();
  }
  at_step_ = nullptr;
  return out;
}

void Coordinator::count_gathered(bool flat) {
  if (flat) flats_.emplace_back();
  for (const std::size_t use : batch_) {
    Held& held = t_.parameters[t_.uses[use]];
    if (flat)
      flats_.back().parts[held.wide ? 1 : 0].push_back(t_.uses[use]);
    else
      held.block = take_block(held.padded);
    if (held.persistent) continue;
    const Bytes plain = held.packed ? Bytes(0) : held.padded;
    count(held.padded, plain);
    if (!flat) continue;
    held.flat = flats_.size() - 1;
    flats_.back().bytes += held.padded;
    flats_.back().plain += plain;
    ++flats_.back().waited_for;
  }
  if (flat) take_flat(flats_.back());
}

void Coordinator::wait(Held& held) {
  Flat& flat = flats_[std::exchange(held.flat, 0)];
  if (flat.waited_for == 0) return;
  if (!std::exchange(flat.apart, true)) {
    count(flat.bytes, flat.plain);
    take_parts(flat);
  }
  if (--flat.waited_for > 0) return;
  count(-flat.bytes, -flat.plain);
  for (std::int32_t& block : flat.blocks) drop_block(block);
}

void Coordinator::leave_copies(const Step& step) {
  for (std::size_t use = step.begin; use < step.end; ++use) {
    Held& held = t_.parameters[t_.uses[use]];
    if (!held.packed || held.persistent || std::exchange(held.elsewhere, true)) continue;
    count(-held.padded, Bytes(0));
    if (engine_.packed_copy == PackedCopy::graph)
      left_.push_back(std::exchange(held.block, -1));
    else
      drop_block(held.block);
  }
}

std::vector<Bytes> Coordinator::blocks_there(bool plain) const {
  std::vector<Bytes> out;
  const auto add = [&](Bytes bytes) {
    if (bytes > Bytes(0)) out.push_back(bytes);
  };
  for (const Held& held : t_.parameters) {
    const bool apart = flats_[held.flat].waited_for == 0 || flats_[held.flat].apart;
    if (held.there && !held.persistent && !held.elsewhere && apart && !(plain && held.packed))
      add(held.padded);
  }
  for (const Flat& flat : flats_)
    if (flat.waited_for > 0) add(plain ? flat.plain : flat.bytes);
  if (!plain) add(graph_);
  return out;
}

Gathered gathered_along(const ModelParts& parts, const FlatLayout& layout, const Engine& engine,
                        const models::Strategy& strategy, bool blocks) {
  return Coordinator(trace_of(parts, layout, engine, strategy), engine, strategy).gathered(blocks);
}

// Activations go as the backward goes on. So where what is gathered does not grow, the most of it
// is planned for all, and where it grows layer by layer, what the first layer finds: the step's
// most is at either end.
std::vector<Stretch> stretches_of(const Gathered& gathered) {
  const std::int64_t count = std::ssize(gathered.backward);
  const auto at = [&](std::int64_t from_end) -> const GatheredBlocks& {
    return gathered.backward[static_cast<std::size_t>(count - 1 - from_end)];
  };
  const auto most = std::ranges::max_element(gathered.backward, {}, &GatheredBlocks::bytes);
  std::vector<Stretch> out;
  for (std::int64_t i = 0; i < count;) {
    constexpr std::int64_t parts = 200;  // prefetches come in bunches: of the most, one of so many
    const Bytes enough = at(i).bytes + Bytes(most->bytes.value() / parts);
    Stretch& flat = out.emplace_back(i, at(i));
    for (; i < count && at(i).bytes <= enough; ++i)
      if (at(i).bytes > flat.gathered.bytes) flat.gathered = at(i);
    const std::int64_t grows = i;
    while (i + 1 < count && at(i + 1).bytes > at(i).bytes) ++i;
    if (i > grows) out.push_back({grows, at(grows)});
  }
  return out;
}

}  // namespace plimsoll::planner::deepspeed

#include "planner/peak.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

namespace plimsoll::planner {

using models::GroupId;
using models::kNoGroup;
using models::kNoTensor;
using models::Operand;
using models::Residency;
using models::Segment;
using models::StepProgram;
using models::TensorDecl;

namespace {

// A position packed so that integers compare as positions do: 16 bits segment, 24 bits iteration
// (or, for a tensor of a group, the iteration relative to the instance's own), 24 bits op.
constexpr std::int64_t kBias = 1 << 23;
constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

constexpr std::int64_t pack(std::uint32_t segment, std::int64_t iteration, std::int64_t op) {
  return (static_cast<std::int64_t>(segment) << 48) | ((iteration + kBias) << 24) | op;
}
constexpr std::uint32_t segment_of(std::int64_t key) {
  return static_cast<std::uint32_t>(key >> 48);
}
constexpr std::int64_t iteration_of(std::int64_t key) {
  return ((key >> 24) & 0xffffff) - kBias;
}
constexpr std::int64_t op_of(std::int64_t key) {
  return key & 0xffffff;
}

std::size_t index(GroupId group) {
  return static_cast<std::size_t>(group);
}

}  // namespace

void PeakFinder::plan_groups(const StepProgram& program) {
  groups_.assign(program.groups.size(), {});
  const auto reach = [&](GroupId group, std::int64_t distance) {
    if (group == kNoGroup) return;
    GroupPlan& plan = groups_[index(group)];
    plan.distance = std::max(plan.distance, distance);
  };
  const auto group_of = [&](models::TensorId tensor) {
    return tensor == kNoTensor ? kNoGroup : program.tensors[static_cast<std::size_t>(tensor)].group;
  };
  for (const Segment& segment : program.segments)
    for (std::uint32_t k = segment.op_begin; k < segment.op_end; ++k)
      for (const Operand& o : program.operands_of(program.ops[k])) {
        if (o.delta == 0) continue;
        reach(segment.group, std::abs(o.delta));
        reach(group_of(o.tensor), std::abs(o.delta));
        reach(group_of(o.beyond), 1);
      }
  std::int64_t most = 1;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    GroupPlan& plan = groups_[g];
    plan.count = program.groups[g].count;
    plan.edge = std::max<std::int64_t>(1, 2 * plan.distance);
    plan.low = std::min(plan.distance, plan.count);
    plan.high = std::min(plan.distance, plan.count - plan.low);
    most = std::max(most, plan.low + plan.high + 1);
  }
  classes_ = static_cast<std::size_t>(most);
}

// Slots of one segment: `edge` first iterations, one for all between, `edge` last ones.
void PeakFinder::plan_slots(const StepProgram& program) {
  slot_begin_.clear();
  std::size_t total = 0;
  for (const Segment& segment : program.segments) {
    slot_begin_.push_back(total);
    std::int64_t walked = 1;
    if (segment.group != kNoGroup) {
      const GroupPlan& plan = groups_[index(segment.group)];
      walked = std::min(plan.count, 2 * plan.edge + 1);
    }
    total += static_cast<std::size_t>(walked) * (segment.op_end - segment.op_begin);
  }
  slot_count_ = total;
}

std::size_t PeakFinder::slot_index(const StepProgram& program, std::uint32_t s,
                                   std::int64_t iteration, std::int64_t op) const {
  const Segment& segment = program.segments[s];
  if (segment.group != kNoGroup) {
    const GroupPlan& plan = groups_[index(segment.group)];
    if (plan.count > 2 * plan.edge + 1 && iteration >= plan.edge)
      iteration = iteration >= plan.count - plan.edge ? 2 * plan.edge + 1 - (plan.count - iteration)
                                                      : plan.edge;
  }
  const std::int64_t ops = segment.op_end - segment.op_begin;
  return slot_begin_[s] + static_cast<std::size_t>(iteration * ops + op);
}

void PeakFinder::touch(std::size_t tensor, std::size_t first_class, std::size_t last_class,
                       std::int64_t key) {
  Span* spans = spans_.data() + tensor * classes_;
  for (std::size_t c = first_class; c <= last_class; ++c) {
    spans[c].birth = std::min(spans[c].birth, key);
    spans[c].death = std::max(spans[c].death, key);
  }
}

// Too few layers for the ends to be apart: every instance is followed one by one.
bool PeakFinder::short_group(const GroupPlan* plan) {
  return plan != nullptr && plan->count < 2 * plan->distance;
}

// Classes of a group's tensor: `low` first instances, the interior, `high` last instances.
void PeakFinder::touch_neighbour(const Operand& operand, const TensorDecl& decl,
                                 std::uint32_t segment, bool descending, std::int64_t op) {
  const GroupPlan& plan = groups_[index(decl.group)];
  const std::int64_t d = operand.delta;
  const std::int64_t key = pack(segment, descending ? d : -d, op);
  const auto tensor = static_cast<std::size_t>(operand.tensor);
  if (short_group(&plan)) {  // so short that both ends may be missing: one by one
    for (std::int64_t c = 0; c < plan.low + plan.high; ++c)
      if (c - d >= 0 && c - d < plan.count)
        touch(tensor, static_cast<std::size_t>(c), static_cast<std::size_t>(c), key);
    return;
  }
  // Layer l - d exists for l in [max(0, d), n - 1 + min(0, d)]: of the first `low` instances those
  // with l >= d, of the last `high` ones (l = n - 1 - j) those with j >= -d.
  const std::int64_t first = std::clamp<std::int64_t>(d, 0, plan.low);
  const std::int64_t last = plan.low + plan.high - std::clamp<std::int64_t>(-d, 0, plan.high);
  touch(tensor, static_cast<std::size_t>(first), static_cast<std::size_t>(last), key);
}

// A touch from outside the tensor's group, at the absolute iterations `first` and `last`.
void PeakFinder::touch_from_outside(models::TensorId id, GroupId group, int delta,
                                    std::uint32_t segment, std::int64_t first, std::int64_t last,
                                    std::int64_t op) {
  const auto tensor = static_cast<std::size_t>(id);
  std::size_t first_class = 0, last_class = 0;
  if (group != kNoGroup) {
    const GroupPlan& plan = groups_[index(group)];
    if (plan.count == 0) return;
    // A short group's classes are its instances; otherwise the interior stands between the ends.
    const std::int64_t classes = short_group(&plan) ? plan.count : plan.low + plan.high + 1;
    if (delta <= 0) last_class = static_cast<std::size_t>(classes - 1);
    if (delta < 0) first_class = last_class;
  }
  touch(tensor, first_class, last_class, pack(segment, first, op));
  if (last != first) touch(tensor, first_class, last_class, pack(segment, last, op));
}

void PeakFinder::follow_touches(const StepProgram& program) {
  spans_.assign(program.tensors.size() * classes_, {kNever, -1});
  for (std::uint32_t s = 0; s < program.segments.size(); ++s) {
    const Segment& segment = program.segments[s];
    const bool repeated = segment.group != kNoGroup;
    const std::int64_t n = program.repeats(segment);
    if (n == 0) continue;
    for (std::uint32_t k = segment.op_begin; k < segment.op_end; ++k) {
      const std::int64_t op = k - segment.op_begin;
      for (const Operand& o : program.operands_of(program.ops[k])) {
        if (o.tensor != kNoTensor) {
          const TensorDecl& decl = program.tensors[static_cast<std::size_t>(o.tensor)];
          if (decl.group != kNoGroup && decl.group == segment.group)
            touch_neighbour(o, decl, s, segment.descending, op);
          else
            touch_from_outside(o.tensor, decl.group, o.delta, s, 0, n - 1, op);
        }
        if (o.beyond == kNoTensor || o.delta == 0 || !repeated) continue;
        // The layers without a neighbour: the last |delta| ones (delta > 0) or the first ones.
        const std::int64_t missing = std::min<std::int64_t>(n, std::abs(o.delta));
        const bool at_end = (o.delta > 0) != segment.descending;
        touch_from_outside(o.beyond, program.tensors[static_cast<std::size_t>(o.beyond)].group,
                           o.delta, s, at_end ? n - missing : 0, at_end ? n - 1 : missing - 1, op);
      }
    }
  }
}

// Notes each of the instances [first_instance, last_instance], which share `key`.
void PeakFinder::place(const StepProgram& program, std::int64_t key, GroupId group,
                       std::int64_t first_instance, std::int64_t last_instance, std::size_t tensor,
                       bool birth) {
  const std::uint32_t s = segment_of(key);
  const Segment& segment = program.segments[s];
  const std::uint32_t side = birth ? 0 : 1;
  const auto note = [&](std::size_t slot, std::int64_t times) {
    events_->push_back(
        {static_cast<std::uint32_t>(2 * slot) + side, static_cast<std::int32_t>(tensor), times});
  };
  if (group == kNoGroup || segment.group != group)
    return note(slot_index(program, s, iteration_of(key), op_of(key)),
                last_instance - first_instance + 1);
  const GroupPlan& plan = groups_[index(group)];
  const std::int64_t n = plan.count;
  std::int64_t from = first_instance + iteration_of(key), to = last_instance + iteration_of(key);
  if (segment.descending) {
    from = n - 1 - last_instance + iteration_of(key);
    to = n - 1 - first_instance + iteration_of(key);
  }
  const std::size_t first = slot_begin_[s] + static_cast<std::size_t>(op_of(key));
  const std::size_t ops = segment.op_end - segment.op_begin;
  // Walked iterations: all, or `edge` at either end and one for those between.
  const auto add = [&](std::int64_t walked) {
    note(first + static_cast<std::size_t>(walked) * ops, 1);
  };
  if (n <= 2 * plan.edge + 1) {
    for (std::int64_t t = from; t <= to; ++t) add(t);
    return;
  }
  const std::int64_t last_edge = n - plan.edge, folded = 2 * plan.edge + 1 - n;
  for (std::int64_t t = from; t <= std::min(to, plan.edge - 1); ++t) add(t);
  if (from <= plan.edge && to >= last_edge - 1) add(plan.edge);
  for (std::int64_t t = std::max(from, last_edge); t <= to; ++t) add(t + folded);
}

void PeakFinder::place_lifetimes(const StepProgram& program) {
  for (std::size_t i = 0; i < program.tensors.size(); ++i) {
    const TensorDecl& tensor = program.tensors[i];
    if (tensor.residency == Residency::persistent) continue;
    const GroupPlan* plan = tensor.group == kNoGroup ? nullptr : &groups_[index(tensor.group)];
    const std::int64_t low = plan ? plan->low : 0;
    const std::int64_t high = plan ? plan->high : 0;
    const std::int64_t n = plan ? plan->count : 1;
    for (std::int64_t c = 0; c <= low + high; ++c) {
      std::int64_t first = c, last = c;
      if (c == low) last = n - 1 - high;
      if (c > low) first = last = n - 1 - (low + high - c);
      if (short_group(plan)) first = last = c;
      if (last < first || first >= n) continue;
      const Span& span = spans_[i * classes_ + static_cast<std::size_t>(c)];
      if (span.death < 0) continue;
      place(program, span.birth, tensor.group, first, last, i, true);
      place(program, span.death, tensor.group, first, last, i, false);
    }
  }
}

bool PeakFinder::Layout::matches(const StepProgram& program) const {
  if (operands.size() != program.operands.size() || op_begin.size() != program.ops.size() ||
      tensors.size() != program.tensors.size() || counts.size() != program.groups.size() ||
      segments.size() != program.segments.size())
    return false;
  bool same = true;
  for (std::size_t i = 0; i < counts.size(); ++i) same &= counts[i] == program.groups[i].count;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const Segment &a = segments[i], &b = program.segments[i];
    same &= a.op_begin == b.op_begin && a.op_end == b.op_end && a.group == b.group &&
            a.descending == b.descending;
  }
  for (std::size_t i = 0; i < op_begin.size(); ++i)
    same &= op_begin[i] == program.ops[i].operand_begin;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    same &= tensors[i] == Shape{program.tensors[i].group, program.tensors[i].residency};
  if (!same) return false;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const Operand &a = operands[i], &b = program.operands[i];
    same &= a.tensor == b.tensor && a.beyond == b.beyond && a.delta == b.delta;
  }
  return same;
}

void PeakFinder::Layout::copy_structure(const StepProgram& program) {
  operands = program.operands;
  segments = program.segments;
  op_begin.clear();
  for (const models::Op& op : program.ops) op_begin.push_back(op.operand_begin);
  tensors.clear();
  for (const TensorDecl& tensor : program.tensors)
    tensors.push_back({tensor.group, tensor.residency});
  counts.clear();
  for (const models::Group& group : program.groups) counts.push_back(group.count);
}

void PeakFinder::derive(const StepProgram& program, Layout& layout) {
  layout.copy_structure(program);
  layout.events.clear();
  events_ = &layout.events;
  plan_groups(program);
  plan_slots(program);
  follow_touches(program);
  place_lifetimes(program);
  layout.slots = slot_count_;
  layout.edges.clear();
  for (const GroupPlan& plan : groups_) layout.edges.push_back(plan.edge);
}

Peak PeakFinder::sweep(const StepProgram& program, const Layout& layout, Bytes resident) const {
  Peak peak{resident, resident, {}, {}, {}};
  Bytes live = resident;
  const Bytes* slot = slots_.data();
  for (std::uint32_t s = 0; s < program.segments.size(); ++s) {
    const Segment& segment = program.segments[s];
    const std::uint32_t ops = segment.op_end - segment.op_begin;
    const std::int64_t n = program.repeats(segment);
    const std::int64_t edge = segment.group == kNoGroup ? 0 : layout.edges[index(segment.group)];
    const bool folded = segment.group != kNoGroup && n > 2 * edge + 1;
    const std::int64_t walked = folded ? 2 * edge + 1 : n;
    for (std::int64_t w = 0; w < walked; ++w) {
      const Bytes before = live;
      const std::int64_t runs = folded && w == edge ? n - 2 * edge : 1;
      std::int64_t t = folded && w > edge ? n - (walked - w) : w;
      Bytes highest(-1);
      std::uint32_t highest_op = 0;
      for (std::uint32_t k = 0; k < ops; ++k, slot += 2) {
        live += slot[0];
        const Bytes high = live + program.ops[segment.op_begin + k].scratch;
        if (high > highest) {
          highest = high;
          highest_op = segment.op_begin + k;
        }
        live -= slot[1];
      }
      const Bytes growth = (live - before) * (runs - 1);
      if (growth.value() > 0) {  // the last of the equal iterations stands highest
        highest += growth;
        t += runs - 1;
      }
      live += growth;
      if (highest > peak.bytes) {
        peak.bytes = highest;
        peak.at = {s, t, highest_op};
      }
    }
  }
  return peak;
}

// The two with this likeness, then a new one in the place of either.
PeakFinder::Layout& PeakFinder::layout_of(const StepProgram& program, std::size_t likeness) {
  const std::size_t first = 2 * (likeness % (kLayouts / 2));
  if (layouts_.size() < first + 2) layouts_.resize(first + 2);
  for (std::size_t at = first; at < first + 2; ++at)
    if (!layouts_[at].operands.empty() && layouts_[at].matches(program)) return layouts_[at];
  second_ = !second_ && !layouts_[first].operands.empty();
  Layout& layout = layouts_[first + (second_ ? 1 : 0)];
  derive(program, layout);
  return layout;
}

Peak PeakFinder::find(const StepProgram& program, std::size_t likeness) {
  const Layout& layout = layout_of(program, likeness);
  slots_.assign(2 * layout.slots, Bytes(0));
  for (const Event& event : layout.events)
    slots_[event.slot] +=
        program.tensors[static_cast<std::size_t>(event.tensor)].bytes * event.times;
  Bytes resident, states;
  for (const TensorDecl& tensor : program.tensors) {
    if (tensor.residency != Residency::persistent) continue;
    const std::int64_t copies =
        tensor.group == kNoGroup ? 1 : program.groups[index(tensor.group)].count;
    resident += tensor.bytes * copies;
    if (tensor.category == models::Category::parameters ||
        tensor.category == models::Category::optimizer)
      states += tensor.bytes * copies;
  }
  Peak peak = sweep(program, layout, resident);
  peak.states = states;
  for (const models::Op& op : program.ops) peak.scratch = std::max(peak.scratch, op.scratch);
  return peak;
}

}  // namespace plimsoll::planner

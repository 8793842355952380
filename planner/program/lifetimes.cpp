#include "planner/program/lifetimes.h"

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
constexpr std::uint32_t kNotWalked = ~0U;

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

void Lifetimes::clear() {
  events.clear();
  changes.clear();
  residents.clear();
  walks.clear();
  parts.clear();
  groups.clear();
  change_count = 0;
}

bool Lifetimes::stands_for(const std::vector<models::Group>& others) const {
  bool same = groups.size() == others.size();
  for (std::size_t g = 0; same && g < groups.size(); ++g)
    same = groups[g].count == others[g].count ||
           (groups[g].count >= groups[g].least && others[g].count >= groups[g].least);
  return same;
}

void LifetimeFinder::find(const StepProgram& program, Lifetimes& lifetimes) {
  program_ = &program;
  out_ = &lifetimes;
  lifetimes.clear();
  plan_groups();
  plan_walks();
  follow_touches();
  place_lifetimes();
  number_changes();
}

void LifetimeFinder::plan_groups() {
  const StepProgram& program = *program_;
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
    out_->groups.push_back({plan.count, 2 * plan.edge + 2});
  }
  classes_ = static_cast<std::size_t>(most);
}

void LifetimeFinder::plan_walks() {
  const StepProgram& program = *program_;
  walk_of_.assign(program.segments.size(), kNotWalked);
  for (std::uint32_t s = 0; s < program.segments.size(); ++s) {
    const Segment& segment = program.segments[s];
    Lifetimes::Walk walk;
    walk.segment = s;
    walk.op_begin = segment.op_begin;
    walk.op_end = segment.op_end;
    walk.group = segment.group;
    if (segment.group != kNoGroup) {
      const GroupPlan& plan = plan_of(segment.group);
      walk.walked = plan.walked();
      if (walk.walked < plan.count) walk.folded = plan.edge;
    }
    if (walk.walked == 0 || walk.op_begin == walk.op_end) continue;
    walk_of_[s] = static_cast<std::uint32_t>(out_->walks.size());
    out_->walks.push_back(walk);
  }
}

void LifetimeFinder::touch(std::size_t tensor, std::int64_t first_class, std::int64_t last_class,
                           std::int64_t key) {
  std::int32_t& at = irregular_[tensor];
  if (at < 0) {
    at = static_cast<std::int32_t>(by_class_.size());
    by_class_.resize(by_class_.size() + classes_, {kNever, -1});
  }
  for (std::int64_t c = first_class; c <= last_class; ++c) {
    Span& span = by_class_[static_cast<std::size_t>(at + c)];
    span.birth = std::min(span.birth, key);
    span.death = std::max(span.death, key);
  }
}

// Classes of a group's tensor: `low` first instances, the interior, `high` last instances.
void LifetimeFinder::touch_neighbour(const Operand& operand, const TensorDecl& decl,
                                     const Segment& segment, std::uint32_t s, std::int64_t op) {
  const GroupPlan& plan = plan_of(decl.group);
  const std::int64_t d = operand.delta;
  const std::int64_t key = pack(s, segment.descending ? d : -d, op);
  const auto tensor = static_cast<std::size_t>(operand.tensor);
  if (plan.is_short()) {  // so short that both ends may be missing: one by one
    for (std::int64_t c = 0; c < plan.count; ++c)
      if (c - d >= 0 && c - d < plan.count) touch(tensor, c, c, key);
    return;
  }
  // Layer l - d exists for l in [max(0, d), n - 1 + min(0, d)]: of the first `low` instances those
  // with l >= d, of the last `high` ones (l = n - 1 - j) those with j >= -d.
  touch(tensor, std::clamp<std::int64_t>(d, 0, plan.low),
        plan.low + plan.high - std::clamp<std::int64_t>(-d, 0, plan.high), key);
}

// A touch from outside the tensor's group, at the absolute iterations `first` and `last`.
void LifetimeFinder::touch_from_outside(models::TensorId id, int delta, std::uint32_t segment,
                                        std::int64_t first, std::int64_t last, std::int64_t op) {
  const auto tensor = static_cast<std::size_t>(id);
  const GroupId group = program_->tensors[tensor].group;
  const std::int64_t from = pack(segment, first, op), to = pack(segment, last, op);
  if (group == kNoGroup) {
    spans_[tensor].birth = std::min(spans_[tensor].birth, from);
    spans_[tensor].death = std::max(spans_[tensor].death, to);
    return;
  }
  const GroupPlan& plan = plan_of(group);
  if (plan.count == 0) return;
  const std::int64_t most = plan.classes() - 1;
  const std::int64_t last_class = delta <= 0 ? most : 0, first_class = delta < 0 ? most : 0;
  touch(tensor, first_class, last_class, from);
  if (to != from) touch(tensor, first_class, last_class, to);
}

void LifetimeFinder::follow_touches() {
  const StepProgram& program = *program_;
  spans_.assign(program.tensors.size(), {kNever, -1});
  irregular_.assign(program.tensors.size(), -1);
  by_class_.clear();
  for (const Lifetimes::Walk& walk : out_->walks) {
    const std::uint32_t s = walk.segment;
    const Segment& segment = program.segments[s];
    const std::int64_t n = program.repeats(segment);
    for (std::uint32_t k = segment.op_begin; k < segment.op_end; ++k) {
      const std::int64_t op = k - segment.op_begin, here = pack(s, 0, op);
      for (const Operand& o : program.operands_of(program.ops[k])) {
        if (o.tensor != kNoTensor) {
          const TensorDecl& decl = program.tensors[static_cast<std::size_t>(o.tensor)];
          if (decl.group == segment.group && o.delta == 0) {
            Span& span = spans_[static_cast<std::size_t>(o.tensor)];
            span.birth = std::min(span.birth, here);
            span.death = std::max(span.death, here);
          } else if (decl.group == segment.group && decl.group != kNoGroup) {
            touch_neighbour(o, decl, segment, s, op);
          } else {
            touch_from_outside(o.tensor, o.delta, s, 0, n - 1, op);
          }
        }
        if (o.beyond == kNoTensor || o.delta == 0 || segment.group == kNoGroup) continue;
        // The layers without a neighbour: the last |delta| ones (delta > 0) or the first ones.
        const std::int64_t missing = std::min<std::int64_t>(n, std::abs(o.delta));
        const bool at_end = (o.delta > 0) != segment.descending;
        touch_from_outside(o.beyond, o.delta, s, at_end ? n - missing : 0,
                           at_end ? n - 1 : missing - 1, op);
      }
    }
  }
}

// A birth counts from its op on, a death from the next one on.
void LifetimeFinder::change(std::uint32_t segment, std::int64_t walked, std::int64_t op,
                            std::size_t tensor, bool birth, std::int64_t times, bool counts) {
  const auto cut = program_->segments[segment].op_begin + static_cast<std::uint32_t>(op);
  const std::int32_t sign = birth ? 1 : -1;
  raw_.push_back({segment, birth ? cut : cut + 1, static_cast<std::int32_t>(tensor), walked,
                  sign * times, counts ? sign : 0});
}

// Instances that come or go in iterations of their own group's segment: one in each.
void LifetimeFinder::place_in_own_segment(std::int64_t key, std::int64_t first_instance,
                                          std::int64_t last_instance, std::size_t tensor,
                                          bool birth) {
  const std::uint32_t s = segment_of(key);
  const Segment& segment = program_->segments[s];
  const GroupPlan& plan = plan_of(segment.group);
  const std::int64_t n = plan.count, op = op_of(key);
  std::int64_t from = first_instance + iteration_of(key), to = last_instance + iteration_of(key);
  if (segment.descending) {
    from = n - 1 - last_instance + iteration_of(key);
    to = n - 1 - first_instance + iteration_of(key);
  }
  const std::int64_t walked = plan.walked();
  // First and last iteration that the walked one stands for.
  const auto stands_for = [&](std::int64_t w) {
    if (walked == n || w < plan.edge) return std::pair(w, w);
    if (w == plan.edge) return std::pair(w, n - plan.edge - 1);
    return std::pair(w + n - walked, w + n - walked);
  };
  const auto covers = [&](std::int64_t w) {
    const auto [first, last] = stands_for(w);
    return from <= first && to >= last;
  };
  if (2 * (to - from + 1) < n) {
    for (std::int64_t w = 0; w < walked; ++w)
      if (covers(w)) change(s, w, op, tensor, birth, 1);
    return;
  }
  const auto slot = 2 * (segment.op_begin + static_cast<std::uint32_t>(op)) + (birth ? 0 : 1);
  out_->events.push_back({slot, static_cast<std::int32_t>(tensor)});
  if (from == 0 && to == n - 1) return;
  for (std::int64_t w = 0; w < walked; ++w)
    if (!covers(w)) change(s, w, op, tensor, birth, -1);
}

// Notes the instances [first_instance, last_instance], which share `key`.
void LifetimeFinder::place(std::int64_t key, GroupId group, std::int64_t first_instance,
                           std::int64_t last_instance, std::size_t tensor, bool birth) {
  const std::uint32_t s = segment_of(key);
  const Segment& segment = program_->segments[s];
  if (group != kNoGroup && segment.group == group)
    return place_in_own_segment(key, first_instance, last_instance, tensor, birth);
  const std::int64_t times = last_instance - first_instance + 1, op = op_of(key);
  if (segment.group == kNoGroup && times == 1) {
    const auto slot = 2 * (segment.op_begin + static_cast<std::uint32_t>(op)) + (birth ? 0 : 1);
    out_->events.push_back({slot, static_cast<std::int32_t>(tensor)});
    return;
  }
  std::int64_t walked = iteration_of(key);  // of the first or the last ones
  if (segment.group != kNoGroup) {
    const GroupPlan& plan = plan_of(segment.group);
    if (walked >= plan.edge && plan.walked() < plan.count)
      walked = std::max(plan.edge, walked - (plan.count - plan.walked()));
  }
  // All of a group but some at its ends, or some at an end.
  const std::int64_t n = group == kNoGroup ? 1 : plan_of(group).count;
  const bool most = group != kNoGroup && 2 * times > n;
  change(s, walked, op, tensor, birth, most ? times - n : times, most);
}

// Most tensors come or go in every iteration of a segment of their group, each instance in its own,
// or once in a segment outside of any. False: this one does not.
bool LifetimeFinder::place_in_each(std::int64_t key, GroupId group, std::size_t tensor,
                                   bool birth) {
  const Segment& segment = program_->segments[segment_of(key)];
  if (segment.group != group || (group != kNoGroup && iteration_of(key) != 0)) return false;
  const auto op = segment.op_begin + static_cast<std::uint32_t>(op_of(key));
  out_->events.push_back({2 * op + (birth ? 0 : 1), static_cast<std::int32_t>(tensor)});
  return true;
}

void LifetimeFinder::place_lifetimes() {
  const StepProgram& program = *program_;
  raw_.clear();
  out_->events.reserve(2 * program.tensors.size());
  for (std::size_t i = 0; i < program.tensors.size(); ++i) {
    const TensorDecl& tensor = program.tensors[i];
    const GroupPlan* plan = tensor.group == kNoGroup ? nullptr : &plan_of(tensor.group);
    const std::int64_t n = plan ? plan->count : 1;
    if (tensor.residency == Residency::persistent) {
      out_->residents.push_back(static_cast<std::int32_t>(i));
      continue;
    }
    const Span& all = spans_[i];
    if (irregular_[i] < 0) {
      if (all.death < 0 || n == 0) continue;
      if (!place_in_each(all.birth, tensor.group, i, true))
        place(all.birth, tensor.group, 0, n - 1, i, true);
      if (!place_in_each(all.death, tensor.group, i, false))
        place(all.death, tensor.group, 0, n - 1, i, false);
      continue;
    }
    const Span* spans = by_class_.data() + irregular_[i];
    // First instance of a class; neighbours that share a place are one.
    const auto begin = [&](std::int64_t c) {
      return plan->is_short() || c <= plan->low ? c : n - (plan->classes() - c);
    };
    const std::int64_t classes = plan->classes();
    const auto each = [&](auto key_of, bool birth) {
      for (std::int64_t c = 0, next = 0; c < classes; c = next) {
        const std::int64_t key = key_of(c);
        next = c + 1;
        while (next < classes && key_of(next) == key) ++next;
        if (key >= 0 && key != kNever && begin(next) > begin(c))
          place(key, tensor.group, begin(c), begin(next) - 1, i, birth);
      }
    };
    each([&](std::int64_t c) { return std::min(all.birth, spans[c].birth); }, true);
    each([&](std::int64_t c) { return std::max(all.death, spans[c].death); }, false);
  }
}

void LifetimeFinder::number_changes() {
  std::sort(raw_.begin(), raw_.end(), [](const Raw& a, const Raw& b) {
    return a.segment != b.segment ? a.segment < b.segment : a.op < b.op;
  });
  std::size_t at = 0;
  for (Lifetimes::Walk& walk : out_->walks) {
    const std::size_t first = at;
    walk.part_begin = static_cast<std::uint32_t>(out_->parts.size());
    std::uint32_t op = walk.op_begin;
    for (; at < raw_.size() && raw_[at].segment == walk.segment; ++at) {
      if (at > first && raw_[at].op == raw_[at - 1].op) continue;
      out_->parts.push_back({op, raw_[at].op, 1, true});
      op = raw_[at].op;
      ++walk.cuts;
    }
    out_->parts.push_back({op, walk.op_end, 1, false});
    walk.part_end = static_cast<std::uint32_t>(out_->parts.size());
    walk.change_begin = static_cast<std::uint32_t>(out_->change_count);
    std::size_t cut = 0;
    for (std::size_t i = first; i < at; ++i) {
      if (i > first && raw_[i].op != raw_[i - 1].op) ++cut;
      out_->changes.push_back(
          {static_cast<std::uint32_t>(walk.change_begin +
                                      static_cast<std::size_t>(raw_[i].walked) * walk.cuts + cut),
           raw_[i].tensor, raw_[i].times, raw_[i].counts});
    }
    out_->change_count += static_cast<std::size_t>(walk.walked) * walk.cuts;
  }
}

}  // namespace plimsoll::planner

#include "planner/peak.h"

#include <algorithm>
#include <limits>

namespace plimsoll::planner {

using models::Operand;
using models::Segment;
using models::StepProgram;
using models::TensorDecl;

bool PeakFinder::Layout::matches(const StepProgram& program) const {
  if (operands.size() != program.operands.size() || op_begin.size() != program.ops.size() ||
      tensors.size() != program.tensors.size() || segments.size() != program.segments.size() ||
      !lifetimes.stands_for(program.groups))
    return false;
  bool same = true;
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
}

// One walk over a program: every op once, then every walked iteration from cut to cut.
template <class Number>
struct PeakFinder::Sweep {
  const StepProgram& program;
  const Lifetimes& lifetimes;
  Sums<Number>& sums;

  static Number number(Bytes bytes) {
    if constexpr (std::is_same_v<Number, Bytes>)
      return bytes;
    else
      return bytes.value();
  }
  static Bytes bytes(Number n) { return Bytes(n); }
  Number size(std::int32_t tensor) const {
    return number(program.tensors[static_cast<std::size_t>(tensor)].bytes);
  }

  void add_up() {
    sums.born_died.assign(2 * program.ops.size(), Number(0));
    for (const Lifetimes::Event& e : lifetimes.events) sums.born_died[e.slot] += size(e.tensor);
    sums.changes.assign(lifetimes.change_count, Number(0));
    for (const Lifetimes::Change& c : lifetimes.changes)
      sums.changes[c.at] +=
          size(c.tensor) * (c.counts == 0 ? c.times : c.times + c.counts * copies(c.tensor));
  }
  std::int64_t copies(std::int32_t tensor) const {
    return program
        .groups[static_cast<std::size_t>(program.tensors[static_cast<std::size_t>(tensor)].group)]
        .count;
  }

  // What an op adds and takes in every iteration.
  Number born(std::uint32_t op) const { return sums.born_died[2 * std::size_t{op}]; }
  Number died(std::uint32_t op) const { return sums.born_died[2 * std::size_t{op} + 1]; }
  Number scratch(std::uint32_t op) const { return number(program.ops[op].scratch); }

  // Between the cuts of a walk: the highest place, and what is there more at the end.
  void add_up_parts(const Lifetimes::Walk& walk) {
    sums.highest.clear();
    sums.net.clear();
    std::uint32_t op = walk.op_begin;
    for (std::uint32_t cut = walk.cut_begin; cut <= walk.cut_end; ++cut) {
      const std::uint32_t end = cut < walk.cut_end ? lifetimes.cuts[cut] : walk.op_end;
      Number live(0), highest = kLowest;
      for (; op < end; ++op) {
        live += born(op);
        highest = std::max(highest, live + scratch(op));
        live -= died(op);
      }
      sums.highest.push_back(highest);
      sums.net.push_back(live);
    }
  }

  // The first op of a part that reaches its highest place.
  std::uint32_t highest_op(const Lifetimes::Walk& walk, std::size_t part) const {
    std::uint32_t op = part == 0 ? walk.op_begin : lifetimes.cuts[walk.cut_begin + part - 1];
    const std::uint32_t cut = walk.cut_begin + static_cast<std::uint32_t>(part);
    const std::uint32_t end = cut < walk.cut_end ? lifetimes.cuts[cut] : walk.op_end;
    Number live(0), highest = kLowest;
    std::uint32_t at = op;
    for (; op < end; ++op) {
      live += born(op);
      if (live + scratch(op) > highest) {
        highest = live + scratch(op);
        at = op;
      }
      live -= died(op);
    }
    return at;
  }

  void run(Peak& peak) {
    add_up();
    const Number resident = number(peak.resident);
    Number live = resident, most = resident;
    for (const Lifetimes::Walk& walk : lifetimes.walks) {
      const std::int64_t iterations = program.repeats(program.segments[walk.segment]);
      add_up_parts(walk);
      const std::size_t parts = sums.net.size();
      const Number* change = sums.changes.data() + walk.change_begin;
      for (std::int64_t w = 0; w < walk.walked; ++w) {
        const Number before = live;
        Number highest = kLowest;
        std::size_t highest_part = 0;
        for (std::size_t part = 0; part < parts; ++part) {
          if (part > 0) live += *change++;
          if (sums.highest[part] != kLowest && live + sums.highest[part] > highest) {
            highest = live + sums.highest[part];
            highest_part = part;
          }
          live += sums.net[part];
        }
        const std::int64_t runs = w == walk.folded ? iterations - walk.walked + 1 : 1;
        std::int64_t t = walk.folded >= 0 && w > walk.folded ? iterations - (walk.walked - w) : w;
        const Number growth = (live - before) * (runs - 1);
        if (growth > Number(0)) {  // the last of the equal iterations stands highest
          highest += growth;
          t += runs - 1;
        }
        live += growth;
        if (highest > most) {
          most = highest;
          peak.at = {walk.segment, t, highest_op(walk, highest_part)};
        }
      }
    }
    peak.bytes = bytes(most);
  }

  static constexpr Number kLowest = Number(std::numeric_limits<std::int64_t>::min());
};

// The two with this likeness, then a new one in the place of either.
const PeakFinder::Layout& PeakFinder::layout_of(const StepProgram& program, std::size_t likeness) {
  const std::size_t first = 2 * (likeness % (kLayouts / 2));
  if (layouts_.size() < first + 2) layouts_.resize(first + 2);
  for (std::size_t at = first; at < first + 2; ++at)
    if (!layouts_[at].operands.empty() && layouts_[at].matches(program)) return layouts_[at];
  second_ = !second_ && !layouts_[first].operands.empty();
  Layout& layout = layouts_[first + (second_ ? 1 : 0)];
  layout.copy_structure(program);
  lifetime_finder_.find(program, layout.lifetimes);
  return layout;
}

Peak PeakFinder::find(const StepProgram& program, std::size_t likeness) {
  last_likeness_ = likeness;
  last_ = &layout_of(program, likeness);
  return find_resized(program);
}

namespace {

// A bound of every sum of a sweep: all instances at once, and the largest scratch, each as large as
// the largest of all. 0: beyond what 64 bits hold.
std::int64_t bound_of(const StepProgram& program, std::int64_t most) {
  std::int64_t longest = 1, instances = 0, bound = 0;
  for (const models::Group& group : program.groups) longest = std::max(longest, group.count);
  const auto tensors = static_cast<std::int64_t>(program.tensors.size() + 1);
  if (__builtin_mul_overflow(tensors, 4 * longest, &instances)) return 0;
  return __builtin_mul_overflow(most, instances, &bound) ? 0 : bound;
}

}  // namespace

Peak PeakFinder::find_resized(const StepProgram& program) {
  if (!last_->lifetimes.stands_for(program.groups)) return find(program, last_likeness_);
  const Lifetimes& lifetimes = last_->lifetimes;
  Peak peak;
  for (const std::int32_t resident : lifetimes.residents) {
    const TensorDecl& tensor = program.tensors[static_cast<std::size_t>(resident)];
    const std::int64_t copies = tensor.group == models::kNoGroup
                                    ? 1
                                    : program.groups[static_cast<std::size_t>(tensor.group)].count;
    peak.resident += tensor.bytes * copies;
    if (tensor.category == models::Category::parameters ||
        tensor.category == models::Category::optimizer)
      peak.states += tensor.bytes * copies;
  }
  std::int64_t most = 0;
  for (const models::Op& op : program.ops) most = std::max(most, op.scratch.value());
  peak.scratch = Bytes(most);
  for (const TensorDecl& tensor : program.tensors) most = std::max(most, tensor.bytes.value());
  if (bound_of(program, most) >= most)
    Sweep<std::int64_t>{program, lifetimes, sums_}.run(peak);
  else
    Sweep<Bytes>{program, lifetimes, checked_sums_}.run(peak);
  return peak;
}

}  // namespace plimsoll::planner

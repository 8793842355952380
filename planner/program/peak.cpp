#include "planner/program/peak.h"

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
  op_begin.reserve(program.ops.size());
  for (const models::Op& op : program.ops) op_begin.push_back(op.operand_begin);
  tensors.clear();
  tensors.reserve(program.tensors.size());
  for (const TensorDecl& tensor : program.tensors)
    tensors.push_back({tensor.group, tensor.residency});
}

// One walk over a program: every op once, then every walked iteration from cut to cut.
template <class Number>
struct PeakFinder::Sweep {
  const StepProgram& program;
  const Lifetimes& lifetimes;
  Sums<Number>& sums;
  std::vector<SectionPeak>& section_peaks;

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
    sums.born_died.resize(2 * program.ops.size());
    for (const Lifetimes::Part& part : lifetimes.parts)  // of no other op anything is asked
      std::fill(sums.born_died.begin() + 2 * std::ptrdiff_t{part.op_begin},
                sums.born_died.begin() + 2 * std::ptrdiff_t{part.op_end}, Number(0));
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

  static Number larger(Number a, Number b) { return a < b ? b : a; }

  struct Rise {
    Number highest = kLowest, net = Number(0);
    std::uint32_t op = 0;  // the first that reaches it
  };
  // One block of a part.
  Rise rise_of(const Lifetimes::Part& part) const {
    Rise rise;
    for (std::uint32_t op = part.op_begin; op < part.op_end; ++op) {
      rise.net += born(op);
      const Number high = rise.net + scratch(op);
      if (high > rise.highest) {
        rise.highest = high;
        rise.op = op;
      }
      rise.net -= died(op);
    }
    return rise;
  }

  // Between the cuts of a walk: the highest place, and what is there more at the end.
  void add_up_parts(const Lifetimes::Walk& walk) {
    sums.highest.clear();
    sums.net.clear();
    sums.first.clear();
    Number live(0), highest = kLowest;
    std::uint32_t first = walk.part_begin;
    for (std::uint32_t p = walk.part_begin; p < walk.part_end; ++p) {
      const Lifetimes::Part& part = lifetimes.parts[p];
      if (part.op_begin < part.op_end) {
        Rise rise = rise_of(part);
        const Number before_last = rise.net * (part.times - 1);
        highest = larger(highest, live + rise.highest + larger(Number(0), before_last));
        live += before_last + rise.net;
      }
      if (!part.cut_after && p + 1 < walk.part_end) continue;
      sums.highest.push_back(highest);
      sums.net.push_back(live);
      sums.first.push_back(first);
      live = Number(0);
      highest = kLowest;
      first = p + 1;
    }
  }

  // The first op between two cuts that reaches their highest place.
  std::uint32_t highest_op(std::size_t between) const {
    Number live(0);
    for (std::uint32_t p = sums.first[between];; ++p) {
      const Lifetimes::Part& part = lifetimes.parts[p];
      if (part.op_begin == part.op_end) continue;
      const Rise rise = rise_of(part);
      const Number before_last = rise.net * (part.times - 1);
      const bool in_last = before_last > Number(0);
      if (live + rise.highest + larger(Number(0), before_last) == sums.highest[between])
        return rise.op + (in_last ? (part.times - 1) * (part.op_end - part.op_begin) : 0);
      live += before_last + rise.net;
    }
  }

  // The largest of its ops; what stands for several of them has theirs.
  Bytes scratch_of(const Lifetimes::Walk& walk) const {
    Bytes most;
    for (std::uint32_t p = walk.part_begin; p < walk.part_end; ++p)
      for (std::uint32_t op = lifetimes.parts[p].op_begin; op < lifetimes.parts[p].op_end; ++op)
        most = std::max(most, program.ops[op].scratch);
    return most;
  }

  // That of the section that a walk belongs to, which begins with `live` bytes.
  SectionPeak& peak_of_section(const Lifetimes::Walk& walk, Number live) const {
    const models::Section section = program.segments[walk.segment].section;
    if (section_peaks.empty() || section_peaks.back().section != section)
      section_peaks.push_back({section, bytes(live), Bytes(0), Bytes(0)});
    SectionPeak& one = section_peaks.back();
    one.scratch = std::max(one.scratch, scratch_of(walk));
    return one;
  }

  void run(Peak& peak) {
    add_up();
    section_peaks.clear();
    const Number resident = number(peak.resident);
    Number live = resident, most = resident;
    for (const Lifetimes::Walk& walk : lifetimes.walks) {
      SectionPeak& one = peak_of_section(walk, live - resident);
      Number walk_most = live;
      const std::int64_t iterations = program.repeats(program.segments[walk.segment]);
      add_up_parts(walk);
      const std::size_t parts = sums.net.size();  // one more than cuts
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
        walk_most = larger(walk_most, highest);
        if (highest > most) {
          most = highest;
          peak.at = {walk.segment, t, highest_op(highest_part)};
        }
      }
      one.rise = std::max(one.rise, bytes(walk_most - resident) - one.entry);
    }
    peak.bytes = bytes(most);
  }

  static constexpr Number kLowest = Number(std::numeric_limits<std::int64_t>::min());
};

// The two with this likeness, then a new one in the place of either.
std::shared_ptr<const PeakFinder::Layout> PeakFinder::layout_of(const StepProgram& program,
                                                                std::size_t likeness) {
  const std::size_t first = 2 * (likeness % (kLayouts / 2));
  if (layouts_.size() < first + 2) layouts_.resize(first + 2);
  for (std::size_t at = first; at < first + 2; ++at)
    if (layouts_[at] && layouts_[at]->matches(program)) return layouts_[at];
  second_ = !second_ && layouts_[first];
  const auto layout = std::make_shared<Layout>();
  layout->copy_structure(program);
  lifetime_finder_.find(program, layout->lifetimes);
  return layouts_[first + (second_ ? 1 : 0)] = layout;
}

Peak PeakFinder::find(const StepProgram& program, std::size_t likeness, Known& known) {
  known.layout_ = layout_of(program, likeness);
  known.likeness_ = likeness;
  known.is_folded_ = false;
  return sweep(program, known.layout_->lifetimes, largest_size(program));
}

Peak PeakFinder::find_resized(const StepProgram& program, const EqualSizes& equal, Bytes largest,
                              Known& known) {
  const Lifetimes& lifetimes = known.layout_->lifetimes;
  if (!lifetimes.stands_for(program.groups)) return find(program, known.likeness_, known);
  if (equal.ops.empty()) return sweep(program, lifetimes, largest);
  if (!known.is_folded_) {
    known.folded_ = lifetimes;
    fold(equal, known.folded_);
    known.is_folded_ = true;
  }
  return sweep(program, known.folded_, largest);
}

Bytes PeakFinder::largest_size(const StepProgram& program) {
  Bytes most;
  for (const TensorDecl& tensor : program.tensors) most = std::max(most, tensor.bytes);
  for (const models::Op& op : program.ops) most = std::max(most, op.scratch);
  return most;
}

namespace {

// Whether no sum of a sweep can overflow: all instances at once and the largest scratch, each as
// large as the largest size that is written anywhere in the program.
bool is_safe(const StepProgram& program, Bytes largest) {
  std::int64_t longest = 1, instances = 0, bound = 0;
  for (const models::Group& group : program.groups) longest = std::max(longest, group.count);
  const auto tensors = static_cast<std::int64_t>(program.tensors.size() + 1);
  return !__builtin_mul_overflow(tensors, 4 * longest, &instances) &&
         !__builtin_mul_overflow(largest.value(), instances, &bound);
}

}  // namespace

Peak PeakFinder::sweep(const StepProgram& program, const Lifetimes& lifetimes, Bytes largest) {
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
  if (is_safe(program, largest))
    Sweep<std::int64_t>{program, lifetimes, sums_, section_peaks_}.run(peak);
  else
    Sweep<Bytes>{program, lifetimes, checked_sums_, section_peaks_}.run(peak);
  for (const SectionPeak& one : section_peaks_) peak.scratch = std::max(peak.scratch, one.scratch);
  return peak;
}

}  // namespace plimsoll::planner

#include "planner/stacks/pytorch/tape/lowering.h"

#include <algorithm>
#include <utility>

namespace plimsoll::planner::tape {

namespace {

std::uint8_t narrow(std::size_t n) {
  return static_cast<std::uint8_t>(n);
}

// Adds `value` unless it is there.
void put(std::vector<std::uint8_t>& list, std::uint8_t value) {
  if (std::ranges::find(list, value) == list.end()) list.push_back(value);
}

bool no_higher(const Moment& a, const Moment& b) {
  return std::ranges::equal(a, b, [](std::int8_t x, std::int8_t y) { return x <= y; });
}

Moment above(const Moment& now, const Moment& operands) {
  Moment difference = now;
  for (std::size_t i = 0; i < now.size(); ++i)
    difference[i] = static_cast<std::int8_t>(now[i] - operands[i]);
  return difference;
}

// Moments that are never above another, or never above the operands, are left out.
void add_highest(std::vector<Moment>& all, Moment moment) {
  const Moment none(moment.size(), 0);
  if (no_higher(moment, none)) return;
  for (const Moment& other : all)
    if (no_higher(moment, other)) return;
  std::erase_if(all, [&](const Moment& other) { return no_higher(other, moment); });
  all.push_back(std::move(moment));
}

class Lowering {
 public:
  Lowering(const Script& script, const std::vector<std::size_t>& cuts)
      : script_(script), cuts_(cuts) {
    slot_.assign(script_.blocks.size(), -1);
    for (const Block& block : script_.blocks)
      if (std::ranges::find(out_.sizes, block.size) == out_.sizes.end())
        out_.sizes.push_back(block.size);
    for (const Moved& moved : script_.moved)
      if (std::ranges::find(out_.sizes, moved.size) == out_.sizes.end())
        out_.sizes.push_back(moved.size);
    mark_crossing();
    for (std::size_t i = 0; i < script_.blocks.size(); ++i)
      if (role(i) != Role::scratch) {
        slot_[i] = static_cast<int>(out_.slots.size());
        out_.slots.push_back({role(i), script_.blocks[i].value, script_.blocks[i].size});
      }
  }

  Lowered run() {
    std::size_t begin = 0;
    for (const std::size_t cut : cuts_) {
      write(begin, cut);
      begin = cut;
    }
    write(begin, script_.steps.size());
    const auto left = [&](std::uint8_t slot) {
      return out_.slots[slot].role == Role::kept || out_.slots[slot].role == Role::given;
    };
    if (script_.steps.empty()) out_.ops.clear();
    out_.oldest = out_.ops.empty() ? 0 : out_.ops.size() - 1;
    for (std::size_t i = 0; i < out_.ops.size(); ++i)
      if (std::ranges::any_of(out_.ops[i].reads, left)) out_.oldest = i;
    return std::move(out_);
  }
  // Where to cut an op whose operands are never all there at once; 0: there is none.
  std::size_t over_counted() const { return over_counted_; }

 private:
  bool is_given(const Step& step) const {
    return script_.blocks[static_cast<std::size_t>(step.block)].role == Role::given;
  }

  // Scratch that is taken before a cut and dropped behind it.
  void mark_crossing() {
    crosses_.assign(script_.blocks.size(), false);
    std::vector<bool> there(script_.blocks.size(), false);
    auto cut = cuts_.begin();
    for (std::size_t i = 0; i < script_.steps.size(); ++i) {
      if (cut != cuts_.end() && *cut == i) {
        for (std::size_t k = 0; k < there.size(); ++k) crosses_[k] = crosses_[k] || there[k];
        ++cut;
      }
      const Step& step = script_.steps[i];
      if (step.what == Step::What::take || step.what == Step::What::drop)
        there[static_cast<std::size_t>(step.block)] = step.what == Step::What::take;
    }
  }
  Role role(std::size_t block) const {
    const Role own = script_.blocks[block].role;
    return own == Role::scratch && crosses_[block] ? Role::crossing : own;
  }

  void write(std::size_t begin, std::size_t end) {
    OpOf op;
    op.unpacks = unpacks(begin, end);
    op.part = part_of(begin, end);
    count_moved(op, begin, end);
    Moment now(out_.sizes.size(), 0);
    find_operands(op, begin, end);
    for (const auto* const slots : {&op.reads, &op.writes})
      for (const std::uint8_t slot : *slots)
        slots_end_ = std::max<std::size_t>(slots_end_, slot + 1u);
    op.slots_end = slots_end_;
    for (const std::uint8_t slot : op.reads) ++now[size_of(out_.slots[slot].size)];
    Moment operands = now;
    for (const std::uint8_t slot : op.writes) ++operands[size_of(out_.slots[slot].size)];
    std::vector<Moment> all;
    numbers_.assign(script_.blocks.size(), 0);
    taken_ = 0;
    for (std::size_t i = begin; i < end; ++i) {
      const Step& step = script_.steps[i];
      if (step.what == Step::What::adopt)
        op.events.push_back({Event::What::adopt, slot_at(step.block), slot_at(step.from)});
      const bool takes = step.what == Step::What::take;
      if (!takes && step.what != Step::What::drop) continue;
      if (!takes && is_given(step)) continue;
      const auto block = static_cast<std::size_t>(step.block);
      std::int8_t& count = now[size_of(script_.blocks[block].size)];
      count = static_cast<std::int8_t>(count + (takes ? 1 : -1));
      op.events.push_back(event(block, takes));
      if (!takes) continue;
      all.push_back(above(now, operands));
      add_highest(op.highest, all.back());
    }
    const auto reaches = [&](const Moment& m) { return usual(m) >= Bytes(0); };
    if (over_counted_ == 0 && std::ranges::none_of(all, reaches))
      over_counted_ = next_take(begin, end);
    out_.ops.push_back(std::move(op));
  }

  // With counts of a usual size: what is smaller than all of a value is far smaller.
  Bytes usual(const Moment& moment) const {
    Bytes all;
    for (std::size_t i = 0; i < moment.size(); ++i) {
      const Count count(out_.sizes[i].extent == kAll ? 1 << 20 : 1 << 8);
      all += storage(count, out_.sizes[i].dtype) * moment[i];
    }
    return all;
  }

  // Behind where something goes that an earlier op made for this one; 0: nowhere.
  std::size_t next_take(std::size_t begin, std::size_t end) const {
    std::vector<bool> here(script_.blocks.size(), false);
    bool ended = false;
    for (std::size_t i = begin; i < end; ++i) {
      const Step& step = script_.steps[i];
      if (step.block < 0) continue;
      const auto block = static_cast<std::size_t>(step.block);
      if (step.what == Step::What::take) {
        if (ended) return i;
        here[block] = true;
      }
      if (step.what == Step::What::drop && !here[block] && role(block) == Role::crossing)
        ended = true;
    }
    return 0;
  }

  // A kernel is noted behind the steps that make room for its result.
  void count_moved(OpOf& op, std::size_t begin, std::size_t end) const {
    op.moved.assign(out_.sizes.size(), 0);
    for (const Moved& moved : script_.moved) {
      if (moved.at <= begin || moved.at > end) continue;
      ++op.moved[size_of(moved.size)];
      if (moved.launches) ++op.kernels;
    }
    for (const Multiplied& multiplied : script_.multiplied)
      if (multiplied.at > begin && multiplied.at <= end) op.multiplied.push_back(multiplied);
  }

  // Of the node that takes first.
  Part part_of(std::size_t begin, std::size_t end) const {
    Part part;
    for (std::size_t i = begin; i < end && script_.steps[i].what != Step::What::take; ++i)
      if (script_.steps[i].what == Step::What::node)
        part = script_.parts[static_cast<std::size_t>(script_.steps[i].from)];
      else if (script_.steps[i].what == Step::What::leave)
        return {};
    return part;
  }

  bool unpacks(std::size_t begin, std::size_t end) const {
    return std::any_of(script_.steps.begin() + static_cast<std::ptrdiff_t>(begin),
                       script_.steps.begin() + static_cast<std::ptrdiff_t>(end),
                       [](const Step& step) { return step.what == Step::What::unpack; });
  }

  void find_operands(OpOf& op, std::size_t begin, std::size_t end) const {
    for (std::size_t i = begin; i < end; ++i) {
      const Step& step = script_.steps[i];
      if (step.block < 0 || slot_of(step) < 0) continue;
      const std::uint8_t slot = narrow(static_cast<std::size_t>(slot_of(step)));
      if (step.what == Step::What::adopt) put(op.reads, slot_at(step.from));
      if (step.what == Step::What::take || step.what == Step::What::adopt)
        put(op.writes, slot);
      else if (std::ranges::find(op.writes, slot) == op.writes.end())
        put(op.reads, slot);
    }
  }

  Event event(std::size_t block, bool takes) {
    if (slot_[block] >= 0)
      return {takes ? Event::What::birth : Event::What::death,
              narrow(static_cast<std::size_t>(slot_[block]))};
    if (!takes) return {Event::What::drop, numbers_[block]};
    numbers_[block] = taken_++;
    return {Event::What::take, narrow(size_of(script_.blocks[block].size))};
  }

  std::uint8_t slot_at(std::int16_t block) const {
    return narrow(static_cast<std::size_t>(slot_[static_cast<std::size_t>(block)]));
  }
  int slot_of(const Step& step) const { return slot_[static_cast<std::size_t>(step.block)]; }
  std::size_t size_of(const Size& size) const {
    return static_cast<std::size_t>(std::ranges::find(out_.sizes, size) - out_.sizes.begin());
  }

  const Script& script_;
  Lowered out_;
  std::vector<int> slot_;  // by block; -1: scratch
  std::vector<bool> crosses_;
  const std::vector<std::size_t>& cuts_;
  std::size_t over_counted_ = 0, slots_end_ = 0;
  std::vector<std::uint8_t> numbers_;  // by block: which of the op's takings it was
  std::uint8_t taken_ = 0;
};

// Where the ops begin: where what autograd kept is first read, behind the end of a caller's value,
// which may die there, as only the program knows, with a node that is to be an op of its own, and
// where frames return.
std::vector<std::size_t> cuts_of(const Script& script) {
  std::vector<std::size_t> cuts;
  bool takes = false, ended = false;
  std::size_t node = 0;  // where the last one begins; 0: in the op at hand
  for (std::size_t i = 0; i < script.steps.size(); ++i) {
    const Step& step = script.steps[i];
    const bool take = step.what == Step::What::take;
    if (step.what == Step::What::node) node = i;
    if (step.what == Step::What::leave || step.what == Step::What::arrive) {
      cuts.push_back(i);
      takes = step.what == Step::What::leave;
      ended = false;
      node = 0;
    }
    if ((take && (ended || (takes && node > 0))) || (takes && step.what == Step::What::unpack)) {
      cuts.push_back(node > 0 ? node : i);
      takes = ended = false;
      node = 0;
    }
    if (take) node = 0;
    takes = takes || take;
    if (step.what == Step::What::drop)
      ended = ended || script.blocks[static_cast<std::size_t>(step.block)].role == Role::given;
  }
  return cuts;
}

}  // namespace

// An op has all its operands at once: where they are never there together, it is cut again.
Lowered lower(const Script& script) {
  std::vector<std::size_t> cuts = cuts_of(script);
  for (;;) {
    Lowering lowering(script, cuts);
    Lowered lowered = lowering.run();
    if (lowering.over_counted() == 0) return lowered;
    cuts.insert(std::ranges::upper_bound(cuts, lowering.over_counted()), lowering.over_counted());
  }
}

}  // namespace plimsoll::planner::tape

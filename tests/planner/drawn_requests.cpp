#include "tests/planner/drawn_requests.h"

#include <algorithm>
#include <map>
#include <random>
#include <utility>
#include <vector>

namespace plimsoll::tests {

using namespace models;
using namespace planner;

namespace {

class Draw {
 public:
  explicit Draw(unsigned seed) : random_(seed) {}

  DrawnRequests make() {
    const int groups = pick(1, 2);
    for (int g = 0; g < groups; ++g) program_.groups.push_back({"layers", 0, pick(1, 5)});
    const int tensors = pick(4, 16);
    for (int i = 0; i < tensors; ++i) add_tensor(groups);
    const int segments = pick(2, 6);
    for (int s = 0; s < segments; ++s) add_segment(static_cast<GroupId>(pick(-1, groups - 1)));
    DrawnRequests drawn;
    add_start(drawn.start);
    drawn.start.set_scratch(drawn_scratch());
    drawn.program = program_;
    drawn.conf = drawn_conf();
    if (once_in(3))
      drawn.room = {.limit = Bytes(pick(1, 200) * (1LL << 20)), .may_flush = once_in(2)};
    return drawn;
  }

 private:
  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  bool once_in(int times) { return pick(1, times) == 1; }
  // Of both pools, on both sides of their limits.
  Bytes size() {
    const int kind = pick(0, 9);
    if (kind == 0) return Bytes(0);
    if (kind < 5) return Bytes(pick(1, 2 << 20));
    if (kind < 7) return Bytes(512LL * pick(1, 4096));
    return Bytes(pick(1 << 20, 30 << 20));
  }

  void add_tensor(int groups) {
    const int kind = pick(0, 9);
    program_.tensors.push_back(
        {"t", size(), static_cast<GroupId>(pick(-1, groups - 1)), 0,
         static_cast<Category>(pick(0, 7)), once_in(4) ? Stream::gather : Stream::compute,
         kind < 3 ? Residency::persistent : (kind == 3 ? Residency::carried : Residency::step)});
  }

  void add_segment(GroupId group) {
    Segment segment;
    segment.group = group;
    segment.descending = once_in(2);
    segment.op_begin = static_cast<std::uint32_t>(program_.ops.size());
    for (int ops = pick(1, 4); ops > 0; --ops) {
      Op op;
      op.name = once_in(6) ? "optimizer.step" : "op";
      op.phase = once_in(3) ? Phase::optimizer : Phase::backward;
      op.operand_begin = static_cast<std::uint32_t>(program_.operands.size());
      if (once_in(3)) op.scratch = size();
      for (int i = pick(0, 4); i > 0; --i) {
        // Of the segment's own group, or of none: an instance that exists.
        const auto tensor = static_cast<TensorId>(pick(0, std::ssize(program_.tensors) - 1));
        const GroupId of = program_.tensors[static_cast<std::size_t>(tensor)].group;
        if (of == kNoGroup || of == group) program_.operands.push_back({.tensor = tensor});
      }
      op.operand_count = static_cast<std::uint32_t>(program_.operands.size()) - op.operand_begin;
      program_.ops.push_back(op);
    }
    segment.op_end = static_cast<std::uint32_t>(program_.ops.size());
    program_.segments.push_back(segment);
  }
  int pick(int low, std::ptrdiff_t high) { return pick(low, static_cast<int>(high)); }

  const TensorDecl& decl(TensorId tensor) const {
    return program_.tensors[static_cast<std::size_t>(tensor)];
  }

  void add_start(Start& start) {
    const auto last = static_cast<TensorId>(program_.tensors.size() - 1);
    for (int events = pick(0, 4); events > 0; --events) {
      const TensorId tensor = pick(0, last);
      if (once_in(3)) {
        start.hold(size());
      } else if (once_in(3) && start.held() > dropped_) {
        start.drop(dropped_++);
      } else if (once_in(4)) {
        start.take_model();
      } else if (once_in(2) && decl(tensor).group != kNoGroup) {
        start.take_instance(tensor, 0);
      } else {
        start.take(tensor, std::min<TensorId>(last, tensor + pick(0, 3)));
      }
    }
    if (start.held() % 2 == 1) start.let_go_where_short();
    if (once_in(3)) start.take_at_first_use(pick(0, last));
    if (once_in(3)) {
      start.before_second_step();
      start.take(pick(0, last));
    }
  }

  ScratchBlocks drawn_scratch() {
    ScratchBlocks scratch;
    for (std::size_t op = 0; op < program_.ops.size(); ++op) {
      if (!once_in(3)) continue;
      BlockEvents events;
      std::vector<std::int32_t> there;
      for (int n = pick(0, 5); n > 0; --n) {
        const auto tensor = static_cast<TensorId>(pick(0, std::ssize(program_.tensors) - 1));
        switch (pick(0, 4)) {
          case 0:
          case 1:
            there.push_back(events.take(size()));
            break;
          case 2:
            if (there.empty()) break;
            events.drop(there.back());
            there.pop_back();
            break;
          // Each tensor once: an op's events are of its operands.
          case 3:
            if (!named_[{op, tensor}]++) events.birth(tensor);
            break;
          default:
            if (!named_[{op, tensor}]++) events.death(tensor);
        }
      }
      if (once_in(3)) {
        const auto sum = static_cast<TensorId>(pick(0, std::ssize(program_.tensors) - 1));
        const auto from = static_cast<TensorId>(pick(0, std::ssize(program_.tensors) - 1));
        if (sum != from && !named_[{op, sum}]++ && !named_[{op, from}]++) events.adopt(sum, from);
      }
      scratch.add(op, events);
    }
    // Of what lives in the step: what stays is one block in every stack.
    for (std::size_t i = 0; i < program_.tensors.size(); ++i)
      if (program_.tensors[i].residency != Residency::persistent && !adopted(i) && once_in(6))
        scratch.add_parts(static_cast<TensorId>(i), {size(), size()});
    return scratch;
  }
  // A block that becomes another tensor's is one.
  bool adopted(std::size_t tensor) const {
    return std::ranges::any_of(named_, [&](const auto& entry) {
      return entry.first.second == static_cast<TensorId>(tensor);
    });
  }

  AllocatorConf drawn_conf() {
    AllocatorConf conf;
    const int kind = pick(0, 5);
    conf.expandable_segments = kind == 1;
    if (kind == 2) conf.max_split_size = Bytes(pick(2, 24) * (1LL << 20));
    if (kind == 3) conf.roundup_power2_divisions.fill(1LL << pick(1, 4));
    return conf;
  }

  std::mt19937 random_;
  StepProgram program_;
  std::map<std::pair<std::size_t, TensorId>, int> named_;
  int dropped_ = 0;
};

}  // namespace

DrawnRequests drawn_requests(unsigned seed) {
  return Draw(seed).make();
}

}  // namespace plimsoll::tests

// Equal layers inside an iteration.
//
// Blocks of ops that bring and take tensors of equal sizes change the memory by the same amount
// each: at a fixed op of a block it is linear in the block's number, and its maximum over all of
// them stands in the first or in the last. So one block is added up for all.
#include <algorithm>
#include <utility>

#include "planner/program/lifetimes.h"

namespace plimsoll::planner {

namespace {

class Folder {
 public:
  Folder(const EqualSizes& equal, Lifetimes& lifetimes) : equal_(equal), out_(lifetimes) {}

  void run() {
    sort_events();
    std::vector<Lifetimes::Part> parts;
    for (Lifetimes::Walk& walk : out_.walks) {
      const auto begin = static_cast<std::uint32_t>(parts.size());
      for (std::uint32_t p = walk.part_begin; p < walk.part_end; ++p) split(out_.parts[p], parts);
      walk.part_begin = begin;
      walk.part_end = static_cast<std::uint32_t>(parts.size());
    }
    drop_events(parts);
    out_.parts = std::move(parts);
  }

 private:
  // By op; there births first, and by the tensors' sizes.
  void sort_events() {
    std::uint32_t ops = 0;
    for (const Lifetimes::Walk& walk : out_.walks) ops = std::max(ops, walk.op_end);
    begin_.assign(ops + 1, 0);
    for (const Lifetimes::Event& e : out_.events) ++begin_[e.slot / 2 + 1];
    for (std::uint32_t k = 0; k < ops; ++k) begin_[k + 1] += begin_[k];
    std::vector<std::uint32_t> next = begin_;
    std::vector<Lifetimes::Event> sorted(out_.events.size());
    const auto key = [&](const Lifetimes::Event& e) { return std::pair(e.slot, like(e.tensor)); };
    for (const Lifetimes::Event& e : out_.events) {
      const std::uint32_t op = e.slot / 2;
      std::uint32_t at = next[op]++;  // into the few of its op
      for (; at > begin_[op] && key(e) < key(sorted[at - 1]); --at) sorted[at] = sorted[at - 1];
      sorted[at] = e;
    }
    out_.events = std::move(sorted);
  }

  models::TensorId like(std::int32_t tensor) const {
    return equal_.tensors[static_cast<std::size_t>(tensor)];
  }

  bool equal(std::uint32_t a, std::uint32_t b) const {
    const std::uint32_t n = begin_[a + 1] - begin_[a];
    if (n != begin_[b + 1] - begin_[b]) return false;
    for (std::uint32_t i = 0; i < n; ++i) {
      const Lifetimes::Event &x = out_.events[begin_[a] + i], &y = out_.events[begin_[b] + i];
      if (x.slot % 2 != y.slot % 2 || like(x.tensor) != like(y.tensor)) return false;
    }
    return true;
  }
  bool equal_blocks(std::uint32_t a, std::uint32_t b, std::uint32_t length) const {
    for (std::uint32_t i = 0; i < length; ++i)
      if (!equal(a + i, b + i)) return false;
    return true;
  }

  // The equal blocks of a part, which has no cut inside, and what lies before, between and behind.
  void split(const Lifetimes::Part& part, std::vector<Lifetimes::Part>& parts) const {
    std::uint32_t done = part.op_begin;
    const auto add = [&](std::uint32_t begin, std::uint32_t end, std::uint32_t times) {
      if (begin < end) parts.push_back({begin, end, times, false});
    };
    for (const EqualSizes::Blocks& blocks : equal_.ops) {
      for (std::uint32_t b = 0; b + 1 < blocks.count;) {
        const std::uint32_t begin = blocks.begin + b * blocks.length, end = begin + blocks.length;
        std::uint32_t times = 1;
        if (begin >= done && end <= part.op_end)
          while (b + times < blocks.count && end + times * blocks.length <= part.op_end &&
                 equal_blocks(begin, begin + times * blocks.length, blocks.length))
            ++times;
        if (times > 1) {
          add(done, begin, 1);
          add(begin, end, times);
          done = begin + times * blocks.length;
        }
        b += times;
      }
    }
    if (done < part.op_end || done == part.op_begin) parts.push_back({done, part.op_end, 1, false});
    parts.back().cut_after = part.cut_after;
  }

  void drop_events(const std::vector<Lifetimes::Part>& parts) {
    std::vector<char> walked(begin_.size(), 0);
    for (const Lifetimes::Part& part : parts)
      std::fill(walked.begin() + part.op_begin, walked.begin() + part.op_end, 1);
    std::erase_if(out_.events, [&](const Lifetimes::Event& e) { return !walked[e.slot / 2]; });
  }

  const EqualSizes& equal_;
  Lifetimes& out_;
  std::vector<std::uint32_t> begin_;  // of each op's events
};

}  // namespace

void fold(const EqualSizes& equal, Lifetimes& lifetimes) {
  Folder(equal, lifetimes).run();
}

}  // namespace plimsoll::planner

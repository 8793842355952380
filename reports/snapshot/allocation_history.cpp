#include "reports/snapshot/allocation_history.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "models/base/error.h"

namespace plimsoll::reports {

namespace {
using Action = SnapshotEvent::Action;

// c10/cuda/CUDACachingAllocator.cpp: kMinBlockSize; kSmallSize, the largest rest of a block of the
// large pool that is not split off.
constexpr std::int64_t kRounding = 512, kLargestRest = 1 << 20;

class Replay {
 public:
  explicit Replay(const MemorySnapshot& snapshot) : snapshot_(snapshot) {
    const std::size_t n = snapshot.events.size();
    out_.allocated.resize(n);
    out_.reserved.resize(n);
  }

  AllocationHistory run() {
    before_the_history();
    for (const auto& [address, end] : segments_) out_.reserved_before += Bytes(end - address);
    for (const auto& [address, index] : live_) out_.allocated_before += of(index).block;
    // Given back before the history, and still in use on a stream then: counted no more.
    for (const auto& [address, index] : live_)
      if (pending_.contains(address)) out_.allocated_before -= of(index).block;
    Bytes allocated = out_.allocated_before, reserved = out_.reserved_before;
    for (std::size_t i = 0; i < snapshot_.events.size(); ++i) {
      apply(i, allocated, reserved);
      out_.allocated[i] = allocated;
      out_.reserved[i] = reserved;
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void contradict(std::size_t i, const char* what) const {
    fail(ErrorKind::bad_input,
         fmt::format("{}: event {} of device {}: {}", snapshot_.source, i, snapshot_.device, what));
  }
  SnapshotAllocation& of(std::size_t index) { return out_.allocations[index]; }

  // The state at the end, with the events undone from the last to the first.
  void before_the_history() {
    struct Held {
      Bytes requested, block;
      std::uint32_t stack;
      bool allocated;
    };
    std::map<std::int64_t, Held> held;
    for (const SnapshotSegment& segment : snapshot_.segments) {
      segments_.emplace(segment.address, segment.address + segment.size.value());
      if (segment.expandable) expandable_ = true;
      for (const SnapshotBlock& block : segment.blocks)
        if (block.active)
          held.emplace(block.address,
                       Held{block.requested, block.size, block.stack, block.allocated});
    }
    for (std::size_t i = snapshot_.events.size(); i-- > 0;) {
      const SnapshotEvent& event = snapshot_.events[i];
      switch (event.action) {
        case Action::alloc:
          if (held.erase(event.address) == 0)
            contradict(i, "an allocation that is not there afterwards");
          break;
        case Action::free_completed:
          if (!held.emplace(event.address, Held{event.size, rounded(event.size), 0, false}).second)
            contradict(i, "gives back what is there afterwards");
          break;
        case Action::free_requested:
          if (const auto at = held.find(event.address); at != held.end())
            at->second.allocated = true;
          else
            contradict(i, "gives back what is not there afterwards");
          break;
        case Action::segment_alloc:
          remove_segment(i, event);
          break;
        case Action::segment_free:
          add_segment(i, event);
          break;
      }
    }
    for (const auto& [address, block] : held) {
      live_.emplace(address, out_.allocations.size());
      if (!block.allocated) pending_.emplace(address, true);
      out_.allocations.push_back(
          {block.requested, block.block, -1,
           block.allocated ? static_cast<std::int64_t>(snapshot_.events.size()) : -1, block.stack});
    }
  }

  static Bytes rounded(Bytes size) { return std::max(round_up(size, kRounding), Bytes(kRounding)); }

  // Ranges that touch stay apart: a block never crosses from one segment to the next, but for those
  // of expandable segments, where no rest is left anyway.
  void add_segment(std::size_t i, const SnapshotEvent& event) {
    const std::int64_t end = event.address + event.size.value();
    const auto next = segments_.lower_bound(event.address);
    if ((next != segments_.end() && next->first < end) ||
        (next != segments_.begin() && std::prev(next)->second > event.address))
      contradict(i, "a segment where another one is");
    segments_.emplace(event.address, end);
  }
  // Of an expandable segment a part may go.
  void remove_segment(std::size_t i, const SnapshotEvent& event) {
    const std::int64_t end = event.address + event.size.value();
    auto at = segments_.upper_bound(event.address);
    if (at == segments_.begin()) contradict(i, "a segment that is not there");
    --at;
    if (at->second < end && expandable_) return remove_parts(i, event.address, end);
    if (at->second < end) contradict(i, "a segment that is not there");
    const auto [first, last] = *at;
    segments_.erase(at);
    if (first < event.address) segments_.emplace(first, event.address);
    if (end < last) segments_.emplace(end, last);
  }
  void remove_parts(std::size_t i, std::int64_t from, std::int64_t end) {
    while (from < end) {
      auto at = segments_.upper_bound(from);
      if (at == segments_.begin() || (--at)->second <= from)
        contradict(i, "a segment that is not there");
      const std::int64_t to = std::min(end, at->second);
      const auto [first, last] = *at;
      segments_.erase(at);
      if (first < from) segments_.emplace(first, from);
      if (to < last) segments_.emplace(to, last);
      from = to;
    }
  }

  // An allocation lies at the begin of a free range; what is left of it is split off, or stays with
  // it.
  Bytes block_of(const SnapshotEvent& event) const {
    const Bytes size = rounded(event.size);
    if (expandable_) return size;
    auto segment = segments_.upper_bound(event.address);
    if (segment == segments_.begin()) return size;
    --segment;
    std::int64_t end = segment->second;
    if (const auto next = live_.upper_bound(event.address); next != live_.end())
      end = std::min(end, next->first);
    const std::int64_t rest = end - event.address - size.value();
    const bool small = event.size <= Bytes(kLargestRest);
    if (rest <= 0 || rest > kLargestRest || small) return size;
    return size + Bytes(rest);
  }

  void apply(std::size_t i, Bytes& allocated, Bytes& reserved) {
    const SnapshotEvent& event = snapshot_.events[i];
    switch (event.action) {
      case Action::alloc: {
        const Bytes block = block_of(event);
        if (!live_.emplace(event.address, out_.allocations.size()).second)
          contradict(i, "an allocation where another one is");
        out_.allocations.push_back({event.size, block, static_cast<std::int64_t>(i),
                                    static_cast<std::int64_t>(snapshot_.events.size()),
                                    event.stack});
        allocated += block;
        break;
      }
      case Action::free_requested: {
        const auto at = live_.find(event.address);
        if (at == live_.end()) contradict(i, "gives back what is not there");
        of(at->second).died = static_cast<std::int64_t>(i);
        allocated -= of(at->second).block;
        break;
      }
      case Action::free_completed:
        live_.erase(event.address);
        break;
      case Action::segment_alloc:
        add_segment(i, event);
        reserved += event.size;
        break;
      case Action::segment_free:
        remove_segment(i, event);
        reserved -= event.size;
        break;
    }
  }

  const MemorySnapshot& snapshot_;
  std::map<std::int64_t, std::int64_t> segments_;  // end by address
  std::map<std::int64_t, std::size_t> live_;  // allocations by address
  std::map<std::int64_t, bool> pending_;  // of them, those that are in use on a stream only
  bool expandable_ = false;
  AllocationHistory out_;
};
}  // namespace

AllocationHistory history_of(const MemorySnapshot& snapshot) {
  return Replay(snapshot).run();
}

}  // namespace plimsoll::reports

#include "planner/memory/reserved.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "planner/memory/caching_allocator.h"
#include "planner/program/lifetime_rows.h"

namespace plimsoll::planner {

using models::Category;
using models::Phase;
using models::Residency;
using models::StepProgram;
using models::TensorDecl;

namespace {

// The op in which an optimizer makes its states, in every stack; what an engine does with gradients
// before it finds the cache without them.
constexpr std::string_view kOptimizerStep = "optimizer.step";

class Replay {
 public:
  Replay(const StepProgram& program, const Timeline& timeline, Room room, const Start& start,
         const models::AllocatorConf& conf, const AllocationWatch& watch)
      : program_(program),
        timeline_(timeline),
        start_(start),
        watch_(watch),
        may_flush_(room.may_flush),
        allocator_(room, conf),
        births_(timeline.steps.size(), timeline.lifetimes.size()),
        deaths_(timeline.steps.size(), timeline.lifetimes.size()) {
    handles_.assign(timeline.lifetimes.size(), -1);
    number_in_model_order();
    for (const Lifetime& life : timeline.lifetimes) {
      if (life.birth < 0) continue;
      births_.expect(life.birth);
      if (!is_carried(life)) deaths_.expect(life.death);
    }
    births_.all_expected();
    deaths_.all_expected();
    for (const std::size_t i : order_) {
      const Lifetime& life = timeline.lifetimes[i];
      if (decl(life).residency == Residency::persistent) {
        (comes_later(life.tensor) ? later_ : staying_).push_back(static_cast<std::int32_t>(i));
      } else if (life.birth >= 0) {
        births_.add(life.birth, i);
        if (is_carried(life))
          carried_.push_back(static_cast<std::int32_t>(i));
        else
          deaths_.add(life.death, i);
      }
    }
  }

  Reserved run() {
    find_first_uses();
    bool done = happen(start_.events(), staying_) && persistent(false) && step(true);
    first_step_ = false;
    allocator_.reset_peak_allocated();
    const DriverCalls before = allocator_.calls();
    done = done && happen(start_.later_events(), later_) && step(false);
    return {done,
            allocator_.peak_reserved(),
            allocator_.peak_allocated(),
            allocator_.allocated(),
            since(before, allocator_.calls()),
            allocator_.calls().flushes > 0};
  }

  // After run(). Nothing where the room ends.
  std::optional<Bytes> run_unluckily() {
    allocator_.be_unlucky();
    for (int i = 0; i < kUnluckySteps; ++i)
      if (!step(false)) return std::nullopt;
    return allocator_.peak_reserved();
  }

 private:
  static DriverCalls since(const DriverCalls& before, const DriverCalls& now) {
    return {now.flushes - before.flushes, now.mallocs - before.mallocs, now.frees - before.frees,
            now.malloced - before.malloced, now.freed - before.freed};
  }

  const TensorDecl& decl(const Lifetime& life) const {
    return program_.tensors[static_cast<std::size_t>(life.tensor)];
  }

  bool is_carried(const Lifetime& life) const { return decl(life).residency == Residency::carried; }

  // What is allocated at one moment is so in the order of the model's parameters: all tensors of
  // one layer before those of the next. Neighbouring declarations of one group make a block.
  void number_in_model_order() {
    const std::vector<TensorDecl>& tensors = program_.tensors;
    // Lifetimes are numbered tensor by tensor, and each one's instances upwards; where equal
    // micro-batches are written out, several times over.
    LifetimeRows starts(tensors.size(), tensors.size());
    const auto each_start = [&](auto what) {
      for (std::size_t i = 0; i < timeline_.lifetimes.size(); ++i)
        if (timeline_.lifetimes[i].instance == 0) what(timeline_.lifetimes[i].tensor, i);
    };
    each_start([&](models::TensorId tensor, std::size_t) { starts.expect(tensor); });
    starts.all_expected();
    each_start([&](models::TensorId tensor, std::size_t i) { starts.add(tensor, i); });
    order_.reserve(timeline_.lifetimes.size());
    for (std::size_t first = 0, next = 0; first < tensors.size(); first = next) {
      const models::GroupId group = tensors[first].group;
      for (next = first + 1; next < tensors.size() && tensors[next].group == group;) ++next;
      const std::int64_t n =
          group == models::kNoGroup ? 1 : program_.groups[static_cast<std::size_t>(group)].count;
      for (std::int64_t l = 0; l < n; ++l)
        for (std::size_t i = first; i < next; ++i)
          for (const std::int32_t start : starts.at(i))
            order_.push_back(static_cast<std::size_t>(start + l));
    }
  }

  std::optional<CachingAllocator::Handle> ask(Bytes bytes, models::Stream stream,
                                              std::int64_t lifetime = -1) {
    if (!watch_) return allocator_.allocate(bytes, stream);
    Allocation asked{.requested = bytes,
                     .allocated = allocator_.allocated(),
                     .reserved = allocator_.reserved(),
                     .first_step = first_step_,
                     .step = now_,
                     .lifetime = lifetime};
    const std::int64_t mallocs = allocator_.calls().mallocs;
    const auto handle = allocator_.allocate(bytes, stream);
    asked.granted = handle.has_value();
    asked.from_driver = allocator_.calls().mallocs != mallocs;
    if (!handle) asked.reserved = allocator_.reserved();
    watch_(asked);
    return handle;
  }
  bool ask_and_free(Bytes bytes) {
    if (!watch_) return allocator_.allocate_and_free(bytes, models::Stream::compute);
    const auto handle = ask(bytes, models::Stream::compute);
    if (handle) allocator_.free(*handle);
    return handle.has_value();
  }

  bool take(std::size_t lifetime) {
    const auto who = static_cast<std::int64_t>(lifetime);
    const TensorDecl& tensor = decl(timeline_.lifetimes[lifetime]);
    if (const auto* parts = start_.scratch().parts_of(timeline_.lifetimes[lifetime].tensor)) {
      std::vector<CachingAllocator::Handle>& handles = parts_[lifetime];
      for (const Bytes part : *parts) {
        const auto handle = ask(part, tensor.stream, who);
        if (!handle) return false;
        handles.push_back(*handle);
      }
      return true;
    }
    const auto handle = ask(tensor.bytes, tensor.stream, who);
    if (!handle) return false;
    handles_[lifetime] = *handle;
    return true;
  }

  bool comes_later(models::TensorId tensor) const {
    const auto names = [&](const StartEvent& event) {
      return event.kind == StartEvent::Kind::take && event.first <= tensor && tensor <= event.last;
    };
    return std::ranges::any_of(start_.later_events(), names) ||
           std::ranges::find(start_.at_first_use(), tensor) != start_.at_first_use().end();
  }

  // The op whose product needs a workspace, and so on.
  void find_first_uses() {
    for (const std::int32_t i : later_) {
      const models::TensorId tensor = timeline_.lifetimes[static_cast<std::size_t>(i)].tensor;
      if (std::ranges::find(start_.at_first_use(), tensor) == start_.at_first_use().end()) continue;
      const auto reads = [&](const models::Op& op) {
        return std::ranges::any_of(program_.operands_of(op), [&](const models::Operand& operand) {
          return operand.tensor == tensor;
        });
      };
      const auto first = std::ranges::find_if(program_.ops, reads);
      if (first == program_.ops.end())
        staying_.push_back(i);
      else
        first_uses_.emplace_back(static_cast<std::size_t>(first - program_.ops.begin()), i);
    }
  }

  bool take_at_first_use(std::size_t op) {
    for (const auto& [first, lifetime] : first_uses_) {
      const auto i = static_cast<std::size_t>(lifetime);
      if (first == op && handles_[i] < 0 && !take(i)) return false;
    }
    return true;
  }

  void drop(std::size_t lifetime) {
    CachingAllocator::Handle& handle = handles_[lifetime];
    if (handle >= 0) return allocator_.free(std::exchange(handle, -1));
    const auto parts = parts_.find(lifetime);
    if (parts == parts_.end()) return;
    for (const CachingAllocator::Handle part : parts->second) allocator_.free(part);
    parts->second.clear();
  }

  bool take_tensors(const StartEvent& event, const std::vector<std::int32_t>& among) {
    for (const std::int32_t staying : among) {
      const auto i = static_cast<std::size_t>(staying);
      const Lifetime& life = timeline_.lifetimes[i];
      if (life.tensor < event.first || life.tensor > event.last || handles_[i] >= 0) continue;
      if (event.instance >= 0 && life.instance != event.instance) continue;
      if (!take(i)) return false;
    }
    return true;
  }

  // Where there is no room beside what is held, a stack does without the latter (DeepSpeed moves
  // its parameters to the host before it flattens them).
  bool happen(const std::vector<StartEvent>& events, const std::vector<std::int32_t>& among) {
    std::vector<CachingAllocator::Handle>& held = held_;
    const auto drop = [&](std::int32_t first, std::int32_t last) {
      for (auto i = static_cast<std::size_t>(first); i <= static_cast<std::size_t>(last); ++i)
        if (held[i] >= 0) allocator_.free(std::exchange(held[i], -1));
    };
    for (const StartEvent& event : events) {
      if (event.kind == StartEvent::Kind::drop) {
        drop(event.first, event.last);
      } else if (event.kind == StartEvent::Kind::hold) {
        const auto handle = ask(event.bytes, models::Stream::compute);
        if (!handle) return false;
        held.push_back(*handle);
      } else if (event.kind == StartEvent::Kind::model) {
        if (!persistent(false)) return false;
      } else if (!take_tensors(event, among)) {
        if (held.empty() || !may_flush_) return false;
        drop(0, static_cast<std::int32_t>(held.size()) - 1);
        if (!take_tensors(event, among)) return false;
      }
    }
    return true;
  }

  // The optimizer's states, or everything else that stays.
  bool persistent(bool states) {
    for (const std::int32_t staying : staying_) {
      const auto i = static_cast<std::size_t>(staying);
      const TensorDecl& tensor = decl(timeline_.lifetimes[i]);
      if ((tensor.category == Category::optimizer) != states || handles_[i] >= 0) continue;
      if (!take(i)) return false;
    }
    return true;
  }

  bool step(bool first) {
    bool states = !first;
    for (const std::int32_t i : carried_) {
      if (!first) drop(static_cast<std::size_t>(i));
    }
    for (std::size_t s = 0; s < timeline_.steps.size(); ++s) {
      now_ = static_cast<std::int64_t>(s);
      const std::size_t number = timeline_.steps[s].at.op;
      const models::Op& op = program_.ops[number];
      if (!states && op.phase == Phase::optimizer && op.name == kOptimizerStep) {
        if (!persistent(true)) return false;
        states = true;
      }
      if (const auto* blocks = start_.scratch().find(number)) {
        if (!run_blocks(s, number, *blocks)) return false;
        continue;
      }
      // A product's result is there before its workspace, a second product's result after it.
      bool waits = first;
      for (const std::int32_t i : births_.at(s)) {
        if (!take(static_cast<std::size_t>(i))) return false;
        if (std::exchange(waits, false) && !take_at_first_use(number)) return false;
      }
      if (waits && !take_at_first_use(number)) return false;
      if (op.scratch > Bytes(0) && !ask_and_free(op.scratch)) return false;
      for (const std::int32_t i : deaths_.at(s)) drop(static_cast<std::size_t>(i));
    }
    now_ = -1;
    return true;
  }

  // An op whose blocks are known one by one.
  bool run_blocks(std::size_t s, std::size_t op, const std::vector<BlockEvent>& blocks) {
    using Kind = BlockEvent::Kind;
    const auto among = [&](std::int32_t lifetime, Kind kind) {
      const models::TensorId tensor =
          timeline_.lifetimes[static_cast<std::size_t>(lifetime)].tensor;
      return std::ranges::any_of(blocks, [&](const BlockEvent& event) {
        const bool adopts = event.kind == Kind::adopt;
        return (event.kind == kind || (adopts && kind == Kind::birth)) && event.tensor == tensor;
      });
    };
    for (const std::int32_t i : births_.at(s))
      if (!among(i, Kind::birth) && !take(static_cast<std::size_t>(i))) return false;
    taken_.clear();
    bool waits = true;
    for (const BlockEvent& event : blocks) {
      if (!happens(event, s)) return false;
      if (event.kind == Kind::birth && std::exchange(waits, false) && !take_at_first_use(op))
        return false;
    }
    if (waits && !take_at_first_use(op)) return false;
    for (const CachingAllocator::Handle handle : taken_)
      if (handle >= 0) allocator_.free(handle);
    for (const std::int32_t i : deaths_.at(s))
      if (!among(i, Kind::death)) drop(static_cast<std::size_t>(i));
    return true;
  }

  bool happens(const BlockEvent& event, std::size_t s) {
    const auto is_tensor = [&](std::int32_t lifetime) {
      return timeline_.lifetimes[static_cast<std::size_t>(lifetime)].tensor == event.tensor;
    };
    if (event.kind == BlockEvent::Kind::take) {
      if (event.bytes == Bytes(0)) {
        taken_.push_back(-1);
        return true;
      }
      const auto handle = ask(event.bytes, models::Stream::compute);
      if (handle) taken_.push_back(*handle);
      return handle.has_value();
    }
    if (event.kind == BlockEvent::Kind::drop) {
      CachingAllocator::Handle& taken = taken_[static_cast<std::size_t>(event.number)];
      if (taken >= 0) allocator_.free(std::exchange(taken, -1));
      return true;
    }
    if (event.kind == BlockEvent::Kind::adopt) return adopt(event, s);
    const bool birth = event.kind == BlockEvent::Kind::birth;
    for (const std::int32_t i : birth ? births_.at(s) : deaths_.at(s)) {
      if (!is_tensor(i)) continue;
      if (birth) return take(static_cast<std::size_t>(i));
      drop(static_cast<std::size_t>(i));
      return true;
    }
    return true;  // lives on, or was there before
  }

  bool adopt(const BlockEvent& event, std::size_t s) {
    const auto find = [&](auto among, models::TensorId tensor) {
      for (const std::int32_t i : among)
        if (timeline_.lifetimes[static_cast<std::size_t>(i)].tensor == tensor) return i;
      return -1;
    };
    const std::int32_t sum = find(births_.at(s), event.tensor);
    if (sum < 0) return true;
    const auto to = static_cast<std::size_t>(sum);
    const std::int32_t from = find(deaths_.at(s), event.from);
    if (from < 0 || handles_[static_cast<std::size_t>(from)] < 0) return take(to);
    std::swap(handles_[to], handles_[static_cast<std::size_t>(from)]);
    return true;
  }

  const StepProgram& program_;
  const Timeline& timeline_;
  const Start& start_;
  const AllocationWatch& watch_;
  bool first_step_ = true;
  std::int64_t now_ = -1;  // step of the timeline
  bool may_flush_;
  CachingAllocator allocator_;
  LifetimeRows births_, deaths_;
  std::vector<CachingAllocator::Handle> handles_;
  std::unordered_map<std::size_t, std::vector<CachingAllocator::Handle>> parts_;  // by lifetime
  std::vector<std::size_t> order_;
  // Of the order: persistent ones, those of them that come after the start, carried ones.
  std::vector<std::int32_t> staying_, later_, carried_;
  std::vector<std::pair<std::size_t, std::int32_t>> first_uses_;  // op and lifetime
  std::vector<CachingAllocator::Handle> held_, taken_;  // of the start, of the op that runs
};

}  // namespace

Reserved replay(const StepProgram& program, const Timeline& timeline, Room room, const Start& start,
                const models::AllocatorConf& conf, const AllocationWatch& watch) {
  return Replay(program, timeline, room, start, conf, watch).run();
}

Reserved replay_on(const StepProgram& program, const Timeline& timeline, Room room,
                   const Start& start, const models::AllocatorConf& conf,
                   std::optional<Bytes>& unlucky) {
  const AllocationWatch nobody;
  Replay replay(program, timeline, room, start, conf, nobody);
  const Reserved planned = replay.run();
  unlucky = planned.fits ? replay.run_unluckily() : std::nullopt;
  return planned;
}

Replays& Replays::of_rank(std::int64_t rank) {
  for (const auto& [known, replays] : others_)
    if (known == rank) return *replays;
  return *others_.emplace_back(rank, std::make_shared<Replays>()).second;
}

}  // namespace plimsoll::planner

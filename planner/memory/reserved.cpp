#include "planner/memory/reserved.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "planner/memory/caching_allocator.h"
#include "planner/memory/gather_replay.h"
#include "planner/memory/known_replays.h"
#include "planner/memory/step_requests.h"

namespace plimsoll::planner {

using models::Category;
using models::StepProgram;
using models::TensorDecl;

namespace {

class Replay {
 public:
  using Handle = CachingAllocator::Handle;

  Replay(const StepProgram& program, const Timeline& timeline, Room room, const Start& start,
         const models::AllocatorConf& conf, const AllocationWatch& watch)
      : program_(program),
        timeline_(timeline),
        start_(start),
        conf_(conf),
        watch_(watch),
        may_flush_(room.may_flush),
        allocator_(room, conf),
        requests_(program, timeline, start),
        handles_(requests_.blocks(), -1) {}

  Reserved run() {
    bool done = happen(start_.events(), requests_.staying()) && persistent() && step();
    first_step_ = false;
    gathered_.first_step_is_over();
    allocator_.reset_peak_allocated();
    const DriverCalls before = allocator_.calls();
    done = done && happen(start_.later_events(), requests_.later()) && step();
    Reserved made{done,
                  {},
                  allocator_.peak_allocated(),
                  allocator_.allocated(),
                  since(before, allocator_.calls()),
                  false,
                  {}};
    for (int i = 2; i < kSteps && made.fits; ++i) made.fits = step();
    made.reserved = allocator_.peak_reserved();
    made.flushed = allocator_.calls().flushes > 0;
    made.next_limit = allocator_.next_limit();
    return made;
  }

  // Of all that decides what run() and run_unluckily() come to where the driver gives without end.
  RequestHash::Value hash() const {
    RequestHash hash;
    for (const Request& r : requests_.of_step()) add(r, hash);
    hash.add(std::int64_t{-1});
    for (const auto* among : {&requests_.staying(), &requests_.later()}) {
      for (const std::int32_t i : *among) {
        const Lifetime& life = timeline_.lifetimes[static_cast<std::size_t>(i)];
        hash.add(static_cast<std::uint64_t>(life.tensor), static_cast<std::uint64_t>(life.instance),
                 is_state(life) ? 1 : 0);
        requests_.each_part(i, [&](const Request& part) { add(part, hash); });
      }
      hash.add(std::int64_t{-2});
    }
    for (const auto* events : {&start_.events(), &start_.later_events()}) {
      for (const StartEvent& event : *events) {
        hash.add(static_cast<std::uint64_t>(event.kind), static_cast<std::uint64_t>(event.first),
                 static_cast<std::uint64_t>(event.last));
        hash.add(event.bytes.value());
        hash.add(event.instance);
      }
      hash.add(std::int64_t{-3});
    }
    for (const bool first : {true, false}) {
      for (const GatherEvent& event : start_.gathers(first))
        hash.add(event.goes ? 1 : 0, static_cast<std::uint64_t>(event.block),
                 static_cast<std::uint64_t>(event.bytes.value()));
      hash.add(std::int64_t{-4});
    }
    hash.add(std::int64_t{start_.lets_go_where_short()});
    hash.add(std::int64_t{conf_.expandable_segments});
    hash.add(conf_.max_split_size ? conf_.max_split_size->value() : -1);
    hash.add(conf_.max_non_split_rounding.value());
    for (const std::int64_t steps : conf_.roundup_power2_divisions) hash.add(steps);
    return hash.value();
  }

  // After run(). Nothing where the room ends.
  std::optional<Bytes> run_unluckily() {
    allocator_.be_unlucky();
    for (int i = 0; i < kUnluckySteps; ++i)
      if (!step()) return std::nullopt;
    return allocator_.peak_reserved();
  }

 private:
  static DriverCalls since(const DriverCalls& before, const DriverCalls& now) {
    return {now.flushes - before.flushes, now.mallocs - before.mallocs, now.frees - before.frees,
            now.malloced - before.malloced, now.freed - before.freed};
  }

  // Whose step it is of, and of which lifetime a block, changes nothing but what a watch is told.
  static void add(const Request& r, RequestHash& hash) {
    hash.add(static_cast<std::uint64_t>(r.kind) | static_cast<std::uint64_t>(r.stream) << 8 |
                 static_cast<std::uint64_t>(r.block) << 16,
             static_cast<std::uint64_t>(r.from), static_cast<std::uint64_t>(r.bytes.value()));
  }

  bool is_state(const Lifetime& life) const {
    const TensorDecl& tensor = program_.tensors[static_cast<std::size_t>(life.tensor)];
    return tensor.category == Category::optimizer;
  }
  bool is_there(std::int32_t block) const { return handles_[static_cast<std::size_t>(block)] >= 0; }

  std::optional<Handle> ask(const Request& request, bool counted = true) {
    const auto allocate = [&] {
      return counted ? allocator_.allocate(request.bytes, request.stream)
                     : allocator_.allocate_uncounted(request.bytes, request.stream);
    };
    if (!watch_) return allocate();
    Allocation asked{.requested = request.bytes,
                     .allocated = allocator_.allocated(),
                     .reserved = allocator_.reserved(),
                     .first_step = first_step_,
                     .step = request.step,
                     .lifetime = request.lifetime};
    const std::int64_t mallocs = allocator_.calls().mallocs;
    const auto handle = allocate();
    asked.granted = handle.has_value();
    asked.from_driver = allocator_.calls().mallocs != mallocs;
    if (!handle) asked.reserved = allocator_.reserved();
    watch_(asked);
    return handle;
  }
  bool take(const Request& request) {
    const std::optional<Handle> handle = ask(request);
    if (handle) handles_[static_cast<std::size_t>(request.block)] = *handle;
    return handle.has_value();
  }
  bool take_and_free(const Request& request) {
    if (!watch_) return allocator_.allocate_and_free(request.bytes, request.stream);
    const auto handle = ask(request);
    if (handle) allocator_.free(*handle);
    return handle.has_value();
  }
  void free(Handle& handle) {
    if (handle >= 0) allocator_.free(std::exchange(handle, -1));
  }

  bool step() {
    for (const Request& request : requests_.of_step())
      if (!perform(request)) return false;
    return !start_.knows_gathers() ||
           gathered_.finish(asks_for({.stream = models::Stream::gather}));
  }

  GatherReplay::Ask asks_for(Request request) {
    return [this, request](Bytes bytes) mutable {
      request.bytes = bytes;
      return ask(request, false);
    };
  }

  // False: refused.
  bool perform(const Request& request) {
    Handle& handle = handles_[static_cast<std::size_t>(request.block)];
    switch (request.kind) {
      case Request::Kind::take:
        return take(request);
      case Request::Kind::take_missing:
        return handle >= 0 || take(request);
      case Request::Kind::take_first:
        return !first_step_ || handle >= 0 || take(request);
      case Request::Kind::free:
        free(handle);
        return true;
      case Request::Kind::take_and_free:
        return take_and_free(request);
      case Request::Kind::adopt:
        if (is_there(request.from))
          std::swap(handle, handles_[static_cast<std::size_t>(request.from)]);
        return true;
      case Request::Kind::flush:
        allocator_.empty_cache();
        return true;
      case Request::Kind::count:
        return gathered_.count(request.bytes, asks_for(request));
      case Request::Kind::discount:
        gathered_.discount(request.bytes);
    }
    return true;
  }

  // Before a step, of a lifetime.
  bool take_all(std::int32_t lifetime) {
    bool taken = true;
    requests_.each_part(lifetime, [&](const Request& part) { taken = taken && take(part); });
    return taken;
  }

  bool take_tensors(const StartEvent& event, const std::vector<std::int32_t>& among) {
    for (const std::int32_t i : among) {
      const Lifetime& life = timeline_.lifetimes[static_cast<std::size_t>(i)];
      if (life.tensor < event.first || life.tensor > event.last || is_there(i)) continue;
      if (event.instance >= 0 && life.instance != event.instance) continue;
      if (!take_all(i)) return false;
    }
    return true;
  }

  bool happen(const std::vector<StartEvent>& events, const std::vector<std::int32_t>& among) {
    const auto drop = [&](std::int32_t first, std::int32_t last) {
      for (std::int32_t i = first; i <= last; ++i) free(held_[static_cast<std::size_t>(i)]);
    };
    for (const StartEvent& event : events) {
      if (event.kind == StartEvent::Kind::drop) {
        drop(event.first, event.last);
      } else if (event.kind == StartEvent::Kind::hold) {
        const auto handle = ask({.bytes = event.bytes});
        if (!handle) return false;
        held_.push_back(*handle);
      } else if (event.kind == StartEvent::Kind::keep) {
        if (!ask({.bytes = event.bytes})) return false;
      } else if (event.kind == StartEvent::Kind::model) {
        if (!persistent()) return false;
      } else if (event.kind == StartEvent::Kind::flush) {
        allocator_.empty_cache();
      } else if (!take_tensors(event, among)) {
        if (held_.empty() || !may_flush_ || !start_.lets_go_where_short()) return false;
        drop(0, static_cast<std::int32_t>(held_.size()) - 1);
        if (!take_tensors(event, among)) return false;
      }
    }
    return true;
  }

  // Everything that stays but the optimizer's states.
  bool persistent() {
    return std::ranges::all_of(requests_.staying(), [&](std::int32_t i) {
      return is_state(timeline_.lifetimes[static_cast<std::size_t>(i)]) || is_there(i) ||
             take_all(i);
    });
  }

  const StepProgram& program_;
  const Timeline& timeline_;
  const Start& start_;
  const models::AllocatorConf& conf_;
  const AllocationWatch& watch_;
  bool first_step_ = true;
  bool may_flush_;
  CachingAllocator allocator_;
  GatherReplay gathered_{allocator_, start_};
  StepRequests requests_;
  std::vector<Handle> handles_;  // of the blocks, by number; -1: not there
  std::vector<Handle> held_;  // of the start
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
  std::optional<RequestHash::Value> hash;
  if (!room.limit) hash = replay.hash();
  if (const auto known = hash ? find_replay(*hash) : std::nullopt) {
    unlucky = known->unlucky;
    return known->needed;
  }
  const Reserved planned = replay.run();
  unlucky = planned.fits ? replay.run_unluckily() : std::nullopt;
  if (hash) remember_replay(*hash, {planned, unlucky});
  return planned;
}

Replays& Replays::of_rank(std::int64_t rank) {
  for (const auto& [known, replays] : others_)
    if (known == rank) return *replays;
  return *others_.emplace_back(rank, std::make_shared<Replays>()).second;
}

}  // namespace plimsoll::planner

// A step's requests are written down once and asked again in every step: on programs made at
// random, against a replay that reads the program anew each time, op by op, and asks what each op
// does as start.h and scratch_blocks.h say it.
#include "planner/memory/step_requests.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "planner/memory/reserved.h"
#include "planner/program/program_builder.h"
#include "tests/planner/drawn_requests.h"

using namespace plimsoll;
using namespace plimsoll::models;
using namespace plimsoll::planner;
using tests::DrawnRequests;

namespace {

class Naive {
 public:
  explicit Naive(const DrawnRequests& drawn)
      : program_(drawn.program),
        start_(drawn.start),
        timeline_(unroll(drawn.program)),
        may_flush_(drawn.room.may_flush),
        allocator_(drawn.room, drawn.conf) {
    order_.resize(timeline_.lifetimes.size());
    for (std::size_t i = 0; i < order_.size(); ++i) order_[i] = i;
    std::ranges::stable_sort(order_, [&](std::size_t a, std::size_t b) {
      const auto key = [&](std::size_t i) {
        const Lifetime& life = timeline_.lifetimes[i];
        // What should come with its first use, and has none, is behind the rest.
        const bool last = persists(i) && at_first_use(i) && !is_read(i);
        return std::tuple(last, first_of_its_row(life.tensor), life.instance, life.tensor);
      };
      return key(a) < key(b);
    });
  }

  Reserved run() {
    bool done = happen(start_.events(), false) && model() && step(true);
    allocator_.reset_peak_allocated();
    done = done && happen(start_.later_events(), true) && step(false);
    const Bytes allocated = allocator_.peak_allocated(), resident = allocator_.allocated();
    for (int i = 2; i < kSteps && done; ++i) done = step(false);
    return {done, allocator_.peak_reserved(),    allocated, resident,
            {},   allocator_.calls().flushes > 0};
  }

 private:
  using Handle = CachingAllocator::Handle;

  const TensorDecl& decl(TensorId tensor) const {
    return program_.tensors[static_cast<std::size_t>(tensor)];
  }
  TensorId tensor_of(std::size_t life) const { return timeline_.lifetimes[life].tensor; }
  // Neighbours of one group are taken layer by layer.
  TensorId first_of_its_row(TensorId tensor) const {
    const GroupId group = decl(tensor).group;
    if (group == kNoGroup) return tensor;
    while (tensor > 0 && decl(tensor - 1).group == group) --tensor;
    return tensor;
  }
  bool is_there(std::size_t life) const { return there_.contains(life); }
  bool persists(std::size_t life) const {
    return decl(tensor_of(life)).residency == Residency::persistent;
  }
  // What names it comes at its first use, or between the steps, and not before.
  bool at_first_use(std::size_t life) const {
    return std::ranges::find(start_.at_first_use(), tensor_of(life)) != start_.at_first_use().end();
  }
  bool between_steps(std::size_t life) const {
    return std::ranges::any_of(start_.later_events(), [&](const StartEvent& event) {
      return event.kind == StartEvent::Kind::take && event.first <= tensor_of(life) &&
             tensor_of(life) <= event.last;
    });
  }
  bool is_read(std::size_t life) const {
    return std::ranges::any_of(program_.operands,
                               [&](const Operand& o) { return o.tensor == tensor_of(life); });
  }
  // Before the first step, that is: what nobody reads has no first use.
  bool stays(std::size_t life) const {
    if (at_first_use(life)) return !is_read(life);
    return !between_steps(life);
  }

  bool take(std::size_t life) {
    const TensorId tensor = tensor_of(life);
    std::vector<Bytes> parts{decl(tensor).bytes};
    if (const auto* several = start_.scratch().parts_of(tensor)) parts = *several;
    for (const Bytes part : parts) {
      const auto handle = allocator_.allocate(part, decl(tensor).stream);
      if (!handle) return false;
      there_[life].push_back(*handle);
    }
    return true;
  }
  void drop(std::size_t life) {
    if (!is_there(life)) return;
    for (const Handle handle : there_[life]) allocator_.free(handle);
    there_.erase(life);
  }

  bool model() {
    return std::ranges::all_of(order_, [&](std::size_t life) {
      const bool asked = persists(life) && stays(life) && !is_there(life) &&
                         decl(tensor_of(life)).category != Category::optimizer;
      return !asked || take(life);
    });
  }
  bool take_tensors(const StartEvent& event, bool later) {
    return std::ranges::all_of(order_, [&](std::size_t life) {
      const TensorId tensor = tensor_of(life);
      const bool among = later ? between_steps(life) || at_first_use(life) : stays(life);
      const bool asked =
          persists(life) && among && !is_there(life) && event.first <= tensor &&
          tensor <= event.last &&
          (event.instance < 0 || timeline_.lifetimes[life].instance == event.instance);
      return !asked || take(life);
    });
  }
  bool happen(const std::vector<StartEvent>& events, bool later) {
    for (const StartEvent& event : events) {
      if (event.kind == StartEvent::Kind::hold) {
        const auto handle = allocator_.allocate(event.bytes, Stream::compute);
        if (!handle) return false;
        held_[count_++] = *handle;
      } else if (event.kind == StartEvent::Kind::drop) {
        for (int i = event.first; i <= event.last; ++i) let_go(i);
      } else if (event.kind == StartEvent::Kind::model) {
        if (!model()) return false;
      } else if (!take_tensors(event, later)) {
        // Without what is held, where there was no room beside it and the stack can.
        if (count_ == 0 || !may_flush_ || !start_.lets_go_where_short()) return false;
        for (int i = 0; i < count_; ++i) let_go(i);
        if (!take_tensors(event, later)) return false;
      }
    }
    return true;
  }
  void let_go(int held) {
    if (held_.contains(held)) allocator_.free(held_[held]);
    held_.erase(held);
  }

  bool step(bool first) {
    for (const std::size_t life : order_)
      if (decl(tensor_of(life)).residency == Residency::carried) drop(life);
    bool optimizes = false;
    for (std::size_t s = 0; s < timeline_.steps.size(); ++s) {
      const std::size_t number = timeline_.steps[s].at.op;
      const Op& op = program_.ops[number];
      const bool makes = op.phase == Phase::optimizer &&
                         op.name == std::string_view("optimizer.step") &&
                         !std::exchange(optimizes, true) && first;
      in_turn_ = makes && names_states(start_.scratch().find(number));
      if (makes && !in_turn_ && !take_states()) return false;
      if (op.phase != Phase::optimizer && op.name == std::string_view("optimizer.step") && first &&
          !take_states_of(timeline_.steps[s].at))
        return false;
      const auto* blocks = start_.scratch().find(number);
      if (!(blocks != nullptr ? op_of_blocks(s, number, *blocks, first) : plain_op(s, op, first)))
        return false;
      if (std::exchange(in_turn_, false) && !take_states()) return false;
    }
    return true;
  }
  bool is_state(TensorId tensor) const {
    const auto life =
        static_cast<std::size_t>(std::ranges::find(timeline_.lifetimes, tensor, &Lifetime::tensor) -
                                 timeline_.lifetimes.begin());
    return decl(tensor).category == Category::optimizer &&
           decl(tensor).residency == Residency::persistent && !at_first_use(life) &&
           !between_steps(life);
  }
  bool names_states(const std::vector<BlockEvent>* blocks) const {
    return blocks != nullptr && std::ranges::any_of(*blocks, [&](const BlockEvent& event) {
             return event.kind == BlockEvent::Kind::birth && is_state(event.tensor);
           });
  }
  // A layer's state in each turn, from the first layer on.
  bool take_turn(TensorId tensor) {
    const std::int64_t turn = turns_[tensor]++;
    for (const std::size_t life : order_)
      if (tensor_of(life) == tensor && timeline_.lifetimes[life].instance == turn)
        return is_there(life) || take(life);
    return true;
  }
  bool take_states() {
    return std::ranges::all_of(order_, [&](std::size_t life) {
      const bool asked = persists(life) && stays(life) && !is_there(life) &&
                         decl(tensor_of(life)).category == Category::optimizer;
      return !asked || take(life);
    });
  }
  // Of an optimizer in the backward: the ones that its op reads, in their order.
  bool take_states_of(const Position& at) {
    const models::Segment& segment = program_.segments[at.segment];
    const std::int64_t layers = program_.repeats(segment);
    for (const Operand& o : program_.operands_of(program_.ops[at.op]))
      for (const std::size_t life : order_) {
        if (tensor_of(life) != o.tensor || !persists(life) || is_there(life)) continue;
        if (decl(o.tensor).category != Category::optimizer) continue;
        const std::int64_t layer = segment.descending ? layers - 1 - at.iteration : at.iteration;
        const models::GroupId group = decl(o.tensor).group;
        const bool own = group == models::kNoGroup ||
                         (group == segment.group && timeline_.lifetimes[life].instance == layer);
        if (own && !take(life)) return false;
      }
    return true;
  }
  // In this op, or before it where nothing is written there.
  bool first_uses(std::size_t op, bool first) {
    return std::ranges::all_of(order_, [&](std::size_t life) {
      if (!first || !persists(life) || !at_first_use(life) || is_there(life)) return true;
      for (std::size_t i = 0; i <= op; ++i) {
        const bool reads =
            std::ranges::any_of(program_.operands_of(program_.ops[i]),
                                [&](const Operand& o) { return o.tensor == tensor_of(life); });
        if (reads) return i != op || take(life);
      }
      return true;
    });
  }
  std::vector<std::size_t> born(std::size_t s) const {
    return those([&](std::size_t life) {
      return !persists(life) && timeline_.lifetimes[life].birth == static_cast<std::int64_t>(s);
    });
  }
  std::vector<std::size_t> dead(std::size_t s) const {
    return those([&](std::size_t life) {
      return decl(tensor_of(life)).residency == Residency::step &&
             timeline_.lifetimes[life].birth >= 0 &&
             timeline_.lifetimes[life].death == static_cast<std::int64_t>(s);
    });
  }
  template <class Which>
  std::vector<std::size_t> those(Which which) const {
    std::vector<std::size_t> found;
    std::ranges::copy_if(order_, std::back_inserter(found), which);
    return found;
  }

  bool plain_op(std::size_t s, const Op& op, bool first) {
    const auto number = static_cast<std::size_t>(&op - program_.ops.data());
    const std::vector<std::size_t> births = born(s);
    for (std::size_t i = 0; i < births.size(); ++i) {
      if (!take(births[i])) return false;
      if (i == 0 && !first_uses(number, first)) return false;
    }
    if (births.empty() && !first_uses(number, first)) return false;
    if (op.scratch > Bytes(0)) {
      const auto handle = allocator_.allocate(op.scratch, Stream::compute);
      if (!handle) return false;
      allocator_.free(*handle);
    }
    for (const std::size_t life : dead(s)) drop(life);
    return true;
  }

  bool op_of_blocks(std::size_t s, std::size_t number, const std::vector<BlockEvent>& blocks,
                    bool first) {
    using Event = BlockEvent::Kind;
    const auto named = [&](std::size_t life, std::initializer_list<Event> kinds) {
      return std::ranges::any_of(blocks, [&](const BlockEvent& event) {
        return event.tensor == tensor_of(life) &&
               std::ranges::find(kinds, event.kind) != kinds.end();
      });
    };
    const auto of_tensor = [&](const std::vector<std::size_t>& lives, TensorId tensor) {
      return std::ranges::find(lives, tensor, [&](std::size_t life) { return tensor_of(life); });
    };
    const std::vector<std::size_t> births = born(s), deaths = dead(s);
    for (const std::size_t life : births)
      if (!named(life, {Event::birth, Event::adopt}) && !take(life)) return false;
    std::vector<std::optional<Handle>> own;
    bool waits = true;
    for (const BlockEvent& event : blocks) {
      const auto birth = of_tensor(births, event.tensor), death = of_tensor(deaths, event.tensor);
      if (event.kind == Event::take) {
        own.emplace_back();
        if (event.bytes == Bytes(0)) continue;
        if (!(own.back() = allocator_.allocate(event.bytes, Stream::compute))) return false;
      } else if (event.kind == Event::drop) {
        auto& handle = own[static_cast<std::size_t>(event.number)];
        if (handle) allocator_.free(*handle);
        handle.reset();
      } else if (event.kind == Event::birth) {
        if (in_turn_ && is_state(event.tensor) && !take_turn(event.tensor)) return false;
        if (birth != births.end() && !take(*birth)) return false;
        if (std::exchange(waits, false) && !first_uses(number, first)) return false;
      } else if (event.kind == Event::workspace) {
        if (std::exchange(waits, false) && !first_uses(number, first)) return false;
      } else if (event.kind == Event::death) {
        if (death != deaths.end()) drop(*death);
      } else if (birth != births.end()) {
        const auto from = of_tensor(deaths, event.from);
        if (from != deaths.end() && is_there(*from)) {
          there_[*birth] = there_[*from];
          there_.erase(*from);
        }
        if (!is_there(*birth) && !take(*birth)) return false;
      }
    }
    if (waits && !first_uses(number, first)) return false;
    for (const auto& handle : own)
      if (handle) allocator_.free(*handle);
    for (const std::size_t life : deaths)
      if (!named(life, {Event::death})) drop(life);
    return true;
  }

  const StepProgram& program_;
  const Start& start_;
  Timeline timeline_;
  bool may_flush_;
  CachingAllocator allocator_;
  std::vector<std::size_t> order_;
  std::map<std::size_t, std::vector<Handle>> there_;
  std::map<int, Handle> held_;
  std::map<TensorId, std::int64_t> turns_;
  bool in_turn_ = false;
  int count_ = 0;
};

}  // namespace

TEST_CASE("requests that are written once reserve what a replay op by op does") {
  const char* given = std::getenv("PLIMSOLL_CASES");
  const unsigned cases = given != nullptr ? static_cast<unsigned>(std::atoi(given)) : 4000;
  int refused = 0, flushed = 0;
  for (unsigned seed = 0; seed < cases; ++seed) {
    CAPTURE(seed);
    const DrawnRequests drawn = tests::drawn_requests(seed);
    const Reserved naive = Naive(drawn).run();
    const Reserved made =
        replay(drawn.program, unroll(drawn.program), drawn.room, drawn.start, drawn.conf);
    REQUIRE(made.fits == naive.fits);
    REQUIRE(made.reserved == naive.reserved);
    REQUIRE(made.allocated == naive.allocated);
    REQUIRE(made.resident == naive.resident);
    REQUIRE(made.flushed == naive.flushed);
    refused += made.fits ? 0 : 1;
    flushed += made.flushed ? 1 : 0;
  }
  // Rooms that end are among them.
  CHECK(refused > static_cast<int>(cases) / 100);
  CHECK(flushed > static_cast<int>(cases) / 100);
}

// Two layers have a state each, of 100 bytes; a third turn finds none left. What no turn names,
// here a table of 7, comes behind the step's own blocks of 1,000.
TEST_CASE("states that an optimizer's step names are made in their turns, the others behind") {
  StepProgram program;
  ProgramBuilder b(program, 1);
  const GroupId layers = b.group("layers", 0, 2);
  const TensorId state =
      b.tensor_in(layers, "state", Bytes(100), Category::optimizer, Residency::persistent);
  b.tensor_in(kNoGroup, "table", Bytes(7), Category::optimizer, Residency::persistent);
  b.open(kNoGroup);
  b.op("optimizer.step", Phase::optimizer);
  b.close();
  BlockEvents events;
  for (int turn = 0; turn < 3; ++turn) {
    events.birth(state);
    events.drop(events.take(Bytes(1000)));
  }
  ScratchBlocks blocks;
  blocks.add(0, std::move(events));
  Start start;
  start.set_scratch(std::move(blocks));
  const Timeline timeline = unroll(program);
  const StepRequests requests(program, timeline, start);
  std::vector<std::int64_t> taken;
  std::map<std::int32_t, bool> there;
  for (const Request& request : requests.of_step()) {
    if (request.kind == Request::Kind::free) continue;
    const bool first = request.kind == Request::Kind::take_first;
    if (!first || !std::exchange(there[request.block], true))
      taken.push_back(request.bytes.value());
  }
  CHECK(taken == std::vector<std::int64_t>{100, 1000, 100, 1000, 1000, 7});
}

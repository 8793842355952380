#include "planner/memory/step_requests.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace plimsoll::planner {

using models::Category;
using models::Op;
using models::Phase;
using models::Residency;
using models::TensorDecl;
using models::TensorId;
using Kind = Request::Kind;

namespace {
// The op in which an optimizer makes its states, in every stack; what an engine does with gradients
// before it finds the cache without them.
constexpr std::string_view kOptimizerStep = "optimizer.step";

// A few hundred KB that every plan needs: taken from the system anew each time, they would cost a
// tenth of it.
thread_local std::vector<Request> spare;
}  // namespace

StepRequests::StepRequests(const models::StepProgram& program, const Timeline& timeline,
                           const Start& start)
    : program_(program),
      timeline_(timeline),
      start_(start),
      births_(timeline.steps.size(), timeline.lifetimes.size()),
      deaths_(timeline.steps.size(), timeline.lifetimes.size()) {
  sort_lifetimes();
  find_first_uses();
  number_parts();
  write_step();
}

// What is allocated at one moment is so in the order of the model's parameters: all tensors of one
// layer before those of the next. Neighbouring declarations of one group make a block.
std::vector<std::int32_t> StepRequests::in_model_order() const {
  const std::vector<TensorDecl>& tensors = program_.tensors;
  // Lifetimes are numbered tensor by tensor, and each one's instances upwards; where equal
  // micro-batches are written out, several times over.
  LifetimeRows starts(tensors.size(), tensors.size());
  const auto each_start = [&](auto what) {
    for (std::size_t i = 0; i < timeline_.lifetimes.size(); ++i)
      if (timeline_.lifetimes[i].instance == 0) what(timeline_.lifetimes[i].tensor, i);
  };
  each_start([&](TensorId tensor, std::size_t) { starts.expect(tensor); });
  starts.all_expected();
  each_start([&](TensorId tensor, std::size_t i) { starts.add(tensor, i); });
  std::vector<std::int32_t> order;
  order.reserve(timeline_.lifetimes.size());
  for (std::size_t first = 0, next = 0; first < tensors.size(); first = next) {
    const models::GroupId group = tensors[first].group;
    for (next = first + 1; next < tensors.size() && tensors[next].group == group;) ++next;
    const std::int64_t n =
        group == models::kNoGroup ? 1 : program_.groups[static_cast<std::size_t>(group)].count;
    for (std::int64_t l = 0; l < n; ++l)
      for (std::size_t i = first; i < next; ++i)
        for (const std::int32_t begin : starts.at(i))
          order.push_back(begin + static_cast<std::int32_t>(l));
  }
  return order;
}

void StepRequests::sort_lifetimes() {
  const auto is_carried = [&](TensorId tensor) {
    return program_.tensors[static_cast<std::size_t>(tensor)].residency == Residency::carried;
  };
  for (const Lifetime& life : timeline_.lifetimes) {
    if (life.birth < 0) continue;
    births_.expect(life.birth);
    if (!is_carried(life.tensor)) deaths_.expect(life.death);
  }
  births_.all_expected();
  deaths_.all_expected();
  for (const std::int32_t i : in_model_order()) {
    const Lifetime& life = timeline_.lifetimes[static_cast<std::size_t>(i)];
    if (decl(i).residency == Residency::persistent) {
      (comes_later(life.tensor) ? later_ : staying_).push_back(i);
    } else if (life.birth >= 0) {
      births_.add(life.birth, static_cast<std::size_t>(i));
      if (is_carried(life.tensor))
        carried_.push_back(i);
      else
        deaths_.add(life.death, static_cast<std::size_t>(i));
    }
  }
}

bool StepRequests::comes_later(TensorId tensor) const {
  const auto names = [&](const StartEvent& event) {
    return event.kind == StartEvent::Kind::take && event.first <= tensor && tensor <= event.last;
  };
  return std::ranges::any_of(start_.later_events(), names) ||
         std::ranges::find(start_.at_first_use(), tensor) != start_.at_first_use().end();
}

// The op whose GEMM needs a workspace, and so on.
void StepRequests::find_first_uses() {
  for (const std::int32_t i : later_) {
    const TensorId tensor = tensor_of(i);
    if (std::ranges::find(start_.at_first_use(), tensor) == start_.at_first_use().end()) continue;
    const auto reads = [&](const Op& op) {
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

void StepRequests::number_parts() {
  const std::vector<Lifetime>& lifetimes = timeline_.lifetimes;
  first_own_ = static_cast<std::int32_t>(lifetimes.size());
  if (start_.scratch().has_parts()) first_part_.assign(lifetimes.size(), -1);
  const std::vector<Bytes>* parts = nullptr;
  for (std::size_t i = 0; i < first_part_.size(); ++i) {
    if (i == 0 || lifetimes[i].tensor != lifetimes[i - 1].tensor)
      parts = start_.scratch().parts_of(lifetimes[i].tensor);
    if (parts == nullptr) continue;
    first_part_[i] = first_own_;
    first_own_ += static_cast<std::int32_t>(parts->size());
  }
  blocks_ = static_cast<std::size_t>(first_own_);
}

StepRequests::~StepRequests() {
  spare = std::move(requests_);
}

void StepRequests::write_step() {
  requests_ = std::move(spare);
  requests_.clear();
  requests_.reserve(2 * timeline_.lifetimes.size());
  for (const std::int32_t i : carried_) drop(i);
  bool states = false;
  for (std::size_t s = 0; s < timeline_.steps.size(); ++s) {
    now_ = static_cast<std::int32_t>(s);
    const std::size_t number = timeline_.steps[s].at.op;
    const Op& op = program_.ops[number];
    if (op.name == kOptimizerStep && op.phase != Phase::optimizer) {
      take_states_of(timeline_.steps[s].at);
    }
    const auto* const blocks = start_.scratch().find(number);
    const bool makes_states = op.name == kOptimizerStep && !states && op.phase == Phase::optimizer;
    in_turn_ = makes_states && blocks != nullptr &&
               std::ranges::any_of(*blocks, [&](const BlockEvent& event) {
                 return event.kind == BlockEvent::Kind::birth && is_state(event.tensor);
               });
    states = states || makes_states;
    if (makes_states && !in_turn_) take_states();
    if (blocks != nullptr)
      write_blocks(s, number, *blocks);
    else
      write_op(s, number);
    if (std::exchange(in_turn_, false)) take_states();  // what no turn named
  }
}

void StepRequests::take_states() {
  for (const std::int32_t i : staying_)
    if (decl(i).category == Category::optimizer) take(i, Kind::take_first);
}

bool StepRequests::is_state(TensorId tensor) const {
  const TensorDecl& state = program_.tensors[static_cast<std::size_t>(tensor)];
  return state.residency == Residency::persistent && state.category == Category::optimizer &&
         !comes_later(tensor);
}

void StepRequests::find_first_states() {
  if (!first_state_.empty()) return;
  first_state_.assign(program_.tensors.size(), -1);
  states_taken_.assign(program_.tensors.size(), 0);
  for (auto i = static_cast<std::int32_t>(timeline_.lifetimes.size()); i-- > 0;)
    if (decl(i).category == Category::optimizer)
      first_state_[static_cast<std::size_t>(tensor_of(i))] = i;
}

// Of a layer after the other: its turn has come.
void StepRequests::take_next_state(TensorId tensor) {
  find_first_states();
  const auto i = static_cast<std::size_t>(tensor);
  const models::GroupId group = program_.tensors[i].group;
  const std::int64_t count =
      group == models::kNoGroup ? 1 : program_.groups[static_cast<std::size_t>(group)].count;
  if (states_taken_[i] < count) take(first_state_[i] + states_taken_[i]++, Kind::take_first);
}

// An optimizer in the backward makes a parameter's states when its first gradient is there.
void StepRequests::take_states_of(const Position& at) {
  find_first_states();
  const models::Segment& segment = program_.segments[at.segment];
  const std::int64_t last = program_.repeats(segment) - 1;
  for (const models::Operand& operand : program_.operands_of(program_.ops[at.op])) {
    if (operand.tensor == models::kNoTensor) continue;
    const std::int32_t first = first_state_[static_cast<std::size_t>(operand.tensor)];
    if (first < 0 || decl(first).residency != Residency::persistent) continue;
    const bool grouped = decl(first).group != models::kNoGroup;
    if (grouped && decl(first).group != segment.group) continue;
    const std::int64_t layer = segment.descending ? last - at.iteration : at.iteration;
    take(first + static_cast<std::int32_t>(grouped ? layer : 0), Kind::take_first);
  }
}

void StepRequests::write_op(std::size_t s, std::size_t op) {
  // A GEMM's result is there before its workspace, a second GEMM's result after it.
  bool waits = true;
  for (const std::int32_t i : births_.at(s)) {
    take(i);
    if (std::exchange(waits, false)) take_at_first_use(op);
  }
  if (waits) take_at_first_use(op);
  if (const Bytes scratch = program_.ops[op].scratch; scratch > Bytes(0))
    add({.kind = Kind::take_and_free, .bytes = scratch});
  for (const std::int32_t i : deaths_.at(s)) drop(i);
}

// An op whose blocks are known one by one.
void StepRequests::write_blocks(std::size_t s, std::size_t op,
                                const std::vector<BlockEvent>& blocks) {
  using Event = BlockEvent::Kind;
  const auto among = [&](std::int32_t lifetime, Event kind) {
    return std::ranges::any_of(blocks, [&](const BlockEvent& event) {
      const bool adopts = event.kind == Event::adopt && kind == Event::birth;
      return (event.kind == kind || adopts) && event.tensor == tensor_of(lifetime);
    });
  };
  for (const std::int32_t i : births_.at(s))
    if (!among(i, Event::birth)) take(i);
  own_.clear();
  bool waits = true;
  for (const BlockEvent& event : blocks) {
    write_event(event, s);
    const bool here = event.kind == Event::birth || event.kind == Event::workspace;
    if (here && std::exchange(waits, false)) take_at_first_use(op);
  }
  if (waits) take_at_first_use(op);
  for (std::size_t i = 0; i < own_.size(); ++i) drop_own(i);
  for (const std::int32_t i : deaths_.at(s))
    if (!among(i, Event::death)) drop(i);
}

// Of a tensor that lives on, or was there before, nothing happens.
void StepRequests::write_event(const BlockEvent& event, std::size_t s) {
  switch (event.kind) {
    case BlockEvent::Kind::take:
    case BlockEvent::Kind::take_beside:
      if (event.bytes > Bytes(0))
        add({.stream = event.kind == BlockEvent::Kind::take ? models::Stream::compute
                                                            : models::Stream::next,
             .block = first_own_ + static_cast<std::int32_t>(own_.size()),
             .bytes = event.bytes});
      own_.push_back(event.bytes > Bytes(0));
      break;
    case BlockEvent::Kind::drop:
      drop_own(static_cast<std::size_t>(event.number));
      break;
    case BlockEvent::Kind::birth:
      if (in_turn_ && is_state(event.tensor))
        take_next_state(event.tensor);
      else if (const std::int32_t i = lifetime_at(births_, s, event.tensor); i >= 0)
        take(i);
      break;
    case BlockEvent::Kind::death:
      if (const std::int32_t i = lifetime_at(deaths_, s, event.tensor); i >= 0) drop(i);
      break;
    case BlockEvent::Kind::workspace:
      break;
    case BlockEvent::Kind::flush:
      add({.kind = Kind::flush});
      break;
    case BlockEvent::Kind::adopt:
      const std::int32_t sum = lifetime_at(births_, s, event.tensor);
      if (sum < 0) break;
      const std::int32_t from = lifetime_at(deaths_, s, event.from);
      if (from >= 0) add({.kind = Kind::adopt, .block = sum, .from = from});
      take(sum, Kind::take_missing);
  }
}

std::int32_t StepRequests::lifetime_at(const LifetimeRows& rows, std::size_t s,
                                       TensorId tensor) const {
  for (const std::int32_t i : rows.at(s))
    if (tensor_of(i) == tensor) return i;
  return -1;
}

void StepRequests::take(std::int32_t lifetime, Kind kind) {
  each_part(lifetime, [&](Request request) {
    request.kind = is_counted(lifetime) ? Kind::count : kind;
    add(request);
  });
}

// Start::gathers has its blocks.
bool StepRequests::is_counted(std::int32_t lifetime) const {
  return start_.knows_gathers() && decl(lifetime).stream == models::Stream::gather;
}

void StepRequests::take_at_first_use(std::size_t op) {
  for (const auto& [first, lifetime] : first_uses_)
    if (first == op) take(lifetime, Kind::take_first);
}

void StepRequests::drop(std::int32_t lifetime) {
  each_part(lifetime, [&](Request request) {
    request.kind = is_counted(lifetime) ? Kind::discount : Kind::free;
    add(request);
  });
}

void StepRequests::drop_own(std::size_t number) {
  if (!own_[number]) return;
  own_[number] = false;
  add({.kind = Kind::free, .block = first_own_ + static_cast<std::int32_t>(number)});
}

void StepRequests::add(const Request& request) {
  blocks_ = std::max(blocks_, static_cast<std::size_t>(request.block) + 1);
  requests_.push_back(request);
  requests_.back().step = now_;
}

}  // namespace plimsoll::planner

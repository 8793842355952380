#include "planner/program/size_recorder.h"

#include <algorithm>
#include <utility>

namespace plimsoll::planner {

namespace {
thread_local SizeRecorder* listening = nullptr;
constexpr auto kShards = static_cast<std::uint32_t>(StepVariable::shards);
}  // namespace

SizeRecorder::Room& SizeRecorder::room() {
  thread_local Room room;
  room.numbers.clear();
  room.guarded.clear();
  for (auto* written : {&room.tensors, &room.scratch, &room.times, &room.counts}) written->clear();
  room.repeats.clear();
  room.with_zero.clear();
  return room;
}

SizeRecorder::SizeRecorder(const models::Batch& batch, const models::StepProgram& program,
                           std::int64_t shards)
    : of_(values_of(batch, shards)), program_(program), room_(room()) {
  out_.length_ = batch.seq_len;
  out_.nodes_.reserve(room_.most_nodes);
  out_.nodes_.push_back({});  // 0: a plain number
  for (std::size_t i = 0; i < kStepVariables; ++i)
    number({0, 0, static_cast<std::int64_t>(i), SymOp::variable});
  listening = this;
}

SizeRecorder::~SizeRecorder() {
  listening = nullptr;
}

SizeRecorder* SizeRecorder::current() {
  return listening;
}

SizeRecorder* SizeRecorder::of(const models::StepProgram& program) {
  return listening != nullptr && &listening->program_ == &program ? listening : nullptr;
}

// Another batch than the one that is recorded is that of another program.
SymInt SizeRecorder::variable(const models::Batch& batch, StepVariable which) const {
  const auto i = static_cast<std::uint32_t>(which);
  const StepValues values = values_of(batch, of_[kShards]);
  return values == of_ ? SymInt(values[i], i + 1) : SymInt(values[i]);
}

SymInt SizeRecorder::shards(std::int64_t shards) const {
  return shards == of_[kShards] ? SymInt(shards, kShards + 1) : SymInt(shards);
}

// Inline here alone: one call for each operation that a writer does.
namespace {
std::size_t mixed(std::uint64_t a, std::uint64_t b) {
  const std::uint64_t h = (a * 0x9E3779B97F4A7C15 ^ b) * 0xD6E8FEB86659FD93;
  return h ^ h >> 32;
}
std::size_t hash_of(const SymNode& node) {
  return mixed(std::uint64_t{node.a} << 32 | node.b,
               static_cast<std::uint64_t>(node.value) << 4 | static_cast<std::uint64_t>(node.op));
}
std::size_t hash_of(const SymGuard& guard) {
  return mixed(std::uint64_t{guard.a} << 32 | guard.b,
               static_cast<std::uint64_t>(guard.value) << 1 | (guard.equal ? 1 : 0));
}
// Of two of which one may be plain.
std::int64_t plain_of(SymInt a, SymInt b) {
  return a.node() == 0 ? a.now() : b.node() == 0 ? b.now() : 0;
}
}  // namespace

inline std::uint32_t SizeRecorder::number(const SymNode& node) {
  std::vector<SymNode>& all = out_.nodes_;
  const std::uint32_t place = room_.numbers.find(
      hash_of(node), static_cast<std::uint32_t>(all.size()),
      [&](std::uint32_t i) { return all[i] == node; },
      [&](std::uint32_t i) { return hash_of(i < all.size() ? all[i] : node); });
  if (place == all.size()) all.push_back(node);
  return place;
}

inline std::uint32_t SizeRecorder::node_of(SymInt value) {
  return value.node() != 0 ? value.node() : number({0, 0, value.now(), SymOp::constant});
}

inline SymInt SizeRecorder::add(SymOp op, SymInt a, SymInt b, std::int64_t value) {
  return {value, number({a.node(), b.node(), plain_of(a, b), op})};
}

inline SymInt SizeRecorder::add(const SymCall& call, std::int64_t value) {
  std::vector<SymCall>& all = out_.calls_;  // few
  const auto place = std::ranges::find(all, call) - all.begin();
  if (place == std::ssize(all)) all.push_back(call);
  return {value, number({0, 0, place, SymOp::call})};
}

SymInt SizeRecorder::add_highest(std::span<const SymBytes> sizes, std::span<const Multiples> sums,
                                 std::int64_t value) {
  std::vector<SymTerm>& terms = out_.terms_;
  const auto begin = static_cast<std::uint32_t>(terms.size());
  for (const Multiples& sum : sums) {
    for (std::size_t i = 0; i < sum.size(); ++i)
      if (sum[i] != 0) terms.push_back({node_of(sizes[i].value()), sum[i]});
    terms.push_back({});
  }
  const auto end = static_cast<std::uint32_t>(terms.size());
  out_.nodes_.push_back({begin, end, 0, SymOp::highest_sum});
  return {value, static_cast<std::uint32_t>(out_.nodes_.size() - 1)};
}

inline void SizeRecorder::guard(bool equal, SymInt a, SymInt b) {
  if (equal && b.is(0)) {  // whether a tensor is there: asked for each
    if (a.node() >= room_.with_zero.size()) room_.with_zero.resize(2 * a.node());
    if (std::exchange(room_.with_zero[a.node()], true)) return;
  }
  const SymGuard guard{equal, equal ? a.now() == b.now() : a.now() < b.now(), a.node(), b.node(),
                       plain_of(a, b)};
  std::vector<SymGuard>& all = out_.guards_;
  const std::uint32_t place = room_.guarded.find(
      hash_of(guard), static_cast<std::uint32_t>(all.size()),
      [&](std::uint32_t i) { return all[i] == guard; },
      [&](std::uint32_t i) { return hash_of(i < all.size() ? all[i] : guard); });
  if (place == all.size()) all.push_back(guard);
}

SymInt recorded(SymOp op, SymInt a, SymInt b, std::int64_t value) {
  return listening == nullptr ? SymInt(value) : listening->add(op, a, b, value);
}

SymInt called(SymFunction function, SymInt a, SymInt b, SymInt c, SymInt d) {
  const std::int64_t value = function(a.now(), b.now(), c.now(), d.now());
  if (listening == nullptr || (a.node() | b.node() | c.node() | d.node()) == 0) return value;
  return listening->add(SymCall{function,
                                {listening->node_of(a), listening->node_of(b),
                                 listening->node_of(c), listening->node_of(d)}},
                        value);
}

SymBytes highest_sum(std::span<const SymBytes> sizes, std::span<const Multiples> sums) {
  std::int64_t most = 0;
  std::uint32_t nodes = 0;
  for (const Multiples& times : sums) {
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < times.size(); ++i) {
      if (times[i] == 0) continue;
      const SymInt size = sizes[i].value();
      sum = checked_add(sum, checked_multiply(size.now(), std::int64_t{times[i]}));
      nodes |= size.node();
    }
    most = std::max(most, sum);
  }
  if (listening == nullptr || nodes == 0) return Bytes(most);
  return SymBytes(listening->add_highest(sizes, sums, most));
}

void guard_less(SymInt a, SymInt b) {
  if (listening != nullptr) listening->guard(false, a, b);
}

void guard_equal(SymInt a, SymInt b) {
  if (listening != nullptr) listening->guard(true, a, b);
}

std::int64_t SymInt::guarded() const {
  guard_equal(*this, SymInt(value_));
  return value_;
}

SymInt value_of(const models::Batch& batch, StepVariable which) {
  return listening != nullptr ? listening->variable(batch, which)
                              : SymInt(values_of(batch, 1)[static_cast<std::size_t>(which)]);
}

SymInt value_of_shards(std::int64_t shards) {
  return listening != nullptr ? listening->shards(shards) : SymInt(shards);
}

SizeRecorder::Slots SizeRecorder::varying(const std::vector<SymInt>& all) {
  Slots slots;
  slots.reserve(static_cast<std::size_t>(
      std::ranges::count_if(all, [](SymInt size) { return size.node() != 0; })));
  for (std::size_t i = 0; i < all.size(); ++i)
    if (all[i].node() != 0) slots.push_back({static_cast<std::uint32_t>(i), all[i].node()});
  return slots;
}

BatchSizes SizeRecorder::finish() {
  room_.tensors.resize(program_.tensors.size());
  room_.scratch.resize(program_.ops.size());
  out_.tensors_ = varying(room_.tensors);
  out_.scratch_ = varying(room_.scratch);
  out_.times_ = varying(room_.times);
  out_.counts_ = varying(room_.counts);
  for (std::size_t i = 0; i < program_.tensors.size(); ++i)
    if (room_.tensors[i].node() == 0)
      out_.largest_fixed_ = std::max(out_.largest_fixed_, program_.tensors[i].bytes);
  for (std::size_t i = 0; i < program_.ops.size(); ++i)
    if (room_.scratch[i].node() == 0)
      out_.largest_fixed_ = std::max(out_.largest_fixed_, program_.ops[i].scratch);
  out_.equal_ = equal_sizes();
  room_.most_nodes = std::max(room_.most_nodes, out_.nodes_.size());
  return std::move(out_);
}

// What is equal
// ------------------------------------------------------------------------------------

bool SizeRecorder::equal_ops(std::size_t first, std::size_t second, std::size_t count) const {
  const std::vector<SymInt>& of = room_.scratch;
  for (std::size_t i = 0; i < count; ++i)
    if (second + i >= of.size() || !same_expression(of[first + i], of[second + i])) return false;
  return true;
}

EqualSizes SizeRecorder::equal_sizes() const {
  EqualSizes equal;
  if (room_.repeats.empty()) return equal;
  const std::vector<SymInt>& sizes = room_.tensors;
  for (std::size_t i = 0; i < sizes.size(); ++i)
    equal.tensors.push_back(static_cast<models::TensorId>(i));
  for (const auto& [first, second] : room_.repeats) {
    const std::size_t tensors = second.tensor - first.tensor;
    for (std::size_t i = 0; i < tensors && second.tensor + i < sizes.size(); ++i)
      if (same_expression(sizes[first.tensor + i], sizes[second.tensor + i]))
        equal.tensors[second.tensor + i] = equal.tensors[first.tensor + i];
    const auto begin = static_cast<std::uint32_t>(first.op);
    const auto length = static_cast<std::uint32_t>(second.op - first.op);
    if (length == 0 || !equal_ops(first.op, second.op, length)) continue;
    EqualSizes::Blocks* last = equal.ops.empty() ? nullptr : &equal.ops.back();
    if (last != nullptr && last->length == length &&
        last->begin + last->length * (last->count - 1) == begin)
      ++last->count;
    else
      equal.ops.push_back({begin, length, 2});
  }
  return equal;
}

}  // namespace plimsoll::planner

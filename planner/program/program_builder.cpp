#include "planner/program/program_builder.h"

#include <algorithm>
#include <cstring>

namespace plimsoll::planner {

using models::GroupId;
using models::kNoGroup;
using models::kNoTensor;
using models::TensorId;

GroupId ProgramBuilder::group(const char* prefix, std::int64_t first, std::int64_t count,
                              std::int64_t stride) {
  program_.groups.push_back({prefix, first, count, stride});
  return static_cast<GroupId>(program_.groups.size() - 1);
}

void ProgramBuilder::open(GroupId group, bool descending, std::int64_t times) {
  open_ = group;
  layer_ = 0;
  if (resizes_) {
    same_ = same_ && next_.segment < program_.segments.size() &&
            program_.segments[next_.segment].group == group &&
            program_.segments[next_.segment].op_begin == next_.op;
    if (same_) program_.segments[next_.segment].times = times;
    ++next_.segment;
    return;
  }
  const auto at = static_cast<std::uint32_t>(program_.ops.size());
  program_.segments.push_back({at, at, group, descending, times, section_});
}

void ProgramBuilder::close() {
  if (!resizes_) program_.segments.back().op_end = static_cast<std::uint32_t>(program_.ops.size());
  open_ = kNoGroup;
  layer_ = 0;
}

TensorId ProgramBuilder::tensor(const char* name, Bytes requested, models::Category category,
                                models::Stream stream) {
  return tensor_in(open_, name, rounded(requested), category, models::Residency::step, stream);
}

TensorId ProgramBuilder::tensor_in(GroupId group, const char* name, Bytes allocated,
                                   models::Category category, models::Residency residency,
                                   models::Stream stream) {
  if (allocated == Bytes(0)) return kNoTensor;
  if (resizes_) return resized_tensor(group, name, allocated);
  program_.tensors.push_back({name, allocated, group, layer_, category, stream, residency});
  return static_cast<TensorId>(program_.tensors.size() - 1);
}

OpBuilder ProgramBuilder::op(const char* name, models::Phase phase) {
  if (resizes_) {
    const std::size_t at = resized_op(name);
    if (fuses_) work().compiled(0);
    return {program_, at, true};
  }
  models::Op op;
  op.name = name;
  op.operand_begin = static_cast<std::uint32_t>(program_.operands.size());
  op.phase = phase;
  op.layer = layer_;
  program_.ops.push_back(op);
  if (fuses_) work().compiled(0);
  return {program_, program_.ops.size() - 1, false};
}

// Sizes alone -------------------------------------------------------------------------------------

void ProgramBuilder::resize_from(const Place& place) {
  if (!resizes_) know_tensors(program_.tensors.size());
  resizes_ = true;
  next_ = place;
}

namespace {
// Most names are one literal.
bool same_name(const char* a, const char* b) {
  return a == b || std::strcmp(a, b) == 0;
}
}  // namespace

TensorId ProgramBuilder::resized_tensor(GroupId group, const char* name, Bytes allocated) {
  const std::size_t at = next_.tensor++;
  if (at >= program_.tensors.size() || !same_name(program_.tensors[at].name, name) ||
      program_.tensors[at].group != group) {
    same_ = false;
    return kNoTensor;
  }
  program_.tensors[at].bytes = allocated;
  return static_cast<TensorId>(at);
}

std::size_t ProgramBuilder::resized_op(const char* name) {
  // Somewhere to write to, where there is no such op.
  const std::size_t at = std::min(next_.op++, program_.ops.size() - 1);
  models::Op& op = program_.ops[at];
  same_ = same_ && same_name(op.name, name) && at + 1 == next_.op;
  op.scratch = Bytes(0);
  return at;
}

void ProgramBuilder::know_tensors(std::size_t count) {
  while (equal_.tensors.size() < count)
    equal_.tensors.push_back(static_cast<TensorId>(equal_.tensors.size()));
}

void ProgramBuilder::note_equal(const Place& begin, const Place& end) {
  know_tensors(2 * end.tensor - begin.tensor);
  for (std::size_t from = begin.tensor, to = end.tensor; from < end.tensor; ++from, ++to)
    equal_.tensors[to] = equal_.tensors[from];
  const auto first = static_cast<std::uint32_t>(begin.op);
  const auto length = static_cast<std::uint32_t>(end.op - begin.op);
  if (length == 0) return;
  if (!equal_.ops.empty()) {
    EqualSizes::Blocks& last = equal_.ops.back();
    if (last.length == length && last.begin + last.length * (last.count - 1) == first) {
      ++last.count;
      return;
    }
  }
  equal_.ops.push_back({first, length, 2});
}

ProgramBuilder::Place ProgramBuilder::repeat_since(const Place& begin) {
  const Place end = next_;
  next_.tensor += end.tensor - begin.tensor;
  next_.op += end.op - begin.op;
  same_ = same_ && next_.tensor <= program_.tensors.size() && next_.op <= program_.ops.size();
  if (!same_) return end;
  if (!knows_equal_) note_equal(begin, end);
  for (std::size_t from = begin.tensor, to = end.tensor; from < end.tensor; ++from, ++to) {
    same_ = same_ && program_.tensors[to].name == program_.tensors[from].name;
    program_.tensors[to].bytes = program_.tensors[from].bytes;
  }
  for (std::size_t from = begin.op, to = end.op; from < end.op; ++from, ++to) {
    same_ = same_ && program_.ops[to].name == program_.ops[from].name;
    program_.ops[to].scratch = program_.ops[from].scratch;
  }
  return end;
}

}  // namespace plimsoll::planner

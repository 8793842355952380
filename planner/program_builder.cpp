#include "planner/program_builder.h"

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
  const auto at = static_cast<std::uint32_t>(program_.ops.size());
  program_.segments.push_back({at, at, group, descending, times});
  open_ = group;
  layer_ = 0;
}

void ProgramBuilder::close() {
  program_.segments.back().op_end = static_cast<std::uint32_t>(program_.ops.size());
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
  program_.tensors.push_back({name, allocated, group, layer_, category, stream, residency});
  return static_cast<TensorId>(program_.tensors.size() - 1);
}

OpBuilder ProgramBuilder::op(const char* name, models::Phase phase) {
  models::Op op;
  op.name = name;
  op.operand_begin = static_cast<std::uint32_t>(program_.operands.size());
  op.phase = phase;
  op.layer = layer_;
  program_.ops.push_back(op);
  return OpBuilder(program_);
}

}  // namespace plimsoll::planner

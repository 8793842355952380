#include "planner/program/program_builder.h"

namespace plimsoll::planner {

using models::GroupId;
using models::kNoGroup;
using models::kNoTensor;
using models::TensorId;

GroupId ProgramBuilder::group(const char* prefix, std::int64_t first, SymInt count,
                              std::int64_t stride) {
  if (sizes_ != nullptr) sizes_->count(program_.groups.size(), count);
  program_.groups.push_back({prefix, first, count.now(), stride});
  return static_cast<GroupId>(program_.groups.size() - 1);
}

void ProgramBuilder::open(GroupId group, bool descending, SymInt times) {
  open_ = group;
  layer_ = 0;
  if (sizes_ != nullptr) sizes_->times(program_.segments.size(), times);
  const auto at = static_cast<std::uint32_t>(program_.ops.size());
  program_.segments.push_back({at, at, group, descending, times.now(), section_});
}

void ProgramBuilder::close() {
  program_.segments.back().op_end = static_cast<std::uint32_t>(program_.ops.size());
  open_ = kNoGroup;
  layer_ = 0;
}

TensorId ProgramBuilder::tensor(const char* name, SymBytes requested, models::Category category,
                                models::Stream stream) {
  return tensor_in(open_, name, rounded(requested), category, models::Residency::step, stream);
}

TensorId ProgramBuilder::tensor_in(GroupId group, const char* name, SymBytes allocated,
                                   models::Category category, models::Residency residency,
                                   models::Stream stream) {
  if (allocated == Bytes(0)) return kNoTensor;
  if (sizes_ != nullptr) sizes_->tensor(program_.tensors.size(), allocated);
  program_.tensors.push_back({name, allocated.now(), group, layer_, category, stream, residency});
  return static_cast<TensorId>(program_.tensors.size() - 1);
}

SymBytes ProgramBuilder::bytes_of(TensorId tensor) const {
  if (tensor == kNoTensor) return {};
  const auto at = static_cast<std::size_t>(tensor);
  return sizes_ != nullptr ? sizes_->tensor(at) : SymBytes(program_.tensors[at].bytes);
}

void ProgramBuilder::set_bytes(TensorId tensor, SymBytes bytes) {
  const auto at = static_cast<std::size_t>(tensor);
  program_.tensors[at].bytes = bytes.now();
  if (sizes_ != nullptr) sizes_->tensor(at, bytes);
}

OpBuilder ProgramBuilder::op(const char* name, models::Phase phase) {
  models::Op op;
  op.name = name;
  op.operand_begin = static_cast<std::uint32_t>(program_.operands.size());
  op.phase = phase;
  op.layer = layer_;
  program_.ops.push_back(op);
  if (fuses_) work().compiled(0);
  return {program_, program_.ops.size() - 1, sizes_};
}

}  // namespace plimsoll::planner

// Writes a StepProgram: tensors, then ops with operands, segment by segment.
#pragma once

#include "models/step_program.h"

namespace plimsoll::planner {

// Adds operands to the op that was begun last.
class OpBuilder {
 public:
  explicit OpBuilder(models::StepProgram& program) : program_(program) {}

  OpBuilder& read(models::TensorId t) { return add(t, models::Access::read); }
  OpBuilder& write(models::TensorId t) { return add(t, models::Access::write); }
  OpBuilder& update(models::TensorId t) { return add(t, models::Access::update); }
  // An owner lets go here: the tensor lives at least this long.
  OpBuilder& release(models::TensorId t) { return add(t, models::Access::release); }
  // The instance `delta` layers away; `beyond` where there is no such layer.
  OpBuilder& touch(models::TensorId t, int delta, models::TensorId beyond,
                   models::Access access = models::Access::read) {
    return add(t, access, delta, beyond);
  }
  OpBuilder& scratch(Bytes bytes, models::Category category = models::Category::temporaries) {
    program_.ops.back().scratch += bytes;
    program_.ops.back().scratch_category = category;
    return *this;
  }

 private:
  OpBuilder& add(models::TensorId t, models::Access access, int delta = 0,
                 models::TensorId beyond = models::kNoTensor) {
    if (t == models::kNoTensor && beyond == models::kNoTensor) return *this;
    program_.operands.push_back({t, beyond, static_cast<std::int8_t>(delta), access});
    ++program_.ops.back().operand_count;
    return *this;
  }
  models::StepProgram& program_;
};

class ProgramBuilder {
 public:
  // `granularity`: the allocator rounds every request up to a multiple of it (1: not at all).
  ProgramBuilder(models::StepProgram& program, std::int64_t granularity)
      : program_(program), granularity_(granularity) {
    program_.clear();
  }

  models::GroupId group(const char* prefix, std::int64_t first, std::int64_t count,
                        std::int64_t stride = 1);
  // Ops that follow run once (kNoGroup) or once per layer of `group`.
  void open(models::GroupId group, bool descending = false, std::int64_t times = 1);
  void close();
  // Which of a group's `stride` layers the following tensors and ops belong to.
  void at_layer(std::uint16_t layer) { layer_ = layer; }

  Bytes rounded(Bytes requested) const {
    return granularity_ == 1 ? requested : round_up(requested, granularity_);
  }
  // A tensor of the group that is open, or one outside groups. Nothing for zero bytes.
  models::TensorId tensor(const char* name, Bytes requested, models::Category category,
                          models::Stream stream = models::Stream::compute);
  models::TensorId tensor_in(models::GroupId group, const char* name, Bytes allocated,
                             models::Category category,
                             models::Residency residency = models::Residency::step,
                             models::Stream stream = models::Stream::compute);
  OpBuilder op(const char* name, models::Phase phase);

 private:
  models::StepProgram& program_;
  std::int64_t granularity_;
  models::GroupId open_ = models::kNoGroup;
  std::uint16_t layer_ = 0;
};

}  // namespace plimsoll::planner

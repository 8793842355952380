// Writes a StepProgram: tensors, then ops with operands, segment by segment.
//
// Who asks for one step with many batches has it written once, and a SizeRecorder that listens says
// what other batches change.
#pragma once

#include "models/step_program.h"
#include "planner/memory/scratch_blocks.h"
#include "planner/program/size_recorder.h"
#include "planner/program/work.h"

namespace plimsoll::planner {

// Adds operands to the op that was begun last.
class OpBuilder {
 public:
  OpBuilder(models::StepProgram& program, std::size_t op, SizeRecorder* sizes)
      : program_(program), op_(op), sizes_(sizes) {}

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
  OpBuilder& scratch(SymBytes bytes, models::Category category = models::Category::temporaries) {
    models::Op& op = program_.ops[op_];
    if (sizes_ != nullptr) sizes_->scratch(op_, bytes);
    op.scratch += bytes.now();
    op.scratch_category = category;
    return *this;
  }

 private:
  OpBuilder& add(models::TensorId t, models::Access access, int delta = 0,
                 models::TensorId beyond = models::kNoTensor) {
    if (t == models::kNoTensor && beyond == models::kNoTensor) return *this;
    program_.operands.push_back({t, beyond, static_cast<std::int8_t>(delta), access});
    ++program_.ops[op_].operand_count;
    return *this;
  }
  models::StepProgram& program_;
  std::size_t op_;
  SizeRecorder* sizes_;
};

class ProgramBuilder {
 public:
  // `granularity`: the allocator rounds every request up to a multiple of it (1: not at all).
  ProgramBuilder(models::StepProgram& program, std::int64_t granularity)
      : program_(program), granularity_(granularity), sizes_(SizeRecorder::of(program)) {
    program_.clear();
  }

  using Place = SizeRecorder::Place;
  // Where the next tensor and op stand.
  Place place() const { return {program_.tensors.size(), program_.ops.size()}; }
  // What was written from `first` to `second` has just been written again.
  void note_repeat(const Place& first, const Place& second) {
    if (sizes_ != nullptr) sizes_->repeats(first, second);
  }

  models::GroupId group(const char* prefix, std::int64_t first, SymInt count,
                        std::int64_t stride = 1);
  // Ops that follow run once (kNoGroup) or once per layer of `group`.
  void open(models::GroupId group, bool descending = false, SymInt times = 1);
  void close();
  models::GroupId open_group() const { return open_; }
  // The section of the segments that follow.
  void begin(models::Section section) { section_ = section; }
  // Which of a group's `stride` layers the following tensors and ops belong to.
  void at_layer(std::uint16_t layer) { layer_ = layer; }

  Bytes rounded(Bytes requested) const {
    if (granularity_ == 1) return requested;
    if ((granularity_ & (granularity_ - 1)) != 0) return round_up(requested, granularity_);
    return Bytes(checked_add(requested.value(), granularity_ - 1) & -granularity_);
  }
  SymBytes rounded(SymBytes requested) const {
    if (requested.value().node() == 0) return rounded(requested.now());
    return granularity_ == 1 ? requested : round_up(requested, granularity_);
  }
  // A tensor of the group that is open, or one outside groups. Nothing for zero bytes.
  models::TensorId tensor(const char* name, SymBytes requested, models::Category category,
                          models::Stream stream = models::Stream::compute);
  models::TensorId tensor_in(models::GroupId group, const char* name, SymBytes allocated,
                             models::Category category,
                             models::Residency residency = models::Residency::step,
                             models::Stream stream = models::Stream::compute);
  SymBytes bytes_of(models::TensorId tensor) const;
  void set_bytes(models::TensorId tensor, SymBytes bytes);
  OpBuilder op(const char* name, models::Phase phase);
  OpBuilder last_op() { return {program_, program_.ops.size() - 1, sizes_}; }
  // Where the next operand stands; one that was written becomes the instance before this one.
  std::size_t operands() const { return program_.operands.size(); }
  void set_before(std::size_t operand, models::TensorId tensor) {
    program_.operands[operand] = {tensor, models::kNoTensor, -1, models::Access::release};
  }
  // Whether who replays an allocator asked for an op's blocks; of the op that was written last.
  bool keeps_blocks() const { return blocks_ != nullptr; }
  void blocks(BlockEvents events) { blocks_->add(program_.ops.size() - 1, std::move(events)); }
  void parts(models::TensorId tensor, std::vector<Bytes> parts) {
    if (tensor != models::kNoTensor) blocks_->add_parts(tensor, std::move(parts));
  }
  void keep_blocks(ScratchBlocks* blocks) { blocks_ = blocks; }
  void keep_work(Works* works) { works_ = works; }
  // Of the op that was written last.
  WorkOfOp work() const { return {works_, program_.ops.size() - 1}; }
  // Compiled code does the ops that follow beside their neighbours.
  void fuses(bool fuses) { fuses_ = fuses; }

 private:
  models::StepProgram& program_;
  std::int64_t granularity_;
  models::GroupId open_ = models::kNoGroup;
  std::uint16_t layer_ = 0;
  models::Section section_ = models::Section::layers;
  ScratchBlocks* blocks_ = nullptr;
  Works* works_ = nullptr;
  bool fuses_ = false;
  SizeRecorder* sizes_;
};

}  // namespace plimsoll::planner

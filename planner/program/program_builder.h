// Writes a StepProgram: tensors, then ops with operands, segment by segment.
//
// Who asks for one step with many batches has its structure written once and then only sizes: after
// `resize_from` the same calls in the same order put the bytes of tensors and of scratch into the
// program that stands, and nothing else.
#pragma once

#include "models/step_program.h"
#include "planner/memory/scratch_blocks.h"
#include "planner/program/equal_sizes.h"
#include "planner/program/work.h"

namespace plimsoll::planner {

// Adds operands to the op that was begun last.
class OpBuilder {
 public:
  OpBuilder(models::StepProgram& program, std::size_t op, bool resizes)
      : program_(program), op_(op), resizes_(resizes) {}

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
    models::Op& op = program_.ops[op_];
    op.scratch += bytes;
    op.scratch_category = category;
    return *this;
  }

 private:
  OpBuilder& add(models::TensorId t, models::Access access, int delta = 0,
                 models::TensorId beyond = models::kNoTensor) {
    if (resizes_ || (t == models::kNoTensor && beyond == models::kNoTensor)) return *this;
    program_.operands.push_back({t, beyond, static_cast<std::int8_t>(delta), access});
    ++program_.ops[op_].operand_count;
    return *this;
  }
  models::StepProgram& program_;
  std::size_t op_;
  bool resizes_;
};

class ProgramBuilder {
 public:
  // `granularity`: the allocator rounds every request up to a multiple of it (1: not at all).
  ProgramBuilder(models::StepProgram& program, std::int64_t granularity)
      : program_(program), granularity_(granularity) {
    program_.clear();
  }

  // Where the next tensor, op and segment stand.
  struct Place {
    std::size_t tensor = 0, op = 0, segment = 0;
    bool operator==(const Place&) const = default;
  };
  Place place() const {
    return resizes_ ? next_
                    : Place{program_.tensors.size(), program_.ops.size(), program_.segments.size()};
  }
  // From now on calls write sizes only, from a place of the program that stands.
  void resize_from(const Place& place);
  bool resizes() const { return resizes_; }
  // Whether the calls since then have met the tensors, ops and segments that stand there, up to
  // this place. Where not, the program is of no use any more.
  bool resized_to(const Place& place) {
    knows_equal_ = true;
    return same_ && next_ == place;
  }
  // While resizing: what was written since `begin` comes once more with the same sizes. Where it
  // begins.
  Place repeat_since(const Place& begin);
  // What was written from `begin` to `end` has the sizes of what comes behind it.
  void note_equal(const Place& begin, const Place& end);
  // What has come so, by the first pass. `apart`: a tensor that has a size of its own after all.
  const EqualSizes& equal_sizes() const { return equal_; }
  void apart(models::TensorId tensor) { equal_.tensors[static_cast<std::size_t>(tensor)] = tensor; }

  models::GroupId group(const char* prefix, std::int64_t first, std::int64_t count,
                        std::int64_t stride = 1);
  void set_count(models::GroupId group, std::int64_t count) {
    program_.groups[static_cast<std::size_t>(group)].count = count;
  }
  // Ops that follow run once (kNoGroup) or once per layer of `group`.
  void open(models::GroupId group, bool descending = false, std::int64_t times = 1);
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
  // A tensor of the group that is open, or one outside groups. Nothing for zero bytes.
  models::TensorId tensor(const char* name, Bytes requested, models::Category category,
                          models::Stream stream = models::Stream::compute);
  models::TensorId tensor_in(models::GroupId group, const char* name, Bytes allocated,
                             models::Category category,
                             models::Residency residency = models::Residency::step,
                             models::Stream stream = models::Stream::compute);
  Bytes bytes_of(models::TensorId tensor) const {
    return tensor == models::kNoTensor ? Bytes(0)
                                       : program_.tensors[static_cast<std::size_t>(tensor)].bytes;
  }
  OpBuilder op(const char* name, models::Phase phase);
  // Whether who replays an allocator asked for an op's blocks; of the op that was written last.
  bool keeps_blocks() const { return blocks_ != nullptr && !resizes_; }
  void blocks(BlockEvents events) { blocks_->add(program_.ops.size() - 1, std::move(events)); }
  void parts(models::TensorId tensor, std::vector<Bytes> parts) {
    if (tensor != models::kNoTensor) blocks_->add_parts(tensor, std::move(parts));
  }
  void keep_blocks(ScratchBlocks* blocks) { blocks_ = blocks; }
  void keep_work(Works* works) { works_ = works; }
  // Of the op that was written last.
  WorkOfOp work() const { return {works_, place().op - 1}; }
  // Compiled code does the ops that follow beside their neighbours.
  void fuses(bool fuses) { fuses_ = fuses; }

 private:
  std::size_t resized_op(const char* name);
  void know_tensors(std::size_t count);
  models::TensorId resized_tensor(models::GroupId group, const char* name, Bytes allocated);
  models::StepProgram& program_;
  std::int64_t granularity_;
  models::GroupId open_ = models::kNoGroup;
  std::uint16_t layer_ = 0;
  models::Section section_ = models::Section::layers;
  bool resizes_ = false, same_ = true;
  ScratchBlocks* blocks_ = nullptr;
  Works* works_ = nullptr;
  bool fuses_ = false;
  Place next_;
  EqualSizes equal_;
  bool knows_equal_ = false;
};

}  // namespace plimsoll::planner

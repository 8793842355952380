// What the optimizer keeps and makes of each parameter, as torch's allocator has it.
#pragma once

#include <vector>

#include "models/optimizer_states.h"
#include "planner/program/program_builder.h"
#include "planner/stacks/pytorch/kernels.h"
#include "reports/record.h"

namespace plimsoll::planner::pytorch {

class OptimizerStates {
 public:
  OptimizerStates(ProgramBuilder& builder, const models::Strategy& strategy, const Processors& gpu)
      : b_(builder), strategy_(strategy), gpu_(gpu) {}

  Bytes size_of(const models::SteppedTensor& tensor) const {
    return b_.rounded(storage(Count(tensor.elements), tensor.dtype));
  }
  // Whether foreach makes a list of temporaries, of which this tensor has one.
  bool lists(const models::SteppedTensor& tensor) const;
  // Between steps, rounded; counters of fused steps among them.
  models::KeptStates kept_of(const models::SteppedTensor& tensor);
  void declare(models::GroupId group, const models::KeptStates& kept);
  // Of one parameter, for an optimizer in the backward.
  void declare(models::GroupId group, const models::SteppedTensor& tensor,
               const models::KeptStates& kept);
  // The step of such a parameter of the group that is open reads its states. Which of several equal
  // ones it is makes no difference.
  void read_own(OpBuilder step, const models::SteppedTensor& tensor);
  void count(const models::KeptStates& kept, std::int64_t copies);
  // What there is once for all states in blocks.
  void declare_tables();
  Bytes in_allocator() const { return in_allocator_; }
  Bytes managed() const { return managed_; }
  void clear() {
    in_allocator_ = managed_ = Bytes(0), in_blocks_ = false;
    own_.clear();
  }

  // What a step of one tensor after another allocates at its highest moment; and its blocks.
  Bytes step_one_by_one(const std::vector<models::SteppedTensor>& tensors,
                        BlockEvents* events) const;
  // What a step of them asks of the GPU.
  void say_work(const std::vector<models::SteppedTensor>& tensors, const WorkOfOp& op) const;

 private:
  struct Slots;
  void step_one(models::SteppedTensor tensor, Slots& slots) const;

  ProgramBuilder& b_;
  const models::Strategy& strategy_;
  const Processors& gpu_;
  Bytes in_allocator_, managed_;
  bool in_blocks_ = false;  // a tensor's states are
  struct Own {  // states that one parameter has for itself, and no step has read yet
    models::GroupId group;
    std::int64_t elements;
    std::vector<models::TensorId> states;
  };
  std::vector<Own> own_;
};

}  // namespace plimsoll::planner::pytorch

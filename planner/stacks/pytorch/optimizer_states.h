// What the optimizer keeps and makes of each parameter, as torch's allocator has it.
#pragma once

#include <vector>

#include "models/optimizer_states.h"
#include "planner/program/program_builder.h"
#include "planner/stacks/pytorch/kernels.h"
#include "planner/stacks/pytorch/saved.h"
#include "reports/record.h"

namespace plimsoll::planner::pytorch {

// A tensor that a rank steps, of as many elements as its share of the parameter has.
class OwnPart {
 public:
  OwnPart(const models::SteppedTensor& tensor) : OwnPart(tensor, tensor.elements) {}
  OwnPart(const models::SteppedTensor& tensor, SymInt elements)
      : tensor_(tensor), elements_(elements) {
    tensor_.elements = elements.now();
  }
  SymInt elements() const { return elements_; }
  const models::SteppedTensor& now() const { return tensor_; }
  void guard() const { guard_equal(elements_, elements_.now()); }  // that it has so many
  operator const models::SteppedTensor&() const {
    guard();
    return tensor_;
  }

 private:
  models::SteppedTensor tensor_;
  SymInt elements_;
};

using KeptState = models::KeptStateOf<SymBytes>;
using KeptStates = models::KeptStatesOf<SymBytes>;

class OptimizerStates {
 public:
  OptimizerStates(ProgramBuilder& builder, const models::Strategy& strategy, const Processors& gpu)
      : b_(builder), strategy_(strategy), gpu_(gpu) {}

  SymBytes size_of(const OwnPart& tensor) const {
    return b_.rounded(storage(tensor.elements(), tensor.now().dtype));
  }
  // Whether foreach makes a list of temporaries, of which this tensor has one.
  bool lists(const OwnPart& tensor) const;
  bool makes_in_turn() const;  // states, one parameter after the other
  // Between steps, rounded; counters of fused steps among them.
  KeptStates kept_of(const OwnPart& tensor);
  void declare(models::GroupId group, const KeptStates& kept);
  // Of one parameter, which has turns of its own.
  void declare(models::GroupId group, const models::SteppedTensor& tensor, const KeptStates& kept);
  // The step of such a parameter of the group that is open reads its states. Which of several equal
  // ones it is makes no difference.
  void read_own(OpBuilder step, const models::SteppedTensor& tensor);
  void count(const KeptStates& kept, std::int64_t copies);
  // What there is once for all states in blocks.
  void declare_tables();
  Bytes in_allocator() const { return in_allocator_; }
  Bytes managed() const { return managed_; }
  void clear() {
    in_allocator_ = managed_ = Bytes(0), in_blocks_ = false;
    own_.clear();
  }

  // What a step of one tensor after another allocates at its highest moment; and its blocks.
  // `given`: what a step gives up in its middle (Moment::Does::give), where it is a tensor's
  // gradient.
  Bytes step_one_by_one(const std::vector<models::SteppedTensor>& tensors, BlockEvents* events,
                        const Ref& given = {}) const;
  // What a step of them asks of the GPU.
  void say_work(const std::vector<models::SteppedTensor>& tensors, const WorkOfOp& op) const;

 private:
  const models::OptimizerRule& rule_for(const OwnPart& tensor) const;
  struct Slots;
  void step_one(models::SteppedTensor tensor, Slots& slots) const;
  void make_states(const models::SteppedTensor& tensor, std::vector<std::int64_t>& turns,
                   BlockEvents& events) const;

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

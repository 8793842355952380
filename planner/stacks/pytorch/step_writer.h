// The training step of one rank under eager PyTorch: forward, loss and backward of the modules,
// with a wrapper's hooks around them.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "planner/stacks/pytorch/checkpoints.h"
#include "planner/stacks/pytorch/ends/embedding.h"
#include "planner/stacks/pytorch/ends/head.h"
#include "planner/stacks/pytorch/offloading.h"
#include "planner/stacks/pytorch/wrappers/wrapper.h"

namespace plimsoll::planner::pytorch {

class StepWriter {
 public:
  // Of the strategy's data parallelism, or of an engine.
  using MakeWrapper = std::function<std::unique_ptr<Wrapper>(Step&, Checkpoints&)>;
  StepWriter(models::StepProgram& program, const ModelParts& parts,
             const models::Strategy& strategy, const models::Batch& batch, const Rules& rules,
             const MakeWrapper& make_wrapper);

  void write();  // the steady-state step (optimizer states exist). Throws Error{unsupported}
  // In the place of write():
  void write_optimizer();
  void write_messages(Messages& out);

  // After write():
  const reports::States& states() const { return s_.states; }
  void add_start(Start& start) const;
  std::int64_t rank() const { return std::max<std::int64_t>(0, s_.rules.rank); }  // whose step
  std::vector<EqualRanks> ranks() const;  // all ranks, by what they hold
  HostMemory host() const { return wrapper_->host(); }
  Bytes managed() const { return wrapper_->managed(); }

 private:
  // Units (units.cpp): what is handled together.
  void plan_end_units(), add_runs(), refuse_groups_of_unlike_layers() const;
  void add_run(const LayerRun& layers, std::int64_t first, std::int64_t count, std::int64_t stride);
  void size_unit(Unit& unit, const std::vector<Parameter>& parameters, models::GroupId group);
  void declare_states();
  void declare_inputs(), declare_workspaces(), declare_litgpt_inputs(),
      declare_batch();  // inputs.cpp
  void declare_unsloth_inputs(), declare_input_buffer();  // unsloth_inputs.cpp
  void micro_batches(), micro_batch(std::int64_t index, SymInt times);
  void declare_layers(Run& run);
  void write_sequence_messages(Messages& out) const;  // sequence_messages.cpp
  void layers_forward(std::size_t run), layers_backward(std::size_t run);
  void enter_checkpoint(std::size_t run, std::size_t last);
  void drop_graph(), leave_checkpoints();

  Step s_;
  Checkpoints checkpoints_;
  Offloading offloading_;
  std::unique_ptr<Wrapper> wrapper_;
  EmbeddingWriter embedding_;
  HeadWriter head_;
  std::vector<Parameter> root_parameters_, embedding_parameters_, tail_parameters_;
  std::array<TensorId, 4> workspaces_{};  // as ModuleWriter takes them
  ScratchBlocks blocks_;
};

}  // namespace plimsoll::planner::pytorch

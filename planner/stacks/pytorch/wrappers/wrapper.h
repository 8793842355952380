// Who holds a model's parameters, gradients and optimizer states, and moves them.
#pragma once

#include <vector>

#include "planner/memory/start.h"
#include "planner/program/messages.h"
#include "planner/ranks.h"
#include "planner/stacks/pytorch/step.h"

namespace plimsoll::planner::pytorch {

// What DDP, FSDP or an engine does around the modules. The step calls these where the run does;
// what a wrapper has no hook for stays empty. Gradients come to it as they are made (GradientSink).
class Wrapper : public GradientSink, protected StepPart {
 public:
  explicit Wrapper(Step& step) : StepPart(step) {}
  ~Wrapper() override = default;

  // Before the step. `size`: what a unit takes; its parameters and its group are set. The
  // persistent tensors come with declare_states.
  virtual void size(Unit&) const {}
  virtual void declare_states() = 0;
  virtual bool keeps_last_layer() const { return false; }  // gathered, from forward to backward
  virtual DType buffer_dtype() const { return DType::fp32; }

  // A micro-batch, in the order of its run. `previous`: the tensor of the same kind of the unit
  // that came before.
  virtual void declare(Unit& unit) { unit.begin_micro_batch(); }
  virtual void declare_gathers(Unit& /*unit*/) {}  // those of `declare` alone, for another forward
  virtual void begin_micro_batch() {}
  virtual void before_forward(Unit& /*unit*/, Ref /*previous*/) {}
  virtual void after_forward(Unit& /*unit*/) {}
  virtual void after_layers() {}  // before the final norm
  virtual void after_model() {}  // the root's forward has returned
  virtual void outputs_returned() {}  // and let go of all but its outputs
  virtual void gather_again(Unit& /*unit*/) {}  // where the forward let go of it
  virtual void before_head_backward() {}  // the layers' is next
  virtual void before_layers_backward() {}
  // Of a checkpoint of layers `first` to `last` of a run, or of one layer by itself.
  virtual void before_checkpoint_backward(std::size_t /*run*/, std::size_t /*first*/,
                                          std::size_t /*last*/) {}
  virtual void before_recompute(Unit& /*last*/) {}
  virtual void after_recompute(Unit& /*last*/) {}
  virtual void before_layer_backward(std::size_t /*run*/, std::size_t /*layer*/) {}
  virtual void before_backward(Unit& /*unit*/) {}
  virtual void after_backward(Unit& /*unit*/, Ref /*previous*/) {}
  virtual void end_backward() {}
  // Whether that comes before autograd's graph goes, which has the layers' first input.
  virtual bool ends_before_graph() const { return false; }
  // Whether after_backward lets go of what a reentrant checkpoint's frame holds.
  virtual bool leaves_checkpoints() const { return false; }

  virtual void optimizer_step() = 0;

  // When all is written.
  virtual void add_start(Start&) const {}
  virtual HostMemory host() const { return s_.host; }
  virtual Bytes managed() const { return {}; }  // optimizer states beside the allocator
  // How many ranks differ in what they hold, and what one of them does: equal where steps are.
  virtual std::int64_t group() const { return 1; }
  virtual std::vector<std::int64_t> held_by(std::int64_t) const { return {}; }
  virtual std::vector<EqualRanks> alike() const;  // of all that are planned
  // In the place of the step.
  virtual void write_messages(Messages&) {}
};

}  // namespace plimsoll::planner::pytorch

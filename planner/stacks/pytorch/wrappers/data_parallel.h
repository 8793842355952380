// torch.nn.DataParallel: one process drives all GPUs, a thread for each in the forward. The first
// GPU, which is planned, has the parameters, the optimizer, the whole batch and what is gathered.
#pragma once

#include <vector>

#include "planner/stacks/pytorch/wrappers/gradients.h"
#include "planner/stacks/pytorch/wrappers/torch_wrapper.h"

namespace plimsoll::planner::pytorch {

class OneProcess final : public TorchWrapper {
 public:
  explicit OneProcess(Step& step);

  TensorId begin(const ModuleNames& names, std::int64_t elements, bool adapter) override {
    return gradients_.begin(names, elements, adapter);
  }
  bool keeps(std::int64_t) const override { return true; }  // in BroadcastBackward's inputs
  void end(const ModuleNames& names, TensorId written) override { gradients_.end(names, written); }

  void declare_states() override;
  void declare(Unit& unit) override;
  void before_forward(Unit& unit, Ref previous) override;
  void outputs_returned() override;
  void end_backward() override;
  void optimizer_step() override;
  std::vector<EqualRanks> alike() const override;
  void write_messages(Messages& out) override;

 private:
  // Parameters in a row as one flat tensor. Sent, one is closed by the parameter with which it
  // reaches 10 MiB (take_tensors, csrc/utils/tensor_flatten.cpp); reduced, by the next one with
  // which it would be more (_take_tensors, torch/_utils.py).
  enum class Flats : std::uint8_t { sent, reduced };
  struct Flat {
    Bytes bytes;
    bool copied;  // of several parameters; else it is a view of one
  };
  std::vector<Flat> flat_parameters(Flats flats) const;
  void reduce();

  WholeGradients gradients_;
  std::vector<TensorId> reduced_;  // of the first micro-batch: the parameters' own
};

}  // namespace plimsoll::planner::pytorch

// What FSDP's two implementations share: units that are gathered, and reduced when their gradients
// are there.
#pragma once

#include "planner/stacks/pytorch/wrappers/torch_wrapper.h"

namespace plimsoll::planner::pytorch {

class Fsdp : public TorchWrapper {
 public:
  using TorchWrapper::TorchWrapper;
  void after_forward(Unit& unit) override;
  void after_model() override;
  void before_checkpoint_backward(std::size_t run, std::size_t first, std::size_t last) override;
  void before_layer_backward(std::size_t run, std::size_t layer) override;
  void end_backward() override;
  std::int64_t group() const override { return s_.shards; }
  void write_messages(Messages& out) override;

 private:
  // What ran before that layer is gathered ahead; another layer of its checkpoint, which
  // recomputing gathered, too.
  virtual void prefetch_before(std::size_t run, std::size_t layer) = 0;
  virtual void prefetch_in_checkpoint(Unit&) {}
  virtual void add_messages(const Unit& unit, Messages& out) const = 0;
};

}  // namespace plimsoll::planner::pytorch

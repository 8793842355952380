// What PyTorch's own wrappers share: parameters and states that stand one by one, and torch.optim.
#pragma once

#include <functional>
#include <vector>

#include "planner/stacks/pytorch/optimizer_states.h"
#include "planner/stacks/pytorch/wrappers/wrapper.h"

namespace plimsoll::planner::pytorch {

class TorchWrapper : public Wrapper {
 public:
  explicit TorchWrapper(Step& step)
      : Wrapper(step), optimizer_(step.b, step.strategy, step.rules.gpu) {}
  Bytes managed() const override { return optimizer_.managed(); }

 protected:
  // States (states.cpp). `declare`: the persistent tensors of a unit, which stands `copies` times.
  using DeclareUnit = std::function<void(Unit&, std::int64_t copies)>;
  void declare_units(const DeclareUnit& declare);
  void declare_unit(Unit& unit, std::int64_t copies, bool with_states);
  void declare_scales(const Unit& unit, std::int64_t copies);
  // The rank's part of one parameter: of its rows, padding with them or not.
  SymBytes local(const Parameter& p, DType dtype) const;
  SymInt own_rows(const Parameter& p, std::int64_t rank) const;
  OwnPart own_part(const Parameter& p) const;
  void each_unit(const std::function<void(const Unit&)>& what) const;  // root, layers, ends

  // torch.optim's step (optimizer.cpp) of the tensors that this rank steps, in the optimizer's
  // order: of equal layers in a row at most so many.
  using Stepped = std::function<std::vector<models::SteppedTensor>(std::int64_t most_layers)>;
  void step_optimizer(const std::vector<TensorId>& lists, const Stepped& stepped,
                      bool gradients_are_kept);
  // Behind one gradient's arrival, by an optimizer that has its parameter alone.
  void step_parameter(Ref gradient, const models::SteppedTensor& parameter);
  std::vector<TensorId> lists_one_by_one();
  std::vector<models::SteppedTensor> stepped_one_by_one(std::int64_t most_layers) const;
  // What foreach makes of so many bytes of parameters.
  void add_lists(models::GroupId group, SymBytes bytes, std::vector<TensorId>& lists);

  // Gradients are reduced within a group, and what comes of that (all of them without shards)
  // across its copies.
  Message message(const Unit& unit, Message::Kind kind, Message::When when, Bytes array) const;

  OptimizerStates optimizer_;

 private:
  Bytes declare_scales(const Unit& unit, const Parameter& p);
  void declare_on_host(const Unit& unit, std::int64_t copies);
  void keep_on_host(const models::SteppedTensor& own, std::int64_t copies);
  void step_on_host(const OwnPart& own, std::int64_t copies);
};

}  // namespace plimsoll::planner::pytorch

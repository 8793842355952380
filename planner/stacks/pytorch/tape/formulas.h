// The gradients that an operation's formula makes of its operands (derivatives.yaml, torch 2.11):
// the blocks that come and go, the kernels that run.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "planner/stacks/pytorch/tape/script.h"

namespace plimsoll::planner::tape {

class Formulas {
 protected:
  using BlockId = std::int16_t;
  static constexpr BlockId kNoBlock = -1;

  explicit Formulas(const Function& function) : f_(function) {}

  bool wants(ValueId id) const { return id != kNone && f_.value(id).grad; }
  // What was there before.
  BlockId begin(Block block) {
    script_.blocks.push_back(block);
    uses_.push_back(1);
    return static_cast<BlockId>(script_.blocks.size() - 1);
  }
  // `towards`: whose gradient it is on the way to.
  BlockId take(Size size, ValueId towards = kNone) {
    const BlockId block = begin({size, Role::scratch, towards});
    step(Step::What::take, block);
    return block;
  }
  void let_go(BlockId block) {
    if (--uses_[static_cast<std::size_t>(block)] == 0) step(Step::What::drop, block);
  }
  void step(Step::What what, BlockId block) { script_.steps.push_back({what, block}); }
  // One kernel.
  void moves(Size out, std::initializer_list<Size> in) {
    script_.moved.push_back({script_.steps.size(), out, true});
    for (const Size size : in) script_.moved.push_back({script_.steps.size(), size, false});
  }
  // By one kernel.
  BlockId made(Size size, ValueId towards, std::initializer_list<Size> from);

  // The gradient of one operand, before it is fitted; `d`: the result's, or a view of it.
  BlockId formula(const Operation& of, std::size_t i, BlockId d);

  const Function& f_;
  Script script_;
  std::vector<int> uses_;  // of each block

 private:
  BlockId written(ValueId towards, Size whole, Size part);
  BlockId scattered(ValueId towards, Size whole, Size part);
  BlockId bmm(const Operation& of, std::size_t i, Size in);
  BlockId baddbmm(const Operation& of, std::size_t i, Size in);
  BlockId fold(const Operation& of, std::size_t i, Size in);
  BlockId power(ValueId towards, Size size);
  void three_kernels(Size size);
  BlockId of_groups(const Operation& of, std::size_t i, Size in);
  BlockId divisor(const Operation& of, Size out);
  BlockId clamped(const Operation& of, Size in, Size out);
  BlockId accumulated(const Operation& of, Size in, Size out);
};

}  // namespace plimsoll::planner::tape

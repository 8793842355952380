// Autograd's engine (torch/csrc/autograd/engine.cpp): operations from the last to the first. Of
// each: its formula makes the gradients of its operands, the second one's first; each is summed
// down to the operand's extent and cast to its dtype (validate_outputs); what the operation kept
// and the gradient that came in go; then each gradient is added to what has arrived before.
#include <initializer_list>
#include <utility>

#include "planner/stacks/pytorch/tape/formulas.h"

namespace plimsoll::planner::tape {

namespace {

class Backward : Formulas {
 public:
  Backward(const Function& function, const Surroundings& surroundings)
      : Formulas(function), around_(surroundings) {
    const std::size_t n = f_.values().size();
    gradient_.assign(n, kNoBlock);
    kept_.assign(n, kNoBlock);
    view_.assign(n, false);
    readers_.assign(n, 0);
    for (const Operation& operation : f_.operations()) {
      if (operation.out == kNone || !f_.value(operation.out).grad) continue;
      for_each_kept(operation, [&](ValueId id) { ++readers_[storage(id)]; });
    }
    if (around_.flows) gradient_[0] = begin({f_.value(0).size, Role::flowing, 0});
    if (around_.flows && around_.flowing_shared) ++uses_.back();
    gradient_[at(f_.result())] = begin({f_.value(f_.result()).size, Role::d_result, f_.result()});
    if (around_.result_shared) ++uses_.back();
  }

  Script run() {
    for (std::size_t i = f_.operations().size(); i-- > 0;) {
      const Operation& operation = f_.operations()[i];
      if (operation.out == kNone || gradient_[at(operation.out)] == kNoBlock) continue;
      if (f_.parts_nodes()) script_.part(f_, operation);
      run(operation);
    }
    if (!script_.steps.empty() && script_.steps.back().what == Step::What::arrive)
      script_.steps.pop_back();
    return std::move(script_);
  }

 private:
  static std::size_t at(ValueId id) { return static_cast<std::size_t>(id); }
  std::size_t storage(ValueId id) const { return at(f_.value(id).storage); }

  template <class Do>
  void for_each_kept(const Operation& operation, Do&& once) {
    const Function::Keeps keeps = f_.kept_by(operation);
    for (const ValueId id : keeps.in)
      if (id != kNone) once(id);
    if (keeps.out) once(operation.out);
    if (keeps.beside) once(operation.beside);
  }

  // A gradient on its way to an operand.
  struct Next {
    ValueId to = kNone;
    BlockId block = kNoBlock;
    bool view = false;  // of a wider gradient
    bool passes = false;  // it is such a view, handed on as it came
  };

  void run(const Operation& operation) {
    const BlockId d = gradient_[at(operation.out)];
    unpack(operation);
    step(Step::What::read, d);
    std::array<Next, 3> next;
    for (std::size_t k = 0; k < next.size(); ++k) {
      const std::size_t i = in_order(operation.kind) ? k : next.size() - 1 - k;
      if (!wants(operation.in[i])) continue;
      next[i] = {operation.in[i], formula(operation, i, d),
                 operation.kind == Kind::concatenate || operation.kind == Kind::sum};
      next[i].passes = next[i].block == d && view_[at(operation.out)];
    }
    if (operation.kind == Kind::chunk) let_go(gradient_[at(operation.beside)]);
    const bool given_too = around_.checkpointed && f_.given_kept();
    if (around_.checkpointed) release(operation, true);
    if (given_too) release(operation, false);
    for (Next& of : next)
      if (of.to != kNone) of.block = fit(of);
    if (!around_.checkpointed) release(operation, true);
    if (!given_too) release(operation, false);
    let_go(d);
    bool parameter = false;
    for (const Next& of : next) {
      if (of.to == kNone) continue;
      arrive(of);
      parameter = parameter || f_.value(of.to).parameter;
    }
    if (parameter && around_.acts_on_gradients) step(Step::What::arrive, kNoBlock);
  }

  // The gradients of its operands are made from the first one on.
  static bool in_order(Kind kind) {
    return kind == Kind::layer_norm || kind == Kind::baddbmm || kind == Kind::fold;
  }

  void unpack(const Operation& operation) {
    if (f_.kept_by(operation).none()) return;
    if (!std::exchange(unpacked_, true)) step(Step::What::unpack, kNoBlock);
    for_each_kept(operation, [&](ValueId id) {
      BlockId& block = kept_[storage(id)];
      const Value& owner = f_.values()[storage(id)];
      if (owner.parameter) return;
      const Role role = owner.made ? Role::kept : Role::given;
      if (block == kNoBlock) block = begin({owner.size, role, f_.value(id).storage});
      step(Step::What::read, block);
    });
  }

  // What was made here; the caller's own values have other owners.
  void release(const Operation& operation, bool made) {
    for_each_kept(operation, [&](ValueId id) {
      if (f_.values()[storage(id)].made != made || kept_[storage(id)] == kNoBlock) return;
      if (--readers_[storage(id)] == 0) let_go(kept_[storage(id)]);
    });
  }

  // A sum down to the operand's extent, in the gradient's dtype, and a cast.
  BlockId fit(const Next& of) {
    const Size want = f_.value(of.to).size;
    BlockId block = of.block;
    const Size have = script_.blocks[static_cast<std::size_t>(block)].size;
    if (of.view) return block;
    if (have.extent != want.extent && !of.passes) {
      const Size sum{want.extent, have.dtype};
      const BlockId summed = made(sum, of.to, {have});
      if (const auto* scratch = f_.sum_scratch(want.extent)) {
        const BlockId first = take({(*scratch)[0], DType::boolean});
        let_go(take({(*scratch)[1], DType::boolean}));
        let_go(first);
      }
      let_go(block);
      block = summed;
    }
    if (have.dtype != want.dtype) {
      const BlockId low = made(want, of.to, {{want.extent, have.dtype}});
      let_go(block);
      block = low;
    }
    return block;
  }
  // A gradient ends up in the first block that arrives, since later ones are added to it in place.
  void claim(BlockId id, ValueId to) {
    Block& block = script_.blocks[static_cast<std::size_t>(id)];
    const Value& value = f_.value(to);
    if (value.made || block.role != Role::scratch) return;
    block.role = value.parameter ? Role::d_parameter : Role::d_given;
    block.value = to;
  }
  bool flows(ValueId id) const {
    const BlockId block = gradient_[at(id)];
    return block != kNoBlock &&
           script_.blocks[static_cast<std::size_t>(block)].role == Role::flowing;
  }

  // input_buffer.cpp: in place unless the sum so far is a view or has another owner
  // (can_accumulate_inplace).
  void arrive(const Next& of) {
    BlockId& sum = gradient_[at(of.to)];
    const Size size = f_.value(of.to).size;
    if (sum != kNoBlock) moves(size, {size, size});
    if (sum == kNoBlock) {
      sum = of.block;
      view_[at(of.to)] = of.view;
      if (!of.view) claim(sum, of.to);
    } else if (flows(of.to) && !around_.flowing_shared) {
      const BlockId both = begin({f_.value(of.to).size, Role::d_given, of.to});
      script_.steps.push_back({Step::What::adopt, both, sum});
      sum = both;
      let_go(of.block);
    } else if (uses_[static_cast<std::size_t>(sum)] == 1 && !view_[at(of.to)]) {
      let_go(of.block);
    } else {
      step(Step::What::read, sum);
      const BlockId both = take(f_.value(of.to).size, of.to);
      let_go(std::exchange(sum, both));
      let_go(of.block);
      view_[at(of.to)] = false;
      claim(sum, of.to);
    }
    if (f_.value(of.to).parameter && !around_.keeps_gradients) let_go(sum);
  }

  const Surroundings& around_;
  std::vector<BlockId> gradient_, kept_;  // by value
  std::vector<bool> view_;  // by value: whether its gradient so far is one
  std::vector<int> readers_;  // operations that kept it
  bool unpacked_ = false;
};

}  // namespace

Script backward(const Function& function, const Surroundings& surroundings) {
  return Backward(function, surroundings).run();
}

}  // namespace plimsoll::planner::tape

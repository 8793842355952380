// Autograd's engine (torch/csrc/autograd/engine.cpp): operations from the last to the first. Of
// each: its formula makes the gradients of its operands, the second one's first; each is summed
// down to the operand's extent and cast to its dtype (validate_outputs); what the operation kept
// and the gradient that came in go; then each gradient is added to what has arrived before.
#include <initializer_list>
#include <utility>

#include "planner/stacks/pytorch/tape/script.h"

namespace plimsoll::planner::tape {

namespace {

using BlockId = std::int16_t;
constexpr BlockId kNoBlock = -1;

class Backward {
 public:
  Backward(const Function& function, const Surroundings& surroundings)
      : f_(function), around_(surroundings) {
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
  bool wants(ValueId id) const { return id != kNone && f_.value(id).grad; }

  template <class Do>
  void for_each_kept(const Operation& operation, Do&& once) {
    const Function::Keeps keeps = f_.kept_by(operation);
    for (const ValueId id : keeps.in)
      if (id != kNone) once(id);
    if (keeps.out) once(operation.out);
    if (keeps.beside) once(operation.beside);
  }

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

  // A gradient on its way to an operand.
  struct Next {
    ValueId to = kNone;
    BlockId block = kNoBlock;
    bool view = false;  // of a wider gradient
  };

  void run(const Operation& operation) {
    const BlockId d = gradient_[at(operation.out)];
    unpack(operation);
    step(Step::What::read, d);
    std::array<Next, 3> next;
    for (std::size_t k = 0; k < next.size(); ++k) {
      const std::size_t i = in_order(operation.kind) ? k : next.size() - 1 - k;
      if (wants(operation.in[i]))
        next[i] = {operation.in[i], formula(operation, i, d),
                   operation.kind == Kind::concatenate || operation.kind == Kind::sum};
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

  // The gradient of one operand, before it is fitted.
  BlockId formula(const Operation& of, std::size_t i, BlockId d) {
    const Size out = f_.value(of.out).size, in = f_.value(of.in[i]).size;
    switch (of.kind) {
      case Kind::subtract:
        if (i == 1) return made(out, of.in[i], {out});  // -d
        [[fallthrough]];
      case Kind::add_number:
      case Kind::add:
      case Kind::copy:
      case Kind::view:
      case Kind::concatenate:  // a view of d
      case Kind::sum:  // expanded: another
        ++uses_[static_cast<std::size_t>(d)];
        return d;
      case Kind::power:  // d · (exponent · x^(exponent - 1))
      case Kind::rsqrt:  // -1/2 · d · result³
        return power(of.in[i], out);
      case Kind::slice: {  // written into zeros of the whole
        const BlockId whole = take(in, of.in[i]);
        moves(in, {});
        moves(out, {out});
        return whole;
      }
      case Kind::cast:
      case Kind::mean:
      case Kind::chunk:  // SplitBackward concatenates
      case Kind::sum_groups:  // expanded, and then viewed in another shape, which copies it
      case Kind::laid_out:
      case Kind::repeat:  // summed over each group
      case Kind::expand:
      case Kind::scale:
      case Kind::negate:
      case Kind::fill:
      case Kind::fill_in_place:
        return made(in, of.in[i], {out});
      case Kind::nll:
        return made(in, of.in[i], {f_.value(of.in[1]).size, out, out});
      case Kind::log_softmax:
      case Kind::tanh:
      case Kind::silu:
        return made(in, of.in[i], {out, out});
      case Kind::layer_norm:  // the input's by rows, both parameters' by columns at once
        if (i == 2 && wants(of.in[1])) return take(in, of.in[i]);
        return made(in, of.in[i], {out, f_.value(of.in[0]).size});
      case Kind::softmax:
      case Kind::safe_softmax: {  // d · result is made and read again
        const BlockId gradient = made(in, of.in[i], {out, out});
        let_go(made(out, kNone, {out}));
        return gradient;
      }
      case Kind::bmm:
      case Kind::transposed_bmm:
        return bmm(of, i, in);
      case Kind::baddbmm:
        return baddbmm(of, i, in);
      case Kind::fold:
        return fold(of, i, in);
      case Kind::dropout:
        return made(in, of.in[i], {out, f_.value(of.beside).size});
      case Kind::top: {  // scattered into zeros
        const BlockId zeros = take(in);
        const BlockId gradient = made(in, of.in[i], {in, out});
        let_go(zeros);
        return gradient;
      }
      case Kind::divide_in_place:
        return i == 0 ? made(out, of.in[i], {out}) : divisor(of, out);
      case Kind::index:
        return accumulated(of, in, out);
      case Kind::grouped_mm:
        return of_groups(of, i, in);
      case Kind::multiply:
        return made(out, of.in[i], {out, f_.value(of.in[1 - i]).size});
      case Kind::integers:
      case Kind::write_in_place:
      case Kind::leave:
        break;
    }
    return kNoBlock;
  }
  // d · bᵀ and aᵀ · d; of a · bᵀ, d · b and dᵀ · a.
  BlockId bmm(const Operation& of, std::size_t i, Size in) {
    const BlockId gradient = take(in, of.in[i]);
    const auto [m, n, k, count] = of.shape;
    const std::array first{m, k, n, count}, plain{k, n, m, count}, transposed{n, k, m, count};
    const bool as_it_is = of.kind == Kind::bmm || of.kind == Kind::fold;
    const auto& second = as_it_is ? plain : transposed;
    script_.multiplied.push_back({script_.steps.size(), in.dtype, i == 0 ? first : second});
    return gradient;
  }
  // Times the number, by another op.
  BlockId baddbmm(const Operation& of, std::size_t i, Size in) {
    const BlockId plain = bmm(of, i, in);
    script_.part(f_, of);
    const BlockId scaled = made(in, of.in[i], {in});
    let_go(plain);
    script_.part(f_, of);
    return scaled;
  }
  // Each is a GEMM's, times the number; the second one's reads `a` laid out anew.
  BlockId fold(const Operation& of, std::size_t i, Size in) {
    const BlockId plain = bmm(of, i, in);
    if (i == 1) let_go(take({of.scratch[0], DType::boolean}));
    const BlockId scaled = made(in, of.in[i], {in});
    let_go(plain);
    return scaled;
  }
  // By one kernel.
  BlockId made(Size size, ValueId towards, std::initializer_list<Size> from) {
    const BlockId block = take(size, towards);
    moves(size, from);
    return block;
  }
  // A power, times a number, times the gradient.
  BlockId power(ValueId towards, Size size) {
    const BlockId power = take(size), scaled = take(size);
    const BlockId product = take(size, towards);
    three_kernels(size);
    let_go(power);
    let_go(scaled);
    return product;
  }
  void three_kernels(Size size) {
    moves(size, {size});
    moves(size, {size});
    moves(size, {size, size});
  }

  // Its work is its writer's to say.
  BlockId of_groups(const Operation& of, std::size_t i, Size in) {
    const BlockId gradient = take(in, of.in[i]);
    std::array<BlockId, 2> scratch{kNoBlock, kNoBlock};
    for (std::size_t k = 0; k < scratch.size(); ++k)
      if (of.scratch[k] != kAll) scratch[k] = take({of.scratch[k], DType::boolean});
    for (const BlockId block : scratch)
      if (block != kNoBlock) let_go(block);
    return gradient;
  }

  // -d · ((a / b) / b)
  BlockId divisor(const Operation& of, Size out) {
    const BlockId once = take(out), twice = take(out), negated = take(out);
    const BlockId product = made(out, of.in[1], {out, out});
    three_kernels(out);
    for (const BlockId block : {once, twice, negated}) let_go(block);
    return product;
  }

  // index_put with accumulate (ATen/native/cuda/Indexing.cu, index_put_with_sort_kernel) into zeros
  // of x: places are checked against both ends, each by one value and one boolean; laid out as
  // offsets, scaled, and sorted beside their order, each an array of them.
  BlockId accumulated(const Operation& of, Size in, Size out) {
    const Size places = f_.value(of.in[1]).size;
    const BlockId zeros = take(in), gradient = take(in, of.in[0]);
    moves(in, {});
    moves(in, {in});
    moves(out, {out});
    for (int end = 0; end < 2; ++end) {
      const BlockId value = take({of.scratch[0], DType::int64});
      let_go(take({of.scratch[0], DType::boolean}));
      let_go(value);
    }
    const BlockId offsets = take(places);
    std::array<BlockId, 5> sorted{take(places), kNoBlock, kNoBlock, kNoBlock, kNoBlock};
    let_go(offsets);
    for (std::size_t k = 1; k < 4; ++k) sorted[k] = take(places);
    sorted[4] = take({of.scratch[1], DType::boolean});
    for (const BlockId block : sorted) let_go(block);
    let_go(zeros);
    return gradient;
  }

  // A sum down to the operand's extent, in the gradient's dtype, and a cast.
  BlockId fit(const Next& of) {
    const Size want = f_.value(of.to).size;
    BlockId block = of.block;
    const Size have = script_.blocks[static_cast<std::size_t>(block)].size;
    if (of.view) return block;
    if (have.extent != want.extent) {
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
    } else if (flows(of.to)) {
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

  const Function& f_;
  const Surroundings& around_;
  Script script_;
  std::vector<int> uses_;  // of each block
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

#include "planner/stacks/pytorch/tape/formulas.h"

#include <array>

namespace plimsoll::planner::tape {

// The gradient of one operand, before it is fitted.
Formulas::BlockId Formulas::formula(const Operation& of, std::size_t i, BlockId d) {
  const Size out = f_.value(of.out).size, in = f_.value(of.in[i]).size;
  switch (of.kind) {
    case Kind::subtract:
      if (i == 1) return made(out, of.in[i], {out});  // -d
      [[fallthrough]];
    case Kind::add_number:
    case Kind::add:
    case Kind::add_in_place:
    case Kind::copy:
    case Kind::view:
    case Kind::concatenate:  // a view of d
    case Kind::sum:  // expanded: another
      ++uses_[static_cast<std::size_t>(d)];
      return d;
    case Kind::power:  // d · (exponent · x^(exponent - 1))
    case Kind::rsqrt:  // -1/2 · d · result³
      return power(of.in[i], out);
    case Kind::slice:
      return written(of.in[i], in, out);
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
    case Kind::sigmoid:
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
    case Kind::top:
      return scattered(of.in[i], in, out);
    case Kind::clamp_above:
    case Kind::clamp:
      return clamped(of, in, out);
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
// Into zeros of the whole.
Formulas::BlockId Formulas::written(ValueId towards, Size whole, Size part) {
  const BlockId gradient = take(whole, towards);
  moves(whole, {});
  moves(part, {part});
  return gradient;
}

// A copy of such zeros, in which it is scattered.
Formulas::BlockId Formulas::scattered(ValueId towards, Size whole, Size part) {
  const BlockId zeros = take(whole);
  const BlockId gradient = made(whole, towards, {whole, part});
  let_go(zeros);
  return gradient;
}

// d · bᵀ and aᵀ · d; of a · bᵀ, d · b and dᵀ · a.
Formulas::BlockId Formulas::bmm(const Operation& of, std::size_t i, Size in) {
  const BlockId gradient = take(in, of.in[i]);
  const auto [m, n, k, count] = of.shape;
  const std::array first{m, k, n, count}, plain{k, n, m, count}, transposed{n, k, m, count};
  const bool as_it_is = of.kind == Kind::bmm || of.kind == Kind::fold;
  const auto& second = as_it_is ? plain : transposed;
  script_.multiplied.push_back({script_.steps.size(), in.dtype, i == 0 ? first : second});
  return gradient;
}
// Times the number, by another op.
Formulas::BlockId Formulas::baddbmm(const Operation& of, std::size_t i, Size in) {
  const BlockId plain = bmm(of, i, in);
  script_.part(f_, of);
  const BlockId scaled = made(in, of.in[i], {in});
  let_go(plain);
  script_.part(f_, of);
  return scaled;
}
// Each is a GEMM's, times the number; the second one's reads `a` laid out anew.
Formulas::BlockId Formulas::fold(const Operation& of, std::size_t i, Size in) {
  const BlockId plain = bmm(of, i, in);
  if (i == 1) let_go(take({of.scratch[0], DType::boolean}));
  const BlockId scaled = made(in, of.in[i], {in});
  let_go(plain);
  return scaled;
}
// By one kernel.
Formulas::BlockId Formulas::made(Size size, ValueId towards, std::initializer_list<Size> from) {
  const BlockId block = take(size, towards);
  moves(size, from);
  return block;
}
// A power, times a number, times the gradient.
Formulas::BlockId Formulas::power(ValueId towards, Size size) {
  const BlockId power = take(size), scaled = take(size);
  const BlockId product = take(size, towards);
  three_kernels(size);
  let_go(power);
  let_go(scaled);
  return product;
}
void Formulas::three_kernels(Size size) {
  moves(size, {size});
  moves(size, {size});
  moves(size, {size, size});
}

// Its work is its writer's to say.
Formulas::BlockId Formulas::of_groups(const Operation& of, std::size_t i, Size in) {
  const BlockId gradient = take(in, of.in[i]);
  std::array<BlockId, 2> scratch{kNoBlock, kNoBlock};
  for (std::size_t k = 0; k < scratch.size(); ++k)
    if (of.scratch[k] != kAll) scratch[k] = take({of.scratch[k], DType::boolean});
  for (const BlockId block : scratch)
    if (block != kNoBlock) let_go(block);
  return gradient;
}

// -d · ((a / b) / b)
Formulas::BlockId Formulas::divisor(const Operation& of, Size out) {
  const BlockId once = take(out), twice = take(out), negated = take(out);
  const BlockId product = made(out, of.in[1], {out, out});
  three_kernels(out);
  for (const BlockId block : {once, twice, negated}) let_go(block);
  return product;
}

// where(within, d, 0): the zero is a value of its own, and so is each comparison
// (FunctionsManual.cpp, clamp_backward).
Formulas::BlockId Formulas::clamped(const Operation& of, Size in, Size out) {
  const Size within{in.extent, DType::boolean};
  const bool both = of.kind == Kind::clamp;
  const BlockId zero = take({of.scratch[0], in.dtype});
  const BlockId first = made(within, kNone, {in});
  const BlockId second = both ? made(within, kNone, {in}) : kNoBlock;
  if (both) moves(within, {within, within});
  const BlockId gradient = made(in, of.in[0], {out, within});
  for (const BlockId block : {zero, first, second})
    if (block != kNoBlock) let_go(block);
  return gradient;
}

// index_put with accumulate (ATen/native/cuda/Indexing.cu, index_put_with_sort_kernel) into zeros
// of x: places are checked against both ends, each by one value and one boolean; laid out as
// offsets, scaled, and sorted beside their order, each an array of them. Places on a second axis
// are checked and scaled before they are added to the first's.
Formulas::BlockId Formulas::accumulated(const Operation& of, Size in, Size out) {
  const Size places = f_.value(of.in[1]).size;
  const BlockId zeros = take(in), gradient = take(in, of.in[0]);
  moves(in, {});
  moves(in, {in});
  moves(out, {out});
  const auto check_ends = [&] {
    for (int end = 0; end < 2; ++end) {
      const BlockId value = take({of.scratch[0], DType::int64});
      let_go(take({of.scratch[0], DType::boolean}));
      let_go(value);
    }
  };
  check_ends();
  const BlockId offsets = take(places);
  std::array<BlockId, 5> sorted{take(places), kNoBlock, kNoBlock, kNoBlock, kNoBlock};
  let_go(offsets);
  if (of.in[2] != kNone) {
    check_ends();
    const BlockId second = take(places), scaled = take(places);
    let_go(second);
    let_go(scaled);
  }
  for (std::size_t k = 1; k < 4; ++k) sorted[k] = take(places);
  sorted[4] = take({of.scratch[1], DType::boolean});
  for (const BlockId block : sorted) let_go(block);
  let_go(zeros);
  return gradient;
}

}  // namespace plimsoll::planner::tape

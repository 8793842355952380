// Rotary position embedding by complex numbers (torchtitan models/llama/model.py,
// apply_rotary_emb): pairs of elements in fp32, times a buffer, and back in their own dtype.
#include "planner/stacks/pytorch/block_writer.h"

namespace plimsoll::planner::pytorch {

// Queries and keys go on as one: all that is made of either lives until the frame returns, where
// those that came in lose their names. Autograd keeps the buffer alone.
void BlockWriter::complex_rotary(const NodePlan& at, LayerSaved& s) {
  const models::ValueList &in = at.node->in, &out = at.node->out;
  std::array<TensorId, 2> wide{kNoTensor, kNoTensor}, turned{kNoTensor, kNoTensor};
  constexpr Category kKept = Category::activations;
  for (std::size_t i = 0; i < in.size(); ++i)
    wide[i] = cast(operand(at, i).wide, s.of(in[i]), values_of(in[i]), dtype_of(in[i]), DType::fp32,
                   kKept);
  for (std::size_t i = 0; i < in.size(); ++i)
    turned[i] = copy(operand(at, i).turned, wide[i], values_of(in[i]), DType::fp32, kKept);
  for (std::size_t i = 0; i < in.size(); ++i)
    s.of(out[i]) = cast(operand(at, i).rotated, turned[i], values_of(in[i]), DType::fp32,
                        dtype_of(out[i]), kKept);
  auto done = op(at.attention_names->module);
  for (std::size_t i = 0; i < in.size(); ++i) {
    done.release(s.of(in[i]));
    if (wide[i] != s.of(in[i])) done.release(wide[i]);
    if (turned[i] != s.of(out[i])) done.release(turned[i]);
  }
  b_.work().moves(0, 0);
}

// The conjugate is made of the buffer's rows for a moment, for keys and for queries.
void BlockWriter::complex_rotary_back(const NodePlan& at) {
  const models::ValueList &in = at.node->in, &out = at.node->out;
  std::array<TensorId, 2> d{kNoTensor, kNoTensor};
  const SymBytes conjugate = fp32(checked_multiply(tokens_.length, d_.head_dim));
  for (std::size_t i = in.size(); i-- > 0;)
    d[i] = cast(operand(at, i).grad_cast, gradient(out[i]).tensor, values_of(out[i]),
                dtype_of(out[i]), DType::fp32);
  for (std::size_t i = in.size(); i-- > 0;) {
    const TensorId turned = temporary(operand(at, i).grad_turned, values_of(in[i]), DType::fp32);
    op(operand(at, i).grad_turned).read(d[i]).write(turned).scratch(conjugate);
    d[i] = turned;
  }
  for (std::size_t i = in.size(); i-- > 0;)
    gradient(in[i]) = {
        cast(operand(at, i).grad_rotated, d[i], values_of(in[i]), DType::fp32, dtype_of(in[i]))};
}

}  // namespace plimsoll::planner::pytorch

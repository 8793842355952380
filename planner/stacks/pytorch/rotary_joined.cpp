// Rotary position embedding as LitGPT's attention calls it (model.py, CausalSelfAttention.forward):
// q_roped = apply_rope(q[..., :n]), the same of keys, and then torch.cat((q_roped, q[..., n:])),
// which copies also where the second part is empty.
#include "planner/stacks/pytorch/block_writer.h"
#include "planner/stacks/pytorch/functions.h"

namespace plimsoll::planner::pytorch {

using models::ValueId;

// GPT.max_seq_length is set to the longest sample's length when the model is in place: tables of
// another length are made anew, and then in fp32 (build_rope_cache). Fabric's 16-bit precision had
// cast the first ones (plugins/precision/half.py, convert_module), its packed one does not
// (bitsandbytes.py).
DType BlockWriter::joined_tables() const {
  const bool cast = !strategy_.quantize && tokens_.length == d_.rotary_rows;
  return cast ? regime_.embedded : DType::fp32;
}

// Of queries, of keys.
std::pair<TapePart, TapeCounts> BlockWriter::joined_rotary_of(const NodePlan& at,
                                                              std::size_t i) const {
  const ValueId in = at.node->in[i];
  const SymInt rotated = values_of(at.node->out[2 + i]);
  return {joined_rotary_tape(operand(at, i).name, dtype_of(in), joined_tables(), grad_of(in)),
          {rotated, rotated / 2}};
}

void BlockWriter::joined_rotary(const NodePlan& at, LayerSaved& s) {
  const models::ValueList &in = at.node->in, &out = at.node->out;
  for (std::size_t i = 0; i < 2; ++i) {
    TapeSaved rotated;
    const auto [part, counts] = joined_rotary_of(at, i);
    tape_forward(part, counts, rotary_operands(s.of(in[i])), rotated);
    s.of(out[2 + i]) = rotated.out;
  }
  for (std::size_t i = 0; i < 2; ++i) {
    s.of(out[i]) = make(operand(at, i).joined, values_of(out[i]), dtype_of(out[i]));
    op(operand(at, i).joined).read(s.of(out[2 + i])).read(s.of(in[i])).write(s.of(out[i]));
  }
}

// The rest of each head, even if there is none, is written into zeros of the whole
// (slice_backward): that of keys first, since it was cut off last. What is rotated is added to it,
// written into zeros where it is a part.
void BlockWriter::joined_rotary_back(const NodePlan& at) {
  const models::ValueList &in = at.node->in, &out = at.node->out;
  std::array<TensorId, 2> whole{kNoTensor, kNoTensor};
  for (std::size_t i = 2; i-- > 0;)
    if (grad_of(in[i]))
      whole[i] =
          copy(operand(at, i).grad, gradient(out[i]).tensor, values_of(in[i]), dtype_of(in[i]));
  for (std::size_t i = 2; i-- > 0;) {
    if (!grad_of(in[i])) continue;
    const auto [part, counts] = joined_rotary_of(at, i);
    TensorId d = tape_backward(part, counts, rotary_operands(kNoTensor), {},
                               {.result = gradient(out[i]).tensor});
    if (plan_->value(in[i]).width != plan_->value(out[2 + i]).width)
      d = copy(operand(at, i).grad_rotated, d, values_of(in[i]), dtype_of(in[i]));
    op(operand(at, i).grad).update(whole[i]).read(d);
    gradient(in[i]) = {whole[i], false, operand(at, i).grad_laid_out};
  }
}

}  // namespace plimsoll::planner::pytorch

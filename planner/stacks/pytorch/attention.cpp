// Scaled dot product attention: fused kernels, and the eager and math paths that store the scores.
#include "planner/stacks/pytorch/layer_writer.h"

namespace plimsoll::planner::pytorch {

using models::Attention;

namespace {
std::int64_t up_to(std::int64_t value, std::int64_t step) {
  return checked_multiply(ceil_divide(value, step), step);
}
}  // namespace

// Backward workspace of the fused kernels, in one call.
//   flash (flash-attention 2, csrc/flash_attn/flash_api.cpp, mha_bwd): the row sums of dO·O in fp32
//   [b, heads, s rounded to 128], dQ accumulated in fp32 [b, s rounded, heads, d rounded to 32],
//   and with fewer key heads than query heads dK and dV of all query heads in the low dtype. cuDNN
//   (composite backward graph): dQ accumulated in fp32, the row sums in fp32, and with grouped
//   queries dK and dV of all query heads; the engine's own workspace is not known.
Bytes LayerWriter::attention_workspace() const {
  const std::int64_t b = tokens_.sequences, s = tokens_.length;
  const std::int64_t rounded = up_to(s, 128);
  const Bytes expanded =
      d_.kv_heads < d_.heads ? low(checked_multiply(tokens_.total(), d_.q_width())) * 2 : Bytes(0);
  switch (rules_.sdpa) {
    case Rules::Sdpa::cpu:
      return Bytes(0);
    case Rules::Sdpa::flash:
      return fp32(checked_multiply(b * d_.heads, rounded)) +
             fp32(checked_multiply(b * rounded, d_.heads * up_to(d_.head_dim, 32))) + expanded;
    case Rules::Sdpa::cudnn:
      return fp32(checked_multiply(tokens_.total(), d_.q_width())) +
             fp32(checked_multiply(tokens_.total(), d_.heads)) + expanded;
  }
  return Bytes(0);
}

void LayerWriter::attention_forward(LayerSaved& s, TensorId q, TensorId k, TensorId v, bool) {
  const std::int64_t t = tokens_.total();
  s.attention = make("self_attn.attention", t * d_.q_width(), regime_.compute);
  if (strategy_.attention == Attention::flash) {
    s.lse = make("self_attn.logsumexp", t * d_.heads, DType::fp32);
    if (regime_.autocast()) {
      s.k_cast = make("self_attn.k.cast", t * d_.kv_width(), regime_.compute);
      op("self_attn.k.cast").read(k).write(s.k_cast);
      s.q_cast = make("self_attn.q.cast", t * d_.q_width(), regime_.compute);
      op("self_attn.q.cast").read(q).write(s.q_cast);
      q = s.q_cast;
      k = s.k_cast;
    }
    // The CUDA kernels also return the random generator's seed and offset.
    if (rules_.sdpa != Rules::Sdpa::cpu) {
      s.seed = make("self_attn.dropout.seed", 2, DType::int64);
      s.offset = make("self_attn.dropout.offset", 1, DType::int64);
    }
    op("self_attn.attention")
        .read(q)
        .read(k)
        .read(v)
        .write(s.attention)
        .write(s.lse)
        .write(s.seed)
        .write(s.offset);
    return;
  }
  fail(ErrorKind::unsupported, "--attention eager and math are not modelled yet");
}

std::array<TensorId, 3> LayerWriter::attention_backward(const LayerSaved& s, TensorId q, TensorId k,
                                                        TensorId v, TensorId d_out) {
  const std::int64_t t = tokens_.total();
  TensorId dq = temporary("self_attn.q_rotated.grad", t * d_.q_width(), regime_.compute);
  TensorId dk = temporary("self_attn.k_rotated.grad", t * d_.kv_width(), regime_.compute);
  const TensorId dv = temporary("self_attn.v.grad", t * d_.kv_width(), regime_.compute);
  const bool casts = regime_.autocast();
  op("self_attn.attention")
      .read(d_out)
      .read(casts ? s.q_cast : q)
      .read(casts ? s.k_cast : k)
      .read(v)
      .read(s.attention)
      .read(s.lse)
      .read(s.seed)
      .read(s.offset)
      .write(dq)
      .write(dk)
      .write(dv)
      .scratch(attention_workspace(), Category::workspace);
  if (casts) {
    const TensorId wide_q =
        temporary("self_attn.q_rotated.grad.fp32", t * d_.q_width(), DType::fp32);
    op("self_attn.q.cast").read(dq).write(wide_q);
    const TensorId wide_k =
        temporary("self_attn.k_rotated.grad.fp32", t * d_.kv_width(), DType::fp32);
    op("self_attn.k.cast").read(dk).write(wide_k);
    dq = wide_q;
    dk = wide_k;
  }
  return {dq, dk, dv};
}

}  // namespace plimsoll::planner::pytorch

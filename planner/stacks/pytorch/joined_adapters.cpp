// LitGPT's LoRAQKVLinear (litgpt 0.5.13, lora.py): one A of all parts' ranks for queries, keys and
// values; B as a convolution of one axis (conv1d), in groups where the parts are equally wide, else
// one for each part; and, where some part has no adapter, zeros in its place (zero_pad). 0.4.13 is
// the same; 0.3.0 turns what B made and the zeros, and copies both.
#include "planner/stacks/pytorch/adapter.h"
#include "planner/stacks/pytorch/modules.h"

namespace plimsoll::planner::pytorch {

// Convolution.cpp, _convolution: what A made, transposed, is laid out anew. index_copy_ keeps what
// it copies and a clone of the places (derivatives.yaml; lora_ind), where 0.4.13 has the places
// themselves. cuDNN's workspace is not known.
void ModuleWriter::joined_forward(const LinearNames& names, const LinearPart& part,
                                  LinearSaved& s) {
  const SymInt t = tokens_.total();
  const JoinedAdapter& of = part.joined;
  const DType dtype = regime_.adapter;
  const auto convolve = [&](TensorId to, std::int64_t in, std::int64_t width, std::int64_t rank) {
    op(names.b.module).read(s.a.out).scratch(bytes(t * in, dtype)).write(to);
    b_.work().gemm(gemm_of(dtype, t, width, rank));
  };
  s.b = {};
  if (of.grouped) {
    s.b.out = make(names.parts, t * of.width(), dtype);
    convolve(s.b.out, part.lora_rank, of.width(), of.rank);
  } else {
    std::array<TensorId, 3> made{kNoTensor, kNoTensor, kNoTensor};
    for (std::size_t i = 0; std::cmp_less(i, of.parts); ++i) {
      made[i] = temporary(names.part, t * of.widths[i], dtype);
      convolve(made[i], of.rank, of.widths[i], of.rank);
    }
    s.b.out = make(names.parts, t * of.width(), dtype);
    op(names.parts).read(made[0]).read(made[1]).read(made[2]).write(s.b.out);
  }
  s.padded = s.b.out;
  if (!of.pads) return;
  s.source = s.b.out;
  s.padded = temporary(names.padded, t * part.out, dtype);
  const bool keeps = strategy_.code != models::ModelCode::litgpt_0_4_13;
  s.places = keeps ? make(names.places, of.width(), DType::int64) : kNoTensor;
  if (strategy_.code != models::ModelCode::litgpt_0_3_0) {
    op(names.padded).read(s.b.out).write(s.padded).write(s.places);
    return;
  }
  // x.transpose(0, 1).reshape(-1, …) of several sequences is a copy; index_copy is of the zeros.
  const TensorId zeros = std::exchange(s.padded, temporary(names.padded, t * part.out, dtype));
  op(names.padded).write(zeros);
  op(names.places).write(s.places);
  if (tokens_.sequences > 1)
    s.source = copy(names.parts, s.b.out, t * of.width(), dtype, Category::activations);
  op(names.padded).read(zeros).read(s.source).read(s.places).write(s.padded);
}

// Returns the gradient of what A made. Convolution.cpp, convolution_backward: a part's gradient and
// a part of what A made are laid out anew, all of them are as a kernel reads them already.
TensorId ModuleWriter::joined_backward(const LinearNames& names, const LinearPart& part,
                                       const LinearSaved& s, TensorId d) {
  const SymInt t = tokens_.total();
  const JoinedAdapter& of = part.joined;
  const DType dtype = regime_.adapter;
  const auto gemms = [&](std::int64_t width) {
    b_.work().gemm(gemm_of(dtype, t, of.rank, width));
    b_.work().gemm(gemm_of(dtype, width, of.rank, t));
  };
  const bool turned = strategy_.code == models::ModelCode::litgpt_0_3_0 && tokens_.sequences > 1;
  if (of.pads) {
    if (turned) d = copy(names.padded, d, t * part.out, dtype);
    const TensorId parts = temporary(names.parts_grad, t * of.width(), dtype);
    op(names.padded).read(d).read(s.source).read(s.places).write(parts);
    d = parts;
  }
  const SymBytes laid_out = turned && of.pads ? bytes(t * of.width(), dtype) : SymBytes();
  const TensorId d_weight = sink_->begin(names.b, of.width() * of.rank, true);
  if (of.grouped) {
    const TensorId d_a = temporary(names.b.input_grad_low, t * part.lora_rank, dtype);
    op(names.b.module).read(d).read(s.a.out).scratch(laid_out).write(d_a).write(d_weight);
    gemms(of.width());
    sink_->end(names.b, d_weight);
    return d_a;
  }
  std::array<TensorId, 3> d_in{kNoTensor, kNoTensor, kNoTensor},
      d_of{kNoTensor, kNoTensor, kNoTensor};
  for (auto i = static_cast<std::size_t>(of.parts); i-- > 0;) {
    d_in[i] = temporary(names.part_grad, t * of.rank, dtype);
    d_of[i] = temporary(names.b.weight_grad_low, of.widths[i] * of.rank, dtype);
    op(names.b.module)
        .read(d)
        .read(s.a.out)
        .scratch(bytes(t * of.widths[i], dtype) + bytes(t * of.rank, dtype))
        .write(d_in[i])
        .write(d_of[i]);
    gemms(of.widths[i]);
  }
  op(names.b.weight_grad).read(d_of[0]).read(d_of[1]).read(d_of[2]).write(d_weight);
  const TensorId d_a = temporary(names.b.input_grad_low, t * part.lora_rank, dtype);
  op(names.b.input_grad_low).read(d_in[0]).read(d_in[1]).read(d_in[2]).write(d_a);
  sink_->end(names.b, d_weight);  // lora_B.unsqueeze(-1) was made before what A made was cut
  return copy(names.b.input_grad, d_a, t * part.lora_rank, dtype);
}

}  // namespace plimsoll::planner::pytorch

// Adapters of a packed base that one autograd function computes with it: fms-acceleration @876e2ed,
// plugins/fused-ops-and-kernels, fused_ops/unsloth_lora/{bnb,gptq}/fast_lora.py and utils.py
// (LoRA_QKV, LoRA_W; matmul_lora, fast_dequantize, dequant248), derived from Unsloth's of January
// 2024. Held against traces of the package (tests/golden/pytorch_steps/*-fms-*).
//
// What the function keeps: its input, and of each projection what dropout left of it (no mask: the
// backward asks where that is not zero). What it makes for a moment, each time: the weight, in the
// dtype that it was loaded in (GPTQ: fp16), A and B in the input's dtype, s · B.
#include "planner/stacks/pytorch/fused_adapters.h"

#include "planner/stacks/pytorch/adapter.h"

namespace plimsoll::planner::pytorch {

namespace {

// In which autograd runs the accumulations of what one node returned: of equals its heap takes not
// the oldest first (engine.cpp, ReadyQueue). Seen so for dX and three pairs of A and B.
constexpr std::array<std::pair<std::size_t, bool>, 6> kOrderOfThree{
    {{0, false}, {0, true}, {2, false}, {2, true}, {1, true}, {1, false}}};

}  // namespace

// The weight, for a moment. Scales that are packed too are unpacked beside it.
TensorId FusedAdapters::unpacked_weight(const NodePlan& at) {
  const LinearPart& part = *at.linear;
  const SymInt values = checked_multiply(part.in, part.out);
  const TensorId weight = w_.temporary(at.linear_names->unpacked, values, w_.regime_.compute);
  auto unpack = w_.op(at.linear_names->unpacked).write(weight);
  if (part.packed->doubly_quantized())
    unpack.scratch(w_.fp32(ceil_divide(values, part.packed->block)));
  w_.b_.work().moves(unpacked_bytes(part, w_.regime_.compute));
  return weight;
}

// One of A and B in the dtype that the input has; none where it has that itself.
TensorId FusedAdapters::low_adapter(const ModuleNames& names, std::int64_t values) {
  if (w_.regime_.adapter == w_.regime_.compute) return kNoTensor;
  const TensorId low = w_.temporary(names.weight_cast, values, w_.regime_.compute);
  w_.op(names.weight_cast).write(low);
  w_.b_.work().casts(
      (w_.bytes(values, w_.regime_.adapter) + w_.bytes(values, w_.regime_.compute)).real());
  return low;
}

// s times one of A and B.
TensorId FusedAdapters::scaled_adapter(const ModuleNames& names, const char* scaled_name,
                                       std::int64_t values) {
  const TensorId low = low_adapter(names, values);
  const TensorId scaled = w_.temporary(scaled_name, values, w_.regime_.compute);
  w_.op(scaled_name).read(low).write(scaled);
  return scaled;
}

void FusedAdapters::forward_of(const NodePlan& at, Ref x, TensorId weight, LinearSaved& s) {
  const LinearPart& part = *at.linear;
  const LinearNames& names = *at.linear_names;
  const DType dtype = w_.regime_.compute;
  const SymInt t = w_.tokens_.total(), r = part.lora_rank;
  s.out = w_.make(names.base.out, t * part.out, dtype);
  auto gemm = w_.op(names.base.module);
  w_.read(gemm, x).read(weight).write(s.out);
  w_.b_.work().gemm(gemm_of(dtype, t, part.out, part.in));
  w_.take_workspace(gemm, false);
  Ref dropped = x;
  if (w_.strategy_.lora->dropout > 0) {
    s.a.input = w_.make(names.dropped, t * part.in, dtype);
    auto drop = w_.op(names.dropped);
    w_.read(drop, x).write(s.a.input).scratch(w_.bytes(t * part.in, DType::boolean));
    dropped = {s.a.input};
  }
  const TensorId a = low_adapter(names.a, part.in * part.lora_rank);
  const TensorId low = w_.temporary(names.a.out, t * r, dtype);
  auto down = w_.op(names.a.module);
  w_.read(down, dropped).read(a).write(low);
  w_.b_.work().gemm(gemm_of(dtype, t, r, part.in));
  const TensorId b = scaled_adapter(names.b, names.scaled, part.out * part.lora_rank);
  const TensorId share = w_.temporary(names.b.out, t * part.out, dtype);
  w_.op(names.b.module).read(low).read(b).write(share);
  w_.b_.work().gemm(gemm_of(dtype, t, part.out, r));
  w_.op(names.sum).update(s.out).read(share);
  if (!part.bias) return;
  w_.op(names.bias.module).update(s.out);
}

// What a dropout module carries out of its forward (`dropout.X`) goes with the function, and so do
// GPTQ's weights, which LoRA_QKV makes before anything else.
void FusedAdapters::forward(LayerSaved& s) {
  const Ref x = w_.value(s, first_.node->in[0]);
  const bool gptq = is_gptq(*first_.linear);
  std::array<TensorId, kMostFused> weights{kNoTensor, kNoTensor, kNoTensor};
  for (std::size_t i = 0; gptq && i < group_.size(); ++i) weights[i] = unpacked_weight(group_[i]);
  for (std::size_t i = 0; i < group_.size(); ++i) {
    LinearSaved& saved = s.linears[group_[i].place];
    saved = {};
    saved.input_grad = w_.grad_of(first_.node->in[0]);
    if (!gptq) weights[i] = unpacked_weight(group_[i]);
    forward_of(group_[i], x, weights[i], saved);
    s.of(group_[i].node->out[0]) = saved.out;
  }
  auto done = w_.op(first_.linear_names->base.module);
  w_.read(done, x);
  for (std::size_t i = 0; i < group_.size(); ++i)
    done.read(s.linears[group_[i].place].a.input).read(gptq ? weights[i] : kNoTensor);
  w_.b_.work().moves(0, 0);
}

// d_A = Xᵀ · (d · B), d_B = (A · Xᵀ) · d, both as their transposes, and times s in place.
FusedAdapters::Gradients FusedAdapters::adapter_back(const NodePlan& at, Ref dropped, TensorId d) {
  const LinearPart& part = *at.linear;
  const LinearNames& names = *at.linear_names;
  const DType dtype = w_.regime_.compute;
  const SymInt t = w_.tokens_.total(), r = part.lora_rank;
  const std::int64_t ins = part.in * part.lora_rank, outs = part.out * part.lora_rank;
  Gradients made{w_.temporary(names.a.weight_grad_low, ins, dtype), kNoTensor};
  const auto multiply = [&](const ModuleNames& of, Ref left, TensorId right, TensorId out,
                            const Gemm& size) {
    auto gemm = w_.op(of.module);
    w_.read(gemm, left).read(right).write(out);
    w_.b_.work().gemm(size);
    w_.take_workspace(gemm, false);
  };
  const TensorId b = low_adapter(names.b, outs);
  TensorId low = w_.temporary(names.b.input_grad_low, t * r, dtype);
  multiply(names.b, {d}, b, low, gemm_of(dtype, t, r, part.out));
  multiply(names.a, dropped, low, made.a, gemm_of(dtype, part.in, r, t));
  const TensorId a = low_adapter(names.a, ins);
  low = w_.temporary(names.a.out, t * r, dtype);
  multiply(names.a, dropped, a, low, gemm_of(dtype, r, t, part.in));
  made.b = w_.temporary(names.b.weight_grad_low, outs, dtype);
  multiply(names.b, {low}, d, made.b, gemm_of(dtype, r, part.out, t));
  return made;
}

// dX (+)= d · Wᵀ, and += (X != 0) · (d · B · s · A). `first`: it is made here, or (LoRA_QKV of
// bitsandbytes) over the input that the function kept.
void FusedAdapters::input_back(const NodePlan& at, Ref dropped, TensorId d, Ref d_x,
                               Ref overwritten, bool first) {
  const LinearPart& part = *at.linear;
  const LinearNames& names = *at.linear_names;
  const DType dtype = w_.regime_.compute;
  const SymInt t = w_.tokens_.total(), ins = t * part.in, r = part.lora_rank;
  const auto add = [&](const char* name, TensorId share, TensorId weight) {
    w_.op(name).read(share).read(weight).touch(d_x.tensor, d_x.delta, d_x.beyond,
                                               models::Access::update);
  };
  const TensorId weight = unpacked_weight(at);
  const TensorId share = first ? kNoTensor : w_.temporary(names.base.input_grad_low, ins, dtype);
  auto gemm = w_.op(names.base.module).read(d).read(weight).write(share);
  if (first) {
    w_.read(gemm, overwritten);
    w_.write(gemm, d_x);
  }
  w_.b_.work().gemm(gemm_of(dtype, t, part.in, part.out));
  if (!first) add(names.base.input_grad, share, weight);
  const TensorId mask = w_.temporary(names.a.lora_mask, ins, DType::boolean);
  auto compare = w_.op(names.a.lora_mask);
  w_.read(compare, dropped).write(mask);
  const TensorId b = low_adapter(names.b, part.out * part.lora_rank);
  const TensorId low = w_.temporary(names.b.input_grad_low, t * r, dtype);
  w_.op(names.b.module).read(d).read(b).write(low);
  w_.b_.work().gemm(gemm_of(dtype, t, r, part.out));
  const TensorId a = scaled_adapter(names.a, names.scaled_cast, part.in * part.lora_rank);
  const TensorId adapters = w_.temporary(names.a_input_grad, ins, dtype);
  w_.op(names.a.module).read(low).read(a).write(adapters);
  w_.b_.work().gemm(gemm_of(dtype, t, part.in, r));
  const TensorId masked = w_.temporary(names.dropped_grad, ins, dtype);
  w_.op(names.dropped_grad).read(mask).read(adapters).write(masked);
  add(names.dropped_grad, masked, kNoTensor);
}

// Autograd casts what the node returned to the parameters' dtype, each keeping its strides, and
// only then lets go of what the node read; accumulation copies each to its parameter's strides.
void FusedAdapters::gradients(std::span<Gradients> made, const LayerSaved& s, Ref x) {
  const auto widened = [&](const ModuleNames& names, TensorId low, std::int64_t values) {
    return w_.cast(names.input_fp32, low, values, w_.regime_.compute, w_.regime_.adapter);
  };
  const auto elements = [&](std::size_t i, bool of_b) {
    const LinearPart& part = *group_[i].linear;
    return (of_b ? part.out : part.in) * part.lora_rank;
  };
  for (std::size_t i = 0; i < group_.size(); ++i) {
    made[i].a = widened(group_[i].linear_names->a, made[i].a, elements(i, false));
    made[i].b = widened(group_[i].linear_names->b, made[i].b, elements(i, true));
  }
  auto done = w_.op(group_[0].linear_names->base.module);
  w_.read(done, x);
  for (const NodePlan& one : group_)
    done.read(s.linears[one.place].a.input).read(w_.gradient(one.node->out[0]).tensor);
  w_.b_.work().moves(0, 0);
  for (std::size_t k = 0; k < 2 * group_.size(); ++k) {
    const auto [i, of_b] =
        group_.size() == 1 ? std::pair(std::size_t{0}, k == 1) : kOrderOfThree[k];
    const ModuleNames& names = of_b ? group_[i].linear_names->b : group_[i].linear_names->a;
    const TensorId grad = w_.sink_->begin(names, elements(i, of_b), true);
    w_.op(names.weight_grad).read(of_b ? made[i].b : made[i].a).write(grad);
    w_.sink_->end(names, grad);
  }
}

void FusedAdapters::backward(Ref d_input, const LayerSaved& s) {
  w_.unpack();
  const models::ValueId in = first_.node->in[0];
  const Ref x = w_.value(s, in);
  const Place place = w_.place_of(first_, d_input, s);
  const bool over_input = first_.fused > 1 && !is_gptq(*first_.linear);
  std::array<Gradients, kMostFused> made;
  const auto kept = [&](std::size_t i) {
    const TensorId dropped = s.linears[group_[i].place].a.input;
    return dropped == kNoTensor ? x : Ref{dropped};
  };
  const auto of = [&](std::size_t i) { return w_.gradient(group_[i].node->out[0]).tensor; };
  for (std::size_t i = 0; i < group_.size(); ++i) made[i] = adapter_back(group_[i], kept(i), of(i));
  const bool grad = w_.grad_of(in);
  Ref d_x = place.into;
  if (d_x.none())
    d_x = {w_.temporary(first_.linear_names->base.input_grad,
                        checked_multiply(w_.tokens_.total(), first_.linear->in),
                        w_.regime_.compute)};
  for (std::size_t i = 0; i < group_.size(); ++i) {
    const bool replaced = over_input && s.linears[group_[i].place].a.input == kNoTensor;
    input_back(group_[i], replaced && i > 0 ? d_x : kept(i), of(i), d_x, over_input ? x : Ref{},
               i == 0);
  }
  gradients(made, s, over_input ? Ref{} : x);
  w_.gradient(in) = {grad ? d_x.tensor : kNoTensor};
}

}  // namespace plimsoll::planner::pytorch

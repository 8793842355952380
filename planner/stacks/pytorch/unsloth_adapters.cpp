// Adapters as Unsloth computes them: unsloth 2025.11.6, kernels/fast_lora.py (LoRA_QKV, LoRA_W,
// LoRA_MLP) and kernels/utils.py (matmul_lora, fast_dequantize). Held against traces of the package
// (tests/golden/traces/*-unsloth*).
//
// A function keeps its input, an MLP also what gate and up made; the backward of an MLP writes over
// all three, that of queries, keys and values over the input. A and B are cast to the input's dtype
// each time. A packed weight is unpacked into one buffer of the process where matmul_lora does so
// (the forward, and the way back through `down`), else into a tensor of its own.
#include "planner/stacks/pytorch/unsloth_adapters.h"

#include "planner/stacks/pytorch/adapter.h"

namespace plimsoll::planner::pytorch {

using models::Access;

UnslothAdapters::UnslothAdapters(BlockWriter& writer, const NodePlan& first)
    : w_(writer), first_(first), group_{&first} {
  for (const NodePlan* at = &first + 1; group_.size() < first.fused; ++at) {
    if (!at->follows) continue;
    if (at->linear != nullptr)
      group_.push_back(at);
    else
      product_ = at;
  }
}

TensorId UnslothAdapters::low(const ModuleNames& names, std::int64_t values) {
  if (w_.regime_.adapter == w_.regime_.compute) return kNoTensor;
  const TensorId made = w_.temporary(names.weight_cast, values, w_.regime_.compute);
  w_.op(names.weight_cast).write(made);
  w_.b_.work().casts(
      (w_.bytes(values, w_.regime_.adapter) + w_.bytes(values, w_.regime_.compute)).real());
  return made;
}

// fast_dequantize: the weight, and beside it for a moment its scales.
TensorId UnslothAdapters::unpacked(const NodePlan& at) {
  const LinearPart& part = *at.linear;
  if (part.packed == nullptr) return kNoTensor;
  const SymInt values = checked_multiply(part.in, part.out);
  const TensorId weight = w_.temporary(at.linear_names->unpacked, values, w_.regime_.compute);
  w_.op(at.linear_names->unpacked)
      .write(weight)
      .scratch(w_.fp32(ceil_divide(values, part.packed->block)));
  w_.b_.work().moves(unpacked_bytes(part, w_.regime_.compute));
  return weight;
}

// The same into buffers that stay (use_global_buffer).
void UnslothAdapters::unpack_in_place(const NodePlan& at) {
  if (at.linear->packed == nullptr) return;
  w_.op(at.linear_names->unpacked);
  w_.b_.work().moves(unpacked_bytes(*at.linear, w_.regime_.compute));
}

// [tokens, rank], for a moment.
TensorId UnslothAdapters::times(const ModuleNames& names, Ref left, TensorId right,
                                const NodePlan& at, std::int64_t of) {
  const SymInt r = at.linear->lora_rank;
  const TensorId made = w_.temporary(names.out, tokens() * r, w_.regime_.compute);
  auto gemm = w_.op(names.module);
  w_.read(gemm, left).read(right).write(made);
  w_.b_.work().gemm(gemm_of(w_.regime_.compute, tokens(), r, of));
  w_.take_workspace(gemm, false);
  return made;
}

void UnslothAdapters::add(const char* name, Ref sum, TensorId low, TensorId factor,
                          const Gemm& size) {
  w_.op(name).read(low).read(factor).touch(sum.tensor, sum.delta, sum.beyond, Access::update);
  w_.b_.work().gemm(size);
}

// matmul_lora: x · W, to which x · A · B is added in place.
void UnslothAdapters::multiply(const NodePlan& at, Ref x, LinearSaved& s) {
  const LinearPart& part = *at.linear;
  const LinearNames& names = *at.linear_names;
  const DType dtype = w_.regime_.compute;
  unpack_in_place(at);
  s.out = w_.make(names.base.out, tokens() * part.out, dtype);
  auto gemm = w_.op(names.base.module);
  w_.read(gemm, x).write(s.out);
  w_.b_.work().gemm(gemm_of(dtype, tokens(), part.out, part.in));
  w_.take_workspace(gemm, false);
  const TensorId a = low(names.a, part.in * part.lora_rank);
  const TensorId xa = times(names.a, x, a, at, part.in);
  const TensorId b = low(names.b, part.out * part.lora_rank);
  add(names.sum, {s.out}, xa, b, gemm_of(dtype, tokens(), part.out, part.lora_rank));
}

void UnslothAdapters::forward(LayerSaved& s) {
  const Ref x = w_.value(s, first_.node->in[0]);
  for (const NodePlan* at : group_) {
    LinearSaved& saved = s.linears[at->place];
    saved = {};
    saved.input_grad = w_.grad_of(first_.node->in[0]);
    const bool down = is_mlp() && at == group_.back();
    if (down) {
      const models::ValueId h = product_->node->out[0];
      s.of(h) = w_.make(product_->names->name, w_.values_of(h), w_.dtype_of(h));
      w_.op(product_->names->name)
          .read(s.of(product_->gate))
          .read(s.of(product_->up))
          .write(s.of(h));
    }
    multiply(*at, down ? Ref{s.of(product_->node->out[0])} : x, saved);
    s.of(at->node->out[0]) = saved.out;
  }
  auto done = w_.op(first_.linear_names->base.module);  // its frame holds what it made
  w_.read(done, x);
  if (is_mlp())
    done.read(s.of(product_->gate)).read(s.of(product_->up)).read(s.of(product_->node->out[0]));
  w_.b_.work().moves(0, 0);
}

Ref UnslothAdapters::result_gradient(std::size_t i) const {
  return w_.gradient_of(group_[i]->node->out[0]);
}

void UnslothAdapters::cast_adapters() {
  low_.resize(group_.size());
  for (std::size_t i = 0; i < group_.size(); ++i) {
    const LinearPart& part = *group_[i]->linear;
    low_[i].a = low(group_[i]->linear_names->a, part.in * part.lora_rank);
    low_[i].b = low(group_[i]->linear_names->b, part.out * part.lora_rank);
  }
}

void UnslothAdapters::make_gradients(std::size_t i) {
  const LinearPart& part = *group_[i]->linear;
  const LinearNames& names = *group_[i]->linear_names;
  const DType dtype = w_.regime_.compute;
  low_[i].d_a = w_.temporary(names.a.weight_grad_low, part.in * part.lora_rank, dtype);
  low_[i].d_b = w_.temporary(names.b.weight_grad_low, part.out * part.lora_rank, dtype);
  w_.op(names.a.weight_grad_low).write(low_[i].d_a).write(low_[i].d_b);
  w_.b_.work().moves(0, 0);
}

// d_A = xᵀ · (d · Bᵀ), d_B = (Aᵀ · xᵀ) · d.
void UnslothAdapters::gradients_of(std::size_t i, const Pair& pair) {
  const NodePlan& at = *group_[i];
  const LinearPart& part = *at.linear;
  const LinearNames& names = *at.linear_names;
  const DType dtype = w_.regime_.compute;
  const auto into = [&](const ModuleNames& of, TensorId sum, Ref tokens_of, TensorId low,
                        const Gemm& size) {
    auto op = w_.op(of.weight_grad_low);
    w_.read(op, tokens_of).read(low).update(sum);
    w_.b_.work().gemm(size);
  };
  const TensorId d_b = times(names.b, pair.d, low_[i].b, at, part.out);
  into(names.a, low_[i].d_a, pair.x, d_b, gemm_of(dtype, part.in, part.lora_rank, tokens()));
  const TensorId a_x = times(names.a, pair.x, low_[i].a, at, part.in);
  into(names.b, low_[i].d_b, pair.d, a_x, gemm_of(dtype, part.lora_rank, part.out, tokens()));
}

// d_x (+)= d · Wᵀ, += d · Bᵀ · Aᵀ. The first one writes it.
void UnslothAdapters::input_gradient(std::size_t i, Ref d, Ref d_x, bool first) {
  const NodePlan& at = *group_[i];
  const LinearPart& part = *at.linear;
  const LinearNames& names = *at.linear_names;
  const DType dtype = w_.regime_.compute;
  const bool made_here = first && group_.size() == 1;
  const TensorId weight = unpacked(at);
  auto gemm = w_.op(names.base.module);
  w_.read(gemm, d).read(weight).touch(d_x.tensor, d_x.delta, d_x.beyond,
                                      made_here ? Access::write : Access::update);
  w_.b_.work().gemm(gemm_of(dtype, tokens(), part.in, part.out));
  w_.take_workspace(gemm, false);
  const TensorId low = times(names.b, d, low_[i].b, at, part.out);
  add(names.base.input_grad, d_x, low, low_[i].a,
      gemm_of(dtype, tokens(), part.in, part.lora_rank));
}

// Python's frame goes, and with it the casts.
void UnslothAdapters::leave_function(TensorId also) {
  auto done = w_.op(first_.linear_names->base.module);
  for (const Low& one : low_) done.read(one.a).read(one.b);
  done.read(also);
  w_.b_.work().moves(0, 0);
}

// Autograd casts what the function returned to the parameters' dtype, which become their gradients
// as they are, and then lets go of what it saved.
void UnslothAdapters::widen_gradients(const LayerSaved& s) {
  std::vector<std::pair<const ModuleNames*, TensorId>> made;
  const auto widen = [&](const ModuleNames& names, TensorId low, std::int64_t values) {
    const TensorId grad = w_.sink_->begin(names, values, true);
    w_.op(names.weight_grad).read(low).write(grad);
    made.emplace_back(&names, grad);
  };
  for (std::size_t i = 0; i < group_.size(); ++i) {
    const LinearPart& part = *group_[i]->linear;
    widen(group_[i]->linear_names->a, low_[i].d_a, part.in * part.lora_rank);
    widen(group_[i]->linear_names->b, low_[i].d_b, part.out * part.lora_rank);
  }
  auto done = w_.op(first_.linear_names->base.module);
  if (is_mlp()) done.read(s.of(product_->gate)).read(s.of(product_->up));
  for (std::size_t i = 0; i < group_.size(); ++i) w_.read(done, result_gradient(i));
  w_.b_.work().moves(0, 0);
  for (const auto& [names, grad] : made) w_.sink_->end(*names, grad);
}

// LoRA_MLP.backward: d(h), which becomes h; e and g become the gradients of up and gate.
void UnslothAdapters::mlp_backward(const LayerSaved& s) {
  constexpr std::size_t kGate = 0, kUp = 1, kDown = 2;
  const NodePlan& down = *group_[kDown];
  const DType dtype = w_.regime_.compute;
  const Ref d = result_gradient(kDown), x = w_.value(s, first_.node->in[0]);
  const TensorId e = s.of(product_->gate), g = s.of(product_->up);
  cast_adapters();
  unpack_in_place(down);
  const SymInt values = w_.values_of(product_->node->out[0]);
  const TensorId d_h = w_.temporary(product_->names->out_grad, values, dtype);
  auto gemm = w_.op(down.linear_names->base.module);
  w_.read(gemm, d).write(d_h);
  w_.b_.work().gemm(gemm_of(dtype, tokens(), down.linear->in, down.linear->out));
  w_.take_workspace(gemm, false);
  const TensorId low = times(down.linear_names->b, d, low_[kDown].b, down, down.linear->out);
  add(down.linear_names->base.input_grad, {d_h}, low, low_[kDown].a,
      gemm_of(dtype, tokens(), down.linear->in, down.linear->lora_rank));
  w_.op(product_->names->name).update(d_h).update(e).update(g);
  for (const std::size_t i : {kDown, kGate, kUp}) make_gradients(i);
  gradients_of(kDown, {{d_h}, d});
  gradients_of(kUp, {x, {e}});
  gradients_of(kGate, {x, {g}});
  input_gradient(kUp, {e}, x, true);
  input_gradient(kGate, {g}, x, false);
  leave_function(d_h);
  widen_gradients(s);
  w_.gradient(first_.node->in[0]) = {x.tensor};
}

// LoRA_QKV.backward and LoRA_W.backward: of three the input's gradient takes the input's place.
void UnslothAdapters::linears_backward(const LayerSaved& s) {
  const models::ValueId in = first_.node->in[0];
  const Ref x = w_.value(s, in);
  cast_adapters();
  for (std::size_t i = 0; i < group_.size(); ++i) make_gradients(i);
  for (std::size_t i = 0; i < group_.size(); ++i) gradients_of(i, {x, result_gradient(i)});
  const Ref d_x = group_.size() > 1
                      ? x
                      : Ref{w_.temporary(first_.linear_names->base.input_grad,
                                         tokens() * first_.linear->in, w_.regime_.compute)};
  for (std::size_t i = 0; i < group_.size(); ++i)
    input_gradient(i, result_gradient(i), d_x, i == 0);
  leave_function();
  widen_gradients(s);
  w_.gradient(in) = {d_x.tensor};
}

void UnslothAdapters::backward(const LayerSaved& s) {
  w_.unpack();
  is_mlp() ? mlp_backward(s) : linears_backward(s);
}

}  // namespace plimsoll::planner::pytorch

// A layer's backward, from the last node to the first.
#include "planner/stacks/pytorch/block_writer.h"

#include <algorithm>

#include "models/decisions/layer.h"
#include "planner/stacks/pytorch/functions.h"
#include "planner/stacks/pytorch/fused_adapters.h"
#include "planner/stacks/pytorch/unsloth_adapters.h"

namespace plimsoll::planner::pytorch {

using models::Activation;
using models::kBlockInput;
using models::OpKind;
using models::ValueId;

void BlockWriter::backward(const BlockPlan& plan, Ref input, TensorId d_output, Ref d_input,
                           const LayerSaved& s) {
  // A reentrant checkpoint's backward begins with its forward (CheckpointFunction.backward).
  if (checkpointed_ && models::decisions::reentrant_checkpoints(strategy_)) unpack();
  plan_ = &plan;
  input_ = input;
  d_input_ = d_input;
  d_output_ = {d_output};
  sliding_ = plan.sliding;
  gradients_.assign(plan.values.size(), {});
  gradient(plan.layer->block->output()) = {d_output};
  for (std::size_t i = plan.nodes.size(); i-- > 0;) {
    if (!plan.nodes[i].grad) continue;
    node_ = &plan.nodes[i];
    back(*node_, d_input, s);
    node_done();
    if (node_->follows) continue;  // what it made is read with the first one's
    for (const ValueId id : node_->node->out) gradient(id) = {};
  }
  node_ = nullptr;
}

SymInt BlockWriter::rows_of(ValueId id) const {
  const ValuePlan& value = plan_->value(id);
  if (value.expert >= 0) return visits(value.expert);
  return tokens_.part(value.of_part ? d_.sequence_parts : 1);
}

SymInt BlockWriter::values_of(ValueId id) const {
  return checked_multiply(rows_of(id), plan_->value(id).width);
}

Ref BlockWriter::gradient_of(ValueId id) {
  return gradient(id).of_input ? d_input_ : Ref{gradient(id).tensor};
}

// fully_shard's mixed precision casts what a layer is called with (_fsdp_state.py, _pre_forward):
// tables in fp32, into copies of each layer's own.
void BlockWriter::cast_tables(const BlockPlan& plan) {
  if (!d_.fp32_rotary || rotary_dtype() == DType::fp32) return;
  const SymBytes bytes = storage(checked_multiply(tokens_.length, d_.rotated()), rotary_dtype());
  std::array<TensorId, 2>& own = own_tables_[&plan];
  for (std::size_t i = 0; i < own.size(); ++i) {
    const TensorId table = (i == 0 ? cos_ : sin_)[plan.sliding ? 1 : 0];
    own[i] =
        b_.tensor(i == 0 ? "rotary.cos.cast" : "rotary.sin.cast", bytes, Category::activations);
    b_.op("fsdp.inputs.cast", Phase::forward).read(table).write(own[i]);
  }
}

DType BlockWriter::rotary_dtype() const {
  const bool casts =
      strategy_.data.zero >= 2 && !is_fsdp1(strategy_) && is_mixed(strategy_.precision);
  return d_.fp32_rotary && !casts ? DType::fp32 : regime_.embedded;
}

std::array<Ref, 3> BlockWriter::rotary_operands(TensorId x) const {
  if (const auto own = own_tables_.find(plan_); own != own_tables_.end())
    return {{{x}, {own->second[0]}, {own->second[1]}}};
  return {{{x}, {cos_[sliding_ ? 1 : 0]}, {sin_[sliding_ ? 1 : 0]}}};
}

std::optional<int> BlockWriter::order_of(const ModuleNames& names) const {
  if (node_ == nullptr) return std::nullopt;
  return node_->node->module * kLeaves + static_cast<int>(names.leaf);
}

bool BlockWriter::in_stream_norm() const {
  return node_ != nullptr && node_->norm != nullptr && plan_->value(node_->node->in[0]).stream;
}

std::span<const Ref> BlockWriter::frame() const {
  const bool holds = checkpointed_ && first_ && node_ == &plan_->nodes[plan_->first_save];
  return holds ? std::span<const Ref>(held_) : std::span<const Ref>();
}

// A transposed view of one head has the strides of the whole.
TensorId BlockWriter::laid_out(ValueId id, bool for_gemm) {
  const Sum& sum = gradient(id);
  const bool one_head = plan_->value(id).width == d_.head_dim;
  const char* const name = one_head ? nullptr : sum.laid_out;
  if (name != nullptr) return copy(name, sum.tensor, values_of(id), dtype_of(id));
  return for_gemm && sum.apart != nullptr ? copy(sum.apart, sum.tensor, values_of(id), dtype_of(id))
                                          : sum.tensor;
}

void BlockWriter::back(const NodePlan& at, Ref d_input, const LayerSaved& s) {
  const models::Node& node = *at.node;
  if (at.follows) return;
  const ValueId in = node.in[0];
  switch (node.kind) {
    case OpKind::norm:
      return norm_back(at, d_input, s);
    case OpKind::linear: {
      if (at.fused > 0) return fused_backward_of(at, d_input, s);
      const TensorId d = laid_out(node.out[0], true);
      Sum sum = gradient(in);
      sum.view = sum.view || shared(in);
      Place place = place_of(at, d_input, s);
      place.d_shared = shared(node.out[0]) || gradient(node.out[0]).view;
      const Tokens all = visiting(at);
      gradient(in) = linear_backward(*at.linear_names, *at.linear, dtype_of(in), grad_of(in),
                                     s.linears[at.place], d, sum, place);
      tokens_ = all;
      return;
    }
    case OpKind::split:
      return split_back(at);
    case OpKind::slice:
      return slice_back(at);
    case OpKind::concatenate:
      return concatenate_back(at);
    case OpKind::heads: {
      const TensorId d = laid_out(node.out[0]);
      const Sum& sum = gradient(node.out[0]);
      gradient(in) = {.tensor = d, .apart = d == sum.tensor ? sum.apart : nullptr};
      return;
    }
    case OpKind::reshape:
      gradient(in) = gradient(node.out[0]);
      return;
    case OpKind::expand:
      return expand_back(at);
    case OpKind::scale:
      gradient(in) = {copy(at.names->grad, laid_out(node.out[0]), values_of(in), dtype_of(in))};
      return;
    case OpKind::rotary:
      return rotary_back(at);
    case OpKind::attention:
      return attention_back(at, s);
    case OpKind::activation:
      return activation_back(at, s);
    case OpKind::multiply:
      return multiply_back(at, s);
    case OpKind::experts:
      return experts_back(at, s);
    case OpKind::route:
    case OpKind::visitors:
    case OpKind::gather:
    case OpKind::weigh:
    case OpKind::add_rows:
      return loop_back(at, s);
    case OpKind::gather_sequence:
    case OpKind::scatter_sequence:
      return sequence_back(at);
    case OpKind::add:
      return add_back(at);
    case OpKind::dropout:
      if (node.probability > 0) unpack();
      gradient(in) = {dropout_backward(at.names->grad, gradient(node.out[0]).tensor,
                                       s.masks[at.place], values_of(in), dtype_of(in))};
      return;
    case OpKind::leave:
      return;
  }
}

void BlockWriter::fused_backward_of(const NodePlan& at, Ref d_input, const LayerSaved& s) {
  const bool unsloth = regime_.patch.adapters == KernelPatch::Adapters::unsloth;
  unsloth ? UnslothAdapters(*this, at).backward(s) : FusedAdapters(*this, at).backward(d_input, s);
}

// In a layer's first node the gradient becomes that of the layer's input.
Place BlockWriter::place_of(const NodePlan& at, Ref d_input, const LayerSaved& s) const {
  const ValueId in = at.node->in[0];
  const bool ends = (in == kBlockInput && &at == plan_->nodes.data()) || plan_->ends_in_place(at);
  Place place{value(s, in), ends ? d_input : Ref{}, frame(), at.node->of_view};
  place.of_rows = at.node->expert >= 0;
  return place;
}

// Its gradient is added to what flows past it.
void BlockWriter::norm_back(const NodePlan& at, Ref d_input, const LayerSaved& s) {
  if (at.kernel != NormKernel::eager) return liger_norm_back(at, d_input, s);
  // Its input is a recomputed one; where the weight is multiplied in fp32, a cast from fp32 comes
  // first, if there is one.
  if (!multiplies_in_fp32(at.norm->kind) || norm_input(at).dtype == DType::fp32) unpack();
  const ValueId in = at.node->in[0], out = at.node->out[0];
  Sum& sum = gradient(in);
  // Added in place, but where a branch that runs beside is still to read what flows past.
  const bool apart = shared(in);
  Place place = place_of(at, d_input, s);
  const Ref into = apart ? std::exchange(place.into, {}) : Ref{};
  place.d_shared = shared(out);
  // CheckpointFunction.backward has the gradient of what its last layer returned among its
  // arguments.
  place.d_flowing_shared = !apart && checkpointed_ && sum.tensor == d_output_.tensor &&
                           models::decisions::reentrant_checkpoints(strategy_);
  const TensorId d = norm_backward(*at.norm_names, *at.norm, norm_input(at), s.norms[at.place],
                                   gradient(out).tensor, apart ? kNoTensor : sum.tensor, place);
  sum = {apart ? add_apart(at, sum.tensor, d, into) : d, false, gradient(out).laid_out};
}

TensorId BlockWriter::add_apart(const NodePlan& at, TensorId a, TensorId b, Ref into) {
  const ValueId in = at.node->in[0];
  const char* const name = at.norm_names->grad_layout;
  const TensorId sum = into.none() ? temporary(name, values_of(in), dtype_of(in)) : kNoTensor;
  auto add = op(name).read(a).read(b).write(sum);
  write(add, into);
  return sum;
}

bool BlockWriter::shared(ValueId id) const {
  const TensorId tensor = gradients_[static_cast<std::size_t>(id)].tensor;
  const auto holds = [&](const Sum& sum) { return sum.tensor == tensor; };
  return tensor != kNoTensor && std::ranges::count_if(gradients_, holds) > 1;
}

// Flash and the memory-efficient kernel write gradients that can be joined as they are
// (SplitBackward concatenates); the products' q and v are laid out anew first.
void BlockWriter::split_back(const NodePlan& at) {
  const ValueId in = at.node->in[0];
  const OperandNames& names = *at.operand_names;
  const bool by_head = at.node->by_head;
  std::array<TensorId, 3> d{kNoTensor, kNoTensor, kNoTensor};
  const bool backwards = models::is_litgpt(strategy_.code);  // as their views were made
  for (std::size_t n = at.node->out.size(), j = 0; j < n; ++j) {
    const std::size_t i = backwards ? n - 1 - j : j;
    d[i] = by_head ? gradient(at.node->out[i]).tensor : laid_out(at.node->out[i]);
  }
  const TensorId joined = temporary(names.grad, values_of(in), dtype_of(in));
  op(names.grad).read(d[0]).read(d[1]).read(d[2]).write(joined);
  gradient(in) = {joined, false, by_head ? names.grad_laid_out : nullptr};
}

// The gradients of what was one head are summed.
void BlockWriter::expand_back(const NodePlan& at) {
  const ValueId in = at.node->in[0], out = at.node->out[0];
  gradient(in) = gradient(out);
  if (plan_->value(in).width != plan_->value(out).width)
    gradient(in) = {copy(at.names->grad, gradient(out).tensor, values_of(in), dtype_of(in))};
}

// Each part's gradient is written into zeros of the whole (slice_backward), the last part's first;
// they are added in place. A slice that is all of it is x itself.
void BlockWriter::slice_back(const NodePlan& at) {
  const ValueId in = at.node->in[0];
  Sum sum;
  for (std::size_t i = at.node->out.size(); i-- > 0;) {
    const ValueId part = at.node->out[i];
    Sum next = gradient(part);
    if (plan_->value(part).width != plan_->value(in).width)
      next = {copy(sum.tensor == kNoTensor ? at.names->grad : at.names->out_grad, next.tensor,
                   values_of(in), dtype_of(in))};
    sum = add_gradient(at.names->grad, sum, next, dtype_of(in), values_of(in));
  }
  gradient(in) = {sum.tensor, sum.view,
                  at.node->by_head ? at.operand_names->grad_laid_out : nullptr};
}

// The parts' gradients are views of the whole one's, or casts of those.
void BlockWriter::concatenate_back(const NodePlan& at) {
  const ValueId out = at.node->out[0];
  const TensorId d = gradient(out).tensor;
  for (const ValueId id : at.node->in)
    if (grad_of(id))
      gradient(id) = {cast(at.names->out_grad, d, values_of(id), dtype_of(out), dtype_of(id)),
                      dtype_of(out) == dtype_of(id)};
}

// Gradients of transposed views keep the strides of [b, heads, s, d]: a product wants them anew.
// Where the results were cast back, both casts come first.
void BlockWriter::rotary_back(const NodePlan& at) {
  if (regime_.patch.rotary) return liger_rotary_back(at);
  if (at.node->complex) return complex_rotary_back(at);
  if (at.node->pairs) return pair_rotary_back(at);
  if (at.node->joins) return joined_rotary_back(at);
  const models::ValueList &in = at.node->in, &out = at.node->out;
  const DType from = promoted(dtype_of(in[0]), rotary_dtype());
  std::array<TensorId, 2> d{kNoTensor, kNoTensor};
  for (std::size_t i = in.size(); i-- > 0;)
    if (grad_of(in[i]))
      d[i] = cast(operand(at, i).grad_cast, gradient(out[i]).tensor, values_of(out[i]),
                  dtype_of(out[i]), from);
  for (std::size_t i = in.size(); i-- > 0;) {
    if (!grad_of(in[i])) continue;
    const OperandNames& names = operand(at, i);
    gradient(in[i]) = {tape_backward(rotary_part(at, i), rotary_counts(in[i]),
                                     rotary_operands(kNoTensor), {}, {.result = d[i]}),
                       false, names.grad_laid_out};
  }
}

// Halves of a gradient are written into zeros, which have plain strides.
void BlockWriter::pair_rotary_back(const NodePlan& at) {
  const ValueId in = at.node->in[0];
  const TapePart rotary = pair_rotary_tape(at.operand_names->name, dtype_of(in), true);
  gradient(in) = {tape_backward(rotary, rotary_counts(in), std::array<Ref, 2>{}, {},
                                {.result = gradient(at.node->out[0]).tensor})};
}

// Flash and the memory-efficient kernel write v's gradient as a product reads it.
void BlockWriter::attention_back(const NodePlan& at, const LayerSaved& s) {
  const AttentionNames& names = *at.attention_names;
  const AttentionInput in = attention_input(at, s);
  const std::array<Ref, 6> held{
      {{in.q}, {in.k}, {in.v}, held_[kHeldMask], held_[kHeldPositions], held_[kHeldAlibi]}};
  const std::array<TensorId, 3> d =
      attention_backward(names, in, s.attentions[at.place], gradient(at.node->out[0]).tensor,
                         selective() ? std::span<const Ref>(held) : std::span<const Ref>());
  const bool stored = path() == AttentionPath::eager || path() == AttentionPath::math;
  // flash_attn makes gradients with the strides of what it was given: of a cache's, of heads first.
  const bool cached = packaged() && tokens_.prefix > 0;
  const bool strided = hooks_.any() || stored || cached || (masked() && grouped()) ||
                       ((d_.repeats_heads_first || flexes()) && repeats());
  const ValueId q = at.node->in[0], k = at.node->in[1], v = at.node->in[2];
  gradient(q) = {d[0], false, stored ? names.q.grad_laid_out : nullptr};
  gradient(k) = {d[1], false, cached ? names.k.grad_laid_out : nullptr};
  gradient(v) = {d[2], false, strided ? names.v.grad_laid_out : nullptr};
  if (tokens_.prefix == 0) return;
  prefix_->d_k = d[1];
  prefix_->d_v = d[2];
  if (grad_of(v)) gradient(v) = behind_prefix(names.v, dtype_of(v), in.v_dtype, gradient(v));
  if (grad_of(k)) gradient(k) = behind_prefix(names.k, dtype_of(k), in.k_dtype, gradient(k));
}

void BlockWriter::activation_back(const NodePlan& at, const LayerSaved& s) {
  const ValueId in = at.node->in[0], out = at.node->out[0];
  const TensorId d = gradient(out).tensor;
  unpack();  // a packed product after it kept nothing
  if (at.node->activation == Activation::gelu_python) {
    const TapePart gelu = gelu_tape(at.names->name, dtype_of(in), dtype_of(out), true);
    gradient(in) = {tape_backward(gelu, {values_of(in)}, std::array{Ref{s.of(in)}},
                                  s.activations[at.place], {.result = d})};
    return;
  }
  if (at.node->activation == Activation::gelu_function) {
    TapeSaved made;
    tape_forward(bloom_gelu_back_tape(at.names->name, dtype_of(in), dtype_of(out)), {values_of(in)},
                 std::array{Ref{s.of(in)}, Ref{d}}, made);
    gradient(in) = {made.out};
    return;
  }
  // ReLU keeps its result (derivatives.yaml, threshold_backward), the others their input.
  const bool relu = at.node->activation == Activation::relu;
  const TensorId d_in = temporary(plan_->value(in).grad_name, values_of(in), dtype_of(in));
  const std::int32_t saved = s.nodes[plan_->place_of(at)];
  hooks_.bring(saved);
  auto activation = op(at.names->name);
  activation.read(d).read(hooks_.brought(saved, s.of(relu ? out : in))).write(d_in);
  hooks_.attach(activation, saved);
  gradient(in) = {d_in};
}

void BlockWriter::multiply_back(const NodePlan& at, const LayerSaved& s) {
  if (at.gate != models::kNoValue) return liger_gate_back(at, s);
  unpack();
  const ValueId a = at.node->in[0], b = at.node->in[1];
  const auto of = [&](ValueId id) {
    return grad_of(id) ? temporary(plan_->value(id).grad_name, values_of(id), dtype_of(id))
                       : kNoTensor;
  };
  const TensorId d_a = of(a), d_b = of(b);
  const std::int32_t saved = s.nodes[plan_->place_of(at)];
  hooks_.bring(saved);
  auto product = op(at.names->name);
  hooks_.attach(product, saved);
  product.read(gradient(at.node->out[0]).tensor).write(d_a).write(d_b);
  if (grad_of(a)) product.read(hooks_.brought(saved, s.of(b)));
  if (grad_of(b)) product.read(hooks_.brought(saved, s.of(a)));
  gradient(a) = {d_a};
  gradient(b) = {d_b};
}

// The stream's gradient flows past; the branch's is a cast of it, made as the two part.
void BlockWriter::add_back(const NodePlan& at) {
  const ValueId stream = at.node->in[0], branch = at.node->in[1], out = at.node->out[0];
  const TensorId d = gradient(out).tensor;
  if (gradient(out).of_input) {
    gradient(branch) = gradient(stream) = gradient(out);
    return;
  }
  if (grad_of(branch))
    gradient(branch) = {
        cast(at.names->out_grad, d, values_of(out), dtype_of(out), dtype_of(branch))};
  if (grad_of(stream))  // Phi adds two branches first, of which a packed base makes two dtypes
    gradient(stream) = {cast(at.names->grad, d, values_of(out), dtype_of(out), dtype_of(stream))};
}

}  // namespace plimsoll::planner::pytorch

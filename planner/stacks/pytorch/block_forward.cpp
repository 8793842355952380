// A layer's forward, node by node.
#include <algorithm>

#include "models/bitsandbytes.h"
#include "models/decisions/layer.h"
#include "planner/stacks/pytorch/block_writer.h"
#include "planner/stacks/pytorch/functions.h"
#include "planner/stacks/pytorch/fused_adapters.h"
#include "planner/stacks/pytorch/unsloth_adapters.h"

namespace plimsoll::planner::pytorch {

using models::Access;
using models::Activation;
using models::kBlockInput;
using models::OpKind;
using models::ValueId;

namespace {
constexpr Category kKept = Category::activations;

// The layer's attention, where it runs in this frame.
const NodePlan* attention_in(const BlockPlan& plan, const models::Node& frame) {
  const auto found = std::ranges::find_if(plan.nodes, [&](const NodePlan& at) {
    return at.node->kind == OpKind::attention && at.node->name == frame.name;
  });
  return found == plan.nodes.end() ? nullptr : &*found;
}
}  // namespace

void LayerSaved::begin(const BlockPlan& plan) {
  values.assign(plan.values.size(), kNoTensor);
  norms.assign(plan.layer->norms.size(), {});
  linears.assign(plan.layer->linears.size(), {});
  attentions.assign(plan.attentions, {});
  experts.assign(plan.layer->experts.size(), {});
  activations.assign(plan.activations, {});
  masks.assign(plan.dropouts, kNoTensor);
  nodes.assign(plan.nodes.size(), kNoNode);
  attributes.clear();
}

Ref BlockWriter::value(const LayerSaved& s, ValueId id) const {
  return id == kBlockInput ? input_ : Ref{s.of(id)};
}

// A recomputation runs in the middle of a backward, which goes on where it was.
void BlockWriter::forward(const BlockPlan& plan, Ref input, Ref output, LayerSaved& s) {
  const BlockPlan* const plan_before = std::exchange(plan_, &plan);
  const Ref input_before = std::exchange(input_, input);
  const bool sliding_before = std::exchange(sliding_, plan.sliding);
  s.begin(plan);
  const std::size_t nodes = stops() ? plan.last_save + 1 : plan.nodes.size();
  for (std::size_t i = 0; i < nodes; ++i) run(plan.nodes[i], output, s);
  if (stops()) stop_behind(plan.last_save, s);
  if (flexes()) leave_attention(s);
  plan_ = plan_before;
  sliding_ = sliding_before;
  input_ = input_before;
}

// The logsumexp that flex_attention returned is a local of the layer's forward.
void BlockWriter::leave_attention(const LayerSaved& s) {
  auto frame = op("layer.frame");
  for (const AttentionSaved& saved : s.attentions) frame.release(saved.offset);
  b_.work().moves(0, 0);
}

// MatMul8bitLt's context holds its input where that requires a gradient (ctx.tensors), and so did
// MatMul4Bit's. In a reentrant checkpoint's forward nothing does.
bool BlockWriter::keeps_input(const NodePlan& at) const {
  return at.linear->packed != nullptr && models::contexts_keep_inputs(strategy_) &&
         grad_of(at.node->in[0]) &&
         (saves_ || !models::decisions::reentrant_checkpoints(strategy_));
}

// What Python's frames hold goes as the exception passes through them.
void BlockWriter::stop_behind(std::size_t node, const LayerSaved& s) {
  auto stop = op("checkpoint.stop");
  for (std::size_t i = node + 1; i < plan_->nodes.size(); ++i) {
    const models::Node& skipped = *plan_->nodes[i].node;
    for (const ValueId id : skipped.in) read(stop, value(s, id));
    release(stop, skipped.releases, s);
  }
  b_.work().moves(0, 0);
}

// `but`: attention whose keys and values went when their names became those of what is repeated
// (unsloth, models/llama.py, LlamaAttention_fast_forward).
void BlockWriter::release(OpBuilder op, const models::ValueList& values, const LayerSaved& s,
                          const NodePlan* but) {
  for (const ValueId id : values) {
    const Ref r = value(s, id);
    if (but != nullptr &&
        (r.tensor == s.of(but->node->in[1]) || r.tensor == s.of(but->node->in[2])))
      continue;
    op.touch(r.tensor, r.delta, r.beyond, Access::release);
  }
}

void BlockWriter::run(const NodePlan& at, Ref output, LayerSaved& s) {
  const models::Node& node = *at.node;
  if (at.follows) return;
  const bool last = stops() && &at == &plan_->nodes[plan_->last_save];
  // torch/utils/checkpoint.py, _CachedTorchDispatchMode: the operator does not run, what it made in
  // the forward is its result, and goes with its last reader.
  const bool takes = at.stored && !(last && at.ends_recomputation()) && stored_ != nullptr &&
                     phase_ == Phase::recompute;
  switch (node.kind) {
    case OpKind::norm: {
      norm_forward(*at.norm_names, *at.norm, value(s, node.in[0]), norm_input(at),
                   s.norms[at.place], last, ends(node) ? output : Ref{});
      s.of(node.out[0]) = s.norms[at.place].out;
      break;
    }
    case OpKind::linear: {
      if (at.fused > 0) return fused_forward_of(at, s);
      const Tokens all = visiting(at);
      s.linears[at.place].input_grad = grad_of(node.in[0]);
      linear_forward(*at.linear_names, *at.linear, value(s, node.in[0]), dtype_of(node.in[0]),
                     kKept, s.linears[at.place], last,
                     takes ? stored_->linears[at.place].base.out : kNoTensor);
      s.of(node.out[0]) = s.linears[at.place].out;
      if (keeps_input(at)) s.attributes.push_back(value(s, node.in[0]));
      tokens_ = all;
      break;
    }
    case OpKind::split:
    case OpKind::slice:
    case OpKind::heads:
      return run_views(at, s);
    case OpKind::concatenate:
      return run_concatenate(at, s);
    case OpKind::reshape:
      return run_reshape(at, s);
    case OpKind::expand:
      return run_expand(at, s);
    case OpKind::scale:
      s.of(node.out[0]) = copy(at.names->name, s.of(node.in[0]), values_of(node.in[0]),
                               dtype_of(node.in[0]), kKept);
      break;
    case OpKind::rotary:
      return run_rotary(at, s);
    case OpKind::attention:
      return run_attention(at, takes, s);
    case OpKind::activation:
      return run_activation(at, last, s);
    case OpKind::multiply:
      return run_multiply(at, last, s);
    case OpKind::experts:
      return run_experts(at, last, s);
    case OpKind::route:
    case OpKind::visitors:
    case OpKind::gather:
    case OpKind::weigh:
    case OpKind::add_rows:
      return run_loop(at, last, s);
    case OpKind::gather_sequence:
    case OpKind::scatter_sequence:
      return run_sequence(at, s);
    case OpKind::add:
      return run_add(at, output, s);
    case OpKind::dropout:
      s.of(node.out[0]) =
          dropout(at.names->name, at.names->mask, node.probability, s.of(node.in[0]),
                  values_of(node.in[0]), dtype_of(node.in[0]), s.masks[at.place]);
      break;
    case OpKind::leave: {
      auto frame = op(node.name);
      // Keys and values that it repeated for attention itself are the frame's, too.
      const NodePlan* const attention = attention_in(*plan_, node);
      if (d_.repeats_groups && copies_groups() && attention != nullptr)
        for (const AttentionSaved& saved : s.attentions) frame.release(saved.k).release(saved.v);
      const bool renames = xformers() && repeats() && copies_groups();
      return release(frame, node.releases, s, renames ? attention : nullptr);
    }
  }
}

void BlockWriter::fused_forward_of(const NodePlan& at, LayerSaved& s) {
  const bool unsloth = regime_.patch.adapters == KernelPatch::Adapters::unsloth;
  unsloth ? UnslothAdapters(*this, at).forward(s) : FusedAdapters(*this, at).forward(s);
}

NormInput BlockWriter::norm_input(const NodePlan& at) const {
  const ValueId in = at.node->in[0];
  const SymInt rows = plan_->value(in).width / at.norm->width;
  const bool heads = at.kernel != NormKernel::eager && regime_.patch.heads_first &&
                     at.norm->width == d_.head_dim && rows > 1;
  return {checked_multiply(rows_of(in), rows), dtype_of(in), grad_of(in), at.kernel, heads};
}

void BlockWriter::run_views(const NodePlan& at, LayerSaved& s) {
  for (const ValueId id : at.node->out) s.of(id) = s.of(at.node->in[0]);
}

void BlockWriter::run_concatenate(const NodePlan& at, LayerSaved& s) {
  const ValueId out = at.node->out[0];
  s.of(out) = make(at.names->name, values_of(out), dtype_of(out));
  auto joined = op(at.names->name);
  for (const ValueId id : at.node->in) joined.read(s.of(id));
  joined.write(s.of(out));
}

// A copy of several sequences; of one the axes of sequences and heads join as they are.
void BlockWriter::run_reshape(const NodePlan& at, LayerSaved& s) {
  const ValueId in = at.node->in[0], out = at.node->out[0];
  s.of(out) =
      lays_out() ? copy(at.names->name, s.of(in), values_of(in), dtype_of(in), kKept) : s.of(in);
}

void BlockWriter::run_expand(const NodePlan& at, LayerSaved& s) {
  const ValueId in = at.node->in[0], out = at.node->out[0];
  s.of(out) = copy(at.names->name, s.of(in), values_of(out), dtype_of(in), kKept);
}

const OperandNames& BlockWriter::operand(const NodePlan& at, std::size_t i) {
  if (at.node->in.size() == 1) return *at.operand_names;
  return i == 0 ? at.attention_names->q : at.attention_names->k;
}

// Python drops queries and keys as they were when both are rotated; where both are cast back, with
// that.
void BlockWriter::run_rotary(const NodePlan& at, LayerSaved& s) {
  if (regime_.patch.rotary) return liger_rotary(at, s);
  if (at.node->complex) return complex_rotary(at, s);
  if (at.node->pairs) return pair_rotary(at, s);
  if (at.node->joins) return joined_rotary(at, s);
  const models::ValueList &in = at.node->in, &out = at.node->out;
  const DType own = dtype_of(in[0]), to = promoted(own, rotary_dtype());
  const bool casts = at.node->casts_back && to != own;
  for (std::size_t i = 0; i < in.size(); ++i) {
    TapeSaved rotated;
    const Ref first{casts || i == 0 ? kNoTensor : s.of(in[0])};
    tape_forward(rotary_part(at, i), rotary_counts(in[i]), rotary_operands(s.of(in[i])), rotated,
                 false, {&first, 1});
    s.of(out[i]) = rotated.out;
  }
  if (!casts) return;
  std::array<TensorId, 2> rotated{kNoTensor, kNoTensor};
  for (std::size_t i = 0; i < in.size(); ++i) {
    rotated[i] = s.of(out[i]);
    s.of(out[i]) =
        cast(operand(at, i).cast, rotated[i], values_of(in[i]), to, own, Category::activations);
  }
  auto done = op(operand(at, in.size() - 1).cast);
  for (std::size_t i = 0; i < in.size(); ++i) done.release(rotated[i]).release(s.of(in[i]));
}

// The buffer that it reads stays.
void BlockWriter::pair_rotary(const NodePlan& at, LayerSaved& s) {
  const ValueId in = at.node->in[0];
  TapeSaved rotated;
  tape_forward(pair_rotary_tape(at.operand_names->name, dtype_of(in), grad_of(in)),
               rotary_counts(in), std::array{Ref{s.of(in)}, Ref{}}, rotated);
  s.of(at.node->out[0]) = rotated.out;
}

TapePart BlockWriter::rotary_part(const NodePlan& at, std::size_t i) const {
  const ValueId in = at.node->in[i];
  const auto tape = at.node->halves ? half_rotary_tape : rotary_tape;
  return tape(operand(at, i).name, dtype_of(in), rotary_dtype(), grad_of(in));
}

AttentionInput BlockWriter::attention_input(const NodePlan& at, const LayerSaved& s) const {
  const ValueId q = at.node->in[0], k = at.node->in[1], v = at.node->in[2];
  // torch.cat promotes, and returns [batch, heads, s, d].
  const bool behind = tokens_.prefix > 0;
  const auto dtype = [&](ValueId id) {
    return behind ? promoted(regime_.weight, dtype_of(id)) : dtype_of(id);
  };
  return {s.of(q),
          s.of(k),
          s.of(v),
          dtype_of(q),
          dtype(k),
          dtype(v),
          grad_of(q),
          behind || grad_of(k),
          behind || grad_of(v),
          plan_->value(q).heads_first,
          behind || plan_->value(q).heads_first,
          behind || plan_->value(v).heads_first,
          at.node->softmax,
          at.node->soft_cap,
          at.node->alibi,
          at.node->module >= 0,
          at.node->module >= 0 && plan_->layer->train_sinks};
}

void BlockWriter::run_attention(const NodePlan& at, bool takes, LayerSaved& s) {
  AttentionSaved& saved = s.attentions[at.place];
  AttentionInput in = attention_input(at, s);
  if (tokens_.prefix > 0) {
    join_prefix(*at.attention_names, in);
    s.of(at.node->in[1]) = in.k;
    s.of(at.node->in[2]) = in.v;
  }
  if (takes && fuses_attention())
    attention_kept(*at.attention_names, in, stored_->attentions[at.place], saved);
  else
    attention_forward(*at.attention_names, in, saved);
  s.of(at.node->out[0]) = saved.out;
  for (std::size_t i = 1; i < at.node->out.size(); ++i)
    s.of(at.node->out[i]) = saved.scored.also[i - 1];
}

// Autograd saves an operand before the kernel runs: a recomputation that stops there makes no
// result.
void BlockWriter::stop_at(const NodePlan& at, const LayerSaved& s) {
  auto stop = op(at.names->name);
  for (const ValueId id : at.node->in) read(stop, value(s, id));
  b_.work().moves(0, 0);
}

void BlockWriter::run_activation(const NodePlan& at, bool stops, LayerSaved& s) {
  const ValueId in = at.node->in[0], out = at.node->out[0];
  const char* const name = at.names->name;
  switch (at.node->activation) {
    case Activation::gelu_python:
      return run_function(gelu_tape(name, dtype_of(in), dtype_of(out), grad_of(in)), at,
                          s.activations[at.place], stops, s);
    case Activation::gelu_function:  // its result is there when it saves
      return run_function(bloom_gelu_tape(name, dtype_of(in)), at, s.activations[at.place], false,
                          s);
    default:
      if (stops && at.node->activation != Activation::relu) return stop_at(at, s);
      s.of(out) = copy(name, s.of(in), values_of(in), dtype_of(out), kKept);
      save_values(at, {at.node->activation == Activation::relu ? out : in, models::kNoValue}, s);
  }
}

void BlockWriter::run_function(const TapePart& part, const NodePlan& at, TapeSaved& saved,
                               bool stops, LayerSaved& s) {
  const ValueId in = at.node->in[0];
  tape_forward(part, {values_of(in)}, std::array{Ref{s.of(in)}}, saved, stops);
  s.of(at.node->out[0]) = saved.out;
}

void BlockWriter::run_multiply(const NodePlan& at, bool stops, LayerSaved& s) {
  const bool gated = at.gate != models::kNoValue;
  if (stops && !gated) return stop_at(at, s);
  const ValueId a = gated ? at.gate : at.node->in[0], b = gated ? at.up : at.node->in[1];
  const ValueId out = at.node->out[0];
  s.of(out) = make(at.names->name, values_of(out), dtype_of(out));
  op(at.names->name).read(s.of(a)).read(s.of(b)).write(s.of(out));
  save_values(at, {grad_of(a) ? b : models::kNoValue, grad_of(b) ? a : models::kNoValue}, s);
}

void BlockWriter::run_add(const NodePlan& at, Ref output, LayerSaved& s) {
  const models::Node& node = *at.node;
  const bool last = ends(node);
  TensorId& sum = s.of(node.out[0]);
  if (!last) sum = make(at.names->residual, values_of(node.out[0]), dtype_of(node.out[0]));
  auto add = op(at.names->residual);
  for (const ValueId id : node.in) read(add, value(s, id));
  write(add, last ? output : Ref{sum});
  release(add, node.releases, s);
}

}  // namespace plimsoll::planner::pytorch

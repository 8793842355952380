#include "planner/stacks/pytorch/compiled/block_graph.h"

#include <algorithm>

#include "planner/stacks/pytorch/compiled/tracer.h"

namespace plimsoll::planner::compiled {

using models::kBlockInput;
using models::NormKind;
using models::OpKind;
using models::RecomputeKind;
using models::ValueId;
using pytorch::NodePlan;

namespace {

class BlockTracer {
 public:
  explicit BlockTracer(const RegionQuestion& q)
      : q_(q),
        values_(q.plan.values.size(), kNoNode),
        headed_(q.plan.values.size()),
        swapped_(q.plan.values.size()) {}
  Region run();

 private:
  NodeId& value(ValueId id) { return values_[static_cast<std::size_t>(id)]; }
  std::int64_t count(std::int64_t width) const {
    return checked_multiply(q_.tokens.total(), width);
  }
  NodeId weight(const NodePlan& at, const pytorch::ModuleNames& names, std::int64_t elements,
                bool trains);
  void number_inputs();
  NodeId given(std::int64_t elements, DType dtype, bool trains);
  void set_checkpoint();
  void node(const NodePlan& at);
  void norm(const NodePlan& at);
  NodeId normalized(NodeId wide, std::int64_t rows);
  void linear(const NodePlan& at);
  void rotary(const NodePlan& at);
  void complex_rotary(const NodePlan& at);
  NodeId by_heads(ValueId id);
  NodeId rotated(NodeId x, NodeId cos, NodeId sin);
  NodeId repeated(NodeId x);
  void attention(const NodePlan& at);
  void activation(const NodePlan& at);
  NodeId gelu_python(NodeId x, DType wide);

  const RegionQuestion& q_;
  Tracer t_;
  Region out_;
  std::vector<NodeId> values_;
  std::vector<bool> headed_, swapped_;  // viewed as [b, s, heads, d], as [b, heads, s, d]
  std::size_t next_ = 0, table_ = 0;  // numbers of the next input, of the rotary table
  int gemms_ = 0;
};

// AOTAutograd keeps parameters for nothing. It numbers a graph's inputs before it takes weights in
// float8 apart into values and scale: others then stand at the parameters' numbers. A checkpoint's
// inputs begin with what is no parameter; else the table stands where it is first read.
void BlockTracer::number_inputs() {
  const auto reads = [](const NodePlan& at) { return at.node->kind == OpKind::rotary; };
  std::size_t before = 0;
  for (auto at = q_.plan.nodes.begin(); at != q_.plan.nodes.end() && !reads(*at); ++at)
    before += at->linear != nullptr || at->norm != nullptr;
  const bool first = models::decisions::recomputes_layers(q_.recompute.kind);
  table_ = first ? 1 : 1 + before;
  next_ = first ? 2 : 1;
}

NodeId BlockTracer::given(std::int64_t elements, DType dtype, bool trains) {
  const std::size_t number = next_++, parameters = q_.plan.layer->parameters.size();
  const bool known = !q_.strategy.fp8_all_gather || (number <= parameters + 1 && number != table_);
  return known ? t_.parameter(elements, dtype, trains) : t_.input(elements, dtype, trains);
}

NodeId BlockTracer::weight(const NodePlan& at, const pytorch::ModuleNames& names,
                           std::int64_t elements, bool trains) {
  const bool float8 = at.linear != nullptr && at.linear->float8 && q_.strategy.fp8_all_gather;
  const NodeId id = given(elements, float8 ? DType::fp8_e4m3 : q_.regime.weight, trains);
  out_.weights.push_back({&at, &names, id, trains, 0});
  return id;
}

// HF's rms norms in Python; torch's LayerNorm, which autocast runs in fp32.
NodeId BlockTracer::normalized(NodeId wide, std::int64_t rows) {
  const NodeId root = t_.rsqrt(t_.shift(t_.mean(t_.square(wide), rows)));
  return t_.multiply(wide, root);
}

void BlockTracer::norm(const NodePlan& at) {
  const NormPart& part = *at.norm;
  const ValueId in = at.node->in[0], out = at.node->out[0];
  const std::int64_t width = q_.plan.value(in).width, rows = count(width) / part.width;
  NodeId x = value(in);
  if (part.width != width && !headed_[static_cast<std::size_t>(in)]) x = t_.view(x, View::heads);
  headed_[static_cast<std::size_t>(out)] = part.width != width;
  const DType own = t_.dtype(x);
  const NodeId w = weight(at, *at.norm_names, part.width, part.train_weight);
  switch (part.kind) {
    case NormKind::rms_norm:
    case NormKind::rms_norm_inline: {
      const NodeId normal = t_.cast(normalized(t_.cast(x, DType::fp32), rows), own);
      value(out) =
          part.kind == NormKind::rms_norm ? t_.multiply(w, normal) : t_.multiply(normal, w);
      return;
    }
    case NormKind::rms_norm_fp32:
      value(out) = t_.cast(t_.multiply(w, normalized(t_.cast(x, DType::fp32), rows)), own);
      return;
    case NormKind::rms_norm_one_plus: {
      const NodeId normal = normalized(t_.cast(x, DType::fp32), rows);
      value(out) = t_.cast(t_.multiply(normal, t_.shift(t_.cast(w, DType::fp32))), own);
      return;
    }
    case NormKind::layer_norm: {
      const NodeId bias =
          part.bias ? weight(at, *at.norm_names, part.width, part.train_bias) : kNoNode;
      const DType result = q_.regime.autocast ? DType::fp32 : own;
      value(out) = t_.cast(t_.layer_norm(t_.cast(x, DType::fp32), w, bias, rows), result);
      return;
    }
    case NormKind::rms_norm_fused:
    case NormKind::rms_norm_composite:
    case NormKind::rms_norm_product:
    case NormKind::rms_norm_product_low:
      break;
  }
  fail(ErrorKind::internal, "a norm that is refused");
}

void BlockTracer::linear(const NodePlan& at) {
  const LinearPart& part = *at.linear;
  const DType dtype = q_.regime.gemm_dtype(q_.regime.weight);
  const NodeId w = weight(at, at.linear_names->base, part.in * part.out, part.train_weight);
  if (part.float8) {
    const NodeId scale = q_.strategy.fp8_all_gather ? given(1, DType::fp32, false) : kNoNode;
    value(at.node->out[0]) = t_.float8_gemm(value(at.node->in[0]), w, scale, q_.tokens.total());
    return;
  }
  const NodeId bias =
      part.bias ? weight(at, at.linear_names->bias, part.out, part.train_bias) : kNoNode;
  const NodeId w_low = t_.cast(w, dtype), x = t_.cast(value(at.node->in[0]), dtype);
  const NodeId bias_low = bias == kNoNode ? bias : t_.cast(bias, dtype);
  value(at.node->out[0]) = t_.gemm(x, w_low, bias_low, q_.tokens.total(), !part.conv1d);
}

NodeId BlockTracer::by_heads(ValueId id) {
  if (swapped_[static_cast<std::size_t>(id)]) return value(id);
  const bool viewed = headed_[static_cast<std::size_t>(id)];
  return t_.view(viewed ? value(id) : t_.view(value(id), View::heads), View::swap);
}

// (x · cos) + (rotate_half(x) · sin).
NodeId BlockTracer::rotated(NodeId x, NodeId cos, NodeId sin) {
  const NodeId straight = t_.multiply(x, cos);
  const std::int64_t half = t_.elements(x) / 2;
  const NodeId first = t_.view(x, View::first, half), second = t_.view(x, View::second, half);
  return t_.add(straight, t_.multiply(t_.concatenate(t_.negate(second), first), sin));
}

void BlockTracer::rotary(const NodePlan& at) {
  if (at.node->complex) return complex_rotary(at);
  if (out_.cos == kNoNode) {
    const std::int64_t table = checked_multiply(q_.tokens.length, q_.decoder.rotated());
    out_.cos = t_.input(table, q_.tables, false);
    out_.sin = t_.input(table, q_.tables, false);
  }
  std::vector<NodeId> operands;
  for (const ValueId in : at.node->in) operands.push_back(by_heads(in));
  const NodeId cos = t_.view(out_.cos, View::unsqueezed), sin = t_.view(out_.sin, View::unsqueezed);
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const ValueId out = at.node->out[i];
    NodeId turned = rotated(operands[i], cos, sin);
    if (at.node->casts_back) turned = t_.cast(turned, t_.dtype(operands[i]));
    value(out) = turned;
    swapped_[static_cast<std::size_t>(out)] = true;
  }
}

// torchtitan's: in fp32, as complex numbers, and back (models/llama/model.py, apply_rotary_emb).
void BlockTracer::complex_rotary(const NodePlan& at) {
  if (out_.cos == kNoNode) {
    const std::int64_t table = checked_multiply(q_.tokens.length, q_.decoder.head_dim);
    const bool apart = !q_.strategy.fp8_all_gather || table_ == 1;
    out_.cos = apart ? t_.input(table, DType::fp32, false) : given(table, DType::fp32, false);
  }
  std::vector<NodeId> wide;
  for (const ValueId in : at.node->in)
    wide.push_back(t_.view(t_.cast(t_.view(value(in), View::heads), DType::fp32), View::pairs));
  const NodeId table = t_.view(t_.view(out_.cos, View::rows), View::unsqueezed);
  for (std::size_t i = 0; i < wide.size(); ++i) {
    const ValueId in = at.node->in[i], out = at.node->out[i];
    value(out) = t_.cast(t_.view(t_.complex(wide[i], table), View::real), t_.dtype(value(in)));
  }
}

// repeat_kv: a copy of the expanded axis.
NodeId BlockTracer::repeated(NodeId x) {
  const std::int64_t all = count(q_.decoder.q_width());
  if (t_.elements(x) == all) return x;
  return t_.view(t_.copy(t_.view(t_.view(x, View::unsqueezed), View::expanded, all)), View::heads);
}

void BlockTracer::attention(const NodePlan& at) {
  std::array<NodeId, 3> operands{};
  const bool late = at.node->in.size() == 3 && q_.repeats_groups;  // torchtitan swaps axes last
  for (std::size_t i = 0; i < 3; ++i) {
    const ValueId in = at.node->in[i];
    if (late) {
      const NodeId x = i == 2 ? t_.view(value(in), View::heads) : value(in);
      operands[i] = t_.view(i == 0 ? x : repeated(x), View::swap);
    } else {
      operands[i] = by_heads(in);
    }
  }
  const DType dtype = q_.regime.autocast ? q_.regime.compute : t_.dtype(operands[0]);
  for (NodeId& operand : operands) operand = t_.cast(operand, dtype);
  const NodeId made =
      t_.attention({operands[0], operands[1], operands[2], q_.statistics, q_.attention});
  value(at.node->out[0]) = t_.view(t_.view(made, View::swap), View::sequence);
}

// "gelu_new" of torch functions: 0.5 · x · (1 + tanh(c · (x + 0.044715 · x³))).
NodeId BlockTracer::gelu_python(NodeId x, DType wide) {
  const NodeId cube = t_.scale(t_.cube(t_.cast(x, wide)));
  const NodeId inner = t_.tanh(t_.scale(t_.add(x, cube)));
  return t_.multiply(t_.scale(x), t_.shift(inner));
}

void BlockTracer::activation(const NodePlan& at) {
  using models::Activation;
  const NodeId x = value(at.node->in[0]);
  NodeId& out = value(at.node->out[0]);
  switch (at.node->activation) {
    case Activation::silu:
      out = t_.silu(x);
      return;
    case Activation::gelu:
    case Activation::gelu_tanh:
      out = t_.gelu(x, at.node->activation == Activation::gelu_tanh);
      return;
    case Activation::relu:
      out = t_.relu(x);
      return;
    case Activation::gelu_python:
      out = gelu_python(x, q_.plan.value(at.node->out[0]).dtype);
      return;
    case Activation::gelu_function:
      break;
  }
  fail(ErrorKind::internal, "an activation that is refused");
}

void BlockTracer::node(const NodePlan& at) {
  const models::Node& node = *at.node;
  switch (node.kind) {
    case OpKind::norm:
      return norm(at);
    case OpKind::linear:
      return linear(at);
    case OpKind::rotary:
      return rotary(at);
    case OpKind::attention:
      return attention(at);
    case OpKind::activation:
      return activation(at);
    case OpKind::multiply:
      value(node.out[0]) = t_.multiply(value(node.in[0]), value(node.in[1]));
      return;
    case OpKind::add:
      value(node.out[0]) = t_.add(value(node.in[0]), value(node.in[1]));
      return;
    case OpKind::split: {
      std::vector<std::int64_t> parts;
      for (const ValueId id : node.out) parts.push_back(count(q_.plan.value(id).width));
      const std::vector<NodeId> made = t_.split(value(node.in[0]), parts);
      for (std::size_t i = 0; i < parts.size(); ++i) value(node.out[i]) = made[i];
      return;
    }
    case OpKind::dropout:
      value(node.out[0]) = node.probability > 0 ? t_.dropout(value(node.in[0])) : value(node.in[0]);
      return;
    case OpKind::scale:
      value(node.out[0]) = t_.scale(value(node.in[0]));
      return;
    case OpKind::heads:
      value(node.out[0]) = by_heads(node.in[0]);
      swapped_[static_cast<std::size_t>(node.out[0])] = true;
      return;
    case OpKind::leave:
      return;
    case OpKind::slice:
    case OpKind::concatenate:
    case OpKind::reshape:
    case OpKind::expand:
    case OpKind::experts:
    case OpKind::route:
    case OpKind::visitors:
    case OpKind::gather:
    case OpKind::weigh:
    case OpKind::add_rows:
    case OpKind::gather_sequence:
    case OpKind::scatter_sequence:
      break;
  }
  fail(ErrorKind::internal, "a node that is refused");
}

// A checkpoint around the layer is traced with it: everything is computed again but what its policy
// keeps. torchtitan's: attention and the GEMMs without biases, every second one.
void BlockTracer::set_checkpoint() {
  if (!models::decisions::recomputes_layers(q_.recompute.kind)) return;
  t_.set_policy(Policy::recompute);
  if (q_.recompute.kind != RecomputeKind::ops) return;
  t_.keep_attention(true);
  t_.keep_gemms([this] { return gemms_++ % 2 == 0; });
}

Region BlockTracer::run() {
  const pytorch::ValuePlan& stream = q_.plan.value(kBlockInput);
  out_.input = value(kBlockInput) = t_.input(count(stream.width), stream.dtype, stream.grad);
  set_checkpoint();
  number_inputs();
  for (const NodePlan& at : q_.plan.nodes) node(at);
  out_.graph = t_.finish(value(q_.plan.layer->block->output()));
  std::size_t place = 0;
  for (NodeId id = 0; id < static_cast<NodeId>(out_.graph.nodes.size()); ++id) {
    if (out_.graph[id].kind != NodeClass::input) continue;
    for (Region::Weight& weight : out_.weights)
      if (weight.input == id) weight.place = place;
    ++place;
  }
  return std::move(out_);
}

}  // namespace

Region block_region(const RegionQuestion& question) {
  return BlockTracer(question).run();
}

RegionQuestion region_question(const pytorch::BlockPlan& plan, const models::Decoder& decoder,
                               const pytorch::Regime& regime, const models::Strategy& strategy,
                               const models::Recompute& recompute, const pytorch::Tokens& tokens) {
  const bool wide = regime.compute == DType::fp32;
  const std::int64_t rows = checked_multiply(tokens.sequences, decoder.heads);
  const std::int64_t length = wide ? ceil_divide(tokens.length, 32) * 32 : tokens.length;
  return {.plan = plan,
          .decoder = decoder,
          .regime = regime,
          .strategy = strategy,
          .recompute = recompute,
          .tokens = tokens,
          .tables = decoder.fp32_rotary ? DType::fp32 : regime.residual,
          .statistics = checked_multiply(rows, length),
          .attention = wide ? "_scaled_dot_product_efficient_attention"
                            : "_scaled_dot_product_flash_attention",
          .repeats_groups = decoder.repeats_groups};
}

void refuse_block(const models::Block& block) {
  const auto refuse_if = [](bool it_is, const char* what) {
    check(!it_is, ErrorKind::unsupported, [&] {
      return std::string("--compile: ") + what + " in a compiled layer is not modelled yet";
    });
  };
  for (const models::Node& node : block.nodes) {
    refuse_if(node.kind == OpKind::experts, "a mixture of experts");
    refuse_if(node.kind == OpKind::slice || node.kind == OpKind::concatenate,
              "rotation of a part of each head");
    refuse_if(node.kind == OpKind::reshape, "attention on reshaped heads");
    refuse_if(
        node.kind == OpKind::activation && node.activation == models::Activation::gelu_function,
        "an activation with an autograd.Function of its own");
    // OPT flattens its tokens in front of the MLP, which changes what is a view of what.
    refuse_if(node.kind == OpKind::activation && node.activation == models::Activation::relu,
              "ReLU");
    refuse_if(node.alibi || node.soft_cap, "attention with biases or a soft cap");
  }
  for (const models::Module& module : block.modules)
    refuse_if(module.kind == models::ModuleClass::rms_norm_fused, "torch.nn.RMSNorm");
}

}  // namespace plimsoll::planner::compiled

#include "models/table/block_builder.h"

#include <algorithm>
#include <utility>

#include "models/decisions/layer_modules.h"
#include "models/decisions/layer_ops.h"

namespace plimsoll::models::families {

namespace {

using decisions::parameter_name;

// Rows of one gated MLP: what goes into its first matrix, and how wide that is.
void add_experts(Block& block, const ParameterRow& row) {
  const std::string_view name = decisions::stack_name(row.name);
  if (block.find(name) != nullptr) return;
  block.modules.push_back({.name = interned(name),
                           .kind = ModuleClass::experts,
                           .in = row.shape.axes[1],
                           .out = row.shape.axes[0],
                           .experts = row.ranges.back().count,
                           .active = row.active,
                           .place = block.experts++});
}

// One of the parameters of all experts as the table itself has it: [experts, in, 2·out],
// [experts, out, in], and a bias of each, whose name ends so.
void add_whole_experts(Block& block, const ParameterRow& row) {
  const decisions::ParameterName name = parameter_name(row.name);
  if (block.find(name.module) == nullptr)
    block.modules.push_back({.name = interned(name.module),
                             .kind = ModuleClass::experts,
                             .in = row.shape.axes[1],
                             .out = row.shape.axes[2] / 2,
                             .experts = row.shape.axes[0],
                             .active = row.active,
                             .place = block.experts++});
  Module& module = block.modules.back();
  module.bias = module.bias || name.leaf.ends_with("_bias");
}

// Each expert's matrices, in their order, one expert behind another.
void add_loop(Block& block, const std::vector<const ParameterRow*>& rows) {
  block.loop = {.experts = rows.front()->ranges.back().count,
                .active = rows.front()->active,
                .modules = std::ssize(rows)};
  for (std::int64_t expert = 0; expert < block.loop.experts; ++expert)
    for (const ParameterRow* row : rows)
      block.modules.push_back({.name = interned(decisions::expert_module(row->name, expert)),
                               .in = row->shape.axes[1],
                               .out = row->shape.axes[0],
                               .place = block.linears++});
}

void add_parameter(Block& block, const ParameterRow& row, ModuleClass rms) {
  if (!row.stacked.empty()) return add_experts(block, row);
  if (row.fused_experts) return add_whole_experts(block, row);
  const decisions::ParameterName name = parameter_name(row.name);
  const bool norm = row.module == ModuleKind::norm;
  if (block.find(name.module) == nullptr) {
    Module module{.name = interned(name.module)};
    if (norm) {
      module.kind = rms;  // LayerNorm: see its bias below
      module.in = module.out = row.shape.axes[0];
      module.place = block.norms++;
    } else if (name.leaf == "sinks") {
      module.kind = ModuleClass::sinks;
      module.in = module.out = row.shape.axes[0];
    } else {
      const std::size_t out = row.transposed ? 1 : 0;
      module.kind = row.transposed ? ModuleClass::conv1d : ModuleClass::linear;
      module.out = row.shape.axes[out];
      module.in = row.shape.axes[1 - out];
      module.place = block.linears++;
    }
    block.modules.push_back(module);
  }
  if (name.leaf != "bias") return;
  Module& module = block.modules.back();
  module.bias = true;
  if (norm) module.kind = ModuleClass::layer_norm;
}

}  // namespace

std::optional<Activation> activation_named(std::string_view name) {
  if (name == "gelu") return Activation::gelu;
  if (name == "gelu_new") return Activation::gelu_python;
  if (name == "gelu_pytorch_tanh") return Activation::gelu_tanh;
  if (name == "relu") return Activation::relu;
  return std::nullopt;
}

MlpKind mlp_of(Activation activation) {
  if (activation == Activation::relu) return MlpKind::relu;
  return activation == Activation::gelu ? MlpKind::gelu : MlpKind::gelu_tanh;
}

BlockBuilder::BlockBuilder(const std::vector<ParameterRow>& rows, std::int64_t hidden,
                           ModuleClass rms, std::int64_t layer, bool loops) {
  const auto has = [&](const IndexRange& range) {
    const std::int64_t behind = layer - range.first;
    return behind >= 0 && behind % range.step == 0 && behind / range.step < range.count;
  };
  std::vector<const ParameterRow*> here, experts;
  for (const ParameterRow& row : rows)
    if (!row.ranges.empty() && (layer < 0 || has(row.ranges.front())))
      (loops && !row.stacked.empty() ? experts : here).push_back(&row);
  for (const ParameterRow* row : here) {
    add_parameter(block_, *row, rms);
    if (row->bare && !experts.empty()) add_loop(block_, experts);
  }
  value(hidden);
}

ValueId BlockBuilder::value(std::int64_t width) {
  block_.widths.push_back(width);
  return static_cast<ValueId>(block_.widths.size() - 1);
}

Node& BlockBuilder::node(OpKind kind, std::string_view name, ValueList in) {
  return block_.nodes.emplace_back(
      Node{.kind = kind, .name = interned(name), .in = in, .expert = expert_});
}

Node& BlockBuilder::of_module(OpKind kind, std::string_view module, ValueId x) {
  const Module* found = block_.find(module);
  check(found != nullptr, ErrorKind::internal,
        [&] { return "no parameters of '" + std::string(module) + "' are in the table"; });
  Node& added = node(kind, module, {x});
  added.module = static_cast<std::int16_t>(found - block_.modules.data());
  return added;
}

ValueId BlockBuilder::norm(std::string_view module, ValueId x) {
  Node& added = of_module(OpKind::norm, module, x);
  const ValueId out = value(width(x));
  added.out = {out};
  return out;
}

ValueId BlockBuilder::linear(std::string_view module, ValueId x) {
  Node& added = of_module(OpKind::linear, module, x);
  const ValueId out = value(block_.modules[static_cast<std::size_t>(added.module)].out);
  added.out = {out};
  return out;
}

ValueId BlockBuilder::activation(std::string_view name, ValueId x, Activation activation) {
  const ValueId out = value(width(x));
  Node& added = node(OpKind::activation, name, {x});
  added.out = {out};
  added.activation = activation;
  return out;
}

ValueId BlockBuilder::multiply(std::string_view name, ValueId a, ValueId b) {
  const ValueId out = value(width(a));
  node(OpKind::multiply, name, {a, b}).out = {out};
  return out;
}

ValueId BlockBuilder::as_wide(OpKind kind, std::string_view name, ValueId x) {
  const ValueId out = value(width(x));
  node(kind, name, {x}).out = {out};
  return out;
}

ValueId BlockBuilder::scale(std::string_view name, ValueId x) {
  return as_wide(OpKind::scale, name, x);
}

ValueId BlockBuilder::add(std::string_view name, ValueId stream, ValueId branch) {
  const ValueId out = value(width(branch));
  node(OpKind::add, name, {stream, branch}).out = {out};
  return out;
}

ValueId BlockBuilder::dropout(std::string_view name, ValueId x, double probability) {
  const ValueId out = value(width(x));
  Node& added = node(OpKind::dropout, name, {x});
  added.out = {out};
  added.probability = probability;
  return out;
}

Node& BlockBuilder::experts(std::string_view module, ValueId logits, ValueId x) {
  Node& added = of_module(OpKind::experts, module, logits);
  added.in.push_back(x);
  added.out = {value(width(x))};
  return added;
}

ValueList BlockBuilder::clamped_experts(std::string_view module, ValueId logits, ValueId x) {
  Node& added = experts(module, logits, x);
  added.clamps = true;
  for (int i = 0; i < 2; ++i)
    added.out.push_back(value(block_.modules[static_cast<std::size_t>(added.module)].active));
  return added.out;
}

Node& BlockBuilder::route(std::string_view name, ValueId logits) {
  const ExpertLoop& of = block_.loop;
  const ValueList out{value(of.active), value(of.active), value(width(kBlockInput)),
                      value(checked_multiply(of.experts, of.active)), value(0)};
  Node& added = node(OpKind::route, name, {logits});
  added.out = out;
  return added;
}

ValueId BlockBuilder::visitors(std::string_view name, ValueId mask) {
  const ValueId out = value(2);
  node(OpKind::visitors, name, {mask}).out = {out};
  return out;
}

// Of a token's scores one.
ValueId BlockBuilder::gather(std::string_view name, ValueId x, ValueId places) {
  const ValueId out = value(width(x) == block_.loop.active ? 1 : width(x));
  node(OpKind::gather, name, {x, places}).out = {out};
  return out;
}

ValueId BlockBuilder::weigh(std::string_view name, ValueId rows, ValueId scores) {
  const ValueId out = value(width(rows));
  node(OpKind::weigh, name, {rows, scores}).out = {out};
  return out;
}

ValueId BlockBuilder::add_rows(std::string_view name, ValueId sum, ValueId rows, ValueId places) {
  const ValueId out = value(width(sum));
  node(OpKind::add_rows, name, {sum, rows, places}).out = {out};
  return out;
}

Node& BlockBuilder::views(OpKind kind, std::string_view name, ValueId x,
                          std::initializer_list<std::int64_t> widths) {
  ValueList out;
  for (const std::int64_t width : widths) out.push_back(value(width));
  Node& added = node(kind, name, {x});
  added.out = out;
  return added;
}

ValueList BlockBuilder::split(std::string_view name, ValueId x,
                              std::initializer_list<std::int64_t> widths, std::int64_t heads) {
  Node& added = views(OpKind::split, name, x, widths);
  added.by_head = heads > 0;
  added.heads = heads;
  return added.out;
}

ValueList BlockBuilder::slice(std::string_view name, ValueId x,
                              std::initializer_list<std::int64_t> widths, std::int64_t heads) {
  Node& added = views(OpKind::slice, name, x, widths);
  added.by_head = heads > 0;
  added.heads = heads;
  return added.out;
}

ValueId BlockBuilder::concatenate(std::string_view name, ValueId a, ValueId b) {
  const ValueId out = value(checked_add(width(a), width(b)));
  node(OpKind::concatenate, name, {a, b}).out = {out};
  return out;
}

ValueId BlockBuilder::gather_sequence(std::string_view name, ValueId x) {
  return as_wide(OpKind::gather_sequence, name, x);
}

ValueId BlockBuilder::scatter_sequence(std::string_view name, ValueId x) {
  return as_wide(OpKind::scatter_sequence, name, x);
}

ValueId BlockBuilder::heads(std::string_view name, ValueId x) {
  return as_wide(OpKind::heads, name, x);
}

ValueId BlockBuilder::reshape(std::string_view name, ValueId x) {
  return as_wide(OpKind::reshape, name, x);
}

ValueId BlockBuilder::expand(std::string_view name, ValueId x, std::int64_t width) {
  const ValueId out = value(width);
  node(OpKind::expand, name, {x}).out = {out};
  return out;
}

ValueList BlockBuilder::rotary(std::string_view name, ValueId q, ValueId k, bool casts_back) {
  const ValueList out{value(width(q)), value(width(k))};
  Node& added = node(OpKind::rotary, name, {q, k});
  added.out = out;
  added.casts_back = casts_back;
  return out;
}

ValueList BlockBuilder::complex_rotary(std::string_view name, ValueId q, ValueId k) {
  const ValueList out = rotary(name, q, k, true);
  block_.nodes.back().complex = true;
  return out;
}

ValueList BlockBuilder::joined_rotary(std::string_view name, ValueList of, std::int64_t rotated_q,
                                      std::int64_t rotated_k) {
  const ValueList out{value(width(of[0])), value(width(of[1])), value(rotated_q), value(rotated_k)};
  Node& added = node(OpKind::rotary, name, {of[0], of[1]});
  added.out = out;
  added.joins = true;
  return out;
}

ValueId BlockBuilder::rotary(std::string_view name, ValueId x) {
  const ValueId out = value(width(x));
  node(OpKind::rotary, name, {x}).out = {out};
  return out;
}

ValueId BlockBuilder::pair_rotary(std::string_view name, ValueId x) {
  const ValueId out = rotary(name, x);
  block_.nodes.back().pairs = true;
  return out;
}

ValueList BlockBuilder::half_rotary(std::string_view name, ValueId q, ValueId k) {
  const ValueList out = rotary(name, q, k);
  block_.nodes.back().halves = true;
  return out;
}

ValueList BlockBuilder::attention(std::string_view name, ValueId q, ValueId k, ValueId v,
                                  EagerSoftmax softmax) {
  const ValueList out{value(width(q)), value(0)};
  Node& added = node(OpKind::attention, name, {q, k, v});
  added.out = out;
  added.softmax = softmax;
  return out;
}

ValueList BlockBuilder::sink_attention(std::string_view name, ValueId q, ValueId k, ValueId v) {
  const ValueList out = attention(name, q, k, v, EagerSoftmax::as_computed);
  block_.nodes.back().module = static_cast<std::int16_t>(block_.find(name) - block_.modules.data());
  return out;
}

ValueList BlockBuilder::alibi_attention(std::string_view name, ValueId q, ValueId k, ValueId v) {
  const ValueList out{value(width(q)), value(0), value(0), value(0)};
  Node& added = node(OpKind::attention, name, {q, k, v});
  added.out = out;
  added.alibi = true;
  return out;
}

void BlockBuilder::slide() {
  for (Node& node : block_.nodes) node.sliding = true;
}

void BlockBuilder::cap_scores() {
  for (Node& node : block_.nodes) node.soft_cap = node.kind == OpKind::attention;
}

void BlockBuilder::leave(std::string_view name, ValueList values) {
  node(OpKind::leave, name, {}).releases = values;
}

Block BlockBuilder::take() {
  for (std::size_t i = 0; i < block_.modules.size(); ++i)
    check(std::ranges::any_of(block_.nodes,
                              [&](const Node& node) { return std::cmp_equal(node.module, i); }),
          ErrorKind::internal,
          [&] { return std::string(block_.modules[i].name) + " is in no node of its layer"; });
  block_.own = std::make_shared<const decisions::LayerOps>(decisions::layer_ops(block_));
  return std::move(block_);
}

}  // namespace plimsoll::models::families

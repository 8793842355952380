#include "models/decisions/layer_ops.h"

#include <algorithm>

#include "models/base/error.h"
#include "models/recompute.h"

namespace plimsoll::models::decisions {

namespace {

// "mlp.act" -> "mlp.", "act" -> "".
std::string_view parent(std::string_view name) {
  const auto dot = name.rfind('.');
  return dot == std::string_view::npos ? "" : name.substr(0, dot + 1);
}

class Scheduling {
 public:
  explicit Scheduling(const Block& block) : block_(block) {
    layer_.modules = block.modules;
    parts_.resize(block.widths.size());
    dropouts_.resize(block.widths.size());
    scaled_.resize(block.widths.size());
    heads_.resize(block.widths.size());
    for (const std::int64_t width : block.widths) layer_.values.push_back({.width = width});
    for (std::size_t v = 0; v < parts_.size(); ++v)
      parts_[v] = {static_cast<ValueId>(v), 0, block.widths[v]};
  }

  LayerOps run() {
    if (block_.widths.size() > kMostValues || block_.modules.size() > kMostModules)
      refuse("layers of so many values");
    for (const Node& node : block_.nodes)
      if (layer_.refusal.empty()) add(node);
    if (layer_.ops.size() > kMostLayerOps) refuse("layers of so many ops");
    if (!layer_.refusal.empty()) return std::move(layer_);
    finish();
    return std::move(layer_);
  }

 private:
  void refuse(std::string what) {
    if (layer_.refusal.empty()) layer_.refusal = std::move(what);
  }
  LayerValue& value(ValueId id) { return layer_.values[static_cast<std::size_t>(id)]; }
  // Where a value of the block lies; dropout that its reader has to apply.
  ValuePart& part(ValueId id) { return parts_[static_cast<std::size_t>(id)]; }
  double& dropout(ValueId id) { return dropouts_[static_cast<std::size_t>(id)]; }
  ValuePart whole(ValueId id) {
    const ValuePart p = part(id);
    if (!is_whole(p)) refuse("an op of some columns of a value");
    return read(id);
  }
  // The same of what may be columns that lie side by side.
  ValuePart read(ValueId id) {
    const ValuePart p = part(id);
    if (p.step > 0) refuse("an op of columns of each head");
    if (dropout(id) > 0) refuse("dropout before anything but a sum");
    if (scaled_[static_cast<std::size_t>(id)]) refuse("values times a number");
    return p;
  }

  bool is_whole(const ValuePart& p) { return p.first == 0 && p.width == value(p.value).width; }

  LayerOp& op(LayerOpKind kind, const char* name) {
    return layer_.ops.emplace_back(LayerOp{.kind = kind, .name = name});
  }
  void makes(ValueId id, const char* name) {
    value(id).name = name;
    value(id).producer = static_cast<std::int8_t>(layer_.ops.size() - 1);
  }
  void view(ValueId of, ValueId out) {
    part(out) = part(of);
    dropout(out) = dropout(of);
  }

  void add(const Node& node) {
    switch (node.kind) {
      case OpKind::norm:
        return norm(node);
      case OpKind::linear:
        return linear(node);
      case OpKind::split:
      case OpKind::slice:
        return columns(node);
      case OpKind::heads:
        return view(node.in[0], node.out[0]);
      case OpKind::rotary:
        return rotary(node);
      case OpKind::attention:
        return attention(node);
      case OpKind::activation:
        return activation(node);
      case OpKind::multiply:
        return multiply(node);
      case OpKind::add:
        return residual(node);
      case OpKind::dropout:
        view(node.in[0], node.out[0]);
        dropout(node.out[0]) = std::max(dropout(node.in[0]), node.probability);
        return;
      case OpKind::leave:
        return;
      case OpKind::reshape:
      case OpKind::expand:
        return refuse("copies of queries and keys by head");
      case OpKind::concatenate:
        return concatenate(node);
      case OpKind::scale:
        if (dropout(node.in[0]) > 0) refuse("dropout and a scale of one value");
        view(node.in[0], node.out[0]);
        scaled_[static_cast<std::size_t>(node.out[0])] = true;
        return;
      case OpKind::experts:
        return experts(node);
      case OpKind::route:
      case OpKind::visitors:
      case OpKind::gather:
      case OpKind::weigh:
      case OpKind::add_rows:
        return refuse("a loop over experts");
      case OpKind::gather_sequence:
      case OpKind::scatter_sequence:
        return refuse("ranks that share each sequence");
    }
  }

  void norm(const Node& node) {
    const ValuePart x = whole(node.in[0]);
    LayerOp& added = op(LayerOpKind::norm, node.name);
    added.in[0] = x;
    added.out = node.out[0];
    added.module = node.module;
    added.norm = norm_names_of(node.name);
    makes(added.out, added.norm.out);
    value(added.out).gradient = added.norm.out_grad;
  }

  // Behind the other GEMMs of x, if only norms of their results have come since.
  LayerOp& gemms_of(ValuePart x, const char* name) {
    for (std::size_t i = layer_.ops.size(); i-- > 0;) {
      LayerOp& before = layer_.ops[i];
      if (before.kind == LayerOpKind::gemms && before.in[0].value == x.value) return before;
      if (before.kind != LayerOpKind::norm) break;
    }
    LayerOp& added = op(LayerOpKind::gemms, name);
    added.in[0] = x;
    return added;
  }
  void linear(const Node& node) {
    LayerOp& gemms = gemms_of(whole(node.in[0]), node.name);
    const GemmOp gemm{.module = node.module,
                      .out = node.out[0],
                      .site = static_cast<std::uint8_t>(kFirstGemmSite + gemms_++),
                      .names = linear_names_of(node.name)};
    gemms.gemms.push_back(gemm);
    if (gemm.site >= kLayerSites) refuse("layers of so many GEMMs");
    value(gemm.out) = {.name = gemm.names.out,
                       .gradient = interned(std::string(gemm.names.out) + ".grad"),
                       .width = value(gemm.out).width,
                       .producer = static_cast<std::int8_t>(&gemms - layer_.ops.data())};
  }

  void columns(const Node& node) {
    const ValuePart x = part(node.in[0]);
    const std::int64_t groups = std::max<std::int64_t>(1, node.heads);
    const std::int64_t step = node.heads == 0 ? 0 : x.step > 0 ? x.step : x.width / groups;
    if (node.heads == 0 && x.step > 0) refuse("an op of columns of each head");
    std::int64_t first = x.first;
    for (const ValueId out : node.out) {
      const std::int64_t width = value(out).width;
      part(out) = {x.value, first, width, step};
      heads_[static_cast<std::size_t>(out)] = node.heads;
      first += width / groups;
    }
  }
  // What was cut out of each head and rotated, beside what was left: the heads as they were.
  void concatenate(const Node& node) {
    const ValuePart a = part(node.in[0]), b = part(node.in[1]);
    const std::int64_t heads = heads_[static_cast<std::size_t>(node.in[0])];
    if (heads == 0 || a.value != b.value || a.step != b.step ||
        a.first + a.width / heads != b.first)
      return refuse("parts of several heads joined");
    const std::int64_t width = a.width + b.width;
    part(node.out[0]) = {a.value, a.first, width, a.step == width / heads ? 0 : a.step};
  }

  void rotary(const Node& node) {
    LayerOp& added = op(LayerOpKind::rotary, interned(std::string(node.name) + ".rotary"));
    for (std::size_t i = 0; i < node.in.size(); ++i) {
      added.in[i] = part(node.in[i]);
      view(node.in[i], node.out[i]);
      heads_[static_cast<std::size_t>(node.out[i])] = heads_[static_cast<std::size_t>(node.in[i])];
    }
  }

  void attention(const Node& node) {
    if (node.alibi) refuse("biases of the scores (ALiBi)");
    if (node.module >= 0) refuse("learned scores beside those of the keys (sinks)");
    LayerOp& added = op(LayerOpKind::attention, "");
    added.attention = attention_names_of(node.name);
    added.name = added.attention.attention;
    for (std::size_t i = 0; i < 3; ++i) {
      // Queries times a number: of OPT the scale of the scores, which Numerics::attention_scale is.
      if (i > 0 && scaled_[static_cast<std::size_t>(node.in[i])])
        refuse("keys or values times a number");
      added.in[i] = part(node.in[i]);
    }
    added.out = node.out[0];
    added.sliding = node.sliding;
    added.soft_cap = node.soft_cap;
    added.site = kAttentionSite;
    makes(added.out, added.attention.out);
    value(added.out).gradient = added.attention.out_grad;
    value(added.in[2].value).gradient = added.attention.v_grad;
    value(added.in[1].value).gradient = added.attention.k_grad;
    value(added.in[0].value).gradient = added.attention.q_grad;
  }

  void activation(const Node& node) {
    const ValuePart x = read(node.in[0]);
    const auto readers = std::ranges::count_if(block_.nodes, [&](const Node& other) {
      return other.kind == OpKind::multiply &&
             (other.in[0] == node.out[0] || other.in[1] == node.out[0]);
    });
    if (readers > 0) {  // one op with the product of both
      gates_.push_back({node.out[0], x, node.name, node.activation});
      return;
    }
    activate(node.name, whole(node.in[0]), {}, node.activation, node.out[0]);
  }
  void multiply(const Node& node) {
    for (const Gate& gate : gates_)
      for (std::size_t i = 0; i < 2; ++i)
        if (gate.out == node.in[i])
          return activate(gate.name, gate.x, read(node.in[1 - i]), gate.activation, node.out[0]);
    refuse("a product of two values that is no gate");
  }
  void activate(const char* name, ValuePart x, ValuePart factor, Activation kind, ValueId out) {
    if (kind == Activation::gelu_function) refuse("BLOOM's GELU");
    LayerOp& added = op(LayerOpKind::activation, name);
    added.in = {x, factor, {}};
    added.out = out;
    added.activation = kind;
    added.may_replace = is_whole(x);
    makes(out, interned(std::string(parent(name)) + "product"));
  }

  void experts(const Node& node) {
    const std::array<ValuePart, 3> in{whole(node.in[0]), whole(node.in[1]), {}};
    LayerOp& added = op(LayerOpKind::experts, node.name);
    added.in = in;
    added.out = node.out[0];
    added.module = node.module;
    added.experts = experts_names_of(node.name);
    added.normalizes = node.normalizes;
    added.name = added.experts.sum;
    makes(added.out, interned(std::string(node.name) + ".out"));
  }

  void residual(const Node& node) {
    if (is_gemm(node.in[0])) {
      if (branches_ != nullptr) refuse("branches of more than one parallel residual");
      branches_ = &node;
      return;
    }
    if (branches_ != nullptr && branches_->out[0] == node.in[1]) return parallel_residual(node);
    sum(node.name, node.in[0], node.in[1], node.out[0]);
  }
  // Both branches were made of the stream `node` adds them to: the sum with the first of them
  // stands behind that, under the name that belongs to the sum of the two.
  void parallel_residual(const Node& node) {
    ValueId first = branches_->in[0], second = branches_->in[1];
    if (producer(second) < producer(first)) std::swap(first, second);
    const auto before = static_cast<std::int8_t>(producer(first) + 1);
    const std::string_view of = layer_.ops[static_cast<std::size_t>(producer(first))].name;
    const std::string_view module = parent(of);
    sum(module.empty() ? "branches" : module.substr(0, module.size() - 1), node.in[0], first,
        branches_->out[0]);
    std::rotate(layer_.ops.begin() + before, layer_.ops.end() - 1, layer_.ops.end());
    for (LayerValue& other : layer_.values)
      if (other.producer >= before) ++other.producer;
    value(branches_->out[0]).producer = before;
    sum(node.name, branches_->out[0], second, node.out[0]);
  }
  std::int8_t producer(ValueId id) { return value(part(id).value).producer; }
  bool is_gemm(ValueId id) {
    return producer(id) >= 0 &&
           layer_.ops[static_cast<std::size_t>(producer(id))].kind == LayerOpKind::gemms;
  }
  void sum(std::string_view name, ValueId stream, ValueId branch, ValueId out) {
    const double rate = dropout(branch);
    dropout(branch) = 0;
    const bool scaled = scaled_[static_cast<std::size_t>(branch)];
    scaled_[static_cast<std::size_t>(branch)] = false;
    const std::array<ValuePart, 3> in{whole(stream), whole(branch), {}};
    LayerOp& added = op(LayerOpKind::residual, interned(std::string(name) + ".residual"));
    added.in = in;
    added.out = out;
    added.dropout = rate;
    added.scaled = scaled;
    if (scaled && branches_ != nullptr) refuse("branches of a parallel residual times a number");
    added.site = static_cast<std::uint8_t>(kFirstSumSite + sums_++);
    if (added.site >= kFirstGemmSite) refuse("layers of more than two sums");
    makes(added.out, added.name);
  }

  // What can be said when all ops are known.
  void finish() {
    LayerOp& last = layer_.ops.back();
    layer_.output = last.out;
    layer_.last_branch = last.in[1].value;
    if (last.kind != LayerOpKind::residual) return refuse("layers that end in no sum");
    last.name = kLayerSum;
    value(last.out).name = kLayerOut;
    for (std::size_t i = 0; i < layer_.ops.size(); ++i) finish(layer_.ops[i], i);
  }
  void finish(LayerOp& op, std::size_t at) {
    if (op.kind == LayerOpKind::residual) {
      // The sum takes over its branch, which has the stream's name from the beginning.
      if (readers(op.in[1].value) != 1) refuse("a branch that is read twice");
      value(op.in[1].value).name = value(op.out).name;
    } else if (op.kind == LayerOpKind::norm) {
      const auto sum = std::ranges::find_if(layer_.ops, [&](const LayerOp& other) {
        return other.kind == LayerOpKind::residual && other.in[1].value == op.out;
      });
      op.may_replace = sum == layer_.ops.end() && readers(op.in[0].value) == 1 &&
                       value(op.in[0].value).producer >= 0;
    } else if (op.kind == LayerOpKind::activation) {
      // Backward makes its result again where the GEMM's weight needs it.
      const bool next = at + 1 < layer_.ops.size() &&
                        layer_.ops[at + 1].kind == LayerOpKind::gemms &&
                        layer_.ops[at + 1].in[0].value == op.out;
      if (!next || readers(op.out) != 1 || layer_.ops[at + 1].gemms.size() != 1)
        return refuse("an activation that no GEMM follows");
      value(op.out).gradient = layer_.ops[at + 1].gemms[0].names.input_grad;
    }
  }
  std::int64_t readers(ValueId id) const {
    std::int64_t count = 0;
    for (const LayerOp& op : layer_.ops)
      if (op.kind != LayerOpKind::rotary)
        count += std::ranges::any_of(op.in, [&](ValuePart p) { return p.value == id; }) ? 1 : 0;
    return count;
  }

  struct Gate {
    ValueId out;
    ValuePart x;
    const char* name;
    Activation activation;
  };
  const Block& block_;
  LayerOps layer_;
  std::vector<ValuePart> parts_;
  std::vector<double> dropouts_;
  std::vector<bool> scaled_;
  std::vector<std::int64_t> heads_;  // in which the columns of a value were cut
  std::vector<Gate> gates_;
  const Node* branches_ = nullptr;  // the sum of a parallel residual's branches
  std::uint8_t gemms_ = 0, sums_ = 0;
};

}  // namespace

LayerOps layer_ops(const Block& block) {
  return Scheduling(block).run();
}

void check_decoder(const Decoder& d, const Recompute& recompute) {
  const auto refuse = [](bool has, const char* what) {
    check(!has, ErrorKind::unsupported, std::string("our own runtime does not have ") + what);
  };
  const bool alternates = d.window > 0 && d.full_layers > 0;
  refuse(alternates && groups_layers(recompute.kind),
         "checkpoints of several layers where some have a sliding window and others none "
         "(--recompute full makes them again one by one)");
  check_layers(recompute, d.layers);
  refuse(d.position == PositionKind::alibi, "biases of the scores (ALiBi)");
  refuse(d.embedding_norm, "a norm behind the embedding");
  refuse(d.embedding_width > 0, "an embedding narrower than the model");
  refuse(d.labels > 0, "--task classification");
  refuse(d.token_types > 0 || d.bidirectional || d.masked_loss, "masked language models");
}

void check_kinds(std::size_t kinds, const Recompute& recompute) {
  check(kinds < 2 || !groups_layers(recompute.kind), ErrorKind::unsupported,
        "our own runtime does not have checkpoints of several layers of which some are others "
        "than the rest (--recompute full makes them again one by one)");
}

const LayerOps& own_ops(const Block& block) {
  check(block.own != nullptr, ErrorKind::internal, "a block that was not finished");
  check(block.own->refusal.empty(), ErrorKind::unsupported,
        [&] { return "our own runtime does not have " + block.own->refusal; });
  return *block.own;
}

}  // namespace plimsoll::models::decisions

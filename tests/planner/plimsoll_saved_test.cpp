// What is saved for backward, derived a second time: forward through the layer as autograd does it
// (a result needs a gradient where one of its inputs or parameters does; an op saves what its
// backward reads), where the planner asks backward which gradients are wanted.
#include <doctest/doctest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/planner/plimsoll_draw.h"

using namespace plimsoll;
using namespace plimsoll::planner::plimsoll_stack;
using models::Attention;
using planner::LinearPart;
using planner::NormPart;

namespace {

class Autograd {
 public:
  Autograd(const planner::ModelParts& parts, const models::Strategy& strategy,
           const models::Batch& batch)
      : parts_(parts),
        d_(parts.decoder),
        t_(batch.tokens()),
        length_(batch.seq_len),
        selective_(strategy.recompute.kind == models::RecomputeKind::selective),
        attention_(strategy.attention),
        e_(strategy.precision == models::Precision::fp32 ? 4 : 2) {}

  std::int64_t saved() {
    bool grad = parts_.train_embedding || parts_.train_positions_any();
    std::int64_t layers = 0;
    for (const planner::LayerRun& run : parts_.runs)
      for (std::int64_t i = 0; i < run.count; ++i) {
        saves_.clear();
        grad = layer(run.layer(i), grad);
        for (const auto& [what, bytes] : saves_) layers += bytes;
      }
    if (grad || parts_.final_norm.trains())
      layers += t_ * (d_.hidden * e_ + 4 * (d_.norm == models::NormKind::layer_norm ? 2 : 1));
    if (parts_.head.train_weight) layers += t_ * d_.hidden * e_;
    return layers + 2 * 4 * t_;  // ids and targets
  }

 private:
  struct Value {
    bool grad = false;
    int place = -1;  // the value in whose memory it lies
    // The values that its producer's backward keeps and makes it again from: it need not be kept.
    std::vector<int> remade_from;
    int normalized_from = -1;  // what a GEMM, whose input this is, may keep instead
  };
  using What = std::pair<std::string, int>;

  void save(const char* what, int place, std::int64_t bytes) { saves_[{what, place}] = bytes; }
  void keep(const Value& value) {
    if (value.remade_from.empty())
      save("value", value.place, t_ * width(value.place) * e_);
    else
      for (const int id : value.remade_from) save("value", id, t_ * width(id) * e_);
  }
  std::int64_t width(int value) const { return block_->widths[static_cast<std::size_t>(value)]; }
  Value& at(models::ValueId id) { return values_[static_cast<std::size_t>(id)]; }

  // Each module's parameters and what it reads, as autograd would have it, forward.
  bool layer(const planner::LayerPart& layer, bool x) {
    block_ = layer.block;
    values_.assign(block_->widths.size(), {});
    for (std::size_t v = 0; v < values_.size(); ++v) values_[v].place = static_cast<int>(v);
    at(models::kBlockInput).grad = x;
    for (const models::Node& node : block_->nodes) run(layer, node);
    return at(block_->output()).grad;
  }

  void run(const planner::LayerPart& layer, const models::Node& node) {
    using models::OpKind;
    bool grad = false;
    for (const models::ValueId in : node.in) grad = grad || at(in).grad;
    switch (node.kind) {
      case OpKind::norm:
        grad = norm(layer.norms[module(node).place], node, grad);
        break;
      case OpKind::linear:
        grad = linear(layer.linears[module(node).place], node, grad);
        break;
      case OpKind::attention:
        if (grad) attention(node);
        break;
      case OpKind::activation:
        if (grad) keep(at(node.in[0]));
        if (grad) at(node.out[0]).remade_from = {at(node.in[0]).place};
        break;
      case OpKind::multiply:
        for (const models::ValueId in : node.in)
          if (grad) keep(at(in));
        if (grad) at(node.out[0]).remade_from = {at(node.in[0]).place};
        if (grad && !at(node.in[0]).remade_from.empty())
          at(node.out[0]).remade_from = {at(node.in[1]).place};
        break;
      case OpKind::split:  // in place, or views
      case OpKind::heads:
      case OpKind::rotary:
      case OpKind::dropout:
        for (std::size_t i = 0; i < node.out.size(); ++i)
          at(node.out[i]).place = at(node.in[i < node.in.size() ? i : 0]).place;
        break;
      default:
        break;
    }
    for (std::size_t i = 0; i < node.out.size(); ++i)
      at(node.out[i]).grad = node.kind == OpKind::rotary ? at(node.in[i]).grad : grad;
  }

  const models::Module& module(const models::Node& node) const {
    return block_->modules[static_cast<std::size_t>(node.module)];
  }

  // Its result is made again from its input for a GEMM, where its own gradient keeps that.
  bool norm(const NormPart& part, const models::Node& node, bool grad) {
    if (!grad && !part.trains()) return false;
    const Value& x = at(node.in[0]);
    keep(x);
    const std::int64_t rows = width(node.in[0]) / part.width;
    save("statistics", node.out[0],
         t_ * 4 * rows * (part.kind == models::NormKind::layer_norm ? 2 : 1));
    if (selective_) at(node.out[0]).normalized_from = x.place;
    return true;
  }

  bool linear(const LinearPart& part, const models::Node& node, bool grad) {
    const Value& x = at(node.in[0]);
    if (part.train_weight || part.lora_rank > 0)
      x.normalized_from < 0 ? keep(x) : keep(values_[static_cast<std::size_t>(x.normalized_from)]);
    if (part.lora_rank > 0) save("adapter", node.out[0], t_ * part.lora_rank * e_);
    return grad || part.trains();
  }

  void attention(const models::Node& node) {
    for (const models::ValueId in : node.in) keep(at(in));
    if (attention_ == Attention::flash) {
      keep(at(node.out[0]));
      save("log-sum-exp", node.out[0], t_ * d_.heads * 4);
    } else if (!selective_) {
      save("probabilities", node.out[0],
           t_ * d_.heads * length_ * (attention_ == Attention::math ? 4 : e_));
    }
  }

  const planner::ModelParts& parts_;
  const models::Decoder& d_;
  std::int64_t t_, length_;
  bool selective_;
  Attention attention_;
  std::int64_t e_;
  const models::Block* block_ = nullptr;
  std::vector<Value> values_;
  std::map<What, std::int64_t> saves_;
};

}  // namespace

TEST_CASE("plimsoll saves what autograd would, whatever is frozen or adapted") {
  int partly = 0;
  for (unsigned seed = 0; seed < 3000; ++seed) {
    CAPTURE(seed);
    Draw draw(seed);
    const models::ModelSpec model = draw.model();
    models::Strategy s = draw.strategy(model);
    s.recompute.kind = draw.of({models::RecomputeKind::none, models::RecomputeKind::selective});
    s.loss = models::Loss::full;
    s.device = models::Device::cuda;
    const models::Batch batch{.seq_len = draw.pick(1, 20), .micro_batch = 2};
    try {
      const planner::ModelParts parts = planner::model_parts(model, s);
      const Planned p = planned(model, s, batch);
      CAPTURE(model.model_type);
      REQUIRE(in_category(p, step_named(p, "loss.sum"), models::Category::activations) ==
              Bytes(Autograd(parts, s, batch).saved()));
      partly += parts.trains_all ? 0 : 1;
    } catch (const Error& error) {
      REQUIRE(error.kind() == ErrorKind::bad_input);
    }
  }
  CHECK(partly > 800);
}

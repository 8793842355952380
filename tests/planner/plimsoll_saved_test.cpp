// What is saved for backward, derived a second time: forward through the layer as autograd does it
// (a result needs a gradient where one of its inputs or parameters does; an op saves what its
// backward reads), where the planner asks backward which gradients are wanted.
#include <doctest/doctest.h>

#include <map>

#include "tests/planner/plimsoll_draw.h"

using namespace plimsoll;
using namespace plimsoll::planner::own;
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
        grad = layer(slots_of(run), grad);
        for (const auto& [name, bytes] : saves_) layers += bytes;
      }
    saves_.clear();
    norm("final", parts_.final_norm, "x", grad);
    if (parts_.head.train_weight) save("head input", t_ * d_.hidden * e_);
    for (const auto& [name, bytes] : saves_) layers += bytes;
    return layers + 2 * 4 * t_;  // ids and targets
  }

 private:
  void save(const std::string& name, std::int64_t bytes) { saves_[name] = bytes; }
  void save_values(const std::string& name, std::int64_t width) { save(name, t_ * width * e_); }
  static bool trained(const LinearPart& p) {
    return p.in > 0 && (p.train_weight || (p.bias && p.train_bias) || p.lora_rank > 0);
  }

  bool norm(const std::string& name, const NormPart& part, const std::string& in, bool grad,
            std::int64_t rows = 1) {
    const bool out = grad || part.train_weight || (part.bias && part.train_bias);
    if (!out) return false;
    save_values(in, part.width * rows);
    save(name + " statistics", t_ * 4 * rows * (d_.norm == models::NormKind::layer_norm ? 2 : 1));
    return true;
  }

  // `remade_from`: what its input is made again from, where it is not kept.
  bool linear(const std::string& name, const LinearPart& part, const std::string& in, bool grad,
              const std::string& remade_from = "") {
    if (part.in == 0) return false;
    if (part.train_weight || part.lora_rank > 0)
      save_values(remade_from.empty() ? in : remade_from, part.in);
    if (part.lora_rank > 0) save_values(name + " adapter", part.lora_rank);
    return grad || trained(part);
  }

  bool attention(bool grad) {
    if (!grad) return false;
    const std::int64_t heads = d_.heads;
    save_values("q", d_.fused_qkv ? 3 * d_.q_width() : d_.q_width());
    if (!d_.fused_qkv) save_values("k", d_.kv_width());
    if (!d_.fused_qkv) save_values("v", d_.kv_width());
    if (attention_ == Attention::flash) {
      save_values("attention", d_.q_width());
      save("log-sum-exp", t_ * heads * 4);
    } else if (!selective_) {
      save("probabilities", t_ * heads * length_ * (attention_ == Attention::math ? 4 : e_));
    }
    return true;
  }

  bool layer(const LayerSlots& l, bool x) {
    // A norm's result is made again from its input, where the norm's own gradient keeps that.
    const bool n1 = norm("first", l.input_norm, "x", x);
    const std::string from_x = selective_ && n1 ? "x" : "";
    bool q = linear("q", l.q, "n1", n1, from_x), k = linear("k", l.k, "n1", n1, from_x);
    const bool v = linear("v", l.v, "n1", n1, from_x);
    if (l.q_norm.width > 0) q = norm("q", l.q_norm, "q_in", q, d_.heads);
    if (l.k_norm.width > 0) k = norm("k", l.k_norm, "k_in", k, d_.kv_heads);
    const bool o = linear("o", l.o, "attention", attention(q || k || v));
    const bool m = x || o;
    const bool n2 = norm("second", l.post_norm, "m", m);
    const std::string from_m = selective_ && n2 ? "m" : "";
    const bool gate = linear("gate", l.gate, "n2", n2, from_m);
    const bool up = linear("up", l.up, "n2", n2, from_m);
    const bool product = gate || up;
    if (product) {
      if (l.gate.in > 0) save_values("gate", d_.ffn);
      save_values("up", d_.ffn);
    } else if (l.down.train_weight || l.down.lora_rank > 0) {
      save_values("product", d_.ffn);
    }
    if (l.down.lora_rank > 0) save_values("down adapter", l.down.lora_rank);
    return m || product || trained(l.down);
  }

  const planner::ModelParts& parts_;
  const models::Decoder& d_;
  std::int64_t t_, length_;
  bool selective_;
  Attention attention_;
  std::int64_t e_;
  std::map<std::string, std::int64_t> saves_;
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

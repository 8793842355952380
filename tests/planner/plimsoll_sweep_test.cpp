// What must hold for every step of our own runtime, over drawn combinations of its options.
#include <doctest/doctest.h>

#include <random>
#include <set>

#include "tests/planner/plimsoll_step.h"

using namespace plimsoll;
using namespace plimsoll::planner::own;
using models::Strategy;

namespace {

class Draw {
 public:
  explicit Draw(unsigned seed) : random_(seed) {}

  std::int64_t pick(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }
  template <class T>
  T of(std::initializer_list<T> values) {
    return values.begin()[pick(0, static_cast<std::int64_t>(values.size()) - 1)];
  }

  models::ModelSpec model() {
    const std::int64_t layers = pick(1, 9), kv = pick(1, 3), heads = kv * pick(1, 3);
    const std::int64_t head_dim = 2 * pick(1, 9), hidden = heads * head_dim;
    const auto number = [](std::int64_t n) { return std::to_string(n); };
    if (pick(0, 3) == 0) {
      const std::string p = of<const char*>({"0", "0.1"});
      return models::read_model(R"({"model_type": "gpt2", "n_embd": )" + number(hidden) +
                                    R"(, "n_head": )" + number(heads) + R"(, "n_layer": )" +
                                    number(layers) + R"(, "vocab_size": )" + number(pick(10, 300)) +
                                    R"(, "resid_pdrop": )" + p + R"(, "attn_pdrop": )" + p + "}",
                                "gpt2", "gpt2", {});
    }
    const std::string type = of<const char*>({"llama", "mistral", "qwen2", "qwen3"});
    return models::read_model(
        R"({"model_type": ")" + type + R"(", "hidden_size": )" + number(hidden) +
            R"(, "num_attention_heads": )" + number(heads) + R"(, "num_key_value_heads": )" +
            number(kv) + R"(, "head_dim": )" + number(head_dim) + R"(, "intermediate_size": )" +
            number(pick(3, 200)) + R"(, "vocab_size": )" + number(pick(10, 300)) +
            R"(, "num_hidden_layers": )" + number(layers) + R"(, "tie_word_embeddings": )" +
            of<const char*>({"true", "false"}) + "}",
        type, type, {});
  }

  Strategy strategy(const models::ModelSpec& model) {
    using namespace models;
    Strategy s;
    s.stack = Stack::plimsoll;
    s.device = of({Device::cuda, Device::cpu});
    s.gpus = of<std::int64_t>({1, 2, 3, 4, 8});
    s.data.zero = static_cast<int>(pick(0, 3));
    if (s.data.zero > 0 && s.gpus % 2 == 0 && pick(0, 3) == 0) s.data.shard_group = s.gpus / 2;
    s.precision =
        of({Precision::fp32, Precision::bf16_mixed, Precision::fp16_mixed, Precision::bf16});
    if (pick(0, 3) == 0) s.grad_dtype = DType::fp32;
    s.optimizer = of({Optimizer::adamw, Optimizer::sgd, Optimizer::momentum});
    s.recompute = {of({RecomputeKind::none, RecomputeKind::selective, RecomputeKind::full,
                       RecomputeKind::sqrt, RecomputeKind::every}),
                   pick(1, 5)};
    s.attention = of({Attention::flash, Attention::eager, Attention::math});
    s.loss = of({Loss::full, Loss::chunked, Loss::fused});
    const bool gpt2 = model.model_type == "gpt2";
    const std::string prefix = gpt2 ? "transformer.h." : "model.layers.";
    const std::int64_t kind = pick(0, 4);
    if (kind == 0) {
      s.lora = Lora{.rank = pick(1, 9), .dropout = of({0.0, 0.1})};
      s.lora->targets = {of<std::string>({"all-linear", gpt2 ? "c_attn" : "q_proj", "attention",
                                          gpt2 ? "mlp.c_proj" : "down_proj"})};
      if (s.precision == Precision::bf16) s.lora->dtype = of({DType::fp32, DType::bf16});
    } else if (kind == 1) {
      const std::string first = prefix + "0.";
      s.train = {of<std::string>({first + "mlp.*", prefix + "*.bias", first + "*", "*norm*.weight",
                                  "*ln_*", "*wte*", "*embed_tokens*", "*mlp*", "*v_proj*"})};
    }
    return s;
  }

  models::Batch batch() {
    return {.seq_len = pick(1, 33), .micro_batch = pick(1, 3), .grad_accum = pick(1, 5)};
  }

 private:
  std::mt19937 random_;
};

// Drawn patterns may match nothing, or nothing but a frozen part.
std::optional<Planned> drawn(unsigned seed) {
  Draw draw(seed);
  const models::ModelSpec model = draw.model();
  const Strategy strategy = draw.strategy(model);
  const models::Batch batch = draw.batch();
  const Rules rules{draw.of<std::int64_t>({1, models::decisions::kBlock}), draw.pick(0, 1) == 1,
                    draw.pick(0, 1) == 1};
  try {
    return planned(model, strategy, batch, rules);
  } catch (const Error& error) {
    REQUIRE(error.kind() == ErrorKind::bad_input);
    return std::nullopt;
  }
}

}  // namespace

TEST_CASE(
    "every step of plimsoll: collapsed equals unrolled, bounds hold, nothing is left behind") {
  int planned_steps = 0;
  for (unsigned seed = 0; seed < 3000; ++seed) {
    CAPTURE(seed);
    const std::optional<Planned> p = drawn(seed);
    if (!p) continue;
    ++planned_steps;
    const planner::Timeline& timeline = p->timeline;
    REQUIRE(p->peak.bytes == timeline.steps[timeline.peak_step].high_water);
    REQUIRE(p->peak.bytes >= p->peak.resident);
    REQUIRE(p->peak.bytes >= p->states.total());
    REQUIRE(timeline.steps.back().after == p->peak.resident);
    // At the gradient norm exactly the states and the fixed blocks are there.
    const std::size_t norm =
        step_named(*p, models::decisions::kGradientNorm, models::Phase::optimizer);
    REQUIRE(timeline.steps[norm].high_water == p->peak.resident + p->states.gradients);
  }
  CHECK(planned_steps > 2500);
}

TEST_CASE("every tensor of plimsoll that is made is used by another op") {
  for (unsigned seed = 0; seed < 1500; ++seed) {
    CAPTURE(seed);
    const std::optional<Planned> p = drawn(seed);
    if (!p) continue;
    for (const planner::Lifetime& life : p->timeline.lifetimes) {
      if (life.birth < 0) continue;
      const std::string name = planner::name_of_tensor(p->program, life.tensor, life.instance);
      CAPTURE(name);
      // Attention's backward makes the gradients of q, k and v together, wanted or not.
      const bool together = name.ends_with("attn.q.grad") || name.ends_with("attn.k.grad") ||
                            name.ends_with("attn.v.grad");
      REQUIRE((life.death > life.birth || together));
    }
  }
}

TEST_CASE(
    "pieces of plimsoll's states sum to the whole, with less than 16 bytes a rank and part more") {
  for (unsigned seed = 0; seed < 500; ++seed) {
    CAPTURE(seed);
    Draw draw(seed);
    const models::ModelSpec model = draw.model();
    Strategy s = fp32_strategy();
    s.precision = draw.of({models::Precision::fp32, models::Precision::bf16_mixed});
    s.data.zero = 3;
    s.gpus = 1;
    const reports::States whole = planned(model, s, {.seq_len = 4}).states;
    s.gpus = draw.pick(2, 9);
    const reports::States piece = planned(model, s, {.seq_len = 4}).states;
    const std::int64_t units = model.decoder->layers + 2;
    const auto padding = [&](Bytes all, Bytes one, std::int64_t blocks) {
      const std::int64_t more = one.value() * s.gpus - all.value();
      return more >= 0 && more < units * s.gpus * 16 * blocks;
    };
    REQUIRE(padding(whole.parameters, piece.parameters, 1));
    REQUIRE(padding(whole.gradients, piece.gradients, 1));
    REQUIRE(padding(whole.optimizer, piece.optimizer, 6));  // up to 12 bytes for a value of 2
  }
}

TEST_CASE("more than three micro-batches of plimsoll change no byte") {
  for (unsigned seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    Draw draw(seed);
    const models::ModelSpec model = draw.model();
    const Strategy strategy = draw.strategy(model);
    try {
      const Planned three = planned(model, strategy, {.seq_len = 8, .grad_accum = 3});
      const Planned seven = planned(model, strategy, {.seq_len = 8, .grad_accum = 7});
      REQUIRE(three.peak.bytes == seven.peak.bytes);
    } catch (const Error& error) {
      REQUIRE(error.kind() == ErrorKind::bad_input);
    }
  }
}

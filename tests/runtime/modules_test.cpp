// The eager modules against themselves: finite differences, recomputation, frozen parts.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "models/model_reader.h"
#include "tests/near.h"
#include "tests/runtime/goldens.h"
#include "tests/runtime/tiny_model.h"

namespace plimsoll::runtime::test {
namespace {

using models::Attention;
using models::Loss;
using models::Precision;
using models::Recompute;
using models::RecomputeKind;
using models::Strategy;

// Head size 4, 3 layers, every dropout on.
models::ModelSpec dropping(const char* config) {
  models::ModelSpec spec = models::read_model(config, "tiny", "tiny", {});
  spec.decoder->embedding_dropout = 0.1;
  spec.decoder->attention_dropout = 0.2;
  spec.decoder->residual_dropout = 0.15;
  return spec;
}
models::ModelSpec gpt2(const char* activation = "gelu_new") {
  return dropping((std::string(R"({"model_type": "gpt2", "n_embd": 8, "n_head": 2, "n_layer": 3,
      "vocab_size": 19, "n_positions": 9, "activation_function": ")") +
                   activation + "\"}")
                      .c_str());
}
models::ModelSpec qwen3() {
  return dropping(R"({"model_type": "qwen3", "hidden_size": 12, "num_attention_heads": 4,
      "num_key_value_heads": 2, "head_dim": 4, "intermediate_size": 20, "vocab_size": 19,
      "num_hidden_layers": 3, "tie_word_embeddings": false, "attention_bias": true})");
}
models::ModelSpec mistral() {
  return dropping(R"({"model_type": "mistral", "hidden_size": 8, "num_attention_heads": 2,
      "num_key_value_heads": 1, "intermediate_size": 20, "vocab_size": 19, "sliding_window": 3,
      "num_hidden_layers": 3})");
}

Batch batch() {
  Batch batch{.sequences = 2, .length = 7, .ids = {}, .targets = {}};
  for (std::int32_t i = 0; i < 14; ++i) {
    batch.ids.push_back(i * 7 % 19);
    batch.targets.push_back(i % 5 == 2 ? kernels::kIgnoreIndex : (i * 5 + 3) % 19);
  }
  return batch;
}

Strategy fp32() {
  Strategy strategy;
  strategy.precision = Precision::fp32;
  return strategy;
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// The loss along a direction, by central differences.
double slope(TinyModel& model, const std::string& name, const std::vector<double>& direction) {
  const double step = 4e-3 / std::sqrt(dot(direction, direction));
  const std::vector<double> at = model.values(name);
  const auto loss = [&](double by) {
    std::vector<double> moved = at;
    for (std::size_t i = 0; i < moved.size(); ++i) moved[i] += by * direction[i];
    model.set(name, moved);
    return model.loss();
  };
  const auto difference = [&](double by) { return (loss(by) - loss(-by)) / (2 * by); };
  const double slope = (4 * difference(step / 2) - difference(step)) / 3;  // Richardson
  model.set(name, at);
  return slope;
}

// Along the gradient, where the slope is steepest, and along a direction that has nothing to do
// with it. The loss carries fp32 noise of some 1e-7, so a slope some 1e-7 / 4e-3 of a unit step's.
void check_gradients(const models::ModelSpec& spec, const Strategy& strategy) {
  TinyModel model(spec, strategy, batch());
  model.worker().seed = 5;
  model.worker().step = 3;
  model.worker().first_sequence = 4;
  model.set_random();
  const double loss = model.step();
  std::map<std::string, std::vector<double>> gradients;
  for (const std::string& name : model.names(true)) gradients[name] = model.gradient(name);
  CHECK(model.loss() == loss);
  for (const auto& [name, gradient] : gradients) {
    CAPTURE(name);
    const double norm = std::sqrt(dot(gradient, gradient));
    CHECK(norm > 1e-6);
    CHECK(std::abs(slope(model, name, gradient) / norm - norm) < 2e-3 * norm + 2e-4);
    std::vector<double> other(gradient.size());
    for (std::size_t i = 0; i < other.size(); ++i) other[i] = i % 3 == 0 ? 1 : -0.5;
    const double length = std::sqrt(dot(other, other));
    CHECK(std::abs(slope(model, name, other) - dot(other, gradient)) / length < 2e-3 * norm + 2e-4);
  }
}

TEST_CASE("gradients are the slopes of the loss: GPT-2, every dropout, every attention and loss") {
  for (const Attention attention : {Attention::flash, Attention::eager, Attention::math}) {
    Strategy strategy = fp32();
    strategy.attention = attention;
    check_gradients(gpt2(), strategy);
  }
  for (const char* activation : {"gelu", "relu"}) check_gradients(gpt2(activation), fp32());
  for (const Loss loss : {Loss::chunked, Loss::fused}) {
    Strategy strategy = fp32();
    strategy.loss = loss;
    check_gradients(gpt2(), strategy);
  }
}

TEST_CASE("gradients are the slopes of the loss: head norms, biases, windows, grouped keys") {
  for (const Attention attention : {Attention::flash, Attention::eager}) {
    Strategy strategy = fp32();
    strategy.attention = attention;
    check_gradients(qwen3(), strategy);
    check_gradients(mistral(), strategy);
  }
}

Strategy adapted(double dropout, std::vector<std::string> targets) {
  Strategy strategy = fp32();
  strategy.lora = models::Lora{.rank = 3, .alpha = 5, .dropout = dropout};
  strategy.lora->targets = std::move(targets);
  return strategy;
}

TEST_CASE("gradients of adapters are the slopes of the loss, with dropout of their own") {
  check_gradients(gpt2(), adapted(0.2, {"c_attn", "c_fc", "c_proj"}));
  check_gradients(qwen3(), adapted(0.3, {"all-linear"}));
  check_gradients(qwen3(), adapted(0, {"v_proj", "down_proj"}));
  Strategy with_base = adapted(0.2, {"k_proj", "o_proj", "up_proj", "down_proj"});
  with_base.train = {"*.1.*"};
  check_gradients(qwen3(), with_base);
}

// The ledger's story of a step -------------------------------------------------------------------

// Nothing is given back between two ops, and what a step has made is gone at its end.
void check_boundaries(const StepRecord& record) {
  for (std::size_t i = 1; i < record.ops.size(); ++i) {
    CAPTURE(record.ops[i].name);
    CHECK(record.ops[i].high_water >= record.ops[i - 1].allocated);
  }
  for (const TensorRecord& tensor : record.tensors) {
    CAPTURE(tensor.name);
    if (tensor.born != kBeforeStep) CHECK(tensor.died < kOutlivesStep);
  }
  CHECK(record.ops.back().allocated == record.resident);
}

struct Result {
  double loss;
  std::map<std::string, std::vector<double>> gradients;
  bool operator==(const Result&) const = default;
};
Result run(const models::ModelSpec& spec, const Strategy& strategy) {
  TinyModel model(spec, strategy, batch());
  model.set_random();
  Result result{model.step(true), {}};
  for (const std::string& name : model.names(true)) result.gradients[name] = model.gradient(name);
  check_boundaries(model.record());
  return result;
}

TEST_CASE("recomputation changes no bit") {
  for (const Precision precision : {Precision::fp32, Precision::bf16_mixed, Precision::fp16_mixed})
    for (const Attention attention : {Attention::flash, Attention::eager, Attention::math})
      for (const models::ModelSpec& spec : {gpt2(), qwen3()})
        for (const bool adapters : {false, true}) {
          Strategy strategy = adapters ? adapted(0.2, {"all-linear"}) : fp32();
          strategy.precision = precision;
          strategy.attention = attention;
          const Result plain = run(spec, strategy);
          for (const Recompute& recompute :
               {Recompute{RecomputeKind::selective}, Recompute{RecomputeKind::full},
                Recompute{RecomputeKind::sqrt}, Recompute{RecomputeKind::every, 3},
                Recompute{RecomputeKind::block, 1}, Recompute{RecomputeKind::nth, 2}}) {
            strategy.recompute = recompute;
            CHECK(run(spec, strategy) == plain);
          }
        }
}

TEST_CASE("a gradient is the same whatever else is trained, and recomputation too") {
  for (const models::ModelSpec& spec : {gpt2(), qwen3()}) {
    const Result all = run(spec, fp32());
    for (const char* pattern :
         {"*.1.*down_proj*", "*.1.mlp.c_proj.weight", "*.1.mlp.c_proj.bias", "*q_proj*", "*c_attn*",
          "*.2.*v_proj*", "*.1.*k_norm*", "*norm*", "*ln_*", "*bias", "*.1.*up_proj*",
          "*.0.*gate_proj*", "*c_fc*", "*.0.*o_proj*", "*lm_head*", "*wpe*", "*.1.*"})
      for (const RecomputeKind kind :
           {RecomputeKind::none, RecomputeKind::selective, RecomputeKind::full,
            RecomputeKind::every, RecomputeKind::block})
        for (const Loss loss : {Loss::full, Loss::chunked, Loss::fused}) {
          Strategy strategy = fp32();
          strategy.train = {pattern};
          strategy.recompute = {kind, 2};
          strategy.loss = loss;
          const ModelLayout layout = [&]() -> ModelLayout {
            try {
              return layout_of(spec, strategy);
            } catch (const Error&) {  // no such parameter in this model
              return {};
            }
          }();
          if (layout.layers.empty()) continue;
          const std::string trained = pattern;
          CAPTURE(trained);
          const Result some = run(spec, strategy);
          CHECK(!some.gradients.empty());
          CHECK(some.loss == all.loss);
          for (const auto& [name, gradient] : some.gradients) {
            CAPTURE(name);
            CHECK(gradient == all.gradients.at(name));
          }
        }
  }
}

TEST_CASE(
    "which sequence is dropped how depends on its place in the step, not on the micro-batch") {
  TinyModel both(gpt2(), fp32(), batch());
  both.set_random();
  const std::vector<double> logits = both.logits();
  Batch second = batch();
  second.sequences = 1;
  second.ids.erase(second.ids.begin(), second.ids.begin() + 7);
  second.targets.erase(second.targets.begin(), second.targets.begin() + 7);
  TinyModel one(gpt2(), fp32(), second);
  one.set_random();
  one.worker().first_sequence = 1;
  const std::vector<double> expected(logits.begin() + 7 * 19, logits.end());
  // GEMMs may be summed in another order for another number of rows.
  const std::vector<double> alone = one.logits();
  for (std::size_t i = 0; i < alone.size(); ++i) CHECK(tests::near(alone[i], expected[i], 1e-5));
  one.worker().first_sequence = 0;
  CHECK(one.logits() != alone);
  one.worker().first_sequence = 1;
  one.worker().step = 1;
  CHECK(one.logits() != alone);
}

// A chunk has 128 rows where twice as many would take more than 512 MiB: 256 · 4 B · V, V > 2^19.
TEST_CASE("a loss in several chunks is the loss of the whole, the last chunk being shorter") {
  const models::ModelSpec spec = models::read_model(
      R"({"model_type": "llama", "hidden_size": 4, "num_attention_heads": 1,
          "intermediate_size": 4, "vocab_size": 524289, "num_hidden_layers": 1})",
      "wide", "wide", {});
  Batch long_batch{.sequences = 1, .length = 130, .ids = {}, .targets = {}};
  for (std::int32_t i = 0; i < 130; ++i) {
    long_batch.ids.push_back(i * 4001 % 524289);
    long_batch.targets.push_back(i % 7 == 2 ? kernels::kIgnoreIndex : i * 4003 % 524289);
  }
  std::map<std::string, std::vector<double>> whole;
  double loss = 0;
  for (const Loss kind : {Loss::full, Loss::chunked, Loss::fused}) {
    Strategy strategy = fp32();
    strategy.loss = kind;
    TinyModel model(spec, strategy, long_batch);
    model.set_random();
    const double value = model.step(true);
    check_boundaries(model.record());
    if (kind == Loss::full) loss = value;
    CHECK(value == loss);  // of each row alone
    for (const std::string& name : model.names(true)) {
      CAPTURE(name);
      const std::vector<double> gradient = model.gradient(name);
      if (kind == Loss::full) whole[name] = gradient;
      CHECK(deviation(gradient, whole.at(name)) < 1e-6);
    }
    const auto& ops = model.record().ops;
    const auto is_second = [](const OpRecord& op) { return op.name.starts_with("loss.chunks.1."); };
    // lm_head and loss forward, then lm_head and loss again, weight.grad and input.grad.
    CHECK(std::ranges::count_if(ops, is_second) == (kind == Loss::full      ? 0
                                                    : kind == Loss::chunked ? 6
                                                                            : 4));
  }
}

TEST_CASE("less workspace than a layer says is too little") {
  for (const Precision precision : {Precision::fp32, Precision::bf16_mixed}) {
    Strategy strategy = adapted(0, {"all-linear"});
    strategy.precision = precision;
    TinyModel model(qwen3(), strategy, batch());
    model.set_random();
    model.step();
    Tensor& block = model.worker().workspace;
    const std::int64_t bytes = block.bytes().value();
    // fp32: row sums of flash attention, 2 · 2 groups · 2 heads · 7 queries · 4 B. bf16: the panels
    // and the larger of A and B in bf16: 3 · 20 elements.
    CHECK(bytes == (precision == Precision::fp32 ? 224 : (16 << 20) + 120));
    block.reset();
    block =
        model.worker().memory.allocate("workspace", Category::workspace, DType::uint8, {bytes - 4});
    CHECK_THROWS_AS(model.step(), Error);
  }
}

}  // namespace
}  // namespace plimsoll::runtime::test

// What newer kinds of adapters, code and kernels multiply, beside plain LoRA and eager code: by
// hand from their packages' forward and backward.
#include <doctest/doctest.h>

#include <string>

#include "models/gpu_catalog.h"
#include "models/model_reader.h"
#include "models/storages.h"
#include "planner/time/hardware_flops.h"
#include "tests/near.h"

using namespace plimsoll;
using models::AdapterKind;
using models::Attention;
using models::Lora;
using models::Strategy;

namespace {

constexpr models::Batch kBatch{.seq_len = 16, .micro_batch = 2, .grad_accum = 3};
constexpr double kTokens = 16 * 2 * 3, kMicroSteps = 3;

// Layers of 24: q, o 24 · 24, k, v 24 · 12, three of 24 · 40; a head of 97 · 24.
const models::ModelSpec& llama() {
  static const models::ModelSpec model = models::read_model(
      R"({"model_type": "llama", "hidden_size": 24, "vocab_size": 97,
    "intermediate_size": 40, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512})",
      "llama", "llama", {});
  return model;
}
constexpr double kQ = 24 * 24, kK = 24 * 12, kMlp = 24 * 40, kHead = 97 * 24;
constexpr double kLayer = 2 * kQ + 2 * kK + 3 * kMlp;
constexpr double kScores = 2 * 2 * 16 * 24;  // of one token with 16 keys, 24 wide: both products

double hardware(const Strategy& strategy, const models::ModelSpec& model = llama(),
                const models::Batch& batch = kBatch) {
  planner::Question question;
  question.model = &model;
  question.strategy = strategy;
  question.cluster.gpu = models::find_gpu("h100-sxm-80gb");
  question.batch = batch;
  return planner::hardware_flops(question, planner::model_parts(model, strategy));
}

// Scores are stored, so that each query is multiplied with every key.
Strategy with(const Lora& lora) {
  Strategy s;
  s.attention = Attention::eager;
  s.lora = lora;
  return s;
}

// A base without gradients of weights, nor of the first layer's input, in which queries or keys
// have none either: one of four products of the scores' backward is not asked for.
constexpr double kFrozen =
    4 * (4 * kLayer + kHead) - 2 * (kQ + 2 * kK) + 3 * 4 * kScores - kScores / 2;

}  // namespace

// peft 0.21, tuners/ia3/layer.py: products with a vector, and no GEMM.
TEST_CASE("IA3 multiplies what its base does, and needs no gradient of the first layer's input") {
  const Lora ia3{.kind = AdapterKind::ia3,
                 .targets = {"k_proj", "v_proj", "down_proj"},
                 .feedforward = {"down_proj"}};
  CHECK(hardware(with(ia3)) == kTokens * kFrozen);
}

// tuners/vera/layer.py: x · A · B with frozen A and B of rank 4, which have input gradients alone;
// the first layer's A not even that.
TEST_CASE("VeRA multiplies with two frozen matrices, and has no gradient of them") {
  const Lora vera{.kind = AdapterKind::vera, .rank = 4, .targets = {"q_proj", "v_proj"}};
  const double into = 2 * 4 * 24, out = 2 * 4 * (24 + 12);  // of q and v together: A twice
  const double adapters = 4 * (2 * into + out) + 4 * out + 3 * (2 * into);
  CHECK(hardware(with(vera)) == kTokens * (kFrozen + adapters));
}

// tuners/lora/dora.py: B(A(1)) of the identity of the input's width in each forward, without a
// gradient; with dropout the base once more (base_result None), and its input gradient.
TEST_CASE("DoRA makes B·A of a whole identity in each forward, and with dropout its base again") {
  Lora lora{.rank = 4, .targets = {"q_proj", "v_proj"}};
  const double plain = hardware(with(lora));
  lora.dora = true;
  const double norms = 4 * 2 * (24.0 * 24 * 4 * 2 + 24.0 * 4 * (24 + 12));
  CHECK(hardware(with(lora)) - plain == kMicroSteps * norms);
  lora.dropout = 0.1;
  const double again = 4 * 2 * (kQ + kK) + 3 * 2 * (kQ + kK);
  CHECK(hardware(with(lora)) - plain == kMicroSteps * norms + kTokens * again);
}

// fms-acceleration, fast_lora.py (LoRA_QKV, LoRA_W): beside what LoRA multiplies, dY · B once more
// for the input's gradient, and A · X once more for B's; the input's gradient of the first layer,
// too, which a base in bf16 has none of.
TEST_CASE("fused adapters multiply two products twice, and ask for every input's gradient") {
  Strategy fused = with({.rank = 4, .targets = {"q_proj", "k_proj", "v_proj", "o_proj"}});
  fused.attention = Attention::flash;
  fused.param_dtype = DType::bf16;
  fused.quantize =
      models::Quantization{.storage = models::find_packed_storage("nf4-dq"), .kbit_prep = false};
  const double plain = hardware(fused);
  fused.kernels = models::Kernels::fused;
  const double outs = 2 * 4 * (24 + 12 + 12 + 24), ins = 2 * 4 * 4 * 24;
  const double first = 2 * (kQ + 2 * kK) + 2 * 4 * 3 * 24;
  CHECK(hardware(fused) - plain == kTokens * (4 * (outs + ins) + first));
}

TEST_CASE("code of another program, and compiled layers, multiply what Transformers' does") {
  Strategy s;
  s.precision = models::Precision::bf16;
  const double one = hardware(s);
  s.code = models::ModelCode::torchtune_0_6_1;
  CHECK(hardware(s) == one);
  s.loss = models::Loss::chunked;
  CHECK(tests::near(hardware(s), one, 1e-12));
  s = {};
  s.gpus = 2;
  s.data.zero = 3;
  const double two = hardware(s);
  CHECK(two == 2 * one);
  for (const models::ModelCode code :
       {models::ModelCode::torchtitan_2024_12, models::ModelCode::torchtitan_0_2_2}) {
    s.code = code;
    CHECK(hardware(s) == two);
  }
  s = {};
  s.compile = models::Compile::block;
  CHECK(hardware(s) == one);
}

// Two ranks do what one did: each multiplies with half of every weight, and of every head.
TEST_CASE("ranks that divide each layer multiply together what undivided ones do") {
  const models::ModelSpec even = models::read_model(
      R"({"model_type": "llama", "hidden_size": 24, "vocab_size": 96, "intermediate_size": 40,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 512, "tie_word_embeddings": false})",
      "even", "even", {});
  for (const models::RecomputeKind kind :
       {models::RecomputeKind::none, models::RecomputeKind::full}) {
    Strategy s;
    s.code = models::ModelCode::torchtitan_0_2_2;
    s.recompute.kind = kind;
    s.data.zero = 3;
    s.gpus = 3;
    const double undivided = hardware(s, even);
    CHECK(undivided > 0);
    s.gpus = 6;
    s.tp = 2;
    CHECK(hardware(s, even) == undivided);
  }
}

// A token visits two of four experts, whether they are stacked or a loop, packed or not.
TEST_CASE("experts of a loop multiply what stacked ones do, packed ones too") {
  const models::ModelSpec mixture = models::read_model(
      R"({"model_type": "mixtral", "hidden_size": 24, "vocab_size": 97, "intermediate_size": 40,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_local_experts": 4, "num_experts_per_tok": 2, "max_position_embeddings": 512,
    "sliding_window": null})",
      "mixtral", "mixtral", {});
  Strategy s;
  s.attention = Attention::eager;
  const double stacked = hardware(s, mixture);
  const double layer = 2 * kQ + 2 * kK + 24 * 4 + 2 * 3 * kMlp;
  CHECK(stacked == kTokens * (6 * (2 * layer + kHead) + 3 * 2 * kScores));
  s.transformers = {4, 57, 0};
  CHECK(hardware(s, mixture) == stacked);
  s.lora = Lora{.rank = 4, .targets = {"w1", "w2", "w3"}};
  const double adapted = hardware(s, mixture);
  s.quantize = models::Quantization{.storage = models::find_packed_storage("nf4")};
  s.attention = Attention::eager;
  CHECK(hardware(s, mixture) == adapted);
}

// What a layer's ops move, counted by hand from the Python that runs there: experts of a loop,
// Liger's kernels; and that activations which are offloaded change nothing of it.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "models/storages.h"
#include "tests/planner/written_work.h"

using namespace plimsoll;
using models::Phase;
using models::Strategy;
using tests::Written;

namespace {

constexpr models::Batch kBatch{.seq_len = 32, .micro_batch = 2};

constexpr const char* kLlama = R"({"model_type": "llama", "hidden_size": 64, "vocab_size": 1000,
  "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
  "num_key_value_heads": 1, "max_position_embeddings": 512})";

constexpr const char* kGpt2 = R"({"model_type": "gpt2", "n_embd": 64, "n_head": 2, "n_layer": 2,
  "vocab_size": 1000, "n_positions": 128, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0})";
constexpr const char* kQwen3 = R"({"model_type": "qwen3", "hidden_size": 64, "vocab_size": 1000,
  "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
  "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 512})";

// Bytes of the first op with that name.
double moved(const Written& step, const std::string& name, Phase phase) {
  for (std::size_t i = 0; i < step.program.ops.size(); ++i) {
    const models::Op& op = step.program.ops[i];
    if (op.name != name || op.phase != phase) continue;
    const double bytes = planner::rest_of_op(step.program, step.works, i).moved;
    if (bytes > 0) return bytes;
  }
  FAIL("no op that moves " << name);
  return 0;
}

struct Sum {
  double moved = 0, kernels = 0;
  bool operator==(const Sum&) const = default;
};
Sum all(const char* config, const Strategy& s, Phase phase) {
  const Written step(config, s, kBatch);
  Sum sum;
  for (std::size_t i = 0; i < step.program.ops.size(); ++i) {
    if (step.program.ops[i].phase != phase ||
        !planner::is_computed(step.program, step.program.ops[i]))
      continue;
    const planner::WorkSum of = planner::rest_of_op(step.program, step.works, i);
    sum.moved += of.moved, sum.kernels += of.kernels;
  }
  return sum;
}

}  // namespace

// MixtralSparseMoeBlock.forward of Transformers 4.57: 64 tokens of 64 values, 2 bytes each, visit 2
// of 4 experts of 96, so that each has 32 rows. Blocks of 512 bytes: 32 numbers or less are one.
TEST_CASE("experts of a loop: what marks their visits, and what each moves of its rows") {
  Strategy s;
  s.precision = models::Precision::bf16;
  s.transformers = {4, 57, 0};
  const Written step(R"({"model_type": "mixtral", "hidden_size": 64, "vocab_size": 1000,
      "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
      "num_key_value_heads": 1, "num_local_experts": 4, "num_experts_per_tok": 2,
      "max_position_embeddings": 512, "sliding_window": null})",
                     s, kBatch);
  const std::string experts = "block_sparse_moe.experts";
  const auto forward = [&](const std::string& op) {
    return moved(step, experts + op, Phase::forward);
  };
  constexpr double hidden = 64 * 64 * 2, rows = 32 * 64 * 2, wide = 32 * 96 * 2, few = 512;
  constexpr double ids = 128 * 8, mask = 4 * ids;
  CHECK(forward(".sum") == hidden);  // torch.zeros
  CHECK(forward(".visits") == ids + mask);  // one_hot of the chosen
  CHECK(forward(".visited") == mask + few);  // a sum for each expert, compared with 0
  CHECK(forward(".numbers") == few + few);  // nonzero()
  for (const char* const expert : {".0", ".1", ".2", ".3"}) {
    CAPTURE(expert);
    const auto of = [&](const char* op) { return forward(expert + std::string(op)); };
    CHECK(of(".places") == mask + few);  // torch.where: 32 pairs of numbers
    CHECK(of(".rows") == hidden + few + rows);
    CHECK(of(".act") == wide + wide);
    CHECK(of(".product") == wide + wide + wide);
    CHECK(of(".scores") == few + few + few);
    CHECK(of(".weighted") == rows + few + rows);
    CHECK(of(".sum") == hidden + hidden + rows + few);  // index_add_, read and written
    const auto back = [&](const char* op) {
      return moved(step, experts + expert + op, Phase::backward);
    };
    // Both factors of each product are read, and both gradients are written; silu's beside what
    // went in.
    CHECK(back(".product") == 5 * wide);
    CHECK(back(".act") == 3 * wide);
  }
}

// ops/rope.py turns queries and keys where they lie, by two tables; ops/swiglu.py reads both
// operands, and its backward writes their gradients in their place.
TEST_CASE("Liger's kernels read what they turn and the tables, and write in place") {
  Strategy s;
  s.precision = models::Precision::bf16;
  s.kernels = models::Kernels::liger;
  const Written step(kLlama, s, kBatch);
  constexpr double q = 64 * 64 * 2, k = q / 2, table = 32 * 32 * 2, wide = 64 * 96 * 2;
  for (const Phase phase : {Phase::forward, Phase::backward})
    CHECK(moved(step, "self_attn", phase) == 2 * (q + k) + 2 * table);
  CHECK(moved(step, "mlp.product", Phase::forward) == 3 * wide);
  CHECK(moved(step, "mlp.product", Phase::backward) == 5 * wide);
}

// trl's OffloadActivations copies beside the kernels.
TEST_CASE("activations that are offloaded leave every kernel of the forward what it was") {
  for (const char* const config : {kLlama, kGpt2, kQwen3})
    for (const models::Precision precision :
         {models::Precision::bf16, models::Precision::bf16_mixed, models::Precision::fp32}) {
      Strategy s;
      s.precision = precision;
      const Sum there = all(config, s, Phase::forward);
      s.offload.activations = true;
      CAPTURE(config);
      CHECK((all(config, s, Phase::forward) == there));
    }
}

// k_proj of the second layer, 256 values to 128, of 64 tokens; in 8 bits its operands are x of
// 64 x 256, the weight of 128 x 256 and the gradient of 64 x 128. Accelerate pads both operands of
// every product, which copies them; the gradient of the input lays out the weight besides, that of
// the weight both. Scales of rows are multiplied behind the gradients' products, in fp32: these are
// written, multiplied with two of them in place, and cast, of which they say 4 bytes more.
TEST_CASE(
    "what is copied for products in float8: padded, laid out, multiplied with scales behind") {
  constexpr double x = 64 * 256, w = 128 * 256, d = 64 * 128;
  using Moved = std::vector<double>;  // of the result, of the input's gradient, of the weight's
  const auto moved_by = [&](models::ModelCode code, models::Fp8Recipe recipe) {
    Strategy s;
    s.precision = models::Precision::fp8_mixed;
    s.code = code;
    s.fp8_recipe = recipe;
    const Written step(R"({"model_type": "llama", "hidden_size": 256, "vocab_size": 1000,
        "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 512})",
                       s, kBatch);
    Moved out;
    for (const planner::Works::GemmOf& of : step.works.gemms())
      if (std::string(step.program.ops[of.op].name) == "self_attn.k_proj" &&
          of.gemm.dtype == DType::fp8_e4m3)
        out.push_back(planner::rest_of_op(step.program, step.works, of.op).moved);
    return out;
  };
  using models::Fp8Recipe;
  using models::ModelCode;
  // The first layer stands apart: its q_proj, the first linear of all, stays in 16 bits.
  constexpr double forward = 2 * (x + w), of_input = 2 * (d + 2 * w), of_weight = 2 * 2 * (d + x);
  CHECK(moved_by(ModelCode::transformers, Fp8Recipe::tensorwise) ==
        Moved{forward, forward, of_input, of_weight, of_input, of_weight});
  CHECK(moved_by(ModelCode::torchtitan_2024_12, Fp8Recipe::tensorwise) ==
        Moved{0, 2 * w, 2 * (d + x)});
  CHECK(moved_by(ModelCode::torchtitan_2024_12, Fp8Recipe::rowwise) ==
        Moved{0, 2 * w + 12 * x, 2 * (d + x) + 12 * w});
}

// cub as expert_loop.cpp names it, of an A100's 108 processors of 2048 threads: beyond 4096 visits
// 5 waves of 8 blocks leave 4 bytes each, 5 * 108 * 8 * 4 = 17,280; at multiples of 256 bytes, and
// with 255 to begin at one, 17,663. Selecting has 8 bytes for each 4224 visits and for 32 more, at
// a multiple of 256, a counter's 256, and 255. The allocator hands out 512 bytes at a time. Beside
// that two copies of the visits in 8 bytes, and the count.
TEST_CASE("what looks for an expert's visitors takes cub's storage for a sum, or for selecting") {
  const auto beside_copies = [](std::int64_t experts, std::int64_t tokens) {
    Strategy s;
    s.precision = models::Precision::bf16;
    s.transformers = {4, 57, 0};
    const std::string config =
        R"({"model_type": "mixtral", "hidden_size": 64, "vocab_size": 1000,
        "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "num_experts_per_tok": 1, "max_position_embeddings": 512,
        "sliding_window": null, "num_local_experts": )" +
        std::to_string(experts) + "}";
    const Written step(config.c_str(), s, {.seq_len = tokens});
    const auto found = std::ranges::find_if(step.program.ops, [](const models::Op& op) {
      return std::string_view(op.name) == "block_sparse_moe.experts.0.places";
    });
    REQUIRE(found != step.program.ops.end());
    return found->scratch - round_up(Bytes(tokens * 8), 512) * 2;
  };
  // 16 places of two numbers each are 256 bytes: a block.
  CHECK(beside_copies(256, 4096) == Bytes(512 + 1024));  // 511 + 512: 33 tiles' states
  CHECK(beside_copies(256, 4097) == Bytes(512 + 17'920 - 512));
  // 64 tiles' states are 512 bytes, 65 tiles' are 520.
  CHECK(beside_copies(64, 32 * 4224) == Bytes(512 + 1024));
  CHECK(beside_copies(64, 32 * 4224 + 1) == Bytes(512 + 1536));
}

// Where nothing is cast behind the routing (autocast's stream is in fp32, as the scores are), these
// are what the division left in place: 64 tokens' two scores, 4 bytes each, which every expert
// reads.
TEST_CASE("experts of a loop read the scores that their routing returned, cast or made in place") {
  for (const models::Precision precision :
       {models::Precision::bf16_mixed, models::Precision::bf16, models::Precision::fp32}) {
    Strategy s;
    s.precision = precision;
    s.transformers = {4, 57, 0};
    const Written step(R"({"model_type": "mixtral", "hidden_size": 64, "vocab_size": 1000,
        "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "num_local_experts": 4, "num_experts_per_tok": 2,
        "max_position_embeddings": 512, "sliding_window": null})",
                       s, kBatch);
    // Blocks of 512 bytes: the scores, the places, what is gathered of 32 rows.
    const double scores =
        64 * 2 * (precision == models::Precision::bf16 ? 2 : 4) > 512 ? 1024 : 512;
    for (const char* const expert : {"0", "3"})
      CHECK(moved(step, std::string("block_sparse_moe.experts.") + expert + ".scores",
                  Phase::forward) == scores + 512 + 512);
  }
}

// hqq/core/quantize.py, HQQMatmulNoCacheMul: the product, to which the bias is added in place.
TEST_CASE("behind a product with an HQQ base nothing runs but a bias") {
  Strategy s;
  s.precision = models::Precision::bf16;
  s.param_dtype = DType::bf16;
  s.lora = models::Lora{.rank = 4, .targets = {"q_proj"}};
  s.quantize = models::Quantization{.storage = models::find_packed_storage("hqq")};
  const auto behind = [&](const char* config) {
    const Written step(config, s, kBatch);
    Sum sum;
    for (std::size_t i = 0; i < step.program.ops.size(); ++i) {
      const models::Op& op = step.program.ops[i];
      if (std::string_view(op.name) != "self_attn.k_proj.out" || op.phase != Phase::forward)
        continue;
      const planner::WorkSum of = planner::rest_of_op(step.program, step.works, i);
      sum.moved += of.moved, sum.kernels += of.kernels;
    }
    return sum;
  };
  CHECK((behind(kLlama) == Sum{0, 0}));
  // In each of two layers: 64 tokens of 64 values, read and written; the bias.
  const char* const biased = R"({"model_type": "llama", "hidden_size": 64, "vocab_size": 1000,
      "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
      "num_key_value_heads": 2, "max_position_embeddings": 512, "attention_bias": true})";
  CHECK((behind(biased) == Sum{2 * (2 * 64 * 64 * 2 + 512), 2}));
}

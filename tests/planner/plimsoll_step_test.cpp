// What our own runtime's step saves and allocates, against closed forms derived by hand.
#include <doctest/doctest.h>

#include <map>

#include "models/model_catalog.h"
#include "tests/planner/plimsoll_step.h"

using namespace plimsoll;
using namespace plimsoll::planner::plimsoll_stack;
using models::Attention;
using models::Category;
using models::Loss;
using models::RecomputeKind;
using models::Strategy;

namespace {

constexpr models::Batch kBatch{.seq_len = 8, .micro_batch = 2};
constexpr std::int64_t kTokens = 16;

// Activations that are live when the loss is known.
Bytes saved(const models::ModelSpec& model, const Strategy& strategy) {
  const Planned p = planned(model, strategy, kBatch);
  return in_category(p, step_named(p, "loss.sum"), Category::activations);
}

// What one more layer saves, bytes per token.
template <class Model>
std::int64_t saved_per_layer(Model model, const Strategy& strategy) {
  const Bytes layer = saved(model(5), strategy) - saved(model(4), strategy);
  REQUIRE(layer.value() % kTokens == 0);
  return layer.value() / kTokens;
}

models::ModelSpec llama(std::int64_t layers) {
  return small_llama(layers);
}
models::ModelSpec qwen3(std::int64_t layers) {
  return small_llama(layers, "qwen3");
}
models::ModelSpec gpt2(std::int64_t layers) {
  return small_gpt2(layers);
}
models::ModelSpec gpt2_dropout(std::int64_t layers) {
  return small_gpt2(layers, 0.1);
}

}  // namespace

// 16 tokens, hidden 64, keys and values 32, inner width 128; a byte a value. Forward the input of
// GEMMs that share it and each weight; backward the same turned, and gradients of results both
// ways.
TEST_CASE("what is cast to 8 bits, by hand") {
  Strategy s = bf16_strategy();
  s.precision = models::Precision::fp8_mixed;
  const Planned p = planned(small_llama(1), s, kBatch);
  const std::map<std::string, std::int64_t> expected{
      {"self_attn.q_proj.input.float8", 16 * 64},
      {"self_attn.q_proj.weight.float8", 64 * 64},
      {"self_attn.k_proj.weight.float8", 32 * 64},
      {"self_attn.v_proj.weight.float8", 32 * 64},
      {"self_attn.o_proj.input.float8", 16 * 64},
      {"self_attn.o_proj.weight.float8", 64 * 64},
      {"mlp.gate_proj.input.float8", 16 * 64},
      {"mlp.gate_proj.weight.float8", 128 * 64},
      {"mlp.up_proj.weight.float8", 128 * 64},
      {"mlp.down_proj.input.float8", 16 * 128},
      {"mlp.down_proj.weight.float8", 64 * 128},
      {"mlp.down_proj.out.grad.float8", 16 * 64},
      {"mlp.down_proj.out.grad.float8.transposed", 16 * 64},
      {"mlp.down_proj.weight.float8.transposed", 64 * 128},
      {"mlp.down_proj.input.float8.transposed", 16 * 128},
      {"mlp.gate_proj.input.float8.transposed", 16 * 64},
      {"mlp.gate_proj.out.grad.float8", 16 * 128},
      {"mlp.gate_proj.out.grad.float8.transposed", 16 * 128},
      {"mlp.up_proj.out.grad.float8", 16 * 128},
      {"mlp.up_proj.out.grad.float8.transposed", 16 * 128},
      {"mlp.gate_proj.weight.float8.transposed", 128 * 64},
      {"mlp.up_proj.weight.float8.transposed", 128 * 64},
      {"self_attn.o_proj.out.grad.float8", 16 * 64},
      {"self_attn.o_proj.out.grad.float8.transposed", 16 * 64},
      {"self_attn.o_proj.input.float8.transposed", 16 * 64},
      {"self_attn.o_proj.weight.float8.transposed", 64 * 64},
      {"self_attn.q_proj.input.float8.transposed", 16 * 64},
      {"self_attn.q_proj.out.grad.float8", 16 * 64},
      {"self_attn.q_proj.out.grad.float8.transposed", 16 * 64},
      {"self_attn.k_proj.out.grad.float8", 16 * 32},
      {"self_attn.k_proj.out.grad.float8.transposed", 16 * 32},
      {"self_attn.v_proj.out.grad.float8", 16 * 32},
      {"self_attn.v_proj.out.grad.float8.transposed", 16 * 32},
      {"self_attn.q_proj.weight.float8.transposed", 64 * 64},
      {"self_attn.k_proj.weight.float8.transposed", 32 * 64},
      {"self_attn.v_proj.weight.float8.transposed", 32 * 64}};
  std::map<std::string, std::int64_t> found;
  int scales = 0;
  for (const models::TensorDecl& tensor : p.program.tensors) {
    const std::string name = tensor.name;
    if (name.find(".float8") == std::string::npos) continue;
    CHECK(tensor.category == Category::temporaries);
    if (name.ends_with(".scale")) {
      ++scales;
      CHECK(tensor.bytes == Bytes(8));
    } else {
      CHECK(found.emplace(name, tensor.bytes.value()).second);
    }
  }
  CHECK(found == expected);
  CHECK(scales == 7);  // of the results' gradients
  // What is saved is what bf16 saves.
  CHECK(saved(small_llama(2), s) == saved(small_llama(2), bf16_strategy()));
}

// Llama-like: h x, n1, m, n2 | q widths of q, o | kv widths of k, v | f gate, up; two 1/rms and a
// log-sum-exp for each head in fp32: e (4 h + 2 q + 2 kv + 2 f) + 8 + 4 a. GPT-2: x, n1, m, n2, o
// and 3 h for qkv, 4 h for c_fc, and two statistics per norm: e (8 h + f) + 16 + 4 a.
TEST_CASE("a Llama layer saves e (4h + 2q + 2kv + 2f) + 8 + 4a bytes a token") {
  // 2 (256 + 128 + 64 + 256) + 8 + 16; fp32 twice the first part.
  CHECK(saved_per_layer(llama, bf16_strategy()) == 1432);
  CHECK(saved_per_layer(llama, fp32_strategy()) == 2840);
}

TEST_CASE(
    "Qwen3's head norms save their inputs and a statistic for each head: e (q + kv) + 4 (a + k)") {
  CHECK(saved_per_layer(qwen3, bf16_strategy()) == 1432 + 2 * 96 + 4 * 6);
}

TEST_CASE("a GPT-2 layer saves e (8h + f) + 16 + 4a bytes a token, dropout nothing") {
  CHECK(saved_per_layer(gpt2, bf16_strategy()) == 2 * (512 + 256) + 16 + 16);
  CHECK(saved_per_layer(gpt2_dropout, bf16_strategy()) == 2 * (512 + 256) + 16 + 16);
}

TEST_CASE(
    "Llama-3.1-8B saves 110 728 bytes a token and layer in bf16, 55 % of eager Transformers") {
  // 2 (4·4096 + 2·4096 + 2·1024 + 2·14336) + 8 + 4·32; eager Transformers: 200 840 (transformers,
  // models/llama/modeling_llama.py, read with torch 2.x' autograd formulas).
  const Planned p = planned(models::catalog_model("llama-3.1-8b"), bf16_strategy(),
                            {.seq_len = 4096, .micro_batch = 1});
  // 32 layers; beside them the last output and the final norm's result, 1/rms, ids and targets.
  CHECK(in_category(p, step_named(p, "loss.sum"), Category::activations) ==
        Bytes(4096LL * (32 * 110'728 + 2 * 2 * 4096 + 4 + 8)));
}

TEST_CASE("the stored attention matrix takes a·s values instead of the log-sum-exp") {
  Strategy s = bf16_strategy();
  s.attention = Attention::eager;
  CHECK(saved_per_layer(llama, s) == 1432 - 16 + 2 * 4 * 8);
  s.attention = Attention::math;
  CHECK(saved_per_layer(llama, s) == 1432 - 16 + 4 * 4 * 8);
  s.recompute.kind = RecomputeKind::selective;  // drops the matrix and both norms' results
  CHECK(saved_per_layer(llama, s) == 1432 - 16 - 2 * 2 * 64);
}

TEST_CASE("selective recomputation drops the two norms' results, 2 h e") {
  Strategy s = bf16_strategy();
  s.recompute.kind = RecomputeKind::selective;
  CHECK(saved_per_layer(llama, s) == 1432 - 256);
  CHECK(saved_per_layer(gpt2, s) == 1568 - 256);
}

TEST_CASE("full recomputation saves one residual a layer, every:2 one for two layers") {
  Strategy s = bf16_strategy();
  s.recompute.kind = RecomputeKind::full;
  CHECK(saved_per_layer(llama, s) == 128);
  CHECK(saved_per_layer(gpt2_dropout, s) == 128);
  s.recompute = {RecomputeKind::every, 2};  // 4 layers: two checkpoints; 6: three
  CHECK(saved(llama(6), s) - saved(llama(4), s) == Bytes(128 * kTokens));
  s.recompute.kind = RecomputeKind::sqrt;  // 9 layers: three of three
  const Bytes three = saved(llama(9), s);
  s.recompute = {RecomputeKind::every, 3};
  CHECK(saved(llama(9), s) == three);
  CHECK(three - saved(llama(6), s) == Bytes(128 * kTokens));
}

TEST_CASE("recursive recomputation saves as many residuals as it may hold") {
  Strategy full = bf16_strategy(), s = full;
  full.recompute.kind = RecomputeKind::full;
  for (const std::int64_t held : {1, 2, 3, 5, 6}) {
    s.recompute = {RecomputeKind::recursive, held};
    CHECK(saved(llama(6), s) == saved(llama(held), full));
  }
}

TEST_CASE("checkpoints around some layers save a residual each, the others all") {
  Strategy s = bf16_strategy();
  const Bytes none = saved(llama(6), s);
  s.recompute.kind = RecomputeKind::full;
  const Bytes full = saved(llama(6), s);
  for (std::int64_t n = 1; n <= 6; ++n) {
    s.recompute = {RecomputeKind::block, n};
    CHECK((none - saved(llama(6), s)).value() * 6 == (none - full).value() * n);
    s.recompute = {RecomputeKind::nth, n};
    CHECK((none - saved(llama(6), s)).value() * 6 == (none - full).value() * (6 / n));
  }
}

TEST_CASE("a frozen GEMM saves its input only for an adapter, and an adapter x·A") {
  Strategy s = bf16_strategy();
  s.lora = models::Lora{.rank = 4, .targets = {"q_proj", "v_proj"}};
  // n2 is gone: nothing reads it; two adapters of rank 4.
  CHECK(saved_per_layer(llama, s) == 1432 - 128 + 2 * 2 * 4);
  s.lora->targets = {"all-linear"};
  CHECK(saved_per_layer(llama, s) == 1432 + 7 * 2 * 4);
  s.lora->targets = {"down_proj"};  // neither n1 nor n2
  CHECK(saved_per_layer(llama, s) == 1432 - 256 + 2 * 4);
}

TEST_CASE("layers below everything that is trained save nothing") {
  Strategy s = bf16_strategy();
  s.train = {"model.layers.3.mlp.*"};  // of four
  const Planned p = planned(llama(4), s, kBatch);
  // The MLP's gate and up, and n2, of layer 3; m and its statistics are not needed: the gradient
  // stops there. Beside them the stream's end, the final norm's 1/rms, ids and targets; the head
  // is frozen, so the final norm's result is dead.
  CHECK(in_category(p, step_named(p, "loss.sum"), Category::activations) ==
        Bytes(kTokens * (2 * (128 + 128 + 64) + 128 + 4 + 8)));
  CHECK(step_named(p, "layers.2.mlp.act", models::Phase::backward) == p.timeline.steps.size());
}

TEST_CASE("logits: all of the micro-batch, or one chunk of at most 512 MiB") {
  Strategy s = bf16_strategy();
  const Planned full = planned(llama(2), s, kBatch);
  CHECK(in_category(full, step_named(full, "loss"), Category::logits) == Bytes(kTokens * 256 * 2));
  // 2^21 rows of the table in bf16: 128 rows of logits are 512 MiB; 300 tokens are three chunks.
  const models::ModelSpec wide = models::read_model(
      R"({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 2097152,
          "intermediate_size": 128, "num_hidden_layers": 2})",
      "wide", "wide", {});
  for (const Loss loss : {Loss::chunked, Loss::fused}) {
    s.loss = loss;
    const Planned p = planned(wide, s, {.seq_len = 100, .micro_batch = 3});
    CHECK(in_category(p, step_named(p, "loss.chunks.1.loss"), Category::logits) ==
          Bytes(512LL << 20));
    CHECK(step_named(p, "loss.chunks.2.loss") < p.timeline.steps.size());
    CHECK(step_named(p, "loss.chunks.3.loss") == p.timeline.steps.size());
  }
}

TEST_CASE("ZeRO-3 on two layers and two ranks: the peak, tensor by tensor") {
  // A layer has 4096 + 2048 + 2048 + 4096 + 3·8192 + 128 = 36 992 values, the embedding 16 384, the
  // tail 16 448: 106 816. T = 8. Peak: the first weight gradient of layer 1.
  //   resident   106 816 (2 bytes / 2 ranks) + 640 896 (12 / 2) + ids and targets 64 + rotary
  //              8·16·4 + workspace 32 MiB + scalars 256
  //   gathered   layers 1 and 0: 2 · 73 984
  //   gradients  the tail's, being reduced: 32 896; layer 1's: 73 984
  //   saved      two layers: 2 · 8 · 1432
  //   temporary  the stream's gradient 8·128, the GEMM's 8·256
  Strategy s = bf16_strategy();
  s.gpus = 2;
  s.data.zero = 3;
  const Planned p = planned(llama(2), s, {.seq_len = 8});
  const std::int64_t resident = 106'816 + 640'896 + 64 + 512 + (32 << 20) + 256;
  CHECK(p.peak.resident == Bytes(resident));
  CHECK(p.peak.bytes ==
        Bytes(resident + 147'968 + 32'896 + 73'984 + 2 * 11'456 + 8 * 128 + 8 * 256));
  CHECK(planner::name_of_op(p.program, p.peak.at) == "layers.1.mlp.down_proj.weight.grad");
  // In forward at most two units are whole: 32 768 + 73 984, then 2 · 73 984, then 73 984 + 32 896.
  const auto whole = [&](const char* op) {
    return in_category(p, step_named(p, op), Category::parameters) - Bytes(106'816);
  };
  CHECK(whole("embeddings") == Bytes(106'752));
  CHECK(whole("layers.0.mlp.act") == Bytes(147'968));
  CHECK(whole("layers.1.mlp.act") == Bytes(106'880));
  CHECK(whole("loss") == Bytes(32'896));
}

TEST_CASE("ZeRO-3 with checkpoints of two layers never holds more than two units") {
  Strategy s = bf16_strategy();
  s.gpus = 2;
  s.data.zero = 3;
  s.recompute = {RecomputeKind::every, 2};
  const Planned p = planned(llama(6), s, {.seq_len = 8});
  const Bytes stored = in_category(p, p.timeline.steps.size() - 1, Category::parameters);
  Bytes most;
  for (std::size_t i = 0; i < p.timeline.steps.size(); ++i)
    most = std::max(most, in_category(p, i, Category::parameters));
  CHECK(most - stored == Bytes(2 * 73'984));
}

TEST_CASE("ZeRO-2 holds whole gradients of two units, DDP of all") {
  Strategy s = bf16_strategy();
  s.gpus = 2;
  s.data.zero = 2;
  const auto gradients = [&] {
    const Planned p = planned(llama(4), s, {.seq_len = 8});
    Bytes most;
    for (std::size_t i = 0; i < p.timeline.steps.size(); ++i)
      most = std::max(most, in_category(p, i, Category::gradients));
    return most;
  };
  // Layers 0 and 1 whole, when layer 1's piece is taken; the half of the tail and of layers 3 and 2
  // is there, and now of 1.
  CHECK(gradients() == Bytes(2 * 73'984 + 3 * 36'992 + 16'448));
  s.data.zero = 0;
  CHECK(gradients() == Bytes(2 * (4 * 36'992 + 16'384 + 16'448)));
  s.data.zero = 1;
  CHECK(gradients() == Bytes(2 * (4 * 36'992 + 16'384 + 16'448)));
}

TEST_CASE("accumulating makes no second gradient, unless every micro-batch is reduced") {
  Strategy s = bf16_strategy();
  s.gpus = 2;
  const auto most = [&](bool deterministic) {
    const Planned p = planned(llama(4), s, {.seq_len = 8, .grad_accum = 3},
                              {.granularity = 1, .deterministic = deterministic});
    Bytes out;
    for (std::size_t i = 0; i < p.timeline.steps.size(); ++i)
      out = std::max(out, in_category(p, i, Category::gradients));
    return out;
  };
  const std::int64_t all = 2 * (4 * 36'992 + 16'384 + 16'448);
  for (const int zero : {0, 1}) {
    s.data.zero = zero;
    CHECK(most(false) == Bytes(all));
    CHECK(most(true) == Bytes(all + 2 * 73'984));  // two units in flight beside the sums
  }
  s.data.zero = 0;
  s.gpus = 1;  // nothing to reduce
  CHECK(most(true) == Bytes(all));
}

TEST_CASE("a tied table's gradient waits for the embedding, and the table is gathered twice") {
  Strategy s = bf16_strategy();
  s.gpus = 2;
  s.data.zero = 3;
  const Planned p = planned(small_llama(2, "llama", true), s, {.seq_len = 8});
  // The tail: 256·64 + 64 values; it is whole from the loss to the end of backward.
  const std::size_t last = step_named(p, "embeddings", models::Phase::backward);
  CHECK(in_category(p, last, Category::gradients) ==
        Bytes(2 * 16'448 + 2 * 36'992 + 36'992));  // tail and layer 0 whole, layer 1's piece
  int gathered = 0;
  for (const planner::Lifetime& life : p.timeline.lifetimes)
    gathered += p.program.tensors[static_cast<std::size_t>(life.tensor)].name ==
                            models::decisions::kTailUnit.gathered &&
                        life.birth >= 0
                    ? 1
                    : 0;
  CHECK(gathered == 2);
}

TEST_CASE("rows of logits begin at multiples of 16 bytes, whatever the vocabulary") {
  const auto logits = [](models::Precision precision) {
    Strategy s = bf16_strategy();
    s.precision = precision;
    const Planned p = planned(models::catalog_model("gpt2"), s, {.seq_len = 16});
    for (const models::TensorDecl& t : p.program.tensors)
      if (std::string_view(t.name) == models::decisions::kHead.out) return t.bytes;
    return Bytes(0);
  };
  // 50257 logits stand in rows of 50264 in 16 bits and of 50260 in fp32.
  CHECK(logits(models::Precision::bf16) == Bytes(16 * 50'264 * 2));
  CHECK(logits(models::Precision::fp32) == Bytes(16 * 50'260 * 4));
}

TEST_CASE("the workspace is the largest need of an op") {
  // Host, fp32: no GEMM needs any. Flash backward, 2 sequences · 2 key heads at once: row sums
  // of 2·8 queries in fp32: 256 B. Norms: 128 rows of 64 partial sums: 32 768 B. Embedding: 4 int32
  // a token: 256 B.
  Strategy s = fp32_strategy();
  s.device = models::Device::cpu;
  const auto workspace = [&](const models::ModelSpec& model, const models::Batch& batch) {
    const Planned p = planned(model, s, batch);
    for (const models::TensorDecl& t : p.program.tensors)
      if (std::string_view(t.name) == models::decisions::kWorkspace) return t.bytes;
    return Bytes(0);
  };
  CHECK(workspace(llama(2), kBatch) == Bytes(128 * 64 * 4));
  // GPT-2's biases: 128 rows of 256 in fp32, more than the two sums of a LayerNorm's 64.
  CHECK(workspace(small_gpt2(2), kBatch) == Bytes(128 * 256 * 4));
  // The gradient's norm: 5 million rows of 64, twice: 4883 chunks of 65536 each; 19 small tensors
  // of one chunk each; and one sum for each of the 21, in fp64.
  const models::ModelSpec wide = models::read_model(
      R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
          "vocab_size": 5000000, "num_attention_heads": 4, "num_key_value_heads": 2,
          "head_dim": 16, "num_hidden_layers": 2, "tie_word_embeddings": false})",
      "wide", "wide", {});
  CHECK(workspace(wide, kBatch) == Bytes((2 * 4883 + 19 + 21) * 8));
  s.precision = models::Precision::bf16_mixed;
  CHECK(workspace(llama(2), kBatch) == Bytes(16 << 20));
  // Llama-3.1-8B at 128 Ki tokens: one key head's four query heads need 4·131072·(128 + 1)·4 bytes,
  // more than the cap, so groups go one by one.
  CHECK(workspace(models::catalog_model("llama-3.1-8b"), {.seq_len = 131'072}) ==
        Bytes(4LL * 131'072 * 129 * 4));
  // At 8 Ki one needs 16 908 288: fifteen fit under 256 MiB, there are eight.
  CHECK(workspace(models::catalog_model("llama-3.1-8b"), {.seq_len = 8192}) ==
        Bytes(8LL * 4 * 8192 * 129 * 4));
  // On a GPU 8 Ki queries of four heads need (1 + 1 + 128) · 4 bytes, and 2 · 128 · 2 of dK and dV:
  // seven groups of 33 816 576 bytes fit, and 1 KiB is for all. fp32 needs the row sums alone, less
  // than cuBLASLt.
  s.device = models::Device::cuda;
  CHECK(workspace(models::catalog_model("llama-3.1-8b"), {.seq_len = 8192}) ==
        Bytes(7LL * 4 * 8192 * 257 * 4 + 768));
  // GPT-2: each head has its own key: 12 · 1024 · (2 + 64) · 4 bytes a sequence, 16 of them.
  CHECK(workspace(models::catalog_model("gpt2"), {.seq_len = 1024, .micro_batch = 16}) ==
        Bytes(16LL * 12 * 1024 * 65 * 4 + 768));
  s.precision = models::Precision::fp32;
  CHECK(workspace(models::catalog_model("llama-3.1-8b"), {.seq_len = 8192}) == Bytes(32 << 20));
}

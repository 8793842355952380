// What a step's ops ask of the GPU: GEMMs, bytes and kernels, of the program that a stack
// writes. Expected bytes are counted by hand from the Python of Transformers 5.17 and torch's
// derivatives.
#include "planner/program/work.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "models/gpu_catalog.h"
#include "models/model_catalog.h"
#include "models/model_reader.h"
#include "planner/plan.h"
#include "planner/stack_step.h"
#include "planner/time/compute_time.h"
#include "tests/near.h"
#include "tests/planner/written_work.h"

using namespace plimsoll;
using planner::Gemm;
using planner::WorkSum;
using tests::Written;

namespace {

// Layers of 4096 wide, 32 heads of 128, 8 key heads, 14336 in the MLP.
constexpr const char* kLlama = R"({"model_type": "llama", "hidden_size": 4096, "vocab_size": 32000,
  "intermediate_size": 14336, "num_hidden_layers": 2, "num_attention_heads": 32,
  "num_key_value_heads": 8, "max_position_embeddings": 8192})";
constexpr const char* kGpt2 = R"({"model_type": "gpt2", "n_embd": 1024, "n_head": 16, "n_layer": 2,
  "vocab_size": 50257, "n_positions": 1024, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0})";

models::Strategy bf16() {
  models::Strategy s;
  s.precision = models::Precision::bf16;
  return s;
}
constexpr models::Batch kBatch{.seq_len = 1024, .micro_batch = 2};
constexpr double kTokens = 2048;

std::size_t count(const WorkSum& sum, double m, double n, double k) {
  return static_cast<std::size_t>(std::ranges::count_if(
      sum.gemms, [&](const Gemm& g) { return g.m == m && g.n == n && g.k == k; }));
}

}  // namespace

TEST_CASE("a layer of Llama multiplies with each weight once, and twice in backward") {
  const planner::StepWork work = Written(kLlama, bf16(), kBatch).all();
  REQUIRE(work.layers.size() == 1);  // both layers are one of a group
  const WorkSum &forward = work.layers[0].forward, &backward = work.layers[0].backward;
  CHECK(forward.gemms.size() == 7);
  CHECK(backward.gemms.size() == 14);
  CHECK(count(forward, kTokens, 4096, 4096) == 2);  // q, o
  CHECK(count(forward, kTokens, 1024, 4096) == 2);  // k, v
  CHECK(count(forward, kTokens, 14336, 4096) == 2);  // gate, up
  CHECK(count(forward, kTokens, 4096, 14336) == 1);  // down
  CHECK(count(backward, kTokens, 14336, 4096) == 1);  // down's input
  CHECK(count(backward, 14336, 4096, kTokens) == 1);  // its weight
  CHECK(count(backward, 4096, 14336, kTokens) == 2);  // gate's and up's
  REQUIRE(forward.attentions.size() == 1);
  // Two GEMMs of 2048 tokens, 4096 wide, with half of 1024 keys and half a tile of 128.
  CHECK(forward.attentions[0].flops == 4 * 2048.0 * 4096 * (512 + 64));
  CHECK(backward.attentions[0].flops == 10 * 2048.0 * 4096 * (512 + 64));
  CHECK(count(work.ends.forward, kTokens, 32000, 4096) == 1);
}

// 2048 tokens, of which each rank has logits of 16000 classes, and rows of 4096 of its table.
TEST_CASE("classes that are divided among ranks: what each op of the loss and the table moves") {
  models::Strategy s;
  s.code = models::ModelCode::torchtitan_0_2_2;
  s.gpus = 4;
  s.tp = 2;
  s.data.zero = 3;
  const Written step(kLlama, s, kBatch);
  constexpr double n = kTokens, v = kTokens * 16000;
  const auto moved = [&](std::string_view name, models::Phase phase) {
    double bytes = 0;
    for (std::size_t i = 0; i < step.program.ops.size(); ++i) {
      const models::Op& op = step.program.ops[i];
      if (op.name == name && op.phase == phase && planner::is_computed(step.program, op))
        bytes += planner::rest_of_op(step.program, step.works, i).moved;
    }
    return bytes;
  };
  const auto forward = [&](const char* op) { return moved(op, models::Phase::forward); };
  const auto backward = [&](const char* op) { return moved(op, models::Phase::backward); };
  CHECK(forward("loss.logits.fp32") == 6 * v);
  CHECK(forward("loss.max.own") == 4 * v + 4 * n);
  CHECK(forward("loss.max") == 0);  // a message
  CHECK(forward("loss.logits.shifted") == 8 * v + 4 * n);
  CHECK(forward("loss.exp") == 8 * v);
  CHECK(forward("loss.sum.own") == 4 * v + 4 * n);
  CHECK(forward("loss.log") == 8 * n);
  CHECK(forward("loss.log_softmax") == 8 * v + 4 * n);
  // One value of each row by its number; a mask over what was found, which is changed.
  CHECK(forward("loss.found") == (16 + 9) * n);
  CHECK(backward("loss.grad.ones") == 4 * v + 24 * n);
  CHECK(backward("loss.exp") == 8 * v);
  CHECK(backward("loss.grad.sum") == 12 * v);
  CHECK(backward("loss.logits.fp32.grad") == 8 * v + 4 * n);
  CHECK(backward("lm_head.out.grad") == 6 * v);
  // A copy; from that and a mask the numbers in the rank's own rows.
  CHECK(forward("embed_tokens.ids") == (8 + 8 + 1 + 8) * n);
  // What is gathered of two sequences is joined, what is scattered is laid out: each as bf16.
  CHECK(forward("lm_head.gathered") == (2 + 2) * n * 4096 + 2 * n / 2 * 4096);
  CHECK(forward("embed_tokens.scattered.by_rank") == (2 + 2) * n * 4096);
  // Of one sequence what is gathered is whole as it comes.
  const Written one(kLlama, s, {.seq_len = 1024, .micro_batch = 1});
  const auto has = [&](std::string_view name) {
    return std::ranges::any_of(one.program.ops,
                               [&](const models::Op& op) { return op.name == name; });
  };
  CHECK(has("lm_head.gathered"));
  CHECK_FALSE(has("lm_head.gathered.by_rank"));
  CHECK(has("embed_tokens.scattered.by_rank"));
}

TEST_CASE("frozen weights have no gradient, and adapters six GEMMs more") {
  models::Strategy s = bf16();
  s.lora = models::Lora{};
  s.lora->rank = 16;
  s.lora->targets = {"q_proj"};
  const planner::StepWork work = Written(kLlama, s, kBatch).all();
  CHECK(work.layers[0].forward.gemms.size() == 7 + 2);
  CHECK(count(work.layers[0].forward, kTokens, 16, 4096) == 1);
  CHECK(count(work.layers[0].backward, 16, 4096, kTokens) == 1);
  CHECK(count(work.layers[0].backward, 4096, 4096, kTokens) == 0);
}

TEST_CASE("a checkpoint runs all GEMMs of the forward again but the last") {
  models::Strategy s = bf16();
  const planner::StepWork once = Written(kLlama, s, kBatch).all();
  s.recompute.kind = models::RecomputeKind::full;
  const planner::StepWork again = Written(kLlama, s, kBatch).all();
  CHECK(again.layers[0].backward.gemms.size() == once.layers[0].backward.gemms.size() + 6);
  CHECK(again.layers[0].backward.attentions.size() == 2);
  s.use_reentrant = true;  // whole
  CHECK(Written(kLlama, s, kBatch).all().layers[0].backward.gemms.size() ==
        once.layers[0].backward.gemms.size() + 7);
}

TEST_CASE("eager kernels move what Transformers' Python reads and writes") {
  const Written w(kLlama, bf16(), kBatch);
  const double x = kTokens * 4096;
  // LlamaRMSNorm of bf16: to fp32 6, pow 8, mean 4, times rsqrt 8, back 6, times the weight 4.
  CHECK(tests::near(w.bytes_each("input_layernorm", models::Phase::forward, x), 36, 1e-2));
  // Times the weight 4, times the input 6, its sum 2, to fp32 6, times rsqrt 8, times x 12, its sum
  // 4, spread over the row 4, pow 8, times 2 8, product 12, sum of both 12, back 6, and added to
  // the gradient that flows past 6.
  CHECK(
      tests::near(w.bytes_each("post_attention_layernorm", models::Phase::backward, x), 98, 1e-2));
  // apply_rotary_pos_emb: x cos 6, half of it negated 2, joined 4, times sin 6, sum 6.
  CHECK(tests::near(w.bytes_each("self_attn.q", models::Phase::forward, x), 24, 1e-2));
}

TEST_CASE("GPT-2's GELU of eight operations moves twice as much under autocast as in bf16") {
  const double values = kTokens * 4096;
  const auto moved = [&](const models::Strategy& s) {
    return Written(kGpt2, s, kBatch).bytes_each("mlp.act", models::Phase::forward, values);
  };
  // pow 4, product 4, sum 6, product, tanh and 1 + 4 each, half of x 4, product 6.
  CHECK(tests::near(moved(bf16()), 36, 1e-9));
  // A copy of x in fp32 6, then 8 + 8 + 10 + 8 + 8 + 8 + 4 + 10 (torch's list of operations that
  // autocast runs in fp32 has pow).
  CHECK(tests::near(moved({}), 70, 1e-9));
}

TEST_CASE("one kernel for a row, or for its neighbours, moves less; casts go with compiled code") {
  const WorkSum sum = Written(kGpt2, {}, kBatch).all().layers[0].forward;
  CHECK(sum.fused < sum.moved);
  CHECK(sum.compiled <= sum.fused);
  CHECK(sum.casts > 0);
  const planner::GpuRates gpu = planner::gpu_rates(models::find_gpu("a100-sxm-80gb"));
  models::Strategy s;
  const double eager = planner::cost_of_rest(gpu, planner::execution_of(s), sum).memory;
  CHECK(tests::near(eager, (sum.moved + sum.casts) / gpu.memory, 1e-12));
  s.compile = models::Compile::model;
  const double compiled = planner::cost_of_rest(gpu, planner::execution_of(s), sum).memory;
  CHECK(tests::near(compiled, sum.compiled / gpu.memory, 1e-12));
}

TEST_CASE("stored scores are multiplied head by head, and every score is moved") {
  models::Strategy s = bf16();
  s.attention = models::Attention::eager;
  const WorkSum sum = Written(kLlama, s, kBatch).all().layers[0].forward;
  CHECK(sum.attentions.empty());
  const auto heads = [](const Gemm& g) { return g.count == 64; };  // 2 sequences x 32 heads
  CHECK(std::ranges::count_if(sum.gemms, heads) == 2);
  const WorkSum flash = Written(kLlama, bf16(), kBatch).all().layers[0].forward;
  // 2 x 32 x 1024² scores: scaled 4, masked 4, to fp32 6, softmax 8, to bf16 6 at the least.
  CHECK(sum.moved - flash.moved > 28.0 * 64 * 1048576);
}

TEST_CASE("the time of any batch is that of its own program") {
  const planner::GpuRates gpu = planner::gpu_rates(models::find_gpu("a100-sxm-80gb"));
  models::ClusterSpec cluster;
  cluster.gpu = models::find_gpu("a100-sxm-80gb");
  std::vector<models::Strategy> strategies;
  for (const models::Stack stack : {models::Stack::pytorch, models::Stack::plimsoll})
    for (const int zero : {0, 3})
      for (const models::Loss loss :
           {models::Loss::full, models::Loss::chunked, models::Loss::fused})
        for (const models::RecomputeKind kind :
             {models::RecomputeKind::none, models::RecomputeKind::selective,
              models::RecomputeKind::full})
          for (const models::Attention attention :
               {models::Attention::flash, models::Attention::eager}) {
            if (kind == models::RecomputeKind::selective && attention == models::Attention::eager)
              continue;
            models::Strategy s;
            s.stack = stack;
            s.gpus = 4;
            s.data.zero = zero;
            s.loss = loss;
            s.recompute.kind = kind;
            s.attention = attention;
            strategies.push_back(planner::computing_part(s));
          }
  const models::ModelSpec model = models::read_model(kLlama, "made-up", "test");
  for (const models::Strategy& s : strategies) {
    const planner::ModelParts parts = planner::model_parts(model, s);
    const planner::ComputeTime time(parts, cluster, gpu, s);
    for (const std::int64_t sequences : {1, 2, 5, 16}) {
      const models::Batch batch{.seq_len = 1024, .micro_batch = sequences};
      const planner::StepWork own = Written(kLlama, s, batch).all();
      planner::ComputeCost cost;
      planner::WorkByBatch(own).cost(gpu, planner::execution_of(s), 2, cost);
      const planner::ComputeCost& by_line = time.of(batch);
      CHECK(tests::near(by_line.layers[0].forward.busy(), cost.layers[0].forward.busy(), 1e-4));
      CHECK(tests::near(by_line.layers[0].backward.busy(), cost.layers[0].backward.busy(), 1e-4));
      CHECK(tests::near(by_line.ends.forward.busy(), cost.ends.forward.busy(), 1e-4));
      CHECK(tests::near(by_line.ends.backward.busy() + 1, cost.ends.backward.busy() + 1, 1e-4));
      CHECK(by_line.layers[0].forward.launches == cost.layers[0].forward.launches);
    }
  }
}

TEST_CASE("rows of several samples have times of their own, though lengths and rows are equal") {
  const planner::GpuRates gpu = planner::gpu_rates(models::find_gpu("a100-sxm-80gb"));
  models::ClusterSpec cluster;
  cluster.gpu = models::find_gpu("a100-sxm-80gb");
  const models::ModelSpec model = models::read_model(kLlama, "made-up", "test");
  models::Strategy s = planner::computing_part(bf16());
  s.rows = models::Rows::flattened;
  s.attention = models::Attention::flash_2;
  const planner::ModelParts parts = planner::model_parts(model, s);
  const planner::ComputeTime time(parts, cluster, gpu, s);
  for (const auto& [tokens, samples] : {std::pair{1000, 4}, {2000, 4}, {2000, 2}, {1000, 4}}) {
    const models::Batch batch{
        .seq_len = 1024, .micro_batch = 4, .row_tokens = tokens, .row_samples = samples};
    planner::ComputeCost own;
    planner::WorkByBatch(Written(kLlama, s, batch).all())
        .cost(gpu, planner::execution_of(s), 4, own);
    CHECK(tests::near(time.of(batch).layers[0].forward.busy(), own.layers[0].forward.busy(), 1e-9));
  }
}

// An op on tensors of 10, 20 and 40 bytes: the first read, the second updated (read and written),
// the third let go, which moves nothing.
TEST_CASE(
    "an op moves its operands in one kernel, or what is said; fused code what goes in and out") {
  models::StepProgram program;
  for (const int bytes : {10, 20, 40}) program.tensors.push_back({"t", Bytes(bytes)});
  models::Op op;
  op.name = "op";
  op.operand_count = 3;
  program.ops.push_back(op);
  program.operands = {{.tensor = 0},
                      {.tensor = 1, .access = models::Access::update},
                      {.tensor = 2, .access = models::Access::release}};
  planner::Works works;
  const auto sum = [&] { return planner::rest_of_op(program, works, 0); };
  CHECK(sum().moved == 50);
  CHECK(sum().kernels == 1);
  CHECK(sum().fused == 50);
  CHECK(sum().compiled == 50);
  // One kernel that moves more than its operands moves that in fused code as well.
  works.moves(0, 100, 1);
  CHECK(sum().moved == 100);
  CHECK(sum().fused == 100);
  CHECK(sum().fused_kernels == 1);
  // Several are one there, and make nothing between them.
  works.moves(0, 100, 2);
  CHECK(sum().moved == 200);
  CHECK(sum().kernels == 3);
  CHECK(sum().fused == 50);
  CHECK(sum().fused_kernels == 1);
  CHECK(sum().compiled == 50);
  CHECK(sum().compiled_kernels == 1);
  works.casts(0, 30, 1);
  CHECK(sum().casts == 30);
  CHECK(sum().moved == 200);
  CHECK(sum().kernels == 4);
  // A GEMM is a kernel; what it moves is a matter of its sizes.
  works.clear();
  works.gemm(0, {DType::bf16, 2, 3, 5});
  CHECK(sum().moved == 0);
  CHECK(sum().kernels == 1);
  CHECK(sum().fused_kernels == 1);
  CHECK(planner::flops_of({DType::bf16, 2, 3, 5, 7}) == 2 * 2 * 3 * 5 * 7);
}

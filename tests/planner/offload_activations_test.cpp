// Activations on the host (planner/stacks/pytorch/offloading.h): what is refused, the host's bytes,
// and the time that copies take. Device bytes: dry_runs_activations_test.cpp.
#include <doctest/doctest.h>

#include "models/gpu_catalog.h"
#include "models/model_catalog.h"
#include "models/storages.h"
#include "planner/plan.h"
#include "planner/time/offload_time.h"
#include "tests/near.h"
#include "tests/planner/refusal_rows.h"

using namespace plimsoll;
using models::Loss;
using models::RecomputeKind;
using tests::check_refusals;
using tests::kNothing;
using tests::Refusable;
using tests::shard_by_fsdp;

namespace {
void pack(Refusable& a, const char* storage) {
  a.s.lora = models::Lora{.rank = 8};
  a.s.param_dtype = DType::bf16;
  a.s.quantize = models::Quantization{.storage = models::find_packed_storage(storage)};
}
}  // namespace

TEST_CASE("activations are offloaded where each layer is a checkpoint, or none is") {
  const auto offload = [](Refusable& a) {
    a.model = "llama-3.2-1b", a.s.offload.activations = true,
    a.s.recompute = {.kind = RecomputeKind::full};
  };
  check_refusals(
      {
          {kNothing, [](Refusable&) {}},
          {kNothing, [](Refusable& a) { shard_by_fsdp(a); }},
          {"--offload activations together with params",
           [](Refusable& a) { a.s.offload.params = true; }},
          {"--offload activations with --offload-pin no",
           [](Refusable& a) { a.s.offload.pinned = false; }},
          {kNothing, [](Refusable& a) { a.s.recompute = {}; }},
          {"--offload activations is modelled with --recompute none, or full",
           [](Refusable& a) { a.s.recompute = {.kind = RecomputeKind::sqrt}; }},
          {"--offload activations with Transformers before 5.0",
           [](Refusable& a) {
             a.s.transformers = {4, 57, 0};
           }},
          {"--offload activations with --kernels",
           [](Refusable& a) { a.s.kernels = models::Kernels::liger; }},
          {"--offload activations with --loss", [](Refusable& a) { a.s.loss = Loss::chunked; }},
          {"--offload activations with --fsdp-version 1",
           [](Refusable& a) { shard_by_fsdp(a), a.s.data.fsdp_version = 1; }},
          {"--offload activations with --freeze or --train",
           [](Refusable& a) { a.s.freeze = {"*norm*"}; }},
          {"--offload activations with a base that bitsandbytes did not pack",
           [](Refusable& a) { pack(a, "hqq"); }},
          {"--offload activations with --quantize int8", [](Refusable& a) { pack(a, "int8"); }},
          {"--offload activations under FSDP with a packed base",
           [](Refusable& a) { shard_by_fsdp(a), pack(a, "nf4"); }},
          {kNothing, [](Refusable& a) { pack(a, "nf4-dq"); }},
          {kNothing, [](Refusable& a) { a.s.optimizer = models::Optimizer::adam8bit; }},
          {kNothing, [](Refusable& a) { a.s.optimizer = models::Optimizer::sgd; }},
          {"--offload activations is modelled of decoders whose layers read the embeddings",
           [](Refusable& a) { a.model = "gpt2"; }},
          {"--offload activations of GPT-NeoX", [](Refusable& a) { a.model = "pythia-1.4b"; }},
      },
      offload);
}

TEST_CASE("without checkpoints they are offloaded of steps whose nodes were traced") {
  const auto offload = [](Refusable& a) {
    a.model = "llama-3.2-1b", a.s.offload.activations = true;
  };
  const auto adapt = [](Refusable& a) { a.s.lora = models::Lora{.rank = 8}; };
  check_refusals(
      {
          {kNothing, [](Refusable&) {}},
          {kNothing, adapt},
          {kNothing, [](Refusable& a) { pack(a, "nf4-dq"); }},
          {kNothing, [](Refusable& a) { a.s.attention = models::Attention::cudnn; }},
          {kNothing, [](Refusable& a) { a.model = "mistral-7b-v0.1", a.batch.seq_len = 4095; }},
          {"--offload activations without --recompute full is modelled with PyTorch's own flash",
           [](Refusable& a) { a.model = "mistral-7b-v0.1", a.batch.seq_len = 4096; }},
          {"--offload activations without --recompute full is modelled with PyTorch's own flash",
           [](Refusable& a) { a.s.precision = models::Precision::fp32; }},
          {"--offload activations without --recompute full is modelled with PyTorch's own flash",
           [](Refusable& a) { a.s.attention = models::Attention::eager; }},
          {"--offload activations without --recompute full is modelled with PyTorch's own flash",
           [](Refusable& a) { a.s.attention = models::Attention::flash_2; }},
          {"--offload activations without --recompute full is modelled with PyTorch's own flash",
           [](Refusable& a) { a.s.attention = models::Attention::efficient; }},
          {"--offload activations without --recompute full is modelled of llama",
           [](Refusable& a) { a.model = "phi-3-mini-4k"; }},
          {"--offload activations without --recompute full is not modelled under FSDP",
           [](Refusable& a) { shard_by_fsdp(a); }},
          {"--offload activations without --recompute full is modelled with adapters",
           [&](Refusable& a) { adapt(a), a.s.lora->dropout = 0.1; }},
          {"--offload activations without --recompute full is modelled with adapters",
           [&](Refusable& a) { adapt(a), a.s.lora->modules_to_save = {"lm_head"}; }},
      },
      offload);
}

// SDPA takes the memory-efficient kernel or the math path there: what these save was not traced.
TEST_CASE("without checkpoints they are not offloaded on cards that have no FlashAttention") {
  const models::ModelSpec model = models::catalog_model("llama-3.2-1b");
  planner::Question question;
  question.model = &model;
  question.batch = {.seq_len = 512};
  question.strategy.precision = models::Precision::fp16;
  question.strategy.offload.activations = true;
  for (const char* gpu : {"v100-sxm-32gb", "t4"}) {
    question.cluster.gpu = models::find_gpu(gpu);
    CHECK_THROWS_WITH_AS(
        planner::plan(question),
        doctest::Contains("is modelled from compute capability 8.0 on, with FlashAttention"),
        Error);
  }
  for (const char* gpu : {"h100", "a100-80gb"}) {
    question.cluster.gpu = models::find_gpu(gpu);
    CHECK_NOTHROW(planner::plan(question));
  }
}

// llama-3.2-1b, 16 layers of 2048, 128256 words; 1024 tokens in bf16. Pinned in powers of two: the
// inputs of 16 layers, 4 MiB each; what the final norm saved: its input in fp32, 8 MiB, a
// root of each row, 4 KiB, and the result, 4 MiB; log_softmax in fp32, 525,336,576 bytes, and so
// 512 MiB; token ids and targets, 8 KiB each.
TEST_CASE("the host keeps layers' inputs and what the norm and the loss saved") {
  const models::ModelSpec model = models::catalog_model("llama-3.2-1b");
  planner::Question question;
  question.model = &model;
  question.strategy.precision = models::Precision::bf16;
  question.strategy.recompute = {.kind = RecomputeKind::full};
  question.strategy.offload.activations = true;
  question.batch = {.seq_len = 1024};
  const reports::Plan plan = planner::plan(question);
  const std::int64_t mib = 1 << 20, kib = 1 << 10;
  CHECK(plan.host_pinned == Bytes((16 * 4 + 8 + 4 + 512) * mib + (4 + 8 + 8) * kib));
  CHECK(plan.host_node == plan.host_pinned);
  question.strategy.gpus = 4;
  CHECK(planner::plan(question).host_node == plan.host_pinned * 4);
  question.cluster.host_memory = plan.host_pinned * 4;
  CHECK(planner::plan(question).host_fits);
  question.cluster.host_memory = plan.host_pinned * 4 - Bytes(1);
  CHECK_FALSE(planner::plan(question).host_fits);
}

// The same model without checkpoints. Of a layer, in MiB: two norms' inputs in fp32, 8 each, and
// what they normalized, 4 each; what q's and gate's projection read, 4 each; keys and values of
// 512, 1 each, queries and the result of attention, 4 each; gate, up and their product of 8192, 16
// each, and the activated gate; and the roots and the logarithms of sums, 4 KiB twice and 128 KiB.
// Of the model: the final norm's and the loss's as above, token ids and targets, and cosines and
// sines of 64, 128 KiB each.
TEST_CASE("without checkpoints the host keeps what every node of a layer saved") {
  const models::ModelSpec model = models::catalog_model("llama-3.2-1b");
  planner::Question question;
  question.model = &model;
  question.strategy.precision = models::Precision::bf16;
  question.strategy.offload.activations = true;
  question.batch = {.seq_len = 1024};
  const reports::Plan plan = planner::plan(question);
  const std::int64_t mib = 1 << 20, kib = 1 << 10;
  const std::int64_t layer =
      (2 * 8 + 2 * 4 + 2 * 4 + 2 * 1 + 2 * 4 + 4 * 16) * mib + (2 * 4 + 128) * kib;
  CHECK(plan.host_pinned == Bytes(16 * layer + (8 + 4 + 512) * mib + (4 + 8 + 8 + 2 * 128) * kib));
  CHECK_FALSE(plan.time.step_seconds.has_value());
}

// Of 32 GB/s 0.8: 25.6. 2048 tokens: layers' inputs 2048 * 2048 * 16 * 2 = 134,217,728
// bytes, 5.24288 ms; the loss 2048 * 128256 * 4 = 1,050,673,152 bytes, 41.04192 ms out and as much
// back.
TEST_CASE("layers' copies hide behind the layers, the loss's behind nothing") {
  const models::ModelSpec model = models::catalog_model("llama-3.2-1b");
  models::Strategy s;
  s.precision = models::Precision::bf16;
  s.offload.activations = true;
  models::Gpu gpu;
  gpu.pcie_bandwidth = 32e9;
  const planner::ModelParts parts = planner::model_parts(model, s);
  const auto time = [&](double compute) {
    return planner::offload_time(gpu, parts, s, {.seq_len = 2048}, compute);
  };
  CHECK(tests::near(time(1).seconds, 82.08384e-3 + 2 * 5.24288e-3, 1e-9));
  CHECK(time(1).bytes == 134'217'728.0 + 1'050'673'152.0);
  CHECK(tests::near(time(1).exposed, 82.08384e-3, 1e-9));
  // A quarter of 8 ms is 2: 3.24288 ms of copies out are left, and none back.
  CHECK(tests::near(time(8e-3).exposed, 82.08384e-3 + 3.24288e-3, 1e-9));
  CHECK(tests::near(time(0).exposed, 82.08384e-3 + 2 * 5.24288e-3, 1e-9));
}

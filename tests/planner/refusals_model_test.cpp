// What stack pytorch refuses because of the model, with its name.
#include "models/gpu_catalog.h"
#include "planner/plan.h"
#include "tests/planner/refusal_rows.h"

using namespace plimsoll;
using tests::kNothing;
using tests::pack_base;
using tests::Refusable;
using tests::shard_by_fsdp;

namespace {

std::string planned(const Refusable& asked) {
  const models::ModelSpec model = models::catalog_model(asked.model);
  planner::Question question;
  question.model = &model;
  question.strategy = asked.s;
  question.batch = {.seq_len = 128};
  question.cluster.gpu = models::find_gpu("a100-sxm-80gb");
  question.remedies = false;
  try {
    (void)planner::plan(question);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::unsupported);
    return error.message();
  }
  return kNothing;
}

}  // namespace

TEST_CASE("a head that is more than its last GEMM is planned whole on each GPU") {
  Refusable a{.model = "bert-base-uncased"};
  CHECK(planned(a) == kNothing);
  shard_by_fsdp(a, 2, 3);
  CHECK(planned(a) ==
        "--zero 3: sharded parameters of bert are not modelled yet (the head's is not its last "
        "GEMM alone)");
  shard_by_fsdp(a, 2, 2);
  CHECK(planned(a).starts_with("--zero 2: sharded parameters of bert"));
}

TEST_CASE("packed bases: of decoders, in groups of those with RMSNorm, AWQ of no experts") {
  const auto packed = [](const char* model, const char* storage) {
    Refusable a{.model = model};
    pack_base(a, storage);
    return a;
  };
  CHECK(planned(packed("bert-base-uncased", "nf4")) ==
        "--quantize: packed GEMMs of bert are not modelled yet");
  CHECK(planned(packed("gpt2", "gptq")) ==
        "--quantize gptq of gpt2 is not modelled yet (models with RMSNorm are)");
  Refusable awq = packed("mixtral-8x7b", "awq");
  awq.s.precision = models::Precision::fp16_mixed;
  awq.s.param_dtype = DType::fp16;
  awq.s.lora->targets = {"attention"};
  CHECK(planned(awq) == "--quantize awq of mixtral, a mixture of experts, is not modelled yet");
  awq.model = "mistral-7b-v0.3";
  CHECK(planned(awq) == kNothing);
  Refusable hqq = packed("llama-2-7b", "hqq");
  hqq.s.transformers = {4, 51, 0};
  hqq.s.param_dtype = DType::bf16;
  hqq.s.lora->targets = {"attention"};
  CHECK(planned(hqq) == kNothing);
  hqq.s.quantize->held_in = DType::bf16;
  CHECK(planned(hqq) ==
        "--quant-storage bf16 with --quantize hqq (view_as_float) is not modelled yet");
}

TEST_CASE("TRL's tiles: of Transformers' decoders, full rows, on one GPU and DDP") {
  using models::Loss;
  const auto tiled = [](const char* model, auto change) {
    Refusable a{.model = model};
    a.s.loss = Loss::tiled;
    change(a);
    return planned(a);
  };
  const auto nothing = [](Refusable&) {};
  for (const char* model : {"llama-2-7b", "gpt2", "gemma-2-2b", "mixtral-8x7b"})
    CHECK(tiled(model, nothing) == kNothing);
  CHECK(tiled("phi-2", nothing) == "--loss tiled is not modelled of a head with a bias yet");
  CHECK(tiled("bert-base-uncased", nothing) ==
        "--loss tiled is modelled of decoders whose head reads the last norm's result");
  CHECK(tiled("llama-2-7b", [](Refusable& a) { tests::shard_by_fsdp(a, 2); }) == kNothing);
  const char* const sharded =
      "--loss tiled under FSDP is modelled with --fsdp-version 2, a head that is not tied and no "
      "adapters (--loss full plans the model's own loss)";
  CHECK(tiled("llama-2-7b", [](Refusable& a) { tests::shard_by_fsdp(a, 1); }) == sharded);
  CHECK(tiled("gemma-2b", [](Refusable& a) { tests::shard_by_fsdp(a, 2); }) == sharded);
  const auto adapts = [](Refusable& a) {
    tests::shard_by_fsdp(a, 2);
    a.s.lora = models::Lora{.targets = {"all-linear"}};
  };
  CHECK(tiled("llama-2-7b", adapts) == sharded);
  CHECK(tiled("llama-2-7b", [](Refusable& a) { a.s.kernels = models::Kernels::liger; }) ==
        "--loss tiled is modelled of Transformers' own models without --kernels");
  const char* const releases =
      "--loss tiled is modelled with Transformers 5.0 and PyTorch 2.8, and later";
  CHECK(tiled("llama-2-7b", [](Refusable& a) { a.s.transformers = {4, 57, 0}; }) == releases);
  CHECK(tiled("llama-2-7b", [](Refusable& a) { a.s.torch = {2, 7, 1}; }) == releases);
  CHECK(tiled("llama-2-7b", [](Refusable& a) { a.s.torch = {2, 8, 0}; }) == kNothing);
  CHECK(tiled("llama-2-7b", [](Refusable& a) { a.s.rows = models::Rows::padded; }) ==
        "--loss tiled with rows that hold padding or several samples is not modelled yet");
}

TEST_CASE("GPT-BigCode's own loss of older releases is planned over a packed base") {
  Refusable a{.model = "santacoder"};
  pack_base(a, "nf4-dq");
  a.s.precision = models::Precision::bf16_mixed;
  a.s.param_dtype = DType::bf16;
  a.s.quantize->kbit_prep = true;
  CHECK(planned(a) == kNothing);
  a.s.transformers = {4, 45, 0};
  a.s.torch = {2, 4, 1};
  a.s.attention = models::Attention::flash_2;
  CHECK(planned(a) == kNothing);
  a.s.quantize->kbit_casting = true;
  CHECK(planned(a) == kNothing);
}

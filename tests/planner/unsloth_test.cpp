// Unsloth's models on stack pytorch: what is refused, and how its fused loss is cut.
#include <doctest/doctest.h>

#include "models/gpu_catalog.h"
#include "planner/plan.h"
#include "planner/stacks/pytorch/ends/loss_unsloth.h"
#include "tests/planner/refusal_rows.h"

using namespace plimsoll;
using models::Kernels;
using models::Loss;
using models::Precision;
using models::RecomputeKind;
using models::Release;
using tests::check_refusals;
using tests::kNothing;
using tests::Refusable;

namespace {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

// As `--trainer unsloth` asks.
void unsloth(Refusable& a) {
  a.s.kernels = Kernels::unsloth;
  a.s.transformers = Release{4, 57, 0};
  a.s.attention = models::Attention::flash_2;
  a.s.precision = Precision::bf16_mixed;
  a.s.param_dtype = DType::bf16;
  a.s.lora = models::Lora{.targets = {"all-linear"}};
  a.s.loss = Loss::fused;
  a.s.recompute = {.kind = RecomputeKind::full};
  a.s.offload.activations = true;
}

void pack(Refusable& a, const char* storage) {
  a.s.quantize = models::Quantization{.storage = models::find_packed_storage(storage)};
}

}  // namespace

TEST_CASE("Unsloth: what it trains, one GPU, adapters of all projections") {
  check_refusals(
      {
          {kNothing, [](Refusable&) {}},
          {kNothing, [](Refusable& a) { a.s.offload.activations = false; }},
          {kNothing, [](Refusable& a) { a.s.attention = models::Attention::flash; }},
          {"--kernels unsloth with mistral is modelled with --attention flash-2",
           [](Refusable& a) {
             a.model = "mistral-7b-v0.3", a.s.attention = models::Attention::flash;
           }},
          {kNothing, [](Refusable& a) { a.model = "mistral-7b-v0.3"; }},
          {kNothing, [](Refusable& a) { a.model = "qwen3-8b"; }},
          {kNothing, [](Refusable& a) { a.model = "qwen2.5-7b"; }},
          {"--kernels unsloth: Unsloth's models are modelled for llama, mistral, qwen2 and qwen3, "
           "not for gemma2",
           [](Refusable& a) { a.model = "gemma-2-2b"; }},
          {"--kernels unsloth is modelled on one GPU", [](Refusable& a) { a.s.gpus = 2; }},
          {"--kernels unsloth is modelled as of 2025.11.6",
           [](Refusable& a) { a.s.transformers = models::kTransformers; }},
          {"--kernels unsloth is modelled as of 2025.11.6",
           [](Refusable& a) {
             a.s.transformers = Release{4, 56, 2};
           }},
          {"--kernels unsloth without --lora-rank", [](Refusable& a) { a.s.lora.reset(); }},
          {"--kernels unsloth with --lora-dropout", [](Refusable& a) { a.s.lora->dropout = 0.1; }},
          {"--kernels unsloth --adapter-dtype bf16",
           [](Refusable& a) { a.s.lora->dtype = DType::bf16; }},
          {"--kernels unsloth with --use-dora", [](Refusable& a) { a.s.lora->dora = true; }},
          {"--kernels unsloth with --modules-to-save",
           [](Refusable& a) { a.s.lora->modules_to_save = {"lm_head"}; }},
          {"--kernels unsloth is modelled with adapters of all seven projections",
           [](Refusable& a) { a.s.lora->targets = {"attention"}; }},
          {kNothing,
           [](Refusable& a) {
             a.s.lora->targets = {"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                  "gate_proj", "up_proj", "down_proj"};
           }},
          {"--kernels unsloth trains adapters alone", [](Refusable& a) { a.s.train = {"*norm*"}; }},
      },
      unsloth);
}

TEST_CASE("Unsloth: how it trains") {
  check_refusals(
      {
          {"--kernels unsloth trains under autocast",
           [](Refusable& a) { a.s.precision = Precision::bf16; }},
          {"--kernels unsloth loads weights in what it computes in: --param-dtype fp16",
           [](Refusable& a) { a.s.precision = Precision::fp16_mixed; }},
          {kNothing,
           [](Refusable& a) {
             a.s.precision = Precision::fp16_mixed, a.s.param_dtype = DType::fp16;
           }},
          {kNothing, [](Refusable& a) { pack(a, "nf4-dq"); }},
          {"--kernels unsloth --quantize nf4: its load_in_4bit is nf4-dq",
           [](Refusable& a) { pack(a, "nf4"); }},
          {"--kernels unsloth holds packed values in uint8: no --quant-storage",
           [](Refusable& a) { pack(a, "nf4-dq"), a.s.quantize->held_in = DType::bf16; }},
          {"--kernels unsloth has a prepare_model_for_kbit_training of its own",
           [](Refusable& a) { pack(a, "nf4-dq"), a.s.quantize->kbit_prep = true; }},
          {"--kernels unsloth is modelled with its fused loss",
           [](Refusable& a) { a.s.loss = Loss::full; }},
          {"--kernels unsloth recomputes every layer, whatever use_gradient_checkpointing says",
           [](Refusable& a) {
             a.s.recompute = {.kind = RecomputeKind::none}, a.s.offload.activations = false;
           }},
          {"--kernels unsloth has checkpoints that are reentrant",
           [](Refusable& a) { a.s.use_reentrant = false; }},
          {kNothing, [](Refusable& a) { a.s.use_reentrant = true; }},
          {"--kernels unsloth keeps checkpoints on the host",
           [](Refusable& a) { a.s.offload.params = true; }},
          {"--kernels unsloth compiles its loss by itself: no --compile",
           [](Refusable& a) { a.s.compile = models::Compile::block; }},
          {"--kernels unsloth with --optimizer-in-backward",
           [](Refusable& a) { a.s.optimizer_in_backward = true; }},
          {"--kernels unsloth with rows that hold padding",
           [](Refusable& a) { a.s.rows = models::Rows::padded; }},
      },
      unsloth);
}

// unsloth_zoo, get_chunk_size: max(round(T * V * 4 / (free / 2) / 4) * 4, 1) chunks; torch.chunk
// makes them of ceil(T / chunks) rows.
TEST_CASE("Unsloth's fused loss: one chunk, until logits in fp32 would fill what is free") {
  using planner::pytorch::unsloth_chunk_rows;
  // 2048 * 131072 * 4 B = 1 GiB; of 40 GiB free a quarter of half of it is 0.0125: one chunk.
  CHECK(unsloth_chunk_rows(2048, 131072, 40 * kGiB) == 2048);
  CHECK(unsloth_chunk_rows(2048, 131072, 0) == 2048);
  // 0.5 rounds to 0, 0.5 and a little to 1, 1.5 to 2: four and eight chunks.
  CHECK(unsloth_chunk_rows(2048, 131072, kGiB) == 2048);
  CHECK(unsloth_chunk_rows(2049, 131072, kGiB) == 513);  // ceil(2049 / 4)
  CHECK(unsloth_chunk_rows(3 * 2048, 131072, kGiB) == 768);  // 6144 / 8
  CHECK(unsloth_chunk_rows(2 * 2048, 131072, kGiB) == 1024);  // 1: four
}

// The package on the dry CUDA runtime with a card of 6 GiB: 1.66 GB were free at the first loss, so
// that it is cut in four; the third step's peak was 4,331,839,488 bytes, with one tensor of ids
// where a batch has three.
TEST_CASE("Unsloth's fused loss on a card that it would fill: four chunks, and their peak") {
  Refusable a;
  unsloth(a);
  a.s.lora->rank = 16;
  a.s.optimizer = models::Optimizer::adam8bit;
  a.s.offload.activations = false;
  const models::ModelSpec model = models::catalog_model("llama-3.2-1b");
  planner::Question question;
  question.model = &model;
  question.strategy = a.s;
  question.batch = {.seq_len = 2048, .micro_batch = 4};
  question.cluster.gpu = models::find_gpu("h100");
  const auto peak = [&](std::int64_t memory) {
    question.cluster.memory = Bytes(memory);
    return planner::plan(question).peak;
  };
  CHECK(peak(6 * kGiB) == Bytes(4'331'839'488 + 2 * 8 * 2048 * 4));
  // Undivided, logits in 16 bits and their gradient are 4 * 8192 * 128256 B, of which a quarter is
  // enough for four chunks.
  const Bytes whole = peak(40 * kGiB);
  CHECK(whole - peak(6 * kGiB) > Bytes(std::int64_t{2} * 8192 * 128256));
  CHECK(whole - peak(6 * kGiB) < Bytes(std::int64_t{3} * 8192 * 128256 + kGiB / 16));
}

// --attention flash-2: what Transformers spares when it calls the flash_attn package itself. The
// bytes of whole runs are held against published ones (memory_accuracy_test.cpp).
#include <doctest/doctest.h>

#include "models/gpu_catalog.h"
#include "models/model_catalog.h"
#include "planner/plan.h"
#include "planner/stack_step.h"
#include "planner/stacks/pytorch/kernels.h"

using namespace plimsoll;
using models::Attention;

namespace {

// Adapters alone are trained, and nothing is recomputed: the loss is the peak, with all layers'
// saved tensors beside it.
Bytes peak(const char* name, Attention attention, std::int64_t tokens,
           models::Release release = models::kTransformers,
           models::Precision precision = models::Precision::bf16) {
  const models::ModelSpec model = models::catalog_model(name);
  planner::Question question;
  question.model = &model;
  question.strategy.attention = attention;
  question.strategy.transformers = release;
  question.strategy.precision = precision;
  question.strategy.lora = models::Lora{.rank = 8};
  question.batch = {.seq_len = tokens};
  question.cluster.gpu = models::find_gpu("a100-80gb");
  question.remedies = false;
  return planner::plan(question).peak;
}

Bytes spared(const char* name, std::int64_t tokens,
             models::Release release = models::kTransformers) {
  return peak(name, Attention::flash, tokens, release) -
         peak(name, Attention::flash_2, tokens, release);
}

constexpr std::int64_t kLayers = 32;
constexpr std::int64_t kBlock = 512;  // what the allocator gives for a few bytes

}  // namespace

TEST_CASE("grouped keys and values are kept as they are") {
  // Until 4.48 SDPA gets keys and values of all 32 heads, each 128 wide in 16 bits, where
  // flash_attn reads those of 8; the package's one tensor of random state is two in PyTorch.
  const std::int64_t repeated = 2 * (32 - 8) * 128 * 2 * 1024;
  CHECK(spared("llama-3-8b", 1024, {4, 45, 2}) == Bytes(kLayers * (repeated + kBlock)));
}

TEST_CASE("where nothing is grouped and nothing slides, the kernels keep the same") {
  CHECK(spared("llama-2-7b", 1024) == Bytes(kLayers * kBlock));
}

TEST_CASE("a sliding window needs no mask") {
  // SDPA's memory-efficient kernel gets repeated keys and values and keeps a mask of 16 bits a
  // score, and no random state.
  const std::int64_t repeated = 2 * (32 - 8) * 128 * 2 * 4096, mask = 4096 * 4096 * 2;
  CHECK(spared("mistral-7b-v0.1", 4096) == Bytes(kLayers * (repeated + mask - kBlock)));
}

TEST_CASE("it is refused where flash_attn does not run") {
  using models::Precision;
  CHECK_THROWS_WITH_AS(
      (void)peak("llama-2-7b", Attention::flash_2, 64, models::kTransformers, Precision::fp32),
      "--attention flash-2: flash_attn computes in fp16 and bf16 only, not in "
      "--precision fp32",
      Error);
  CHECK_THROWS_AS((void)peak("bloom-560m", Attention::flash_2, 64), Error);
}

// 2 x 132 blocks; tiles of 64 queries. Of 5 blocks of 128 keys, 200 tiles fill 0.76 of one wave, in
// 2 and 3 parts no better, in 4 as many keys each as in 3; in 5 parts 1000 fill 0.95 of four waves
// (a dry run took 5 results of 6,553,600 bytes). 220 tiles are more than 0.8 of the blocks.
TEST_CASE("flash attention divides the keys where queries leave the processors idle") {
  using planner::pytorch::flash_key_splits;
  const planner::pytorch::Processors h100;
  CHECK(flash_key_splits(h100, 20, 640, 640, 128) == 5);
  CHECK(flash_key_splits(h100, 22, 640, 640, 128) == 1);
  CHECK(flash_key_splits(h100, 1, 128, 128, 128) == 1);  // one block of keys
  CHECK(flash_key_splits(h100, 1, 256, 256, 64) == 1);
  CHECK(flash_key_splits(h100, 1, 8192, 8192, 128) == 2);  // 128 tiles: 256 of 264
  // One tile, 256 blocks of keys: of parts that divide them anew (…, 86 of 3, 128 of 2) the 128
  // fill the most, 128 of 264; there are never more.
  CHECK(flash_key_splits(h100, 1, 64, 32768, 128) == 128);
  CHECK(flash_key_splits(h100, 1, 64, 65536, 128) == 128);
  // Keys that stand in front make a block more: in two parts 40 tiles fill 80 of 264.
  CHECK(flash_key_splits(h100, 20, 128, 129, 128) == 2);
  CHECK(flash_key_splits(h100, 20, 128, 128, 128) == 1);
}

// A search writes programs alone, a million times, and keeps what it knows of its GPU between them.
TEST_CASE("flash_attn is refused on a card that it does not run on, whatever was asked before") {
  const models::ModelSpec model = models::catalog_model("gpt2");
  const auto refusal = [&](const char* gpu, Attention attention) -> std::string {
    planner::Question question;
    question.model = &model;
    question.strategy.attention = attention;
    question.strategy.precision = models::Precision::fp16_mixed;
    question.batch = {.seq_len = 128};
    question.cluster.gpu = models::find_gpu(gpu);
    planner::StackStep step;
    step.program_only = true;
    try {
      planner::write_step(question, planner::model_parts(model, question.strategy), step);
    } catch (const Error& error) {
      return error.message();
    }
    return "";
  };
  const std::string refused = "--attention flash-2: flash_attn does not run on t4";
  CHECK(refusal("t4", Attention::flash_2) == refused);
  CHECK(refusal("t4", Attention::flash) == "");
  CHECK(refusal("t4", Attention::flash_2) == refused);
  CHECK(refusal("a100-80gb", Attention::flash_2) == "");
}

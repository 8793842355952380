// What a prompt in front of each sequence, and a prefix of keys and values, ask of the GPU: kernels
// and bytes of PEFT's Python, counted by hand.
#include <doctest/doctest.h>

#include <string>
#include <string_view>

#include "planner/program/timeline.h"
#include "tests/planner/written_work.h"

using namespace plimsoll;
using models::AdapterKind;
using models::Phase;
using planner::WorkSum;
using tests::Written;

namespace {

constexpr const char* kLlama = R"({"model_type": "llama", "hidden_size": 256, "vocab_size": 1000,
  "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "max_position_embeddings": 512})";

// 32 tokens in front of 4 rows of 96; weights in 16 bits, what is learned in fp32.
Written written(AdapterKind kind, const char* config = kLlama) {
  models::Strategy s;
  s.precision = models::Precision::bf16;
  s.lora = models::Lora{.kind = kind, .virtual_tokens = 32};
  return {config, s, {.seq_len = 96, .micro_batch = 4}};
}

// Of all ops of this name; none: no op has it.
std::string asked(const Written& step, const std::string& name, Phase phase = Phase::forward) {
  WorkSum sum;
  int ops = 0;
  for (std::size_t i = 0; i < step.program.ops.size(); ++i) {
    const models::Op& op = step.program.ops[i];
    if (op.name != name || op.phase != phase) continue;
    const WorkSum one = planner::rest_of_op(step.program, step.works, i);
    sum.moved += one.moved, sum.kernels += one.kernels;
    ++ops;
  }
  if (ops == 0) return "none";
  return std::to_string(static_cast<std::int64_t>(sum.kernels)) + " kernels, " +
         std::to_string(static_cast<std::int64_t>(sum.moved)) + " bytes";
}

std::string kernels(int count, std::int64_t bytes) {
  return std::to_string(count) + " kernels, " + std::to_string(bytes) + " bytes";
}

}  // namespace

// PromptEmbedding of one row's ids, in fp32, 32 · 256 values; Tensor.repeat; to 16 bits; torch.cat
// with the text's 4 · 96 · 256. The backward goes the same way: the joined gradient is cast whole,
// rows are summed.
TEST_CASE("a prompt's ids are copied for each row, looked up, repeated, and joined to the text") {
  const Written step = written(AdapterKind::prompt_tuning);
  const std::int64_t one = 32 * 256 * 4, rows = 4 * one, text = 4 * 96 * 256 * 2,
                     all = 4 * 128 * 256 * 2;
  for (const char* made : {"prompt.mask", "prompt.attention_mask", "prompt.labels"})
    CHECK(asked(step, made) == kernels(0, 0));  // what PyTorch fills is not counted
  CHECK(asked(step, "prompt.tokens") == kernels(1, 4 * 32 * 8));
  CHECK(asked(step, "prompt_encoder.embedding") == kernels(1, 4 * 32 * 8 + one));
  CHECK(asked(step, "prompt.repeated") == kernels(1, one + rows));
  CHECK(asked(step, "prompt.cast") == kernels(1, rows + rows / 2));
  CHECK(asked(step, "inputs_embeds") == kernels(1, rows / 2 + text + all));
  CHECK(asked(step, "prompt.cast", Phase::backward) == kernels(1, all + rows));
  CHECK(asked(step, "prompt.repeated", Phase::backward) == kernels(1, rows + one));
}

// Keys and values of 128 in 16 bits, in two layers: torch.cat of the prefix's 4 · 32 and the text's
// 4 · 96. What the cache lets go of afterwards is no work.
TEST_CASE("a prefix is joined to keys and to values, and nothing else") {
  const Written step = written(AdapterKind::prefix_tuning);
  const std::int64_t joined = 4 * (32 + 96 + 128) * 128 * 2;
  CHECK(asked(step, "prompt.tokens") == kernels(1, 4 * 32 * 8));
  CHECK(asked(step, "prompt.mask") == kernels(0, 0));
  CHECK(asked(step, "prompt.attention_mask") == kernels(0, 0));
  CHECK(asked(step, "past_key_values.cached") == kernels(0, 0));
  CHECK(asked(step, "self_attn.k.cached") == kernels(2, 2 * joined));
  CHECK(asked(step, "self_attn.v.cached") == kernels(2, 2 * joined));
}

// Each layer's own, in its turn.
TEST_CASE("the cache lets go of every layer's keys and values when the model has returned") {
  const Written step = written(AdapterKind::prefix_tuning);
  int turns = 0;
  for (const planner::Moment& moment : planner::unroll(step.program).steps) {
    const bool of_layer = step.program.segments[moment.at.segment].group != models::kNoGroup;
    const models::Op& op = step.program.ops[moment.at.op];
    turns += of_layer && std::string_view(op.name) == "past_key_values";
  }
  CHECK(turns == 2);
}

// OLMo 2 views what v_proj made as heads, as Llama does; it only has a line of its own for that.
// What CatBackward sends back of several rows is a part of each, which v_proj's GEMM wants laid
// out.
TEST_CASE("a value's gradient behind a prefix is laid out for its GEMM, viewed as heads or not") {
  const Written llama = written(AdapterKind::prefix_tuning);
  const Written olmo = written(AdapterKind::prefix_tuning, R"({"model_type": "olmo2",
      "hidden_size": 256, "vocab_size": 1000, "intermediate_size": 512, "num_hidden_layers": 2,
      "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512})");
  const auto laid_out = [](const Written& step) {
    return asked(step, "self_attn.v.grad.contiguous", Phase::backward);
  };
  CHECK(laid_out(llama).starts_with("1 kernels, "));  // of the last layer: nothing trains below
  CHECK(laid_out(olmo) == laid_out(llama));
}

// --attention cudnn and efficient: which kernel of scaled_dot_product_attention runs, told or not,
// and what is refused. What they allocate is held against PyTorch's in sdpa_workspaces_test.cpp, in
// the traces (*-cudnn*, *-efficient*) and in dry runs of full size.
#include <doctest/doctest.h>

#include "tests/planner/attention_question.h"
#include "tests/planner/dry_run_checks.h"

using namespace plimsoll;
using models::Attention;
using tests::AttentionQuestion;
using tests::starts;

namespace {

reports::Plan answer(const AttentionQuestion& asked) {
  return tests::answer(asked, Attention::cudnn);
}

std::string refusal(const AttentionQuestion& asked) {
  return tests::refusal(asked, Attention::cudnn);
}

std::string kernel_of(const AttentionQuestion& asked) {
  for (const reports::Assumption& assumption : answer(asked).assumptions)
    if (assumption.what == "kernel behind scaled_dot_product_attention")
      return assumption.value + " " + assumption.basis;
  return "";
}

}  // namespace

TEST_CASE("cuDNN's attention told by name is what a Hopper takes of itself") {
  for (const char* model : {"llama-2-7b", "llama-3.1-8b", "gpt2"}) {
    CAPTURE(model);
    CHECK(answer({.model = model}).peak ==
          answer({.model = model, .attention = Attention::flash}).peak);
  }
  CHECK(kernel_of({}) == "\"cudnn\" calibrated");
  CHECK(kernel_of({.attention = Attention::flash}) == "\"cudnn\" calibrated");
  CHECK(kernel_of({.gpu = "a100-80gb"}) == "\"cudnn\" derived");
  CHECK(kernel_of({.gpu = "a100-80gb", .attention = Attention::efficient}) ==
        "\"efficient\" derived");
}

TEST_CASE("on Blackwell heads that cuDNN does not take run FlashAttention") {
  const AttentionQuestion wide{
      .model = "gemma-7b", .gpu = "b200-sxm-180gb", .attention = Attention::flash};
  CHECK(kernel_of(wide) == "\"flash\" derived");
  CHECK(kernel_of({.model = "gemma-7b", .attention = Attention::flash}) == "\"cudnn\" calibrated");
}

// The loss is the peak: adapters alone are trained. Of every layer cuDNN keeps the mask as it is,
// and seed and offset, 512 bytes each; the memory-efficient kernel pads rows of the mask, here of
// 1022 values, to 1024, and of the logsumexp to 1024, and keeps no random state.
TEST_CASE("under a mask a Hopper takes cuDNN's kernel, too") {
  const AttentionQuestion padded{
      .attention = Attention::flash, .tokens = 1022, .rows = models::Rows::padded};
  AttentionQuestion cudnn = padded, efficient = padded;
  cudnn.attention = Attention::cudnn;
  efficient.attention = Attention::efficient;
  CHECK(answer(padded).peak == answer(cudnn).peak);
  CHECK(answer(padded).peak != answer(efficient).peak);
  AttentionQuestion ampere = padded;
  ampere.gpu = efficient.gpu = "a100-80gb";
  CHECK(answer(ampere).peak == answer(efficient).peak);
}

TEST_CASE("what cuDNN's attention does not take is refused by name") {
  CHECK(starts(refusal({.precision = models::Precision::fp32}),
               "--attention cudnn: cuDNN's attention computes in fp16 and bf16 only"));
  CHECK(starts(refusal({.gpu = "t4", .precision = models::Precision::fp16}),
               "--attention cudnn: cuDNN's attention runs from compute capability 8.0 on, and "
               "t4 has 7.5"));
  CHECK(refusal({.model = "gemma-7b"}) == "");
  CHECK(starts(refusal({.model = "gemma-7b", .gpu = "a100-80gb"}),
               "--attention cudnn: cuDNN's attention takes heads of a multiple of 8, up to 128"));
  CHECK(starts(refusal({.tokens = 1}),
               "--attention cudnn: cuDNN's attention takes no sequence of one token"));
  CHECK(starts(refusal({.gpu = "mi300x"}), "--attention cudnn is not modelled on mi300x"));
  CHECK(starts(refusal({.model = "bloom-560m"}),
               "--attention cudnn: Transformers runs bloom with eager attention alone"));
}

TEST_CASE("what the memory-efficient kernel does not take is refused by name") {
  const Attention efficient = Attention::efficient;
  CHECK(refusal({.attention = efficient}) == "");
  CHECK(refusal({.attention = efficient, .precision = models::Precision::fp32}) == "");
  CHECK(refusal({.gpu = "t4", .attention = efficient, .precision = models::Precision::fp16}) == "");
  CHECK(starts(refusal({.gpu = "t4", .attention = efficient}), "--attention efficient: "));
  const char* groups =
      "--attention efficient: PyTorch's memory-efficient kernel takes no grouped queries";
  CHECK(starts(refusal({.model = "llama-3.1-8b", .attention = efficient}), groups));
  CHECK(refusal({.model = "llama-3.1-8b", .attention = efficient, .rows = models::Rows::padded}) ==
        "");
  AttentionQuestion older{
      .model = "llama-3.1-8b", .attention = efficient, .transformers = {4, 45, 2}};
  CHECK(refusal(older) == "");
  // Every layer has the window of 4096 tokens, and so a mask.
  CHECK(refusal({.model = "mistral-7b-v0.1", .attention = efficient, .tokens = 4096}) == "");
  CHECK(starts(refusal({.model = "mistral-7b-v0.1", .attention = efficient, .tokens = 4095}),
               groups));
  CHECK(starts(refusal({.model = "gemma-2-9b", .attention = efficient, .tokens = 4096}), groups));
}

// Kernels, windows, padding, adapters, FSDP2, Liger, selective and full recomputation, heads of 64
// to 256 values.
TEST_CASE("planned steps with SDPA's kernels are those of dry runs at full size") {
  tests::check_runs("dry_runs_attention.json", {}, 16);
}

// Drawn by one seed when nothing was left to mend: model, kernel, precision, recomputation, FSDP2,
// adapters, padding, batch.
TEST_CASE("so are those that were drawn when the plan was done") {
  const std::vector<double> errors = tests::drawn_errors("dry_runs_attention_draw.json", 0.001);
  REQUIRE(errors.size() == 15);
  MESSAGE("median error of the peak " << 100 * errors[7] << " %, largest " << 100 * errors.back()
                                      << " %");
  CHECK(errors[7] < 1e-4);
}

// --kernels liger: which families it patches, and what that spares (the bytes are held against
// traces and dry runs: pytorch_traces_test.cpp, dry_runs_test.cpp).
#include <doctest/doctest.h>

#include "models/gpu_catalog.h"
#include "models/model_catalog.h"
#include "planner/plan.h"

using namespace plimsoll;

namespace {

reports::Plan plan_of(const char* name, models::Kernels kernels, models::Loss loss,
                      models::Strategy s = {}, std::int64_t tokens = 1024) {
  const models::ModelSpec model = models::catalog_model(name);
  planner::Question question;
  question.model = &model;
  question.strategy = s;
  question.strategy.kernels = kernels;
  question.strategy.loss = loss;
  question.strategy.precision = models::Precision::bf16;
  question.batch = {.seq_len = tokens};
  question.cluster.gpu = models::find_gpu("a100-80gb");
  question.remedies = false;
  return planner::plan(question);
}

std::string refusal(const char* model, models::Loss loss = models::Loss::fused,
                    models::Strategy s = {}) {
  try {
    plan_of(model, models::Kernels::liger, loss, s);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::unsupported);
    return error.message();
  }
  return "";
}

}  // namespace

TEST_CASE("families that Liger does not patch are refused by name") {
  CHECK(refusal("gpt2") == "--kernels liger: Liger has no kernels for gpt2");
  CHECK(refusal("opt-1.3b") == "--kernels liger: Liger has no kernels for opt");
  CHECK(refusal("mixtral-8x7b") ==
        "--kernels liger: Liger has kernels for mixtral that are not modelled yet");
  CHECK(refusal("llama-3.2-1b") == "");
}

TEST_CASE("fms-acceleration's kernels are those of its families") {
  const auto plan = [](const char* model, models::Loss loss) {
    return plan_of(model, models::Kernels::fused, loss);
  };
  CHECK_THROWS_WITH_AS((void)plan("qwen2.5-7b", models::Loss::full),
                       "--kernels fused: fms-acceleration's kernels are modelled for llama, "
                       "mistral, granite, mixtral and gpt_bigcode, not for qwen2",
                       Error);
  CHECK_THROWS_AS((void)plan("llama-3.2-1b", models::Loss::chunked), Error);
  CHECK(plan("llama-3.2-1b", models::Loss::fused).peak > Bytes(0));
}

// Its norms return no gradient of their weights; DistributedDataParallel's reducer waits for each.
TEST_CASE("fms-acceleration's norms train under FSDP or beside adapters, and not under DDP") {
  const auto plans = [](int zero, bool lora) {
    models::Strategy s;
    s.gpus = 2;
    s.data.zero = zero;
    if (lora) s.lora.emplace();
    return plan_of("llama-3.2-1b", models::Kernels::fused, models::Loss::full, s).peak > Bytes(0);
  };
  CHECK_THROWS_AS((void)plans(0, false), Error);
  CHECK(plans(3, false));
  CHECK(plans(0, true));
}

TEST_CASE("Granite's logits are scaled, so that Liger has no fused loss for it") {
  CHECK(refusal("granite-3.1-2b").starts_with("--loss: fused"));
  CHECK(refusal("granite-3.1-2b", models::Loss::full) == "");
}

TEST_CASE("Liger is modelled with Transformers 5") {
  models::Strategy s;
  s.transformers = {4, 57, 0};
  CHECK(refusal("llama-3.2-1b", models::Loss::fused, s).starts_with("--transformers-version 4.57"));
}

// Llama 3.2 1B, 4096 tokens in bf16: eager norms keep an fp32 copy of their input and the
// normalized values in bf16, Liger's the input itself; 1/rms both do: 4 bytes an element of 2048.
// SiLU's result is kept beside gate and up: 2 bytes an element of 8192. Rotated queries and keys
// are new tensors or the GEMMs themselves, of which nobody keeps both. 16 layers have two norms,
// and there is one behind them.
TEST_CASE("what Liger's kernels do not keep") {
  const auto activations = [](models::Kernels kernels) {
    models::Strategy s;
    s.optimizer = models::Optimizer::sgd;  // the peak is at the loss
    s.optimizer_impl = models::OptimizerImpl::fused;
    return plan_of("llama-3.2-1b", kernels, models::Loss::full, s, 4096)
        .at_peak[static_cast<std::size_t>(models::Category::activations)];
  };
  const Bytes norms(4096LL * 2048 * 4 * 33), gates(4096LL * 8192 * 2 * 16);
  CHECK(activations(models::Kernels::eager) - activations(models::Kernels::liger) == norms + gates);
}

TEST_CASE("a step with Liger's kernels moves less") {
  const auto seconds = [](models::Kernels kernels) {
    return *plan_of("llama-3.2-1b", kernels, models::Loss::fused).time.step_seconds;
  };
  CHECK(seconds(models::Kernels::liger) < seconds(models::Kernels::eager));
}

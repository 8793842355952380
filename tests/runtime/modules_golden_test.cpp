// The eager modules against Transformers and PEFT (tests/golden/numerics).
#include <doctest/doctest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "models/model_reader.h"
#include "tests/runtime/goldens.h"
#include "tests/runtime/tiny_model.h"

namespace plimsoll::runtime::test {
namespace {

using models::Attention;
using models::Loss;
using models::Precision;
using models::RecomputeKind;

struct Way {
  const char* model;
  const char* adapter = nullptr;
  Precision precision = Precision::fp32;
  Loss loss = Loss::full;
  Attention attention = Attention::flash;
  RecomputeKind recompute = RecomputeKind::none;
};

models::Strategy strategy_of(const Way& way) {
  models::Strategy strategy;
  strategy.stack = models::Stack::plimsoll;
  strategy.precision = way.precision;
  strategy.loss = way.loss;
  strategy.attention = way.attention;
  strategy.recompute.kind = way.recompute;
  if (way.adapter == nullptr) return strategy;
  // As the folder's adapter_config.json.
  if (std::string(way.adapter) == "gpt2-lora")
    strategy.lora =
        models::Lora{.rank = 3, .alpha = 8, .targets = {"c_attn", "c_fc", "mlp.c_proj"}};
  else
    strategy.lora = models::Lora{.rank = 4, .alpha = 6, .targets = {"all-linear"}};
  return strategy;
}

void load(TinyModel& model, const Way& way) {
  const GoldenModel base(way.model);
  for (const std::string& name : base.weights().names())
    model.set(name, base.weights().values(name));
  if (way.adapter == nullptr) return;
  const GoldenModel adapter(way.adapter);
  for (const std::string& name : adapter.weights().names())
    model.set(name, adapter.weights().values(name));
}

// PLIMSOLL_DEVIATIONS=1 prints how far each result is from Transformers'.
void compare(const std::string& what, const std::vector<double>& ours,
             const std::vector<double>& theirs, const std::vector<double>& scale, double bound) {
  const double far = deviation(ours, theirs, scale);
  if (std::getenv("PLIMSOLL_DEVIATIONS") != nullptr) std::printf("%.2e %s\n", far, what.c_str());
  CAPTURE(what);
  CHECK(far <= bound);
}

// fp32: 1e-5 of Transformers'. fp16: 4e-3 of the fp32 result (its spacing is an eighth of bf16's,
// 2e-2 / 8 and some room for what underflows). bf16: weights are exact in it, so the fp32 result is
// the same model's, and 2e-2 of that is asked; of Transformers' bf16 result as well, which has
// roundings of its own (tests/golden/numerics/README.md: up to 2.2e-2 of q's and k's norms and
// biases).
void run(const Way& way) {
  CAPTURE(way.model);
  const GoldenModel golden(way.adapter != nullptr ? way.adapter : way.model);
  const models::ModelSpec spec = models::model_from_path(GoldenModel(way.model).config());
  TinyModel model(spec, strategy_of(way),
                  {golden.sequences(), golden.length(), golden.ids(0), golden.targets(0)});
  load(model, way);
  if (way.precision == Precision::fp16_mixed) model.set_loss_scale(1 << 14);
  const bool rounds = way.precision != Precision::fp32;
  const auto check_value = [&](const std::string& what, const std::vector<double>& ours) {
    compare("fp32." + what, ours, golden.values("fp32." + what),
            golden.values("fp32." + counted_in(what)),
            way.precision == Precision::fp16_mixed ? 4e-3
            : rounds                               ? 2e-2
                                                   : 1e-5);
    if (way.precision != Precision::bf16_mixed) return;
    const double own = golden.own_deviation("bf16." + what);
    compare("bf16." + what, ours, golden.values("bf16." + what),
            golden.values("bf16." + counted_in(what)), std::hypot(2e-2, own));
  };
  check_value("logits", model.logits());
  check_value("loss", {model.step()});
  const std::vector<std::string> trained = model.names(true);
  CHECK(trained == golden.results().names("fp32.grad."));
  for (const std::string& name : trained) check_value("grad." + name, model.gradient(name));
}

TEST_CASE("logits, loss and every gradient are Transformers' in fp32") {
  for (const char* model : kGoldenModels) run({.model = model});
}

TEST_CASE("logits, loss and every gradient are Transformers' in bf16") {
  for (const char* model : kGoldenModels) run({.model = model, .precision = Precision::bf16_mixed});
}

TEST_CASE("logits, loss and every gradient are the model's in fp16 under a loss scale") {
  for (const char* model : kGoldenModels) run({.model = model, .precision = Precision::fp16_mixed});
}

TEST_CASE("logits, loss and the adapters' gradients are PEFT's") {
  for (const Precision precision : {Precision::fp32, Precision::bf16_mixed}) {
    run({.model = "gpt2", .adapter = "gpt2-lora", .precision = precision});
    run({.model = "llama", .adapter = "llama-lora", .precision = precision});
  }
}

TEST_CASE("every kind of attention, loss and recomputation computes the same step") {
  for (const Attention attention : {Attention::eager, Attention::math})
    for (const char* model : kGoldenModels) run({.model = model, .attention = attention});
  for (const Loss loss : {Loss::chunked, Loss::fused})
    for (const char* model : {"gpt2", "llama", "phi"}) run({.model = model, .loss = loss});
  for (const RecomputeKind kind :
       {RecomputeKind::selective, RecomputeKind::full, RecomputeKind::sqrt})
    for (const char* model :
         {"gpt2", "gpt_neox", "granite", "mixtral", "olmo2", "phi", "phi3", "qwen3", "qwen3_moe"})
      run({.model = model, .recompute = kind});
}

}  // namespace
}  // namespace plimsoll::runtime::test

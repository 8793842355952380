// --trainer: another program's defaults as options of this one, and torchtitan's own model.
#include "models/trainers.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "planner/plan.h"
#include "tools/cli/request.h"

using namespace plimsoll;
using namespace plimsoll::tools;

namespace {
using Given = std::vector<std::pair<std::string, std::string>>;

Request request(const std::string& model, const Given& given) {
  Options options;
  options.add("gpu", "h100");
  for (const auto& [name, value] : given) options.add(name, value);
  Sources sources;
  return request_from(model, options, sources);
}

std::string refusal(const std::string& model, const Given& given) {
  try {
    const Request asked = request(model, given);
    (void)planner::plan(asked.question);
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

bool any_note(const Request& request, std::string_view part) {
  return std::ranges::any_of(
      request.notes, [&](const std::string& note) { return note.find(part) != std::string::npos; });
}
}  // namespace

TEST_CASE("a trainer sets only options that there are, each once, and says where it read them") {
  for (const models::Trainer& trainer : models::trainers()) {
    CAPTURE(trainer.name);
    std::set<std::string_view> seen;
    for (const models::TrainerDefault& one : trainer.defaults) {
      CAPTURE(one.option);
      const models::Option* option = models::find_plan_option(one.option);
      REQUIRE(option != nullptr);
      CHECK_FALSE(option->is_never_modelled());
      CHECK(seen.insert(one.option).second);
      CHECK_FALSE(one.source.empty());
    }
  }
  CHECK(models::find_trainer("torchtitan")->version == "0.2.2");
  CHECK(models::find_trainer("torchtitan@2024-12")->version == "2024-12");
  CHECK(models::find_trainer("torchtitan@") == nullptr);
  CHECK(models::find_trainer("titan") == nullptr);
}

TEST_CASE("a trainer's defaults are as if they had been said, and options go before them") {
  const Request r = request(
      "llama-3-8b", {{"trainer", "torchtitan@2024-12"}, {"gpus", "8"}, {"recompute", "full"}});
  const models::Strategy& s = r.question.strategy;
  CHECK(s.code == models::ModelCode::torchtitan_2024_12);
  CHECK(s.data.zero == 3);
  CHECK(s.data.reduce_dtype == DType::fp32);
  CHECK(s.optimizer_impl == models::OptimizerImpl::foreach);
  CHECK(s.recompute.kind == models::RecomputeKind::full);
  CHECK(any_note(r, "--model-code torchtitan@2024-12"));
  CHECK(any_note(r, "you say otherwise than --recompute ops:torchtitan"));
  CHECK(refusal("llama-3-8b", {{"trainer", "titan"}}) ==
        "--trainer titan: not known; known are axolotl@0.19, llamafactory@0.9.5, ms-swift@4.6, "
        "torchtitan@0.2.2, torchtitan@2024-12, transformers@5.17");
}

TEST_CASE("the defaults of programs around Trainer are each its own") {
  const auto strategy = [](const char* trainer) {
    return request("llama-3-8b", {{"trainer", trainer}}).question;
  };
  const planner::Question axolotl = strategy("axolotl"), factory = strategy("llamafactory"),
                          swift = strategy("ms-swift");
  CHECK(axolotl.batch.seq_len == 512);
  CHECK(axolotl.strategy.param_dtype == DType::bf16);
  CHECK(axolotl.strategy.recompute.kind == models::RecomputeKind::none);
  CHECK(factory.batch.micro_batch == 8);
  CHECK(factory.strategy.use_reentrant == true);
  CHECK(factory.strategy.recompute.kind == models::RecomputeKind::full);
  CHECK(swift.batch.micro_batch == 1);
  CHECK(swift.strategy.param_dtype == DType::bf16);
  CHECK(swift.strategy.recompute.kind == models::RecomputeKind::full);
}

TEST_CASE("what a trainer's code does not do names the trainer") {
  const Given base{{"trainer", "torchtitan"}, {"gpus", "8"}};
  const auto with = [&](const char* name, const char* value) {
    Given given = base;
    given.emplace_back(name, value);
    return refusal("llama-3-8b", given);
  };
  CHECK(refusal("llama-3-8b", base) == "");
  CHECK(refusal("gpt2", base).find("its gpt2 is not modelled") != std::string::npos);
  CHECK(refusal("llama-3-8b", {{"trainer", "torchtitan"}}).find("--model-code") !=
        std::string::npos);  // one GPU
  for (const auto& [name, value] : Given{{"zero", "2"},
                                         {"precision", "bf16"},
                                         {"loss", "chunked"},
                                         {"attention", "eager"},
                                         {"lora-rank", "8"},
                                         {"grad-accum", "2"},
                                         {"recompute", "every:2"},
                                         {"offload", "params"},
                                         {"use-reentrant", "yes"}}) {
    CAPTURE(name);
    CHECK(with(name.c_str(), value.c_str()).find("--") != std::string::npos);
  }
  CHECK(with("stack", "deepspeed") ==
        "torchtitan@0.2.2: torchtitan/models/llama3/model/model.py: --model-code "
        "torchtitan@0.2.2: belongs to --stack pytorch");
  CHECK(refusal("llama-3-8b", {{"gpus", "8"}, {"zero", "3"}, {"recompute", "ops:torchtitan"}})
            .starts_with("--recompute ops:torchtitan is modelled with torchtitan's own model"));
}

TEST_CASE("the policy keeps, in 16 bits, every second product and the attention of each layer") {
  // Of 4,096 tokens more, at the loss, beside each layer's input: q, v, gate and down (4,096 +
  // 1,024 + 14,336 + 4,096 values), attention's result, and in fp32 the logarithms of its sums.
  const auto peak = [](const char* recompute, const char* tokens) {
    const Request r = request(
        "llama-3-8b",
        {{"trainer", "torchtitan"}, {"gpus", "8"}, {"recompute", recompute}, {"seq-len", tokens}});
    return planner::plan(r.question).peak;
  };
  const Bytes more_ops = peak("ops:torchtitan", "8192") - peak("ops:torchtitan", "4096");
  const Bytes more_full = peak("full", "8192") - peak("full", "4096");
  const std::int64_t kept = 2 * (4096 + 1024 + 14336 + 4096) + 2 * 4096 + 4 * 32;
  CHECK(more_ops - more_full == Bytes(32 * 4096 * kept));
}

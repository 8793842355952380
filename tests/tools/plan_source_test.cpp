// Plans read back from their documents: the same question, the same answer.
#include "tools/cli/plan_source.h"

#include <doctest/doctest.h>

#include "models/model_catalog.h"
#include "reports/plan_json.h"

using namespace plimsoll;
using namespace plimsoll::tools;

namespace {

using Given = std::vector<std::pair<std::string, std::string>>;

std::string document(const reports::Plan& plan) {
  std::string text;
  reports::JsonWriter json(text, reports::JsonWriter::Style::pretty);
  reports::write_plan(json, plan, {.version = "1", .commit = "1"});
  return text;
}

Request request(Sources& sources, const std::string& model, const Given& given) {
  Options options;
  options.add("stack", "plimsoll");
  if (given.empty() || given[0].first != "device") options.add("gpu", "h100");
  for (const auto& [name, value] : given) options.add(name, value);
  return request_from(model, options, sources);
}

// Planned, written, read back and planned again.
void check_round_trip(Sources& sources, const std::string& model, const Given& given) {
  CAPTURE(model);
  Request asked = request(sources, model, given);
  asked.question.detail = planner::Detail::none;
  asked.question.remedies = false;
  const reports::Plan plan = answer(asked);
  Request again = request_from_plan(document(plan), "plan.json");
  again.question.detail = planner::Detail::none;
  again.question.remedies = false;
  const reports::Plan second = answer(again);
  CHECK(second.fingerprint == plan.fingerprint);
  CHECK(second.model_name == plan.model_name);
  CHECK(second.peak == plan.peak);
  CHECK(second.reserved == plan.reserved);
  CHECK(second.resident == plan.resident);
  CHECK(second.at_peak == plan.at_peak);
  CHECK(second.device == plan.device);
  CHECK(second.capacity == plan.capacity);
  CHECK(second.strategy.gpus_per_node == plan.strategy.gpus_per_node);
  CHECK(second.bytes_sent_per_gpu_per_step == plan.bytes_sent_per_gpu_per_step);
}

std::string refusal(const std::string& text) {
  try {
    (void)request_from_plan(text, "plan.json");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::bad_input);
    return error.message();
  }
  return "";
}

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("every catalog model that our own runtime trains comes back from its plan") {
  Sources sources;
  int trained = 0;
  for (const std::string_view name : models::catalog_names()) {
    const models::ModelSpec model = models::catalog_model(name);
    if (!model.decoder || !model.numerics) continue;
    ++trained;
    check_round_trip(sources, std::string(name), {{"seq-len", "64"}});
  }
  CHECK(trained > 40);
}

TEST_CASE("every option of stack plimsoll comes back from its plan") {
  Sources sources;
  const Given cases[] = {
      {{"gpus", "8"}, {"zero", "3"}, {"gpus-per-node", "4"}},
      {{"gpus", "8"}, {"zero", "2"}, {"shard-group", "4"}, {"gpu-memory", "40GB"}},
      {{"gpus", "2"}, {"zero", "1"}, {"deterministic", ""}, {"grad-accum", "3"}},
      {{"device", "cpu"}, {"precision", "fp32"}, {"recompute", "every:3"}},
      {{"precision", "fp16-mixed"}, {"grad-dtype", "fp32"}, {"recompute", "sqrt"}},
      {{"precision", "bf16"}, {"attention", "eager"}, {"loss", "chunked"}},
      {{"precision", "bf16"}, {"master-weights", "yes"}, {"attention", "math"}},
      {{"optimizer", "momentum"}, {"reduce-bucket", "1000001"}, {"gpus", "3"}},
      {{"optimizer", "sgd"}, {"loss", "fused"}, {"micro-batch", "3"}, {"recompute", "selective"}},
      {{"lora-rank", "4"}, {"lora-alpha", "0.1"}, {"lora-dropout", "1e-5"}},
      {{"lora-rank", "8"}, {"lora-targets", "c_attn,c_proj"}, {"adapter-dtype", "bf16"}},
      {{"freeze", "*"}, {"train", "*mlp*"}, {"reserve", "1GiB"}, {"intra-node-bandwidth", "7.5"}},
  };
  for (const Given& given : cases) {
    Given all = given;
    all.emplace_back("seq-len", "33");
    CAPTURE(given[0].first);
    check_round_trip(sources, "gpt2", all);
  }
}

TEST_CASE("a workload that was edited after its fingerprint was made is refused") {
  Sources sources;
  std::string text = document(answer(request(sources, "gpt2", {{"seq-len", "64"}})));
  CHECK(refusal(text) == "");
  const std::size_t at = text.find("\"seq_len\": 64");
  REQUIRE(at != std::string::npos);
  CHECK(has(refusal(text.replace(at, 13, "\"seq_len\": 65")), "it was edited"));
}

TEST_CASE("a bare count cannot be run") {
  Options options;
  options.add("params", "7e9");
  options.add("gpu", "h100");
  Sources sources;
  CHECK(
      has(refusal(document(answer(request_from("", options, sources)))), "a bare parameter count"));
}

TEST_CASE("a model with fewer layers is the beginning of the whole one") {
  ModelSource source;
  for (const char* name :
       {"gpt2", "llama-3.2-1b", "mistral-7b-v0.1", "qwen2.5-0.5b", "qwen3-0.6b"}) {
    CAPTURE(name);
    const auto model = source.load(name, "");
    const auto cut = with_layers(*model, 2);
    models::Decoder expected = *model->spec.decoder;
    expected.layers = 2;
    CHECK(*cut->spec.decoder == expected);
    CHECK(cut->spec.name == name);
    CHECK_THROWS_AS(with_layers(*model, 0), Error);
    CHECK_THROWS_AS(with_layers(*model, model->spec.decoder->layers + 1), Error);
  }
}

TEST_CASE("lists with an entry for each layer are cut with the model") {
  ModelSource source;
  LoadedModel model = *source.load("qwen3-0.6b", "");
  const std::size_t at = model.config.find("\"model_type\"");
  model.config.insert(at, R"("layer_types": ["full_attention", "full_attention", "x"], )");
  CHECK(has(with_layers(model, 2)->config, R"(["full_attention","full_attention"])"));
}

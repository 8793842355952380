// Plans read back from their documents: the same question, the same answer.
#include "tools/cli/plan_source.h"

#include <doctest/doctest.h>

#include <array>

#include "models/model_catalog.h"
#include "models/model_reader.h"
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

// The rates stand in the configuration, so that what runs the plan reads them there.
TEST_CASE("--dropout sets every dropout of a model, in its configuration too") {
  Sources sources;
  for (const std::string_view name : models::catalog_names()) {
    CAPTURE(name);
    const auto model = sources.models.load(std::string(name), "");
    const auto quiet = with_dropout(*model, "", 0);
    if (!model->spec.decoder || !quiet->spec.decoder) continue;
    const auto rates = [](const LoadedModel& of) {
      const models::Decoder& d = *of.spec.decoder;
      return std::array{d.embedding_dropout, d.attention_dropout, d.residual_dropout};
    };
    CHECK(rates(*quiet) == std::array{0.0, 0.0, 0.0});
    CHECK(quiet->spec.parameter_count() == model->spec.parameter_count());
    CHECK(rates(*with_dropout(*quiet, "", 0)) == rates(*quiet));
  }
  const auto gpt2 = sources.models.load("gpt2", "");
  const Request asked = request(sources, "gpt2", {{"dropout", "0.25"}});
  CHECK(asked.model->spec.decoder->embedding_dropout == 0.25);
  CHECK(asked.model->spec.decoder->attention_dropout == 0.25);
  CHECK(asked.model->spec.decoder->residual_dropout == 0.25);
  CHECK(request(sources, "gpt2", {{"dropout", "config"}}).model->config == gpt2->config);
  check_round_trip(sources, "gpt2", {{"dropout", "0"}});
  check_round_trip(sources, "llama-3.2-1b", {{"dropout", "0.1"}});
}

TEST_CASE("--dropout of a model without any is refused, but for 0; so is what is no rate") {
  Sources sources;
  const auto refused = [&](const char* model, const char* rate) -> std::string {
    try {
      (void)request(sources, model, {{"dropout", rate}});
    } catch (const Error& error) {
      return error.message();
    }
    return {};
  };
  CHECK(refused("gpt2", "1.5").find("--dropout 1.5") != std::string::npos);
  CHECK(refused("gpt2", "-0.1").find("--dropout -0.1") != std::string::npos);
  CHECK(refused("gpt2", "nan").find("--dropout nan") != std::string::npos);
  CHECK(refused("gpt2", "off").find("--dropout off") != std::string::npos);
  const LoadedModel none{.spec = models::read_model(
                             R"({"model_type":"mpt","d_model":64,"n_heads":4,"n_layers":2,
                                 "vocab_size":100})",
                             "mpt", "mpt"),
                         .config = R"({"model_type":"mpt","d_model":64,"n_heads":4,"n_layers":2,
                                 "vocab_size":100})"};
  CHECK_THROWS_WITH_AS(with_dropout(none, "", 0.1),
                       "--dropout 0.1: mpt (mpt) has no dropout in Transformers", Error);
  CHECK(with_dropout(none, "", 0)->spec.parameter_count() == none.spec.parameter_count());
}

TEST_CASE("lists with an entry for each layer are cut with the model") {
  ModelSource source;
  LoadedModel model = *source.load("qwen3-0.6b", "");
  const std::size_t at = model.config.find("\"model_type\"");
  model.config.insert(at, R"("layer_types": ["full_attention", "full_attention", "x"], )");
  CHECK(has(with_layers(model, 2)->config, R"(["full_attention","full_attention"])"));
}

// --task: which head stands on a model, from the command line to the plan.
#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "models/base/error.h"
#include "reports/export.h"
#include "reports/json_writer.h"
#include "reports/plan_json.h"
#include "tools/cli/plan_source.h"
#include "tools/cli/request.h"

using namespace plimsoll;
using namespace plimsoll::tools;

namespace {
using Given = std::vector<std::pair<std::string, std::string>>;

Request request(Sources& sources, const std::string& model, const Given& given) {
  Options options;
  options.add("gpu", "h100");
  for (const auto& [name, value] : given) options.add(name, value);
  return request_from(model, options, sources);
}

std::string refused(const std::string& model, const Given& given) {
  Sources sources;
  try {
    Request asked = request(sources, model, given);
    asked.question.remedies = false;
    (void)answer(asked);
  } catch (const Error& error) {
    return error.message();
  }
  return {};
}

std::string document(const Request& asked) {
  std::string text;
  reports::JsonWriter json(text, reports::JsonWriter::Style::pretty);
  reports::write_plan(json, answer(asked), {.version = "1", .commit = "1"});
  return text;
}
}  // namespace

// Llama 3.1 8B has a head of its own, 128,256 × 4,096, in whose place stand two rows; BERT base,
// whose masked head is tied, loses its transform (768² + 768, a norm's 2 × 768) and the head's bias
// (30,522), and gets a pooler (768² + 768) and two rows with biases.
TEST_CASE("--task classification puts a classifier in the head's place") {
  Sources sources;
  const auto parameters = [&](const char* model, const char* task) {
    const Request asked = request(sources, model, {{"task", task}});
    return asked.model->spec.parameter_count().value();
  };
  CHECK(parameters("llama-3.1-8b", "classification") ==
        parameters("llama-3.1-8b", "sft") - 128'256LL * 4'096 + 2LL * 4'096);
  CHECK(parameters("bert-base-uncased", "classification") ==
        parameters("bert-base-uncased", "mlm") - 2 * 768 - 30'522 + 2 * 768 + 2);
  const Request asked = request(sources, "gemma-2-2b", {{"task", "classification"}});
  CHECK(asked.model->spec.architecture == "Gemma2ForSequenceClassification");
  CHECK(asked.model->spec.decoder->labels == 2);
  CHECK_FALSE(asked.model->spec.decoder->soft_capped_logits);
  CHECK_FALSE(asked.model->spec.decoder->tied_head);
  const auto config = nlohmann::json::parse(asked.model->config);
  CHECK(config["architectures"] == nlohmann::json({"Gemma2ForSequenceClassification"}));
}

TEST_CASE("a task that a model has is no change, one that it has not is refused") {
  Sources sources;
  CHECK(request(sources, "gpt2", {{"task", "sft"}}).model->config ==
        request(sources, "gpt2", {}).model->config);
  CHECK(refused("bert-base-uncased", {{"task", "sft"}}) ==
        "--task sft: bert-base-uncased is BertForMaskedLM");
  CHECK(refused("gpt2", {{"task", "mlm"}}) == "--task mlm: gpt2 is GPT2LMHeadModel");
  CHECK(refused("granite-3.1-8b", {{"task", "classification"}}) ==
        "--task classification: granite-3.1-8b is GraniteForCausalLM, and Transformers has no "
        "classifier of it");
}

TEST_CASE("what is not modelled of a classifier is refused by name") {
  const auto of = [](const Given& given) {
    Given all{{"task", "classification"}};
    all.insert(all.end(), given.begin(), given.end());
    return refused("llama-3.2-1b", all);
  };
  const std::string words =
      " with --task classification (LlamaForSequenceClassification) is not modelled yet";
  CHECK(of({}).empty());
  CHECK(of({{"stack", "deepspeed"}}) == "--stack deepspeed" + words);
  CHECK(of({{"kernels", "liger"}}) == "--kernels liger" + words);
  CHECK(of({{"compile", "block"}}) == "--compile" + words);
  CHECK(of({{"precision", "fp8-mixed"}}) == "--precision fp8-mixed" + words);
  CHECK(of({{"padding", "free"}}) == "a batch of several samples in a row" + words);
  CHECK(of({{"adapter", "prompt-tuning"}, {"virtual-tokens", "8"}}) ==
        "--adapter with a learned prompt" + words);
  CHECK(of({{"offload", "activations"}, {"recompute", "full"}}) == "--offload activations" + words);
  CHECK(of({{"transformers-version", "4.57"}}) == "--transformers-version before 5.0" + words);
  CHECK(of({{"loss", "chunked"}}).find("or classifies") != std::string::npos);
  CHECK(of({{"stack", "plimsoll"}}).find("--task classification") != std::string::npos);
}

// peft 0.21, peft_model.py, PeftModelForSequenceClassification.
TEST_CASE("beside adapters a copy of the classifier is trained, and exported as such") {
  Sources sources;
  const auto saved = [&](const char* model) {
    const Given given{{"task", "classification"}, {"lora-rank", "8"}};
    return request(sources, model, given).question.strategy.lora->modules_to_save;
  };
  CHECK(saved("qwen2.5-0.5b") == std::vector<std::string>{"score"});
  CHECK(saved("bert-base-uncased") == std::vector<std::string>{"classifier"});
  CHECK(request(sources, "gpt2", {{"lora-rank", "8"}})
            .question.strategy.lora->modules_to_save.empty());
  const Request asked = request(
      sources, "qwen2.5-0.5b",
      {{"task", "classification"}, {"lora-rank", "8"}, {"modules-to-save", "embed_tokens"}});
  CHECK(asked.question.strategy.lora->modules_to_save == std::vector<std::string>{"embed_tokens"});
}

TEST_CASE("the plan of a classifier is read back as the same question") {
  Sources sources;
  Request asked = request(sources, "qwen2.5-0.5b", {{"task", "classification"}});
  asked.question.remedies = false;
  const std::string written = document(asked);
  Request again = request_from_plan(written, "plan.json");
  again.question.remedies = false;
  const auto figures = [](const std::string& text) {
    const auto plan = nlohmann::json::parse(text);
    return std::array{plan["peak_bytes"], plan["reserved_bytes"], plan["states"]};
  };
  CHECK(figures(document(again)) == figures(written));
}

// The remedy is planned with the copy of the classifier that these options mean.
TEST_CASE("what adapters would help a classifier is what the same options need") {
  Sources sources;
  const Given base{{"task", "classification"}, {"gpu-memory", "24GiB"}, {"seq-len", "1024"}};
  const reports::Plan plan = answer(request(sources, "llama-3.1-8b", base));
  const auto adapters = std::ranges::find_if(plan.remedies, [](const reports::Remedy& remedy) {
    return remedy.option == "--lora-rank 16 --lora-targets all-linear --param-dtype bf16";
  });
  REQUIRE(adapters != plan.remedies.end());
  Given same = base;
  same.insert(same.end(),
              {{"lora-rank", "16"}, {"lora-targets", "all-linear"}, {"param-dtype", "bf16"}});
  CHECK(adapters->device == answer(request(sources, "llama-3.1-8b", same)).device);
}

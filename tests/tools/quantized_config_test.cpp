#include "tools/cli/quantized_config.h"

#include <doctest/doctest.h>

#include <initializer_list>

#include "models/storages.h"

using namespace plimsoll;
using namespace plimsoll::tools;

namespace {
using Given = std::vector<std::pair<std::string, std::string>>;

// What a model is planned with whose quantization_config has these members, or what is refused.
std::string refused(const std::string& members) {
  Sources sources;
  sources.models.add("packed", R"({"model_type": "llama", "hidden_size": 256,
      "intermediate_size": 704, "num_hidden_layers": 2, "num_attention_heads": 8,
      "vocab_size": 1000, "max_position_embeddings": 512, "quantization_config": {"quant_method": )" +
                                   members + "}}");
  Options options;
  for (const auto& [name, value] : Given{{"gpu", "h100"}, {"lora-rank", "8"}})
    options.add(name, value);
  try {
    const Request r = request_from("packed", options, sources);
    const auto& packed = r.question.strategy.quantize;
    return packed ? "--quantize " + std::string(packed->storage->name) : "nothing";
  } catch (const Error& error) {
    const std::string message = error.message();
    const std::size_t key = message.find("quantization_config");
    return key == std::string::npos ? message : message.substr(key);
  }
}
}  // namespace

TEST_CASE("a model's own quantization_config packs the base that adapters are on") {
  const auto ask = [](const std::string& quantization, Given given) {
    Sources sources;
    sources.models.add("packed", R"({"model_type": "llama", "hidden_size": 256,
        "intermediate_size": 704, "num_hidden_layers": 2, "num_attention_heads": 8,
        "vocab_size": 1000, "max_position_embeddings": 512, "quantization_config": )" +
                                     quantization + "}");
    Options options;
    options.add("gpu", "h100");
    for (const auto& [name, value] : given) options.add(name, value);
    return request_from("packed", options, sources);
  };
  const Given lora{{"lora-rank", "8"}};
  const auto storage = [&](const std::string& quantization) {
    const Request r = ask(quantization, lora);
    const auto& packed = r.question.strategy.quantize;
    return packed ? std::string(packed->storage->name) : "";
  };
  CHECK(storage(R"({"quant_method": "bitsandbytes", "load_in_8bit": true})") == "int8");
  CHECK(storage(R"({"quant_method": "bitsandbytes", "_load_in_4bit": true,
                    "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": true})") ==
        "nf4-dq");
  CHECK(storage(R"({"quant_method": "gptq", "bits": 4, "group_size": -1})") == "gptq-row");
  CHECK(storage(R"({"quant_method": "fp8"})").empty());
  const std::string held = R"({"quant_method": "bitsandbytes", "load_in_4bit": true,
      "bnb_4bit_quant_type": "nf4", "bnb_4bit_quant_storage": "bfloat16"})";
  const Request r = ask(held, lora);
  CHECK(r.question.strategy.quantize->held_in == DType::bf16);
  CHECK(r.question.strategy.param_dtype == DType::bf16);
  CHECK(r.notes == std::vector<std::string>{"quantization_config of the model says --quantize nf4 "
                                            "--quant-storage bf16"});
  CHECK(r.model->spec.notes.empty());
  CHECK(!ask(held, {}).question.strategy.quantize);  // nothing says that it is frozen
  // Its checkpoint holds packed weights, not those that are packed while they are loaded.
  const Given load{{"lora-rank", "8"}, {"phase", "load"}};
  CHECK(ask(held, load).question.load.packed);
  CHECK(!ask(held, lora).question.load.packed);
  const std::string other =
      "--phase load: the model's config has a quantization_config, so its "
      "checkpoint is packed as nf4 already: planned is what loading that takes "
      "with adapters on it, and without --quantize";
  CHECK_THROWS_WITH_AS(ask(held, {{"phase", "load"}}), other.c_str(), Error);
  CHECK_THROWS_WITH_AS(ask(held, {{"lora-rank", "8"}, {"phase", "load"}, {"quantize", "nf4-dq"}}),
                       other.c_str(), Error);
  CHECK_THROWS_WITH_AS(
      ask(R"({"quant_method": "gptq", "bits": 4, "group_size": 128})", load),
      "--phase load: the model's config has a quantization_config, so its checkpoint is packed "
      "already: what loading that takes is planned of bitsandbytes' checkpoints and, with "
      "adapters, of AWQ's",
      Error);
  const Given merge{{"lora-rank", "8"}, {"phase", "merge"}};
  CHECK(ask(held, merge).question.load.packed);
  CHECK(ask(held, merge).question.load.merges);
  CHECK_FALSE(ask(held, load).question.load.merges);
  CHECK_THROWS_WITH_AS(ask(R"({"quant_method": "gptq", "bits": 4, "group_size": 128})", merge),
                       doctest::Contains("--phase merge: the model's config has"), Error);
  const char* const awq =
      R"({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"})";
  CHECK(storage(awq) == "awq");
  CHECK(ask(awq, load).question.load.packed);
  CHECK_FALSE(ask(awq, load).question.load.device_map);
  CHECK(ask(awq, {{"lora-rank", "8"}, {"phase", "load"}, {"device-map", "auto"}})
            .question.load.device_map);
  CHECK_THROWS_WITH_AS(ask(awq, {{"phase", "load"}}), doctest::Contains("with adapters, of AWQ's"),
                       Error);
  CHECK(!ask(held, {}).model->spec.notes.empty());
  CHECK_THROWS_AS(ask(R"({"quant_method": "gptq", "bits": 8})", lora), Error);
  CHECK_THROWS_AS(ask(R"({"quant_method": "bitsandbytes", "load_in_8bit": true,
                          "llm_int8_skip_modules": ["lm_head", "o_proj"]})",
                      lora),
                  Error);
  const Request said = ask(held, {{"lora-rank", "8"}, {"quantize", "int8"}});
  CHECK(said.question.strategy.quantize->storage->name == "int8");
}

TEST_CASE("a checkpoint in MXFP4 is planned as what it is unpacked to") {
  Sources sources;
  sources.models.add("gpt-oss", R"({"model_type": "gpt_oss", "hidden_size": 64,
      "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 16,
      "num_key_value_heads": 2, "vocab_size": 100, "num_local_experts": 4,
      "num_experts_per_tok": 2, "sliding_window": 128, "max_position_embeddings": 512,
      "quantization_config": {"quant_method": "mxfp4"}})");
  const auto ask = [&](Given given) {
    Options options;
    options.add("gpu", "h100");
    for (const auto& [name, value] : given) options.add(name, value);
    return request_from("gpt-oss", options, sources);
  };
  for (const Given& given : {Given{{"lora-rank", "8"}}, Given{}}) {
    const Request r = ask(given);
    CHECK(!r.question.strategy.quantize);
    REQUIRE(r.notes.size() == 1);
    CHECK(r.notes[0].find("Mxfp4Config(dequantize=True)") != std::string::npos);
    CHECK(r.model->spec.notes.empty());  // not also "is not applied"
  }
  // A frozen base stays in bf16; a trained one has what the precision trains.
  CHECK(ask({{"lora-rank", "8"}}).question.strategy.param_dtype == DType::bf16);
  CHECK(!ask({}).question.strategy.param_dtype);
  try {
    (void)ask({{"lora-rank", "8"}, {"quantize", "mxfp4"}});
    FAIL("--quantize mxfp4 was planned");
  } catch (const Error& error) {
    CHECK(error.message().find("Mxfp4Config(dequantize=True)") != std::string::npos);
  }
}

TEST_CASE("a quantization_config that is not planned is refused by its key and value") {
  for (const auto& [members, outcome] : std::initializer_list<std::pair<const char*, const char*>>{
           {R"("gptq")", "--quantize gptq"},
           {R"("gptq", "group_size": 128)", "--quantize gptq"},
           {R"("gptq", "group_size": -1)", "--quantize gptq-row"},
           {R"("bitsandbytes")", "nothing"},
           {R"("bitsandbytes", "load_in_4bit": true)", "--quantize fp4"},
           {R"("bitsandbytes", "load_in_4bit": false, "_load_in_8bit": true)", "--quantize int8"},
           {R"("bitsandbytes", "load_in_8bit": true, "llm_int8_threshold": 6.0)",
            "--quantize int8"},
           {R"("bitsandbytes", "load_in_8bit": true, "llm_int8_skip_modules": ["lm_head"])",
            "--quantize int8"},
           {R"("bitsandbytes", "load_in_8bit": true, "llm_int8_has_fp16_weight": false)",
            "--quantize int8"},
           {R"("bitsandbytes", "load_in_4bit": true, "bnb_4bit_quant_storage": "uint8")",
            "--quantize fp4"},
           {R"("torchao", "quant_type": {"default": {"_type": "Int8WeightOnlyConfig", "_version": 2,
               "_data": {"group_size": null, "granularity": {"_type": "PerRow"}}}})",
            "--quantize torchao-int8"},
           {R"("hqq", "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 64,
               "axis": 1}})",
            "--quantize hqq"},
           {R"("aqlm")", "nothing"}}) {
    CAPTURE(members);
    CHECK(refused(members) == outcome);
  }
  for (const auto& [members, key] : std::initializer_list<std::pair<const char*, const char*>>{
           {R"("gptq", "group_size": 64)", "group_size"},
           {R"("gptq", "group_size": 129)", "group_size"},
           {R"("gptq", "group_size": -2)", "group_size"},
           {R"("gptq", "bits": 3)", "bits"},
           {R"("bitsandbytes", "load_in_8bit": true, "llm_int8_threshold": 5)",
            "llm_int8_threshold"},
           {R"("bitsandbytes", "load_in_8bit": true, "llm_int8_has_fp16_weight": true)",
            "llm_int8_has_fp16_weight"},
           {R"("bitsandbytes", "load_in_8bit": true, "llm_int8_enable_fp32_cpu_offload": true)",
            "llm_int8_enable_fp32_cpu_offload"},
           {R"("bitsandbytes", "load_in_4bit": true, "bnb_4bit_use_double_quant": true)",
            "bnb_4bit_quant_type"},
           {R"("torchao")", "quant_type"},
           {R"("torchao", "quant_type": {"default": {"_type": "Int4WeightOnlyConfig"}})", "_type"},
           {R"("torchao", "quant_type": {"default": {"_type": "Int8WeightOnlyConfig",
               "_data": {"granularity": {"_type": "PerGroup"}}}})",
            "_type"},
           {R"("hqq")", "quant_config"},
           {R"("hqq", "quant_config": {"weight_quant_params": {"nbits": 8}})", "nbits"},
           {R"("hqq", "quant_config": {"weight_quant_params": {"group_size": 128}})", "group_size"},
           {R"("bitsandbytes", "load_in_4bit": true, "bnb_4bit_quant_storage": "int9")",
            "bnb_4bit_quant_storage"}}) {
    CAPTURE(members);
    CHECK(refused(members).find(key) != std::string::npos);
  }
}

TEST_CASE("AWQ's configurations, as AutoAWQ and gptqmodel write them") {
  for (const auto& [members, outcome] : std::initializer_list<std::pair<const char*, const char*>>{
           {R"("awq")", "--quantize awq"},
           {R"("awq", "bits": 4, "group_size": 128, "zero_point": true, "version": "gemm")",
            "--quantize awq"},
           {R"("awq", "w_bit": 4, "q_group_size": 128, "version": "GEMM",
               "modules_to_not_convert": null)",
            "--quantize awq"},
           {R"("awq", "modules_to_not_convert": ["lm_head"])", "--quantize awq"}}) {
    CAPTURE(members);
    CHECK(refused(members) == outcome);
  }
  for (const auto& [members, key] : std::initializer_list<std::pair<const char*, const char*>>{
           {R"("awq", "bits": 8)", "bits"},
           {R"("awq", "w_bit": 3)", "w_bit"},
           {R"("awq", "group_size": 64)", "group_size"},
           {R"("awq", "q_group_size": 32)", "q_group_size"},
           {R"("awq", "zero_point": false)", "zero_point"},
           {R"("awq", "version": "gemv")", "version"},
           {R"("awq", "format": "marlin")", "format"},
           {R"("awq", "modules_to_not_convert": ["visual"])", "modules_to_not_convert"}}) {
    CAPTURE(members);
    CHECK(refused(members).find(key) != std::string::npos);
  }
}

#include <doctest/doctest.h>

#include <map>
#include <string>

#include "models/base/error.h"
#include "models/deepspeed_config_reader.h"

using namespace plimsoll;

namespace {

std::map<std::string, std::string> settings(std::string_view text,
                                            std::optional<std::int64_t> hidden = 4096) {
  std::map<std::string, std::string> out;
  for (const models::FileSetting& s :
       models::read_deepspeed_config(text, "ds.json", hidden).settings)
    out[s.option] = s.value;
  return out;
}

std::string refusal(std::string_view text, ErrorKind kind,
                    std::optional<std::int64_t> hidden = 4096) {
  try {
    models::read_deepspeed_config(text, "ds.json", hidden);
  } catch (const Error& error) {
    CHECK(error.kind() == kind);
    CHECK(error.message().starts_with("ds.json: "));
    return error.message();
  }
  return "accepted";
}

bool says(const std::string& message, std::string_view part) {
  return message.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a file's sizes, stage, precision and optimizer become options") {
  const auto said = settings(R"({"train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4, "bf16": {"enabled": true},
    "data_types": {"grad_accum_dtype": "fp32"},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": true}},
    "zero_optimization": {"stage": 2, "reduce_bucket_size": 2e8, "overlap_comm": true}})");
  CHECK(said.at("stack") == "deepspeed");
  CHECK(said.at("micro-batch") == "2");
  CHECK(said.at("grad-accum") == "4");
  CHECK(said.at("precision") == "bf16-mixed");
  CHECK(said.at("grad-dtype") == "fp32");
  CHECK(said.at("optimizer") == "adamw");
  CHECK(said.at("optimizer-impl") == "foreach");
  CHECK(said.at("zero") == "2");
  CHECK(said.at("reduce-bucket-size") == "200000000");
  CHECK(said.at("overlap-comm") == "yes");
  CHECK(said.count("stage3-prefetch-bucket-size") == 0);
}

TEST_CASE("\"auto\" sizes are Accelerate's: h^2, 0.9 h^2 and 10 h; other ones stay open") {
  const auto said =
      settings(R"({"train_micro_batch_size_per_gpu": "auto", "train_batch_size": "auto",
    "fp16": {"enabled": "auto"}, "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto",
    "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto"}})",
               4096);
  CHECK(said.at("reduce-bucket-size") == "16777216");  // 4096^2
  CHECK(said.at("stage3-prefetch-bucket-size") == "15099494");  // int(0.9 * 4096^2)
  CHECK(said.at("stage3-param-persistence-threshold") == "40960");
  CHECK(said.count("micro-batch") == 0);
  CHECK(said.count("global-batch") == 0);
  CHECK(said.count("precision") == 0);
  CHECK(says(refusal(R"({"zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"}})",
                     ErrorKind::bad_input, std::nullopt),
             "hidden_size"));
}

TEST_CASE("without bf16 and fp16 DeepSpeed trains in fp32") {
  CHECK(settings("{}").at("precision") == "fp32");
  CHECK(settings(R"({"bf16": {"enabled": false}})").at("precision") == "fp32");
  CHECK(settings(R"({"fp16": {"enabled": true}})").at("precision") == "fp16-mixed");
  CHECK(settings(R"({"bfloat16": {"enabled": true, "bf16_master_weights_and_grads": true,
                      "bf16_optimizer_states": true}})")
            .at("precision") == "bf16");
  CHECK(says(
      refusal(R"({"bf16": {"enabled": true}, "fp16": {"enabled": true}})", ErrorKind::bad_input),
      "both enabled"));
}

TEST_CASE("an unknown key is named with the nearest one") {
  CHECK(says(refusal(R"({"zero_optimisation": {}})", ErrorKind::bad_input),
             "did you mean 'zero_optimization'"));
  CHECK(
      says(refusal(R"({"zero_optimization": {"stage3_max_live_params": 1}})", ErrorKind::bad_input),
           "did you mean 'stage3_max_live_parameters'"));
  CHECK(says(refusal(R"({"bf16": {"enable": true}})", ErrorKind::bad_input),
             "did you mean 'enabled'"));
  // Nothing that DeepSpeed would look at, and near to nothing: it ignores it, and so do we.
  const auto read = models::read_deepspeed_config(R"({"my_own_remarks": 1})", "ds.json", 64);
  REQUIRE(read.notes.size() == 1);
  CHECK(says(read.notes[0], "my_own_remarks"));
}

TEST_CASE("features whose memory is not planned are refused by name") {
  for (const char* text :
       {R"({"zero_optimization": {"offload_optimizer": {"device": "nvme"}}})",
        R"({"zero_optimization": {"offload_optimizer": {"device": "cpu", "ratio": 0.5}}})",
        R"({"zero_optimization": {"offload_optimizer": {"device": "cpu", "super_offload": true}}})",
        R"({"zero_optimization": {"offload_optimizer": {"device": "cpu"},
            "offload_param": {"device": "cpu", "pin_memory": false}}})",
        R"({"zero_optimization": {"offload_param": {"device": "nvme"}}})",
        R"({"zero_optimization": {"zero_hpz_partition_size": 8}})",
        R"({"zero_optimization": {"zero_quantized_gradients": true}})",
        R"({"zero_optimization": {"contiguous_gradients": false}})",
        R"({"zero_optimization": {"round_robin_gradients": true}})",
        R"({"communication_data_type": "fp32"})", R"({"torch_autocast": {"enabled": true}})",
        R"({"optimizer": {"type": "OneBitAdam"}})"})
    CHECK(refusal(text, ErrorKind::unsupported) != "accepted");
  CHECK(refusal(R"({"zero_optimization": {"offload_param": {"device": "none"}}})",
                ErrorKind::unsupported) == "accepted");
}

TEST_CASE("ZeRO-Offload of a file is --offload") {
  const auto read = models::read_deepspeed_config(
      R"({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu",
          "pin_memory": false}, "offload_param": {"device": "cpu", "pin_memory": false}}})",
      "ds.json", 64);
  const auto value = [&](std::string_view option) -> std::string {
    for (const auto& setting : read.settings)
      if (setting.option == option) return setting.value;
    return "";
  };
  CHECK(value("offload") == "optimizer,params");
  CHECK(value("offload-pin") == "no");
}

TEST_CASE("values of the wrong kind are refused with the key") {
  for (const char* text : {R"({"zero_optimization": {"reduce_bucket_size": -1}})",
                           R"({"zero_optimization": {"reduce_bucket_size": 1.5}})",
                           R"({"zero_optimization": {"overlap_comm": "yes"}})",
                           R"({"train_batch_size": 0})", R"({"zero_optimization": 3})", "[]"})
    CHECK(refusal(text, ErrorKind::bad_input) != "accepted");
}

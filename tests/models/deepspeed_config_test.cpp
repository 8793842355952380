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

// DeepSpeedZeroConfig of 0.19.8 takes a field by its name and by its alias (populate_by_name).
TEST_CASE("ZeRO-3's sizes are read with and without their stage3_") {
  const auto said = settings(R"({"zero_optimization": {"stage": 3, "prefetch_bucket_size": 7,
    "param_persistence_threshold": 8, "max_live_parameters": 5, "max_reuse_distance": "auto",
    "gather_16bit_weights_on_model_save": true}})");
  CHECK(said.at("stage3-prefetch-bucket-size") == "7");
  CHECK(said.at("stage3-param-persistence-threshold") == "8");
  CHECK(said.at("stage3-max-live-parameters") == "5");
  CHECK(said.count("stage3-max-reuse-distance") == 0);
  CHECK(says(refusal(R"({"zero_optimization": {"stage": 3, "allgather_sequential": true}})",
                     ErrorKind::unsupported),
             "zero_optimization.allgather_sequential: is not modelled yet"));
  CHECK(says(refusal(R"({"zero_optimization": {"stage": 3, "prefetch_bucket_size": 7,
                       "stage3_prefetch_bucket_size": 9}})",
                     ErrorKind::bad_input),
             "prefetch_bucket_size"));
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
  for (
      const char* text :
      {R"({"zero_optimization": {"offload_optimizer": {"device": "nvme"},
            "offload_param": {"device": "cpu"}}})",
       R"({"zero_optimization": {"offload_optimizer": {"device": "nvme", "fast_init": true}}})",
       R"({"zero_optimization": {"offload_optimizer": {"device": "nvme", "pipeline_read": true}}})",
       R"({"aio": {"block_size": 8388608}, "zero_optimization": {"offload_optimizer":
            {"device": "nvme"}}})",
       R"({"zero_optimization": {"offload_optimizer": {"device": "cpu", "ratio": 0.5}}})",
       R"({"zero_optimization": {"offload_optimizer": {"device": "cpu", "super_offload": true}}})",
       R"({"zero_optimization": {"offload_optimizer": {"device": "cpu"},
            "offload_param": {"device": "cpu", "pin_memory": false}}})",
       R"({"zero_optimization": {"zero_hpz_partition_size": 8}})",
       R"({"zero_optimization": {"zero_quantized_gradients": true}})",
       R"({"zero_optimization": {"contiguous_gradients": false}})",
       R"({"communication_data_type": "fp32"})", R"({"torch_autocast": {"enabled": true}})",
       R"({"optimizer": {"type": "OneBitAdam"}})"})
    CHECK(refusal(text, ErrorKind::unsupported) != "accepted");
  // Of the flat buffer of stages 1 and 2: LLaMA-Factory's ds_z0_config.json has it, too.
  for (const char* stage : {"0", "1", "2", "3"}) {
    const auto read = settings(std::string(R"({"zero_optimization": {"stage": )") + stage +
                               R"(, "round_robin_gradients": true}})");
    CHECK(read.at("zero") == stage);
    const bool flat = stage == std::string("1") || stage == std::string("2");
    CHECK(read.contains("round-robin-gradients") == flat);
  }
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

namespace {
// All that a file says, or why it is refused; its first word is "bad" or "unsupported" then.
std::string read(std::string_view text, std::optional<std::int64_t> hidden = 4096) {
  try {
    const models::FileSettings file = models::read_deepspeed_config(text, "d", hidden);
    std::string out;
    for (const models::FileSetting& s : file.settings)
      if (s.option != "stack") out += s.option + "=" + s.value + " (" + s.key + "); ";
    for (const std::string& note : file.notes) out += "note: " + note + "; ";
    return out;
  } catch (const Error& error) {
    return (error.kind() == ErrorKind::bad_input ? "bad: " : "unsupported: ") + error.message();
  }
}
const std::string kFp32 = "precision=fp32 (bf16.enabled); ";
const std::string kZero = "zero_optimization.";
struct Row {
  const char* text;
  std::string said;
};
void check_rows(const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    CAPTURE(row.text);
    CHECK(read(row.text) == row.said);
  }
}
}  // namespace

TEST_CASE("sections of DeepSpeed's file, one a row") {
  const std::string open = "note: d: bf16 or fp16 is \"auto\": --precision decides; ";
  check_rows(
      {{R"({"train_micro_batch_size_per_gpu": 3, "train_batch_size": 24})",
        "micro-batch=3 (train_micro_batch_size_per_gpu); global-batch=24 (train_batch_size); " +
            kFp32},
       {R"({"gradient_accumulation_steps": 0})",
        "bad: d: gradient_accumulation_steps is 0, but a positive whole number, or \"auto\" is "
        "needed"},
       {R"({"bf16": {"enabled": "auto"}})", open},
       {R"({"fp16": {"enabled": "auto"}, "bf16": {"enabled": false}})", open},
       {R"({"bf16": {"enabled": true, "bf16_master_weights_and_grads": true}})",
        "unsupported: d: bf16.bf16_master_weights_and_grads: without bf16_optimizer_states (or "
        "the other way round) it is not modelled"},
       {R"({"bf16": {"enabled": true, "bf16_optimizer_states": true}})",
        "unsupported: d: bf16.bf16_master_weights_and_grads: without bf16_optimizer_states (or "
        "the other way round) it is not modelled"},
       {R"({"fp16": {"enabled": true, "fp16_master_weights_and_grads": true}})",
        "unsupported: d: fp16.fp16_master_weights_and_grads: is not modelled yet"},
       {R"({"bfloat16": {"enabled": true}})", "precision=bf16-mixed (bfloat16.enabled); "},
       {R"({"data_types": {"grad_accum_dtype": "bf16"}})",
        kFp32 + "grad-dtype=bf16 (data_types.grad_accum_dtype); "},
       {R"({"optimizer": {"type": "SGD"}})", kFp32 + "optimizer=sgd (optimizer.type); "},
       {R"({"optimizer": {"type": "sgd", "params": {"momentum": 0.9}}})",
        kFp32 + "optimizer=momentum (optimizer.type); "},
       {R"({"optimizer": {"type": "sgd", "params": {"momentum": 0}}})",
        kFp32 + "optimizer=sgd (optimizer.type); "},
       {R"({"optimizer": {"type": "sgd", "params": {"momentum": "auto"}}})",
        kFp32 + "optimizer=sgd (optimizer.type); "},
       {R"({"optimizer": {"type": "Adam", "params": {"torch_adam": false}}})",
        kFp32 + "optimizer=adamw (optimizer.type); "},
       {R"({"zero_optimization": {"stage": 3, "sub_group_size": 1e9,
                "stage3_prefetch_bucket_size": 5e7, "stage3_param_persistence_threshold": 1e5,
                "stage3_max_live_parameters": 1e9, "stage3_max_reuse_distance": 2e9}})",
        kFp32 + "zero=3 (" + kZero + "stage); sub-group-size=1000000000 (" + kZero +
            "sub_group_size); stage3-prefetch-bucket-size=50000000 (" + kZero +
            "stage3_prefetch_bucket_size); stage3-param-persistence-threshold=100000 (" + kZero +
            "stage3_param_persistence_threshold); stage3-max-live-parameters=1000000000 (" + kZero +
            "stage3_max_live_parameters); stage3-max-reuse-distance=2000000000 (" + kZero +
            "stage3_max_reuse_distance); "},
       // Other stages have none of these.
       {R"({"zero_optimization": {"stage": 2, "sub_group_size": 1e9,
                "stage3_max_live_parameters": 1e9}})",
        kFp32 + "zero=2 (" + kZero + "stage); "},
       // No size of the model is taken for them.
       {R"({"zero_optimization": {"stage": 3, "sub_group_size": "auto",
                "stage3_max_reuse_distance": "auto", "stage3_max_live_parameters": "auto"}})",
        kFp32 + "zero=3 (" + kZero + "stage); "},
       {R"({"zero_optimization": {"stage": "auto", "sub_group_size": 7}})",
        kFp32 + "sub-group-size=7 (" + kZero + "sub_group_size); "},
       {R"({"zero_optimization": {"reduce_bucket_size": 1e30}})",
        kFp32 + "reduce-bucket-size=9223372036854775807 (" + kZero + "reduce_bucket_size); "},
       {R"({"zero_optimization": {"reduce_bucket_size": "auto"}})",
        kFp32 + "reduce-bucket-size=16777216 (" + kZero + "reduce_bucket_size); note: d: " + kZero +
            "reduce_bucket_size \"auto\" is 16777216 (Accelerate, from hidden_size "
            "4096); "}});
}

TEST_CASE("DeepSpeed's offloading, switches and sections that change nothing, one a row") {
  check_rows(
      {{R"({"zero_optimization": {"overlap_comm": false}})",
        kFp32 + "overlap-comm=no (" + kZero + "overlap_comm); "},
       {R"({"zero_optimization": {"overlap_comm": "auto"}})", kFp32},
       {R"({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}})",
        kFp32 + "offload=optimizer (" + kZero + "offload_optimizer); "},
       {R"({"zero_optimization": {"offload_param": {"device": "cpu", "pin_memory": false}}})",
        kFp32 + "offload=params (" + kZero + "offload_optimizer); offload-pin=no (" + kZero +
            "offload_optimizer.pin_memory); "},
       {R"({"aio": {"block_size": 262144}, "zero_optimization": {
            "offload_optimizer": {"device": "nvme", "nvme_path": "/n", "buffer_count": 5},
            "offload_param": {"device": "nvme", "nvme_path": "/n", "buffer_count": 6,
                              "buffer_size": 1e9, "max_in_cpu": 7}}})",
        kFp32 + "offload-optimizer-buffer-count=5 (" + kZero +
            "offload_optimizer.buffer_count); offload-param-buffer-count=6 (" + kZero +
            "offload_param.buffer_count); offload-param-buffer-size=1000000000 (" + kZero +
            "offload_param.buffer_size); offload-param-max-in-cpu=7 (" + kZero +
            "offload_param.max_in_cpu); offload=optimizer,params (" + kZero +
            "offload_optimizer); offload-to=nvme (" + kZero + "offload_optimizer.device); "},
       {R"({"zero_optimization": {"offload_optimizer": {"device": "auto"}}})", kFp32},
       {R"({"zero_optimization": {"offload_optimizer": {"device": "cpu", "ratio": 1}}})",
        kFp32 + "offload=optimizer (" + kZero + "offload_optimizer); "},
       {R"({"zero_optimization": {"offload_optimizer": {"device": "disk"}}})",
        "bad: d: zero_optimization: offload_optimizer: device is \"disk\", but none, cpu or "
        "nvme is needed"},
       {R"({"zero_optimization": {"zero_hpz_partition_size": 1}})", kFp32},
       {R"({"zero_optimization": {"zero_hpz_partition_size": 2}})",
        "unsupported: d: zero_optimization.zero_hpz_partition_size: ZeRO++ is not modelled yet"},
       {R"({"zero_optimization": {"contiguous_gradients": true, "cpu_offload": false}})", kFp32},
       {R"({"zero_optimization": {"reduce_scatter": false}})",
        "unsupported: d: zero_optimization.reduce_scatter: false is not modelled yet"},
       {R"({"zero_optimization": {"cpu_offload": true}})",
        "unsupported: d: zero_optimization.cpu_offload: is not modelled yet"},
       {R"({"amp": {"enabled": false}})", kFp32},
       {R"({"hybrid_engine": {"enabled": true}})",
        "unsupported: d: hybrid_engine: is not modelled yet"},
       {R"({"zenflow": {}})", "unsupported: d: zenflow: is not modelled yet"},
       {R"({"communication_data_type": "auto"})", kFp32},
       {R"({"activation_checkpointing": {"partition_activations": true}})",
        kFp32 + "note: d: activation_checkpointing has no effect on a Transformers model; "
                "--recompute says what is recomputed; "},
       {R"({"zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz": 1})",
        kFp32 + "note: d: DeepSpeed knows no key '" + std::string(57, 'z') +
            "...' and ignores it; "},
       {R"({"bf16": {"qqqqqqqqqqqq": true}})", "bad: d: unknown key 'qqqqqqqqqqqq' in bf16"}});
  CHECK(read(R"({"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": "auto"}})",
             64) == kFp32 + "zero=3 (" + kZero +
                        "stage); stage3-param-persistence-threshold=640 (" + kZero +
                        "stage3_param_persistence_threshold); note: d: " + kZero +
                        "stage3_param_persistence_threshold \"auto\" is 640 (Accelerate, from "
                        "hidden_size 64); ");
}

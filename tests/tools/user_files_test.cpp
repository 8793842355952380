// --peft, --accelerate and --training-args: files beside options, and beside each other.
#include "tools/cli/user_files.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "models/run_names.h"
#include "tests/scratch_folder.h"
#include "tools/cli/request.h"
#include "tools/cli/search_scope.h"

using namespace plimsoll;
using namespace plimsoll::tools;
using plimsoll::test::ScratchFolder;

namespace {
using Given = std::vector<std::pair<std::string, std::string>>;

Options options(const Given& given) {
  Options out;
  out.add("gpu", "h100");
  for (const auto& [name, value] : given) out.add(name, value);
  return out;
}
Request request(const std::string& model, const Given& given) {
  Sources sources;
  return request_from(model, options(given), sources);
}
std::string refusal(const Given& given, const std::string& model = "gpt2") {
  try {
    (void)request(model, given);
  } catch (const Error& error) {
    return error.message();
  }
  return "accepted";
}
bool says(const std::string& message, std::string_view part) {
  return message.find(part) != std::string::npos;
}
constexpr const char* kFsdp =
    "distributed_type: FSDP\nnum_processes: 4\nmixed_precision: bf16\nfsdp_config: {fsdp_version: "
    "2, fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP}\n";
}  // namespace

TEST_CASE("files ask the question that their options ask") {
  const ScratchFolder folder;
  const Given files{
      {"accelerate", folder.write("c.yaml", kFsdp)},
      {"training-args", folder.write("t.yaml",
                                     "per_device_train_batch_size: 2\nblock_size: 512\n"
                                     "gradient_checkpointing: true")},
      {"peft", folder.write("a.json", R"({"r": 4, "target_modules": ["c_attn"]})")}};
  const Request said = request("gpt2", files);
  const Request same = request("gpt2", {{"gpus", "4"},
                                        {"zero", "3"},
                                        {"micro-batch", "2"},
                                        {"seq-len", "512"},
                                        {"recompute", "full"},
                                        {"optimizer-impl", "fused"},
                                        {"lora-rank", "4"},
                                        {"lora-alpha", "8"},
                                        {"lora-targets", "c_attn"}});
  CHECK(said.question.strategy == same.question.strategy);
  CHECK(said.question.batch == same.question.batch);
  CHECK(answer(said).fingerprint == answer(same).fingerprint);
}

TEST_CASE(
    "an option contradicts a file with both values, and overrides what the file leaves open") {
  const ScratchFolder folder;
  const std::string yaml = folder.write("c.yaml", kFsdp);
  const std::string message = refusal({{"accelerate", yaml}, {"gpus", "8"}});
  CHECK(message == "--gpus 8, but " + yaml + " says 4 (num_processes): give one of the two");
  CHECK(refusal({{"accelerate", yaml}, {"gpus", "4"}}) == "accepted");
  const std::string args = folder.write("t.json", R"({"bf16": true})");
  // per_device_train_batch_size is 8 only where nothing says otherwise.
  CHECK(request("gpt2", {{"training-args", args}}).question.batch.micro_batch == 8);
  CHECK(
      request("gpt2", {{"training-args", args}, {"micro-batch", "3"}}).question.batch.micro_batch ==
      3);
  CHECK(says(refusal({{"training-args", args}, {"precision", "fp16-mixed"}}),
             "--precision fp16-mixed, but"));
}

TEST_CASE("no autocast is no statement about the weights") {
  const ScratchFolder folder;
  const std::string args = folder.write("t.json", R"({"bf16": false})");
  CHECK(refusal({{"training-args", args}, {"precision", "bf16"}}) == "accepted");
  CHECK(says(refusal({{"training-args", args}, {"precision", "bf16-mixed"}}), "says fp32 (bf16)"));
}

TEST_CASE("the launcher's mixed precision holds where the arguments name none, and only there") {
  const ScratchFolder folder;
  const std::string yaml = folder.write("c.yaml", "distributed_type: NO\nmixed_precision: fp16");
  const auto precision = [&](const char* args) {
    return request("gpt2", {{"accelerate", yaml}, {"training-args", folder.write("t.json", args)}})
        .question.strategy.precision;
  };
  CHECK(precision(R"({"seed": 1})") == models::Precision::fp16_mixed);
  CHECK(precision(R"({"bf16": false})") == models::Precision::fp16_mixed);
  CHECK(precision(R"({"bf16": true})") == models::Precision::bf16_mixed);
}

TEST_CASE("two files that contradict each other are both named; a launcher's default yields") {
  const ScratchFolder folder;
  const auto message = [&](const std::string& yaml) {
    return refusal({{"accelerate", folder.write("c.yaml", yaml)},
                    {"training-args", folder.write("t.json", R"({"fsdp": "shard_grad_op"})")}});
  };
  CHECK(message(kFsdp) == "accepted");
  std::string explicit_one = kFsdp;
  explicit_one.replace(explicit_one.find("fsdp_version"), 0, "fsdp_reshard_after_forward: true, ");
  CHECK(says(message(explicit_one), "t.json says 2 (fsdp), but "));
  CHECK(says(message(explicit_one), "c.yaml says 3 (fsdp_config.fsdp_reshard_after_forward)"));
}

TEST_CASE("DeepSpeed's file must say what the arguments say, as Transformers demands") {
  const ScratchFolder folder;
  const std::string ds = folder.write(
      "ds.json", R"({"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2}})");
  const std::string args = folder.write("t.json", R"({"deepspeed": "ds.json"})");
  CHECK(says(refusal({{"training-args", args}}),
             "t.json: per_device_train_batch_size (--micro-batch 8), but "));
  const std::string good =
      folder.write("good.json", R"({"deepspeed": "ds.json", "per_device_train_batch_size": 2})");
  const Request made = request("gpt2", {{"training-args", good}});
  CHECK(made.question.strategy.stack == models::Stack::deepspeed);
  CHECK(made.question.strategy.data.zero == 2);
}

TEST_CASE("an optimizer of ds_config.json steps, whatever optim says") {
  const ScratchFolder folder;
  const auto optimizer = [&](const char* ds) {
    folder.write("ds.json", ds);
    const Request made =
        request("gpt2", {{"training-args", folder.write("t.json", R"({"deepspeed": "ds.json",
                                                                      "optim": "sgd"})")}});
    return name_of(made.question.strategy.optimizer);
  };
  CHECK(optimizer(R"({"zero_optimization": {"stage": 1}})") == "sgd");
  CHECK(optimizer(R"({"zero_optimization": {"stage": 1}, "optimizer": {"type": "AdamW"}})") ==
        "adamw");
}

TEST_CASE("what a file makes impossible is refused with the file and its key") {
  const ScratchFolder folder;
  const std::string args = folder.write("t.json", R"({"torch_compile": true})");
  CHECK(refusal({{"training-args", args}}) ==
        args +
            ": torch_compile: --compile model: a model compiled as one graph is not modelled yet "
            "(block is)");
}

TEST_CASE("how checkpoints are made is no matter where there are none") {
  const ScratchFolder folder;
  const std::string base =
      "model_name_or_path: gpt2\nbf16: true\nlora_target: c_attn\ncutoff_len: 512\n";
  const std::string full = folder.write("full.yaml", base);
  const std::string none = folder.write("none.yaml", base + "disable_gradient_checkpointing: true");
  const auto reentrant = [](const Given& given) {
    return request("", given).question.strategy.use_reentrant.value_or(false);
  };
  CHECK(reentrant({{"llamafactory", full}}));
  CHECK(!reentrant({{"llamafactory", none}}));
  CHECK(!reentrant({{"llamafactory", full}, {"recompute", "none"}}));
  CHECK(!reentrant(
      {{"swift", R"({"model": "gpt2", "target_modules": "c_attn"})"}, {"recompute", "none"}}));
}

TEST_CASE("an adapter's file names the model where nothing else does") {
  const ScratchFolder folder;
  const std::string path = folder.write("a.json", R"({"base_model_name_or_path": "gpt2", "r": 4,
                                "target_modules": ["c_attn"]})");
  CHECK(request("", {{"peft", path}}).model->spec.name == "gpt2");
  CHECK(request("qwen2-0.5b", {{"peft", folder.write("b.json", R"({"r": 4,
        "base_model_name_or_path": "gpt2", "target_modules": ["q_proj"]})")}})
            .model->spec.name == "qwen2-0.5b");
  CHECK(says(refusal({{"peft", folder.write("c.json", R"({"r": 4})")}}, ""), "MODEL"));
}

TEST_CASE("a search holds what files say, and looks for what they leave to defaults") {
  const ScratchFolder folder;
  Sources sources;
  const SearchRequest found = search_request(
      "", options({{"training-args", folder.write("t.json", R"({"model_name_or_path": "gpt2",
                       "bf16": true, "seed": 1})")}}),
      sources);
  CHECK(found.model == "gpt2");
  CHECK(found.scope.fixed.contains("precision"));
  for (const char* open : {"micro-batch", "recompute", "optimizer-impl"})
    CHECK(!found.scope.fixed.contains(open));
}

TEST_CASE("the answer says what it read, and whose defaults hold") {
  const ScratchFolder folder;
  const std::string args = folder.write("t.json", R"({"bf16": true, "dataset_name": "x"})");
  std::string all;
  for (const std::string& note : answer(request("gpt2", {{"training-args", args}})).advice)
    all += note + "\n";
  CHECK(says(all, args + ": --precision bf16-mixed (bf16)"));
  CHECK(says(all, "Transformers 5.17's defaults hold: --micro-batch 8"));
  CHECK(says(all, "not looked at: dataset_name"));
}

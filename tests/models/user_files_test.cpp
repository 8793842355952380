// Files of Accelerate and Transformers, and YAML, as options.
#include <doctest/doctest.h>

#include <string>

#include "models/accelerate_config_reader.h"
#include "models/base/error.h"
#include "models/training_arguments_reader.h"
#include "models/yaml_reader.h"
#include "tests/models/file_settings.h"

using namespace plimsoll;
using tests::kBad;
using tests::notes;
using tests::refusal;
using tests::Said;
using tests::says;

namespace {
// What stands last holds, since a default yields to what a file says. Defaults stand in brackets.
Said said(const models::FileSettings& file) {
  Said out;
  for (const models::FileSetting& s : file.settings)
    out[s.option] = s.is_default ? "(" + s.value + ")" : s.value;
  return out;
}
models::FileSettings accelerate(std::string_view text) {
  return models::read_accelerate_config(text, "c.yaml");
}
models::FileSettings arguments(std::string_view text) {
  return models::read_training_arguments(text, "t.json");
}
std::string no_accelerate(std::string_view text, ErrorKind kind = ErrorKind::bad_input) {
  return refusal(accelerate, std::string(text), kind);
}
std::string no_arguments(std::string_view text, ErrorKind kind = ErrorKind::bad_input) {
  return refusal(arguments, std::string(text), kind);
}
std::string yaml(std::string_view text) {
  return models::json_from_yaml(text, "c.yaml");
}
}  // namespace

TEST_CASE("YAML's scalars are what PyYAML makes of them") {
  CHECK(yaml("{a: no, b: 'no', c: ~, d: 8, e: '8', f: 1.5, g: word, h: }") ==
        R"({"a":false,"b":"no","c":null,"d":8,"e":"8","f":1.5,"g":"word","h":null})");
  CHECK(yaml("a: 1_000\nb: 1e-5\nc: 2.11.0\nd: -x\nf: [x, {y: 1}]") ==
        R"({"a":1000,"b":1e-05,"c":"2.11.0","d":"-x","f":["x",{"y":1}]})");
  // yaml.safe_load of 6.0
  CHECK(yaml("[010, -010, 0x10, 0x1e, 08, 0_7, 0, 00, 0.5, 0:30]") ==
        R"([8,-8,16,30,"08",7,0,0,0.5,"0:30"])");
}

TEST_CASE("anchors and merge keys are followed; a key of the mapping itself goes before") {
  CHECK(yaml("base: &b {x: 1, y: 2}\nmine:\n  <<: *b\n  y: 3\nsame: *b") ==
        R"({"base":{"x":1,"y":2},"mine":{"x":1,"y":3},"same":{"x":1,"y":2}})");
}

TEST_CASE("YAML that is none, is too much or says a thing twice is an error with its line") {
  const auto no = [](std::string_view text) { return refusal(yaml, std::string(text), kBad); };
  CHECK(says(no("a:\n\tb: 1"), "c.yaml: not YAML: "));
  CHECK(says(no("a:\n\tb: 1"), "(line 2)"));
  CHECK(says(no("a: 1\na: 2"), "c.yaml: a is there twice (line 2)"));
  CHECK(no("") == "c.yaml: is empty");
  CHECK(no("# nothing\n") == "c.yaml: is empty");
  CHECK(says(no("a: 1\n---\nb: 2"), "several YAML documents"));
  CHECK(says(no(std::string_view("a: \0", 4)), "a NUL byte at offset 3"));
  CHECK(says(no("ab: \x9f"), "no UTF-8 at offset 4"));
  for (const char* endless : {",b", "[a], b", "'a',b", "{a: b},c"})  // yaml-cpp 0.7's LoadAll
    CHECK(says(no(endless), "several YAML documents"));
  CHECK(says(no("a: \x07"), "a control character at offset 3"));
  CHECK(says(no("a: \xC2\x80"), "a control character at offset 3"));
  CHECK(says(no("[1]: 2"), "a key that is no word"));
  CHECK(says(no("a: &x [*x]"), "c.yaml: "));
  CHECK(says(no("a: *nowhere"), "c.yaml: not YAML"));
  // 10^6 values written out, from seven lines.
  std::string laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 6; ++i) {
    const std::string before = "*a" + std::to_string(i - 1);
    laughs += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [" + before;
    for (int k = 1; k < 10; ++k) laughs += ", " + before;
    laughs += "]\n";
  }
  CHECK(says(no(laughs), "more than 100000 values"));
  CHECK(says(no(std::string(100, '[') + std::string(100, ']')), "nested deeper than 64"));
}

TEST_CASE("a config.yaml of FSDP becomes stage, release, checkpoints, ranks and precision") {
  const auto file = accelerate(R"(
distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: false
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_activation_checkpointing: true
mixed_precision: bf16
num_machines: 2
num_processes: 8
machine_rank: 0
)");
  CHECK(said(file) == Said{{"gpus", "8"},
                           {"gpus-per-node", "4"},
                           {"stack", "pytorch"},
                           {"fsdp-version", "2"},
                           {"zero", "2"},
                           {"recompute", "full"},
                           {"precision", "bf16-mixed"}});
  CHECK(says(notes(file), "of no bearing on memory: machine_rank"));
}

TEST_CASE("FSDP1's strategies are stages, the hybrid ones over a machine's GPUs") {
  const auto first = [](const std::string& strategy) {
    Said out =
        said(accelerate("distributed_type: FSDP\nnum_machines: 2\nnum_processes: 16\n"
                        "fsdp_config: {fsdp_sharding_strategy: " +
                        strategy +
                        ", fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP, "
                        "fsdp_backward_prefetch: BACKWARD_PRE}"));
    return out.at("zero") + " " + out["shard-group"] + " " + out.at("fsdp-version");
  };
  CHECK(first("FULL_SHARD") == "3  (1)");  // the launcher's own version
  CHECK(first("2") == "2  (1)");
  CHECK(first("HYBRID_SHARD") == "3 8 (1)");
  CHECK(first("5") == "2 8 (1)");
}

TEST_CASE("DeepSpeed through Accelerate: its own keys, or the file that they name") {
  CHECK(said(accelerate("distributed_type: DEEPSPEED\nnum_processes: 4\nmixed_precision: fp16\n"
                        "deepspeed_config: {gradient_accumulation_steps: 2}")) ==
        Said{{"gpus", "4"},
             {"stack", "deepspeed"},
             {"zero", "(2)"},  // DeepSpeedPlugin
             {"grad-accum", "2"},
             {"precision", "fp16-mixed"}});
  CHECK(said(accelerate("distributed_type: DEEPSPEED\nnum_processes: 4\n"
                        "deepspeed_config: {deepspeed_config_file: ds.json}")) ==
        Said{{"gpus", "4"}, {"deepspeed", "ds.json"}});
  CHECK(says(no_accelerate("distributed_type: DEEPSPEED\n"
                           "deepspeed_config: {deepspeed_config_file: ds.json, zero_stage: 3}"),
             "zero_stage is 3, but to stand in the deepspeed_config_file"));
}

TEST_CASE("a bare NO is a word of Accelerate, whatever YAML makes of it") {
  CHECK(said(accelerate("distributed_type: NO\nmixed_precision: no")) ==
        Said{{"gpus", "(1)"}, {"precision", "fp32"}});
  CHECK(said(accelerate("distributed_type: MULTI_GPU\nnum_processes: 2")) ==
        Said{{"gpus", "2"}, {"stack", "pytorch"}, {"zero", "0"}, {"precision", "(fp32)"}});
}

TEST_CASE("what Accelerate refuses and what is not planned is refused with its key") {
  CHECK(says(no_accelerate("num_processes: 2"), "distributed_type is missing"));
  CHECK(says(no_accelerate("distributed_type: MULTI_GPU\nnum_procesess: 2"),
             "did you mean 'num_processes'?"));
  CHECK(says(no_accelerate("distributed_type: MULTI_GPU\nnum_processes: '2'"),
             "num_processes is \"2\""));
  CHECK(says(no_accelerate("distributed_type: FSDP\nnum_processes: 3\nnum_machines: 2"),
             "a multiple of num_machines 2"));
  CHECK(says(no_accelerate("distributed_type: FSPD"), "NO, MULTI_GPU, FSDP or DEEPSPEED"));
  CHECK(says(no_accelerate("distributed_type: FSDP\nfsdp_config: {fsdp_sharding_stratgy: 1}"),
             "did you mean 'fsdp_sharding_strategy'?"));
  const auto no = [](const std::string& text) {
    return no_accelerate(text, ErrorKind::unsupported);
  };
  CHECK(says(no("distributed_type: MEGATRON_LM"), "is not modelled yet"));
  CHECK(says(no("distributed_type: MULTI_GPU\nuse_cpu: true"), "use_cpu"));
  CHECK(
      says(no("distributed_type: NO\ndynamo_config: {dynamo_backend: INDUCTOR}"), "torch.compile"));
  const std::string fsdp = "distributed_type: FSDP\nfsdp_config: {";
  CHECK(says(no(fsdp + "fsdp_version: 2}"), "fsdp_config: auto_wrap_policy is missing"));
  CHECK(says(no(fsdp + "fsdp_version: 2, fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP, "
                       "fsdp_activation_checkpointing_offload: true}"),
             "is not modelled yet"));
  CHECK(says(no(fsdp + "fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP}"),
             "modelled with BACKWARD_PRE"));
}

TEST_CASE("TrainingArguments: what the file says, and Transformers' own where it is silent") {
  CHECK(said(arguments(R"({"output_dir": "out"})")) == Said{{"micro-batch", "(8)"},
                                                            {"grad-accum", "(1)"},
                                                            {"precision", "(fp32)"},
                                                            {"recompute", "(none)"},
                                                            {"optimizer", "(adamw)"},
                                                            {"optimizer-impl", "(fused)"}});
  const auto file = arguments(R"({"per_device_train_batch_size": 2, "bf16": true,
      "gradient_accumulation_steps": 4, "gradient_checkpointing": true,
      "gradient_checkpointing_kwargs": {"use_reentrant": true}, "optim": "adamw_torch",
      "max_length": 2048, "model_name_or_path": "gpt2", "dtype": "bfloat16",
      "dataset_name": "x", "learning_rate": 1e-5, "eval_strategy": "steps"})");
  CHECK(file.model == "gpt2");
  CHECK(said(file) == Said{{"micro-batch", "2"},
                           {"grad-accum", "4"},
                           {"seq-len", "2048"},
                           {"precision", "bf16-mixed"},
                           {"param-dtype", "bf16"},
                           {"recompute", "full"},
                           {"use-reentrant", "yes"},
                           {"optimizer", "adamw"},
                           {"optimizer-impl", "foreach"}});
  for (const char* part : {"not looked at: dataset_name", "no bearing on memory: learning_rate",
                           "evaluation is not planned", "max_length is of TRL"})
    CHECK(says(notes(file), part));
}

TEST_CASE("a recipe's FSDP, adapters and quantized base become options too") {
  const auto file = arguments(
      "fsdp: full_shard auto_wrap\nfsdp_config: {fsdp_activation_checkpointing: true}\n"
      "use_peft: true\nlora_r: 64\nlora_target_modules: [q_proj, v_proj]\nload_in_4bit: true\n"
      "optim: sgd\noptim_args: momentum=0.9\nddp_bucket_cap_mb: 50\n");
  const Said options = said(file);
  CHECK(options.at("stack") == "pytorch");
  CHECK(options.at("zero") == "3");
  CHECK(options.at("fsdp-version") == "(2)");
  CHECK(options.at("lora-rank") == "64");
  CHECK(options.at("lora-alpha") == "(32)");  // trl/trainer/model_config.py
  CHECK(options.at("lora-targets") == "q_proj,v_proj");
  CHECK(options.at("quantize") == "nf4");
  CHECK(options.at("optimizer") == "momentum");
  CHECK(options.count("optimizer-impl") == 0);
  CHECK(options.at("bucket-cap-mb") == "50");
  CHECK(said(arguments("fsdp: shard_grad_op")).at("zero") == "2");
  CHECK(said(arguments("fsdp: true")).at("zero") == "(3)");
}

TEST_CASE("the names of OptimizerNames are read") {
  for (const auto& [theirs, ours] : std::initializer_list<std::pair<const char*, const char*>>{
           {"adamw_torch_8bit", "torchao-adam8bit"},
           {"adamw_torch_4bit", "torchao-adam4bit"},
           {"schedule_free_adamw", "schedule-free-adamw"},
           {"schedule_free_sgd", "schedule-free-sgd"},
           {"schedule_free_radam", "schedule-free-radam"},
           {"rmsprop", "rmsprop"},
           {"rmsprop_bnb", "rmsprop-bnb"},
           {"rmsprop_bnb_32bit", "rmsprop-bnb"},
           {"rmsprop_bnb_8bit", "rmsprop8bit"},
           {"adagrad", "adagrad"},
           {"stable_adamw", "stable-adamw"},
           {"adamw_8bit", "adam8bit"},
           {"apollo_adamw", "apollo"},
           {"lomo", "lomo"},
           {"adalomo", "adalomo"},
           {"grokadamw", "grokadamw"}}) {
    CAPTURE(theirs);
    const Said options = said(arguments("optim: " + std::string(theirs)));
    CHECK(options.at("optimizer") == ours);
    CHECK(options.count("optimizer-impl") == 0);
  }
  const Said mini = said(arguments(
      "optim: apollo_adamw_layerwise\noptim_args: \"rank=1,scale=128,scale_type=tensor\"\n"));
  CHECK(mini.at("optimizer") == "apollo-mini");
  CHECK(mini.at("galore-rank") == "1");
  CHECK(mini.count("optimizer-in-backward") == 1);
}

TEST_CASE("an object of DeepSpeed in the arguments is the object itself") {
  CHECK(said(arguments(R"({"deepspeed": {"zero_optimization": {"stage": 2}}})")).at("deepspeed") ==
        R"({"zero_optimization":{"stage":2}})");
  CHECK(said(arguments(R"({"deepspeed": "ds.json"})")).at("deepspeed") == "ds.json");
}

TEST_CASE("arguments that contradict themselves, are of a wrong type or not planned are refused") {
  CHECK(says(no_arguments(R"({"bf16": true, "fp16": true})"), "only one of bf16 and fp16"));
  CHECK(says(no_arguments(R"({"per_device_train_batch_size": 0})"), "a positive whole number"));
  CHECK(says(no_arguments(R"({"bf16": "maybe"})"), "bf16 is \"maybe\", but true or false"));
  CHECK(says(no_arguments(R"({"gradient_checkpoining": true})"),
             "did you mean 'gradient_checkpointing'?"));
  CHECK(says(no_arguments(R"({"peft_type": 1, "target_parameters_of_it": 1})"),
             "no field of TrainingArguments"));
  CHECK(
      says(no_arguments(R"({"fsdp": true, "deepspeed": "x"})"), "only one of fsdp and deepspeed"));
  CHECK(says(no_arguments(R"({"fsdp": "ful_shard"})"), "full_shard or shard_grad_op"));
  CHECK(says(no_arguments("bf16: true\n\tfp16: no"), "not YAML"));
  const auto no = [](std::string_view text) { return no_arguments(text, ErrorKind::unsupported); };
  CHECK(says(no(R"({"optim": "adamw_anyprecision"})"), "is no optimizer that is modelled"));
  CHECK(says(no(R"({"optim": "adamw_torch_4bit", "optim_args": "block_size=128"})"),
             "block_size with adamw_torch_4bit is not modelled yet"));
  CHECK(says(no(R"({"optim": "rmsprop", "optim_args": "momentum=0.9"})"),
             "momentum with rmsprop is not modelled yet"));
  CHECK(says(no(R"({"optim": "apollo_adamw", "optim_args": "proj=svd"})"), "only random"));
  CHECK(says(no(R"({"neftune_noise_alpha": 5})"), "neftune_noise_alpha is 5"));
  CHECK(says(no(R"({"attn_implementation": "paged_attention"})"),
             "only sdpa, eager, flex_attention, flash_attention_2"));
}

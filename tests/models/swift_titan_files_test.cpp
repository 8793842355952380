// Configurations of ms-swift and torchtitan, as options. The files are those of the projects'
// examples, shortened.
#include <doctest/doctest.h>

#include <map>
#include <string>

#include "models/toml_reader.h"
#include "models/trainer_config_reader.h"
#include "models/trainer_keys.h"
#include "tests/models/file_settings.h"

using namespace plimsoll;
using namespace plimsoll::tests;

namespace {
models::FileSettings swift(const std::string& text, std::int64_t ranks = 1) {
  return models::read_swift_arguments(text, "s.yaml", ranks);
}
models::FileSettings titan(const std::string& text) {
  return models::read_torchtitan_config(text, "t.toml");
}
std::string no_swift(const std::string& text, ErrorKind kind = ErrorKind::unsupported) {
  return refusal([](const std::string& one) { return swift(one); }, text, kind);
}
std::string no_titan(const std::string& text, ErrorKind kind = ErrorKind::unsupported) {
  return refusal(titan, text, kind);
}
}  // namespace

TEST_CASE("ms-swift: sixteen sequences a step, checkpoints on, adapters of rank 8") {
  const std::string base = "model: Qwen/Qwen2.5-7B-Instruct\ntorch_dtype: bfloat16\n";
  const auto file = swift(base + "max_length: 2048\n");
  CHECK(file.model == "Qwen/Qwen2.5-7B-Instruct");
  CHECK(said(file) == Said{{"micro-batch", "(1)"},
                           {"grad-accum", "(16)"},
                           {"seq-len", "2048"},
                           {"precision", "bf16-mixed"},
                           {"param-dtype", "bf16"},
                           {"recompute", "(full)"},
                           {"use-reentrant", "(yes)"},  // one rank
                           {"optimizer", "(adamw)"},
                           {"optimizer-impl", "(fused)"},
                           {"lora-rank", "(8)"},
                           {"lora-alpha", "(32)"},
                           {"lora-dropout", "(0.05)"},
                           {"lora-targets", "(all-linear)"}});
  CHECK(said(swift(base, 4)).at("grad-accum") == "(4)");
  CHECK(said(swift(base, 4)).at("use-reentrant") == "(no)");
  CHECK(said(swift(base + "per_device_train_batch_size: 3\n", 4)).at("grad-accum") == "(2)");
  CHECK(said(swift(base + "deepspeed: zero2\n", 4)).at("use-reentrant") == "(yes)");
  CHECK(says(notes(swift(base)), "says no max_length"));
  CHECK(says(notes(swift("model: m\n")), "planned is bfloat16"));
  const auto full = said(swift("model: m\ntorch_dtype: float32\ntuner_type: full\n"));
  CHECK(full.at("precision") == "fp16-mixed");  // base_args/model_args.py: fp32 weights, fp16
  CHECK(full.at("param-dtype") == "fp32");
  CHECK_FALSE(full.contains("lora-rank"));
}

TEST_CASE("ms-swift's variables, presets and packed bases") {
  const auto file = swift(
      "ENV: {NPROC_PER_NODE: 8, PYTORCH_CUDA_ALLOC_CONF: 'expandable_segments:True', X: 1}\n"
      "model: m\ntorch_dtype: bfloat16\ntuner_type: full\ndeepspeed: zero3_offload\n"
      "attn_impl: flash_attn\n");
  CHECK(said(file).at("gpus") == "8");
  CHECK(said(file).at("grad-accum") == "(2)");
  CHECK(said(file).at("allocator-conf") == "expandable_segments:True");
  CHECK(said(file).at("attention") == "flash-2");
  CHECK(says(notes(file), "ENV: variables that are not looked at: X"));
  const std::string preset = said(file).at("deepspeed");
  CHECK(says(preset, R"("stage": 3)"));
  CHECK(says(preset, R"("offload_param": {"device": "cpu")"));
  CHECK(said(swift("model: m\ndeepspeed: zero9\n")).at("deepspeed") == "zero9");  // a path
  const auto fsdp = said(swift("model: m\nfsdp: fsdp2\n"));
  CHECK(fsdp.at("zero") == "3");
  CHECK(fsdp.at("recompute") == "full");
  CHECK_FALSE(fsdp.contains("use-reentrant"));
  const auto packed = said(swift("model: m\nquant_method: bnb\nquant_bits: 4\n"));
  CHECK(packed.at("quantize") == "nf4-dq");
  CHECK(packed.at("quant-storage") == "(uint8)");
  CHECK(packed.at("kbit-prep") == "no");
  CHECK(said(swift("model: m\nlora_dtype: bfloat16\n")).at("adapter-dtype") == "bf16");
  CHECK(said(swift("model: m\nuse_liger_kernel: true\n")).at("kernels") == "liger");
  const auto more =
      said(swift("model: m\nmodules_to_save: [embed_tokens, lm_head]\nuse_dora: true\nlora_dtype: "
                 "bfloat16\n"));
  CHECK(more.at("modules-to-save") == "embed_tokens,lm_head");
  CHECK(more.at("use-dora") == "yes");
}

TEST_CASE("ms-swift's frozen parameters are those whose names start so") {
  const std::string full = "model: m\ntuner_type: full\n";
  const std::string trainable = "trainable_parameters: [model.layers.1.]\n";
  const auto both = said(swift(full + trainable + "freeze_parameters: [model.layers, lm_head]\n"));
  CHECK(both.at("freeze") == "model.layers* lm_head*");
  CHECK(both.at("train") == "model.layers.1.*");
  const auto idle = swift(full + trainable);
  CHECK_FALSE(said(idle).contains("train"));
  CHECK(says(notes(idle), "trainable_parameters adds nothing"));
  const auto lora = swift("model: m\nfreeze_parameters: [lm_head]\n");
  CHECK_FALSE(said(lora).contains("freeze"));
  CHECK(says(notes(lora), "freeze_parameters is not looked at with adapters"));
  CHECK(says(no_swift(full + "freeze_parameters: ['*.mlp']\n", kBad), "starts of parameters'"));
}

TEST_CASE("what of ms-swift is not planned is refused by name") {
  for (const char* line :
       {"tuner_type: adalora", "task_type: seq_cls", "use_galore: true",
        "modules_to_save: [all-embedding]", "modules_to_save: [lm_head]\ntorch_dtype: float16",
        "use_dora: true\nlora_dtype: float32", "freeze_parameters_ratio: 0.5",
        "sequence_parallel_size: 2", "optimizer: muon", "loss_type: dft",
        "quant_method: hqq\nquant_bits: 4", "target_regex: .*q_proj", "lora_bias: all",
        "fsdp: my.json", "adapters: [x]", "use_logits_to_keep: true"}) {
    CAPTURE(line);
    CHECK(says(no_swift("model: m\n" + std::string(line) + "\n"), "model"));
  }
  CHECK(says(no_swift("model: m\nlora_ranks: 3\n", kBad), "did you mean 'lora_rank'?"));
  CHECK(says(no_swift("model: m\nENV: {NPROC_PER_NODE: many}\n", kBad), "NPROC_PER_NODE"));
  CHECK(says(no_swift("model: m\ntorch_dtype: fp8\n", kBad), "torch_dtype"));
  CHECK(says(no_swift("model: m\nfsdp: fsdp2\ndeepspeed: zero3\n", kBad), "only one of"));
  CHECK(says(no_swift("lora_rank: 3\n", kBad), "model"));
}

TEST_CASE("torchtitan's TOML, with the defaults of its job_config") {
  // torchtitan/models/llama3/train_configs/llama3_8b.toml
  const auto file = titan(R"([job]
description = "Llama 3 8B training"
[model]
name = "llama3"
flavor = "8B"
hf_assets_path = "./assets/hf/Llama-3.1-8B"
[optimizer]
name = "AdamW"
lr = 3e-4
[training]
local_batch_size = 1
seq_len = 8192
max_norm = 1.0  # grad norm clipping
[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"
[compile]
enable = false
components = ["model", "loss"]
[quantize.linear.float8]
filter_fqns = ["output"]
)");
  CHECK(file.model == "llama-3.1-8b");
  CHECK(said(file) == Said{{"micro-batch", "1"},
                           {"seq-len", "8192"},
                           {"precision", "(bf16-mixed)"},
                           {"optimizer", "adamw"},
                           {"optimizer-impl", "(fused)"},
                           {"zero", "3"},
                           {"recompute", "ops:torchtitan"},
                           {"model-code", "(torchtitan@0.2.2)"},
                           {"grad-dtype", "(fp32)"}});
  CHECK(says(notes(file), "of no bearing on memory: [job] and [quantize]"));
  const auto bare = said(titan("[activation_checkpoint]\nmode = 'full'\n"));
  CHECK(bare.at("micro-batch") == "(8)");
  CHECK(bare.at("seq-len") == "(2048)");
  const auto selective = [](const std::string& option) {
    return said(titan("[activation_checkpoint]\nselective_ac_option = " + option + "\n"))
        .at("recompute");
  };
  CHECK(selective("3") == "nth:3");
  CHECK(selective("'12'") == "nth:12");
  CHECK(selective("1") == "full");
  CHECK(selective("'0'") == "full");
  CHECK(said(titan("[model]\nflavor = '8B'\n")).at("recompute") == "nth:2");
  const auto hybrid = said(titan(R"([activation_checkpoint]
mode = "none"
[parallelism]
data_parallel_replicate_degree = 2
data_parallel_shard_degree = 8
tensor_parallel_degree = 4
[training]
global_batch_size = 64
)"));
  CHECK(hybrid.at("gpus") == "64");  // 2 · 8 · 4
  CHECK(hybrid.at("shard-group") == "8");
  CHECK(hybrid.at("tp") == "4");
  CHECK(hybrid.at("global-batch") == "64");
}

TEST_CASE("what of torchtitan is not planned, or is no field of it, is an error") {
  const std::string base = "[activation_checkpoint]\nmode = 'none'\n";
  for (const char* text :
       {"[model]\nname = 'deepseek_v3'", "[model]\nconverters = ['float8']",
        "[optimizer]\nname = 'Adam'", "[training]\ndtype = 'bfloat16'",
        "[fault_tolerance]\nenable = true", "[experimental]\ncustom_import = 'x'",
        "[parallelism]\ndata_parallel_replicate_degree = 2\ndata_parallel_shard_degree = 1"}) {
    CAPTURE(text);
    CHECK(says(no_titan(base + text + "\n"), "model"));
  }
  CHECK(says(no_titan("[activation_checkpoint]\nmode = 'memory_budget'\n"), "mode is"));
  CHECK(no_titan(base + "[trainin]\n", kBad) ==
        "t.toml: unknown section [trainin]; did you mean [training]?");
  CHECK(says(no_titan(base + "[training]\nseq_length = 5\n", kBad), "did you mean 'seq_len'?"));
  CHECK(says(no_titan(base + "[parallelism]\ndata_parallel_replicate_degree = -1\n", kBad),
             "a number from 1 up"));
  CHECK(says(
      refusal(
          [](const std::string& text) { return models::read_torchtitan_config(text, "llama3.py"); },
          "x = 1"),
      "are Python"));
}

TEST_CASE("TOML that is none, or is too much, is an error with its line") {
  const auto no = [](const std::string& text) {
    return refusal([](const std::string& one) { return models::json_from_toml(one, "t.toml"); },
                   text, kBad);
  };
  CHECK(models::json_from_toml("a = 1\n[b]\nc = ['x', 1.5, true]\nd = 1979-05-27\n", "t.toml") ==
        R"({"a":1,"b":{"c":["x",1.5,true],"d":"1979-05-27"}})");
  CHECK(says(no("a = 1\nb ="), "t.toml: not TOML: "));
  CHECK(says(no("a = 1\nb = nonsense"), "(line 2)"));
  CHECK(says(no("a = 1\na = 2"), "(line 2)"));
  CHECK(says(no("a = inf"), "infinite"));
  CHECK(says(no("a = " + std::string(5000, '[') + std::string(5000, ']')), "t.toml: "));
  CHECK(says(no(std::string("a = '\0'", 7)), "t.toml: not TOML"));
  CHECK(says(no("\xff\xfe"), "t.toml: not TOML"));
  // Outside of strings and comments; of some of these toml++ thinks that they cannot be.
  for (const char* stray : {"a = \xc9\xa5", "a = 1\xc2\xa0", "a = [\xe2\xb1\x9e 1]", "\xc3\xa9 = 1",
                            "a= 11_7;{\"\xcb\xbdl1", "a = 1.\"\xcb\xbd\"", "a = [1][\"\xcb\xbd\"]",
                            "\"\"\"fe\\\xc7\xae\"\"\"]", "a = 1, \"\xcb\xbd\"",
                            "a = = \"\xcb\xbd\"", "a = {b = 1}.\"\xcb\xbd\""})
    CHECK(says(no("b = 1\n" + std::string(stray)), "t.toml: not TOML: "));
  CHECK(models::json_from_toml(
            "\xef\xbb\xbf"
            "a = '\xc3\xa9' # \xc3\xa9\n\"\xc3\xa9\\\"\" = \"\"\"\\\"\xc3\xa9\n\"\xc3\xa9\"\"\"\n",
            "t.toml") == "{\"a\":\"\xc3\xa9\",\"\xc3\xa9\\\"\":\"\\\"\xc3\xa9\\n\\\"\xc3\xa9\"}");
  CHECK(says(no("a.b.c = 1\na.b = 2"), "t.toml: not TOML"));
}

TEST_CASE("TOML's strings end where they end") {
  const auto json = [](const char* text) { return models::json_from_toml(text, "t.toml"); };
  CHECK(json("a = \"\"\"x\"\"\"\"\nb = '''y'''''\n\"c\".'d' = {\"e\" = ['f',\"g\"]}") ==
        R"({"a":"x\"","b":"y''","c":{"d":{"e":["f","g"]}}})");
  CHECK(json("[[a.\"b\"]]\nc = [{'d' = [[1], ['e',\n'f']]}, # [\n  {}]\n[[a.'b']]\n") ==
        R"({"a":{"b":[{"c":[{"d":[[1],["e","f"]]},{}]},{}]}})");
}

TEST_CASE("each field of a trainer stands in one table of its keys, or is refused by its value") {
  for (const models::KeyTable* table :
       {&models::axolotl_keys(), &models::llamafactory_keys(), &models::swift_keys()}) {
    std::map<std::string_view, int> seen;
    for (const std::string_view key : table->read) CHECK(++seen[key] == 1);
    for (const std::string_view key : table->no_memory) {
      CAPTURE(key);
      CHECK(++seen[key] == 1);
    }
    CHECK(seen.size() > 100);
  }
}

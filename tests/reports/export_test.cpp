// Exports against golden copies that DeepSpeed, Accelerate, Transformers and PEFT have loaded
// (tools/oracle/check_exports.py makes both files of a case).
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "models/model_catalog.h"
#include "models/storages.h"
#include "models/workload_reader.h"
#include "reports/export.h"
#include "reports/export_code.h"
#include "reports/fingerprint.h"
#include "reports/workload_json.h"

using namespace plimsoll;

namespace {

std::string content(const std::filesystem::path& path) {
  std::ifstream in(path);
  REQUIRE(in);
  return {std::istreambuf_iterator<char>(in), {}};
}

// The names of the cases, from NAME.plan.json.
std::vector<std::string> cases() {
  std::vector<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(PLIMSOLL_GOLDEN "/exports")) {
    const std::string name = entry.path().filename();
    constexpr std::string_view suffix = ".plan.json";
    if (name.ends_with(suffix)) out.push_back(name.substr(0, name.size() - suffix.size()));
  }
  return out;
}

std::string path_of(const std::string& name, const char* suffix) {
  return PLIMSOLL_GOLDEN "/exports/" + name + suffix;
}

models::Workload workload_of(const std::string& name) {
  return models::read_workload(content(path_of(name, ".plan.json")), name);
}

}  // namespace

TEST_CASE("exports are the files that their owners have loaded") {
  const std::vector<std::string> names = cases();
  CHECK(names.size() >= 9);
  for (const std::string& name : names) {
    CAPTURE(name);
    const models::Workload workload = workload_of(name);
    CHECK(reports::export_deepspeed(workload).text == content(path_of(name, ".deepspeed.json")));
    CHECK(reports::export_accelerate(workload).text == content(path_of(name, ".accelerate.yaml")));
    CHECK(reports::export_transformers(workload).text ==
          content(path_of(name, ".transformers.py")));
    CHECK(reports::export_slurm(workload).text == content(path_of(name, ".slurm.sh")));
  }
}

TEST_CASE("a workload that is read from a plan has the plan's fingerprint") {
  for (const std::string& name : cases()) {
    CAPTURE(name);
    const models::Workload workload = workload_of(name);
    reports::Plan plan;
    plan.strategy = workload.strategy;
    plan.batch = workload.batch;
    plan.config_json = workload.model_config;
    plan.model_name = workload.model_name;
    CHECK(workload.fingerprint == reports::fingerprint(reports::canonical_workload(plan)));
  }
}

TEST_CASE("a document that is no plan is refused by the field that is wrong") {
  const std::string good = content(path_of("fsdp", ".plan.json"));
  const auto message = [](std::string text) -> std::string {
    try {
      models::read_workload(text, "p.json");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::bad_input);
      return error.message();
    }
    return "";
  };
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const std::size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    return text.replace(at, from.size(), to);
  };
  CHECK(message(good).empty());
  CHECK(message(changed("plimsoll.plan/1", "plimsoll.gpus/1")).find("plimsoll.gpus/1") !=
        std::string::npos);
  CHECK(message(changed("\"zero\": 3", "\"zero\": 4")).find("zero is 4") != std::string::npos);
  CHECK(message(changed("\"bf16-mixed\"", "\"bf17\"")).find("precision") != std::string::npos);
  CHECK(message(changed("\"recompute\": \"full\"", "\"recompute\": \"every:0x2\""))
            .find("recompute") != std::string::npos);
  CHECK(message(changed("\"strategy\"", "\"strategem\"")).find("strategy is missing") !=
        std::string::npos);
  CHECK(message("[]").find("p.json") != std::string::npos);
}

TEST_CASE("what the allocator was planned with is in every export") {
  const auto has = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  models::Workload workload = workload_of("ddp");
  workload.strategy.allocator =
      models::allocator_conf_from("roundup_power2_divisions:[64:8,>:2]", "");
  const std::string conf = *text_of(workload.strategy.allocator);
  CHECK(has(conf, "roundup_power2_divisions:["));
  const std::string shell = "PYTORCH_CUDA_ALLOC_CONF='" + conf + "'";
  const std::string script = reports::export_slurm(workload).text;
  CHECK(script.find("\nexport " + shell + "\n") < script.find("\nsrun "));
  const std::string python = reports::export_transformers(workload).text;
  CHECK(has(python, "\nos.environ[\"PYTORCH_CUDA_ALLOC_CONF\"] = \"" + conf + "\"\n"));
  CHECK(has(python, "import os\n"));
  CHECK(has(reports::export_accelerate(workload).text, "planned with"));
  for (const auto& exported :
       {reports::export_deepspeed(workload), reports::export_accelerate(workload)})
    CHECK(std::ranges::any_of(exported.notes,
                              [&](const std::string& note) { return has(note, shell); }));
}

TEST_CASE("reentrant checkpoints are exported as such") {
  models::Workload workload = workload_of("ddp");
  workload.strategy.recompute.kind = models::RecomputeKind::full;
  const auto says = [&](const char* what) {
    return reports::export_transformers(workload).text.find(what) != std::string::npos;
  };
  CHECK(says("{\"use_reentrant\": False}"));
  workload.strategy.use_reentrant = true;
  CHECK(says("{\"use_reentrant\": True}"));
  const auto named = [](const reports::Exported& exported, const char* what) {
    return std::ranges::any_of(exported.notes, [&](const std::string& note) {
      return note.find(what) != std::string::npos;
    });
  };
  CHECK(named(reports::export_accelerate(workload), "\"use_reentrant\": True"));
  workload.strategy.recompute.kind = models::RecomputeKind::sqrt;
  CHECK(named(reports::export_transformers(workload), "reentrant"));
  workload.strategy.attention = models::Attention::flash_1;
  CHECK(named(reports::export_transformers(workload), "first generation"));
}

// 24 GPUs in 3 nodes of 8; 2 copies, each sharded over 12; 5 sequences, 7 times.
TEST_CASE("copies and shards, nodes and their GPUs, sequences and steps are not exchanged") {
  models::Workload workload = workload_of("fsdp-hybrid");
  workload.strategy.gpus = 24;
  workload.strategy.gpus_per_node = 8;
  workload.strategy.data.shard_group = 12;
  workload.batch.micro_batch = 5;
  workload.batch.grad_accum = 7;
  const auto has = [](const reports::Exported& exported, const std::string& part) {
    CHECK_MESSAGE(exported.text.find(part) != std::string::npos, part);
  };
  const reports::Exported accelerate = reports::export_accelerate(workload);
  has(accelerate, "parallelism_config_dp_replicate_size: 2\n");
  has(accelerate, "parallelism_config_dp_shard_size: 12\n");
  has(accelerate, "num_machines: 3\n");
  has(accelerate, "num_processes: 24\n");
  const reports::Exported transformers = reports::export_transformers(workload);
  has(transformers, "ParallelismConfig(dp_replicate_size=2, dp_shard_size=12)");
  has(transformers, "per_device_train_batch_size=5,\n");
  has(transformers, "gradient_accumulation_steps=7,\n");
  const reports::Exported slurm = reports::export_slurm(workload);
  has(slurm, "#SBATCH --nodes=3\n");
  has(slurm, "#SBATCH --gpus-per-node=8\n");
  has(slurm, "--nnodes=3 --nproc-per-node=8 ");
  const reports::Exported deepspeed = reports::export_deepspeed(workload);
  has(deepspeed, "\"train_micro_batch_size_per_gpu\": 5,");
  has(deepspeed, "\"gradient_accumulation_steps\": 7,");
}

bool mentions(const reports::Exported& exported, std::string_view words) {
  return std::ranges::any_of(exported.notes, [&](const std::string& note) {
    return note.find(words) != std::string::npos;
  });
}

TEST_CASE("what a target cannot say is said in its notes") {
  models::Workload workload = workload_of("fsdp-hybrid");
  CHECK(mentions(reports::export_deepspeed(workload), "groups of 8"));
  CHECK(mentions(reports::export_deepspeed(workload), "learning rate"));
  workload.strategy.data.zero = 1;
  CHECK(mentions(reports::export_accelerate(workload), "ZeroRedundancyOptimizer"));
  workload.strategy.gpus = 12;  // one node and a half of 8
  CHECK_THROWS_AS(reports::export_slurm(workload), Error);
  workload.strategy.pp = 2;
  CHECK_THROWS_AS(reports::export_deepspeed(workload), Error);
  workload.strategy.pp = 1;
  workload.model_config.clear();
  CHECK_THROWS_AS(reports::export_transformers(workload), Error);
}

// Accelerate and Trainer cast what is loaded: mixed precision loads fp32 masters, pure 16 bits the
// weights themselves.
TEST_CASE("weights are loaded in the precision's own dtype, or in the one that was asked for") {
  models::Workload workload = workload_of("ddp");
  const auto loads = [&](const char* dtype) {
    return reports::export_transformers(workload).text.find(std::string("torch.") + dtype) !=
           std::string::npos;
  };
  using models::Precision;
  workload.strategy.param_dtype.reset();
  for (const auto& [precision, dtype] : {std::pair{Precision::fp32, "float32"},
                                         {Precision::bf16_mixed, "float32"},
                                         {Precision::fp16_mixed, "float32"},
                                         {Precision::bf16, "bfloat16"},
                                         {Precision::fp16, "float16"}}) {
    CAPTURE(dtype);
    workload.strategy.precision = precision;
    CHECK(loads(dtype));
  }
  workload.strategy.param_dtype = DType::bf16;
  CHECK(loads("bfloat16"));
  CHECK_FALSE(loads("float16"));
}

TEST_CASE("gpt-oss, which is published in MXFP4, is unpacked as it is loaded") {
  models::Workload workload = workload_of("single-lora");
  const auto has = [&](const char* what) {
    return reports::export_transformers(workload).text.find(what) != std::string::npos;
  };
  CHECK_FALSE(has("Mxfp4Config"));
  workload.model_name = "gpt-oss-20b";
  workload.model_config = models::find_catalog_entry("gpt-oss-20b")->config;
  workload.strategy.attention = models::Attention::eager;
  CHECK(has("import AutoModelForCausalLM, Mxfp4Config, Trainer"));
  CHECK(has("quantization_config=Mxfp4Config(dequantize=True))\nmodel.config.use_cache"));
}

TEST_CASE("a packed base is exported as Transformers and PEFT take it, or refused") {
  models::Workload workload = workload_of("ddp");
  models::Strategy& s = workload.strategy;
  s.lora = models::Lora{.targets = {"all-linear"}};
  s.quantize = models::Quantization{.storage = models::find_packed_storage("nf4-dq")};
  s.precision = models::Precision::bf16_mixed;
  s.param_dtype = DType::bf16;
  const auto has = [&](const char* what) {
    return reports::export_transformers(workload).text.find(what) != std::string::npos;
  };
  CHECK(has("bnb_4bit_quant_type=\"nf4\", bnb_4bit_use_double_quant=True"));
  CHECK(has("bnb_4bit_compute_dtype=torch.bfloat16, bnb_4bit_quant_storage=torch.uint8)"));
  CHECK(has("device_map={\"\": int(os.environ[\"LOCAL_RANK\"])}"));
  CHECK(has("import LoraConfig, get_peft_model, prepare_model_for_kbit_training\n"));
  CHECK(has("model = prepare_model_for_kbit_training("));
  CHECK_FALSE(has("module.to(torch.bfloat16)"));
  s.quantize->kbit_casting = true;
  CHECK(
      has("model = get_peft_model(model, peft_config)\n"
          "for name, module in model.named_modules():\n"
          "    ends = (\"embed_tokens\", \"lm_head\", \"wte\", \"wpe\")\n"
          "    if any(end in name for end in ends) and hasattr(module, \"weight\"):\n"
          "        module.to(torch.bfloat16)\n"));
  s.quantize->kbit_casting = false;
  s.quantize->kbit_prep = false;
  CHECK_FALSE(has("prepare_model_for_kbit_training"));
  s.data.zero = 3;
  CHECK_THROWS_AS(reports::export_transformers(workload), Error);
  s.data.zero = 0;
  CHECK_THROWS_AS(reports::export_accelerate(workload), Error);
  s.quantize->storage = models::find_packed_storage("int8");
  CHECK(has("quantization_config=BitsAndBytesConfig(load_in_8bit=True),\n    device_map="));
  s.bitsandbytes = {0, 46, 1};
  CHECK(has("# the plan's figures are those of bitsandbytes 0.46.1: install that\n"));
  s.bitsandbytes = models::kBitsandbytes;
  CHECK_FALSE(has("install that"));
  s.quantize->storage = models::find_packed_storage("torchao-int8");
  CHECK(has("quantization_config=TorchAoConfig(Int8WeightOnlyConfig())"));
  CHECK(has("AutoModelForCausalLM, TorchAoConfig, Trainer, TrainingArguments\n"));
  CHECK(has("from torchao.quantization import Int8WeightOnlyConfig\n"));
  CHECK_FALSE(has("BitsAndBytesConfig"));
  s.quantize->storage = models::find_packed_storage("awq");
  CHECK(has(
      "quantization_config=AwqConfig(backend=\"auto_trainable\"),\n    device_map={\"\": int("));
  CHECK(has("import AutoModelForCausalLM, AwqConfig, Trainer, TrainingArguments\n"));
  CHECK(has("# from_pretrained is to load an AWQ checkpoint"));
  s.gpus = 1;
  CHECK(has("device_map={\"\": 0})"));
  for (const char* name : {"gptq", "hqq", "int8-affine"}) {
    s.quantize->storage = models::find_packed_storage(name);
    CHECK_THROWS_AS(reports::export_transformers(workload), Error);
  }
}

TEST_CASE("a packed base and bitsandbytes' optimizer are exported for DeepSpeed, too") {
  models::Workload workload = workload_of("deepspeed-zero2");
  models::Strategy& s = workload.strategy;
  s.lora = models::Lora{.targets = {"all-linear"}};
  s.quantize = models::Quantization{.storage = models::find_packed_storage("nf4-dq")};
  s.optimizer = models::Optimizer::paged_adam8bit;
  const std::string snippet = reports::export_transformers(workload).text;
  for (const char* what :
       {"bnb_4bit_quant_type=\"nf4\"", "device_map={\"\": int(os.environ[\"LOCAL_RANK\"])}",
        "optim=\"paged_adamw_8bit\"", "\"zero_allow_untested_optimizer\": True"})
    CHECK_MESSAGE(snippet.find(what) != std::string::npos, what);
  CHECK(snippet.find("\"optimizer\"") == std::string::npos);  // the Trainer's, then
  s.quantize.reset();
  const reports::Exported alone = reports::export_deepspeed(workload);
  CHECK(alone.text.find("\"optimizer\"") == std::string::npos);
  CHECK(mentions(alone, "optim=\"paged_adamw_8bit\" of TrainingArguments"));
  CHECK(mentions(alone, "adapters and frozen parameters are made in Python"));
  s.quantize = models::Quantization{.storage = models::find_packed_storage("nf4-dq")};
  CHECK(mentions(reports::export_deepspeed(workload), "the packed base and its adapters are made"));
  CHECK(mentions(reports::export_accelerate(workload), "--to transformers writes them"));
}

TEST_CASE("activations on the host need code, but for Unsloth, whose checkpoints keep them there") {
  models::Strategy s;
  s.offload.activations = true;
  s.recompute.kind = models::RecomputeKind::full;
  CHECK(reports::needed_code_note(s).find("activations on the host") != std::string::npos);
  s.kernels = models::Kernels::unsloth;
  CHECK(reports::needed_code_note(s).empty());
}

// transformers/integrations/liger.py: use_liger_kernel alone fuses the loss with the head.
TEST_CASE("Liger's kernels without its fused loss are exported as such, where a family has one") {
  models::Workload workload = workload_of("ddp");
  const auto says = [&](std::string_view words) {
    return reports::export_transformers(workload).text.find(words) != std::string::npos;
  };
  CHECK_FALSE(says("liger"));
  workload.strategy.kernels = models::Kernels::liger;
  constexpr std::string_view kUnfused =
      "use_liger_kernel=True,\n    liger_kernel_config={\"fused_linear_cross_entropy\": False},\n";
  workload.strategy.loss = models::Loss::full;
  CHECK(says(kUnfused));
  workload.strategy.loss = models::Loss::fused;
  CHECK(says("use_liger_kernel=True,\n"));
  CHECK_FALSE(says("liger_kernel_config"));
  // apply_liger_kernel_to_granite has none.
  workload.strategy.loss = models::Loss::full;
  workload.model_config = R"({"model_type": "granite", "hidden_size": 64, "num_hidden_layers": 1,
      "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128,
      "vocab_size": 256, "logits_scaling": 8})";
  CHECK(says("use_liger_kernel=True,\n"));
  CHECK_FALSE(says("liger_kernel_config"));
}

TEST_CASE("compiled layers are read back from a document, and not exported as eager ones") {
  const std::string good = content(path_of("fsdp", ".plan.json"));
  const auto compiled = [&](const std::string& said) {
    std::string text = good;
    const std::string from = "\"compile\": false";
    const std::size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    return models::read_workload(text.replace(at, from.size(), "\"compile\": " + said), "p.json");
  };
  CHECK(compiled("\"no\"").strategy.compile == models::Compile::no);
  CHECK(compiled("true").strategy.compile == models::Compile::model);
  const models::Workload block = compiled("\"block\"");
  CHECK(block.strategy.compile == models::Compile::block);
  CHECK_THROWS_AS(reports::export_accelerate(block), Error);
  CHECK_THROWS_AS(reports::export_transformers(block), Error);
}

TEST_CASE(
    "what offloads to files is exported with DeepSpeed's buffers, and DataParallel not at all") {
  models::Workload w = workload_of(cases().front());
  w.strategy = {.stack = models::Stack::deepspeed, .gpus = 8};
  w.strategy.data.zero = 3;
  w.strategy.offload = {.optimizer = true, .params = true, .nvme = true};
  w.strategy.data.deepspeed.nvme = {6, 7, 30'000'000, 5};
  const reports::Exported out = reports::export_deepspeed(w);
  CHECK(out.text.find(R"("offload_optimizer": {"device": "nvme", "pin_memory": true, "nvme_path": )"
                      R"("/local_nvme", "buffer_count": 6})") != std::string::npos);
  CHECK(out.text.find(R"("offload_param": {"device": "nvme", "pin_memory": true, "nvme_path": )"
                      R"("/local_nvme", "buffer_count": 7, "buffer_size": 30000000, )"
                      R"("max_in_cpu": 5})") != std::string::npos);
  CHECK(std::ranges::count(
            out.notes, "nvme_path /local_nvme is an example: name the folder of your own NVMe") ==
        1);
  w.strategy.offload.nvme = false;
  CHECK(reports::export_deepspeed(w).text.find("buffer_count") == std::string::npos);

  w.strategy = {.gpus = 2, .precision = models::Precision::bf16};
  CHECK_NOTHROW(reports::export_transformers(w));
  w.strategy.data.kind = models::DataParallelKind::dp;
  CHECK_THROWS_WITH(reports::export_transformers(w),
                    doctest::Contains("there is nothing to write"));
}

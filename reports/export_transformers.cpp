// A Python snippet. Arguments: transformers 5.17, training_args.py; peft 0.21,
// tuners/lora/config.py.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <tuple>

#include "models/base/torch_names.h"
#include "models/bitsandbytes.h"
#include "models/decisions/layer.h"
#include "models/decisions/mesh.h"
#include "models/lora.h"
#include "models/model_reader.h"
#include "models/mxfp4.h"
#include "models/optimizers.h"
#include "models/run_names.h"
#include "models/stack_versions.h"
#include "models/storages.h"
#include "reports/export.h"
#include "reports/export_adapters.h"
#include "reports/export_code.h"
#include "reports/export_notes.h"
#include "reports/json_writer.h"

namespace plimsoll::reports {

using models::OptimizerImpl;
using models::RecomputeKind;
using models::Stack;
using models::Strategy;
using models::Workload;
using models::decisions::Axis;
using models::decisions::mesh_of;
using models::decisions::shards_in_groups;

namespace {

const char* truth(bool b) {
  return b ? "True" : "False";
}

// A JSON document of ours, as a Python literal: no string in it holds these words.
std::string as_python(std::string text) {
  for (const auto& [json, python] : {std::pair{": true", ": True"}, {": false", ": False"}})
    for (std::size_t at = 0; (at = text.find(json, at)) != std::string::npos;)
      text.replace(at, std::string_view(json).size(), python);
  for (std::size_t at = 0; (at = text.find('\n', at)) != std::string::npos; at += 5)
    text.insert(at + 1, "    ");
  return text;
}

// The class that Transformers picks the model's own by.
std::string auto_class(const Workload& w) {
  const models::ModelSpec model =
      models::read_model(w.model_config, w.model_name, w.model_name, {});
  return model.architecture.ends_with("ForMaskedLM") ? "AutoModelForMaskedLM"
         : classifies(w)                             ? "AutoModelForSequenceClassification"
                                                     : "AutoModelForCausalLM";
}

bool is_torchao(const Strategy& s) {
  return s.quantize && s.quantize->storage->gemm == models::PackedGemm::torchao;
}

bool is_awq(const Strategy& s) {
  return s.quantize && s.quantize->storage->gemm == models::PackedGemm::awq;
}

// Published in MXFP4, on which Transformers does not train: what it is unpacked to is. Of a
// checkpoint that is not packed the configuration changes nothing (quantizers/quantizer_mxfp4.py).
bool is_published_in_mxfp4(const Workload& w) {
  return models::is_published_in_mxfp4(
      models::read_model(w.model_config, w.model_name, w.model_name, {}).model_type);
}

const char* quantization_class(const Workload& w) {
  if (!w.strategy.quantize) return is_published_in_mxfp4(w) ? ", Mxfp4Config" : "";
  if (is_awq(w.strategy)) return ", AwqConfig";
  return is_torchao(w.strategy) ? ", TorchAoConfig" : ", BitsAndBytesConfig";
}

// Arguments: transformers 5.17, utils/quantization_config.py. Each rank loads to its own GPU, which
// is not current yet.
std::string packed_base(const Workload& w) {
  const Strategy& s = w.strategy;
  if (!s.quantize)
    return is_published_in_mxfp4(w) ? ",\n    quantization_config=Mxfp4Config(dequantize=True)"
                                    : "";
  const models::PackedStorage& storage = *s.quantize->storage;
  models::check_in_packages(storage);
  const char* const where =
      mesh_of(s).communicates() ? ",\n    device_map={\"\": int(os.environ[\"LOCAL_RANK\"])}" : "";
  // Without a map gptqmodel picks the kernel of a host; of "auto" one that does not train.
  if (is_awq(s))
    return fmt::format(",\n    quantization_config=AwqConfig(backend=\"auto_trainable\"){}",
                       *where != '\0' ? where : ",\n    device_map={\"\": 0}");
  if (storage.gemm == models::PackedGemm::int8)
    return fmt::format(",\n    quantization_config=BitsAndBytesConfig(load_in_8bit=True){}", where);
  if (storage.gemm == models::PackedGemm::torchao)
    return fmt::format(",\n    quantization_config=TorchAoConfig(Int8WeightOnlyConfig()){}", where);
  return fmt::format(
      ",\n    quantization_config=BitsAndBytesConfig(\n"
      "        load_in_4bit=True, bnb_4bit_quant_type=\"{}\", bnb_4bit_use_double_quant={},\n"
      "        bnb_4bit_compute_dtype=torch.{}, bnb_4bit_quant_storage=torch.{}){}",
      storage.type, truth(storage.doubly_quantized()),
      torch_name(*dtype_from(compute_dtype(s.precision))),
      s.quantize->held_in == DType::uint8 ? "uint8" : torch_name(s.quantize->held_in), where);
}

// peft 0.21, utils/other.py; the Trainer's arguments say the same of checkpoints.
std::string kbit_preparation(const Strategy& s) {
  if (!models::kbit_prepared(s)) return "";
  return fmt::format(
      "model = prepare_model_for_kbit_training(\n"
      "    model, use_gradient_checkpointing={},\n"
      "    gradient_checkpointing_kwargs={{\"use_reentrant\": {}}})\n",
      truth(s.recompute.kind == RecomputeKind::full),
      truth(models::decisions::reentrant_checkpoints(s)));
}

const char* attention_name(models::Attention attention) {
  if (attention == models::Attention::eager) return "\"eager\"";
  if (attention == models::Attention::flash_2) return "\"flash_attention_2\"";
  if (attention == models::Attention::flex) return "\"flex_attention\"";
  return attention == models::Attention::flash_3 ? "\"flash_attention_3\"" : "\"sdpa\"";
}

// What else from_pretrained is told of a classifier.
std::string classifier(const Workload& w) {
  const models::ModelSpec model = models::read_model(w.model_config, w.model_name, w.model_name);
  if (!model.decoder || model.decoder->labels == 0) return "";
  return fmt::format(", num_labels={}", model.decoder->labels);
}

std::string load_model(const Workload& w) {
  const Strategy& s = w.strategy;
  return fmt::format(
      "model = {}.from_pretrained(\n"
      "    {}, dtype=torch.{}, attn_implementation={}{}{})\n"
      "model.config.use_cache = False\n{}{}",
      auto_class(w), reports::quoted(hub_id(w)), torch_name(loaded_dtype(s)),
      attention_name(s.attention), classifier(w), packed_base(w),
      classifies(w) ? "# Batches of several rows need model.config.pad_token_id.\n" : "",
      kbit_preparation(s));
}

std::string freeze(const Strategy& s) {
  if (s.freeze.empty()) return "";
  const auto list = [](const std::vector<std::string>& patterns) {
    std::string out;
    for (const std::string& pattern : patterns)
      out += (out.empty() ? "" : ", ") + reports::quoted(pattern);
    return "[" + out + "]";
  };
  return fmt::format(
      "\nfor name, parameter in model.named_parameters():\n"
      "    frozen = any(fnmatch(name, pattern) for pattern in {})\n"
      "    trained = any(fnmatch(name, pattern) for pattern in {})\n"
      "    parameter.requires_grad_(trained or not frozen)\n",
      list(s.freeze), list(s.train));
}

// Trainer's names (training_args.py, OptimizerNames).
std::string optimizer_name(const Strategy& s, Notes& notes) {
  const models::TrainerOptimizer& optimizer = models::rule_of(s.optimizer).trainer;
  check(optimizer.name != nullptr, ErrorKind::unsupported, [] {
    return fmt::format("export --to transformers: only {} are exported",
                       models::optimizer_names([](const models::OptimizerRule& r) {
                         return r.trainer.name != nullptr;
                       }));
  });
  if (optimizer.note != nullptr) notes.emplace_back(optimizer.note);
  if (optimizer.fused == nullptr) return optimizer.name;
  if (s.optimizer_impl == OptimizerImpl::for_loop)
    notes.push_back("Trainer has no for-loop AdamW; foreach is used");
  return s.optimizer_impl == OptimizerImpl::fused ? optimizer.fused : optimizer.name;
}

// integrations/liger.py; Granite has no fused loss to switch off.
std::string kernel_arguments(const Workload& w) {
  if (w.strategy.kernels != models::Kernels::liger) return "";
  const models::ModelSpec model =
      models::read_model(w.model_config, w.model_name, w.model_name, {});
  const bool fuses = !model.decoder || !model.decoder->scaled_logits;
  std::string out = "    use_liger_kernel=True,\n";
  if (fuses && w.strategy.loss != models::Loss::fused)
    out += "    liger_kernel_config={\"fused_linear_cross_entropy\": False},\n";
  return out;
}

std::string fsdp1_arguments(const Strategy& s, Notes& notes) {
  add_fsdp1_notes(s, notes);
  return fmt::format(
      "    fsdp=True,\n"
      "    fsdp_config={{\n"
      "        \"version\": 1,\n"
      "        \"reshard_after_forward\": \"{}\",\n"
      "        \"auto_wrap_policy\": \"TRANSFORMER_BASED_WRAP\",\n"
      "        \"backward_prefetch\": \"BACKWARD_PRE\",\n"
      "        \"forward_prefetch\": False,\n"
      "        \"use_orig_params\": {},\n"
      "        \"activation_checkpointing\": {},\n"
      "        \"cpu_ram_efficient_loading\": True,\n"
      "        \"sync_module_states\": True,\n"
      "        \"state_dict_type\": \"SHARDED_STATE_DICT\",\n"
      "    }},\n",
      fsdp1_sharding(s), truth(s.data.use_orig_params), truth(fsdp_checkpoints(s)));
}

std::string fsdp_arguments(const Strategy& s, Notes& notes) {
  if (is_fsdp1(s)) return fsdp1_arguments(s, notes);
  const bool reshards = s.stack != Stack::pytorch || s.data.zero == 3;
  std::string groups;
  const models::decisions::Mesh mesh = mesh_of(s);
  if (shards_in_groups(s))
    groups = fmt::format(
        "    parallelism_config=ParallelismConfig(dp_replicate_size={}, dp_shard_size={}),\n",
        mesh[Axis::replicate].ranks, mesh[Axis::shard].ranks);
  return fmt::format(
      "    fsdp=True,\n"
      "    fsdp_config={{\n"
      "        \"version\": 2,\n"
      "        \"reshard_after_forward\": {},\n"
      "        \"auto_wrap_policy\": \"TRANSFORMER_BASED_WRAP\",\n"
      "        \"activation_checkpointing\": {},\n"
      "        \"cpu_ram_efficient_loading\": True,\n"
      "        \"state_dict_type\": \"SHARDED_STATE_DICT\",\n"
      "    }},\n{}",
      truth(reshards), truth(fsdp_checkpoints(s)), groups);
}

bool sets_sharding(const Strategy& s) {
  return is_fsdp1(s) && fsdp1_sharding(s) != "FULL_SHARD";
}

bool uses_deepspeed(const Strategy& s) {
  return s.stack == Stack::deepspeed ||
         (s.stack == Stack::plimsoll && (s.data.zero == 1 || s.data.zero == 2));
}

std::string training_arguments(const Workload& w, Notes& notes) {
  const Strategy& s = w.strategy;
  const bool deepspeed = uses_deepspeed(s), fsdp = !deepspeed && s.data.zero >= 2;
  std::string out;
  if (sets_sharding(s))  // Accelerate 1.15 does not look at the argument (utils/dataclasses.py)
    out = fmt::format("\nos.environ[\"FSDP_SHARDING_STRATEGY\"] = \"{}\"", fsdp1_sharding(s));
  out += fmt::format(
      "\narguments = TrainingArguments(\n"
      "    output_dir=\"output\",\n"
      "    per_device_train_batch_size={},\n"
      "    gradient_accumulation_steps={},\n",
      w.batch.micro_batch, w.batch.grad_accum);
  // Trainer turns DeepSpeed's own precision on with the same arguments.
  const bool low = s.precision != models::Precision::fp32 && (is_mixed(s.precision) || deepspeed);
  if (low) out += fmt::format("    {}=True,\n", compute_dtype(s.precision));
  const bool model_checkpoints =
      s.recompute.kind == RecomputeKind::full && !(fsdp && fsdp_checkpoints(s));
  if (model_checkpoints)
    out += fmt::format(
        "    gradient_checkpointing=True,\n"
        "    gradient_checkpointing_kwargs={{\"use_reentrant\": {}}},\n",
        models::decisions::reentrant_checkpoints(s) ? "True" : "False");
  out += fmt::format("    optim=\"{}\",\n", optimizer_name(s, notes));
  if (const char* argument = models::rule_of(s.optimizer).trainer.argument)
    out += fmt::format("    {},\n", argument);
  out += kernel_arguments(w);
  if (deepspeed) {
    std::string json = as_python(deepspeed_json(w, true, notes));
    return out + "    deepspeed=" + json + ",\n)\n";
  }
  // A checkpoint of the states would gather them on one rank first.
  if (s.data.zero == 1) out += "    save_only_model=True,\n";
  constexpr std::int64_t mib = 1 << 20;
  const bool ddp = !fsdp && mesh_of(s).communicates();
  if (ddp && s.stack == Stack::pytorch && s.data.bucket_cap != Bytes(25 * mib))
    out += fmt::format("    ddp_bucket_cap_mb={},\n", s.data.bucket_cap.value() / mib);
  // Its default for models without checkpoints is to look for them, and then DDP never puts its
  // buckets into the order in which gradients come.
  if (ddp) out += "    ddp_find_unused_parameters=False,\n";
  if (fsdp) out += fsdp_arguments(s, notes);
  return out + ")\n";
}

// Those of the standard library first.
std::string imports(const Workload& w, std::vector<std::string> lines) {
  const Strategy& s = w.strategy;
  lines.insert(lines.end(),
               {"import torch", "from transformers import " + auto_class(w) +
                                    quantization_class(w) + ", Trainer, TrainingArguments"});
  if (is_torchao(s)) lines.emplace_back("from torchao.quantization import Int8WeightOnlyConfig");
  if (!s.freeze.empty()) lines.emplace_back("from fnmatch import fnmatch");
  if (s.lora)
    lines.emplace_back(
        fmt::format("from peft import {}, get_peft_model{}", adapters_class(*s.lora),
                    models::kbit_prepared(s) ? ", prepare_model_for_kbit_training" : ""));
  if (sets_sharding(s) || text_of(s.allocator) || (s.quantize && mesh_of(s).communicates()))
    lines.emplace_back("import os");
  if (!uses_deepspeed(s) && s.data.zero >= 2 && !is_fsdp1(s) && shards_in_groups(s))
    lines.emplace_back("from accelerate import ParallelismConfig");
  const auto foreign = [](const std::string& line) {
    constexpr std::array ours{"functools", "import os", "import sys", "fnmatch"};
    return std::ranges::none_of(
        ours, [&](const char* name) { return line.find(name) != std::string::npos; });
  };
  std::ranges::sort(lines, [&](const std::string& a, const std::string& b) {
    return std::tuple(foreign(a), a.starts_with("from"), a) <
           std::tuple(foreign(b), b.starts_with("from"), b);
  });
  std::string out;
  bool third_party = false;
  for (const std::string& line : lines) {
    if (foreign(line) && !third_party && !out.empty()) out += "\n";
    third_party = foreign(line);
    out += line + "\n";
  }
  return out;
}

}  // namespace

Exported export_transformers(const Workload& w) {
  check_exportable(w, "transformers");
  const Strategy& s = w.strategy;
  Exported out;
  if (s.stack == Stack::plimsoll)
    out.notes.push_back(
        "the plan is of stack plimsoll; `plimsoll fit --stack pytorch` or "
        "deepspeed gives the figures of what this snippet runs");
  const std::string arguments = training_arguments(w, out.notes);
  if (mesh_of(s).communicates())
    out.notes.push_back(
        fmt::format("start it on {} GPUs with torchrun or accelerate launch", s.gpus));
  if (uses_deepspeed(s))
    out.notes.push_back(
        "with ZeRO stage 3 make TrainingArguments before the model is loaded, so "
        "that it is loaded in shards");
  if (s.transformers != models::kTransformers && s.stack != Stack::plimsoll)
    out.notes.push_back(
        fmt::format("written for Transformers {}; in the plan's {} some arguments have other names",
                    models::text_of(models::kTransformers), models::text_of(s.transformers)));
  if (s.bitsandbytes != models::kBitsandbytes && models::runs_bitsandbytes(s))
    out.notes.push_back(fmt::format("the plan's figures are those of bitsandbytes {}: install that",
                                    models::text_of(s.bitsandbytes)));
  check(s.kernels != models::Kernels::unsloth, ErrorKind::unsupported,
        "export --to transformers: no code is written for --kernels unsloth, whose "
        "FastLanguageModel loads and trains the model itself");
  if (s.kernels == models::Kernels::fused && s.stack == Stack::pytorch)
    out.notes.push_back(
        "the kernels are fms-acceleration's, whose framework switches them on "
        "(training.fused_ops_and_kernels); this snippet runs eager ones");
  if (is_awq(s))
    out.notes.push_back("from_pretrained is to load an AWQ checkpoint: put its name there");
  add_model_notes(w, out.notes);
  const TrainingCode code = training_code(w);
  std::string& text = out.text;
  text = as_comments({title(w)}, "#") + as_comments(out.notes, "#") + imports(w, code.imports);
  if (const auto conf = text_of(s.allocator))  // read when the allocator is first used
    text += fmt::format("\nos.environ[\"PYTORCH_CUDA_ALLOC_CONF\"] = \"{}\"\n", *conf);
  if (!code.before_model.empty()) text += "\n" + code.before_model;
  const bool first = uses_deepspeed(s);  // see the note
  text += first ? arguments + "\n" : "\n";
  text += load_model(w) + code.on_model + freeze(s) + adapters_code(w);
  if (!first) text += arguments;
  text += fmt::format(
      "\n\ndef trainer(data):\n"
      "    \"\"\"data: a dataset with input_ids, labels and attention_mask.\"\"\"\n"
      "    {} {}(model=model, args=arguments, train_dataset=data)\n{}",
      code.on_trainer.empty() ? "return" : "made =", code.trainer, code.on_trainer);
  if (!code.on_trainer.empty()) text += "    return made\n";
  return out;
}

}  // namespace plimsoll::reports

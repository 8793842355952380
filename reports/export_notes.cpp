#include "reports/export_notes.h"

#include <fmt/format.h>

#include "models/decisions/layer.h"
#include "models/decisions/mesh.h"
#include "models/host_optimizer.h"
#include "models/model_catalog.h"
#include "models/run_names.h"
#include "models/storages.h"
#include "reports/text.h"

namespace plimsoll::reports {

using models::Precision;
using models::Workload;

std::string_view compute_dtype(Precision precision) {
  if (precision == Precision::fp32) return "fp32";
  check(precision != Precision::fp8_mixed, ErrorKind::unsupported,
        "--precision fp8-mixed: what a trainer needs for it is not written yet");
  return precision == Precision::bf16_mixed || precision == Precision::bf16 ? "bf16" : "fp16";
}

DType loaded_dtype(const models::Strategy& s) {
  if (s.param_dtype) return *s.param_dtype;
  if (s.precision == Precision::bf16) return DType::bf16;
  return s.precision == Precision::fp16 ? DType::fp16 : DType::fp32;
}

std::string title(const Workload& w) {
  return fmt::format("{}: stack {}, {} GPU{}, ZeRO {}, {}, {} tokens x {} x {}", w.model_name,
                     name_of(w.strategy.stack), w.strategy.gpus, w.strategy.gpus == 1 ? "" : "s",
                     w.strategy.data.zero, name_of(w.strategy.precision), w.batch.seq_len,
                     w.batch.micro_batch, w.batch.grad_accum);
}

std::string hub_id(const Workload& w) {
  if (w.model_name.find('/') != std::string::npos) return w.model_name;
  if (const auto entry = models::find_catalog_entry(w.model_name))
    for (const std::string& alias : entry->aliases)
      if (alias.find('/') != std::string::npos) return alias;
  return w.model_name;
}

std::string as_comments(const Notes& notes, std::string_view mark) {
  constexpr std::size_t columns = 98;
  std::string out;
  for (const std::string& note : notes)
    for (const std::string& line : wrapped(printable(note), columns, "  "))
      out += fmt::format("{} {}\n", mark, line);
  return out;
}

// torch/distributed/fsdp/api.py, ShardingStrategy.
std::string_view fsdp1_sharding(const models::Strategy& s) {
  if (models::decisions::shards_in_groups(s))
    return s.data.zero == 3 ? "HYBRID_SHARD" : "HYBRID_SHARD_ZERO2";
  return s.data.zero == 3 ? "FULL_SHARD" : "SHARD_GRAD_OP";
}

bool fsdp_checkpoints(const models::Strategy& s) {
  return s.recompute.kind == models::RecomputeKind::full &&
         !models::decisions::reentrant_checkpoints(s);
}

void add_fsdp1_notes(const models::Strategy& s, Notes& notes) {
  if (!is_fsdp1(s)) return;
  notes.push_back("Transformers 5.20 has no FSDP1; --fsdp-version 2 is planned and exported too");
  if (!s.data.sync_module_states)
    notes.push_back(
        "written so that rank 0 alone loads the weights and sends them, which leaves blocks in the "
        "allocator's cache that the plan has not: plan it with --fsdp-sync-module-states yes");
  if (s.lora)
    notes.push_back(
        "the Trainer wraps each adapter on its own (peft's fsdp_auto_wrap_policy), as "
        "planned; a loop of one's own must");
  if (models::decisions::shards_in_groups(s) && s.data.shard_group != s.gpus_per_node)
    notes.push_back(
        fmt::format("HYBRID_SHARD shards inside a node of {}: groups of {} need a device mesh in "
                    "the script",
                    s.gpus_per_node, s.data.shard_group));
}

// Quoted: sizes may be given as [64:8,>:2].
std::string allocator_setting(const models::Strategy& s) {
  const std::optional<std::string> conf = text_of(s.allocator);
  return conf ? "PYTORCH_CUDA_ALLOC_CONF='" + *conf + "'" : "";
}

void add_allocator_note(const models::Strategy& s, Notes& notes) {
  const std::string setting = allocator_setting(s);
  if (!setting.empty())
    notes.push_back("planned with " + setting +
                    ": put it into the environment of every rank (DeepSpeed's launcher takes "
                    "~/.deepspeed_env)");
}

std::string checkpointing_call(const models::Strategy& s) {
  return models::decisions::reentrant_checkpoints(s)
             ? "model.gradient_checkpointing_enable({\"use_reentrant\": True})"
             : "model.gradient_checkpointing_enable()";
}

void add_model_notes(const Workload& w, Notes& notes) {
  const models::Strategy& s = w.strategy;
  if (s.attention == models::Attention::flash_1)
    notes.push_back(
        "FlashAttention of the first generation is PyTorch 2.0's and 2.1's; newer ones "
        "run the second");
  if (s.recompute.kind != models::RecomputeKind::full && !models::leaves_layers(s.recompute.kind) &&
      models::decisions::reentrant_checkpoints(s))
    notes.push_back(
        "the plan's checkpoints are reentrant, the code of --to transformers says "
        "use_reentrant=False");
  notes.push_back(
      fmt::format("sequences of {} tokens are the data's matter (the tokenizer's "
                  "max_length, or packing)",
                  w.batch.seq_len));
}

void check_exportable(const Workload& w, std::string_view target) {
  const models::Strategy& s = w.strategy;
  check(!w.model_config.empty(), ErrorKind::bad_input, [&] {
    return fmt::format("export --to {}: the plan is of a bare parameter count; plan a model",
                       target);
  });
  check(s.tp == 1 && s.pp == 1 && s.cp == 1 && s.ep == 1, ErrorKind::unsupported, [&] {
    return fmt::format(
        "export --to {}: only data-parallel plans are exported (this one has tp {}, "
        "pp {}, cp {}, ep {})",
        target, s.tp, s.pp, s.cp, s.ep);
  });
  check(models::is_transformers(s.code), ErrorKind::unsupported, [&] {
    return fmt::format("export --to {}: the plan is of {}, whose own configuration is not written",
                       target, name_of(s.code));
  });
  check(s.compile == models::Compile::no, ErrorKind::unsupported, [&] {
    return fmt::format("export --to {}: the plan compiles each layer, which is not written",
                       target);
  });
  const bool torch = s.stack == models::Stack::pytorch;
  check(s.data.kind == models::DataParallelKind::ddp, ErrorKind::unsupported, [&] {
    return fmt::format(
        "export --to {}: --data-parallel dp is what Transformers' Trainer does where a script is "
        "started without a launcher and sees several GPUs: there is nothing to write",
        target);
  });
  check(!models::has_host_optimizer(s), ErrorKind::unsupported, [&] {
    return fmt::format(
        "export --to {}: --offload optimizer on stack pytorch is torchao's CPUOffloadOptimizer, "
        "which no configuration switches on",
        target);
  });
  const bool fsdp = torch && target == "accelerate" && s.offload.pinned;
  const bool states = s.offload.params || s.offload.optimizer;
  check(!states || s.stack == models::Stack::deepspeed || fsdp, ErrorKind::unsupported, [&] {
    return fmt::format(
        "export --to {}: of a plan of FSDP with --offload, pinned, only an Accelerate "
        "configuration is exported (--to accelerate)",
        target);
  });
  check(
      !s.quantize || s.quantize->storage->gemm != models::PackedGemm::gptq, ErrorKind::unsupported,
      [&] {
        return fmt::format(
            "export --to {}: a GPTQ base (--quantize gptq) is loaded by fms-acceleration's plugin "
            "(peft.quantization.auto_gptq), whose configuration is not written",
            target);
      });
  check(!s.quantize || s.quantize->storage->gemm != models::PackedGemm::hqq, ErrorKind::unsupported,
        [&] {
          return fmt::format(
              "export --to {}: --quantize hqq: what is written is for Transformers 5, which "
              "quantizes nothing with HQQ",
              target);
        });
  check(
      !s.quantize || s.stack == models::Stack::deepspeed ||
          ((target == "transformers" || target == "slurm") && s.data.zero < 2),
      ErrorKind::unsupported, [&] {
        return fmt::format(
            "export --to {}: a packed base (--quantize) is exported --to transformers, without "
            "FSDP: "
            "how each rank comes by packed weights before they are sharded is the script's matter",
            target);
      });
}

}  // namespace plimsoll::reports

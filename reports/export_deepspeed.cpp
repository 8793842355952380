// Keys and defaults: deepspeed 0.19.8, runtime/zero/config.py, runtime/precision_config.py,
// runtime/engine.py (_configure_basic_optimizer).
#include <fmt/format.h>

#include "models/decisions/mesh.h"
#include "models/optimizers.h"
#include "reports/export.h"
#include "reports/export_code.h"
#include "reports/export_notes.h"
#include "reports/json_writer.h"

namespace plimsoll::reports {

using models::DeepSpeedOptions;
using models::Precision;
using models::Stack;
using models::Strategy;
using models::Workload;

namespace {

constexpr const char* kAuto = "auto";

void write_batch(JsonWriter& json, const Workload& w, bool trainer) {
  const auto size = [&](const char* name, std::int64_t value) {
    if (trainer)
      json.member(name, kAuto);
    else
      json.member(name, value);
  };
  const std::int64_t micro = w.batch.micro_batch, accumulated = w.batch.grad_accum;
  size("train_batch_size", checked_multiply(checked_multiply(micro, accumulated),
                                            models::decisions::mesh_of(w.strategy).data().ranks));
  size("train_micro_batch_size_per_gpu", micro);
  size("gradient_accumulation_steps", accumulated);
}

void write_precision(JsonWriter& json, const Workload& w, Notes& notes) {
  const Strategy& s = w.strategy;
  const bool sharded = s.data.zero >= 1;
  if (s.precision == Precision::fp32) return;
  const bool bf16 = compute_dtype(s.precision) == "bf16";
  json.key(bf16 ? "bf16" : "fp16");
  json.begin_object(JsonWriter::Layout::line);
  json.member("enabled", true);
  if (bf16 && !s.data.deepspeed.check_grad_overflow) json.member("check_grad_overflow", false);
  const bool pure = !is_mixed(s.precision);
  if (pure && bf16 && sharded) {
    json.member("bf16_master_weights_and_grads", true);
    json.member("bf16_optimizer_states", true);
  }
  json.end_object();
  if (pure && !(bf16 && sharded))
    notes.push_back(
        fmt::format("DeepSpeed keeps fp32 masters beside {} weights at stage {}: 12 "
                    "bytes a parameter more than the plan has",
                    bf16 ? "bf16" : "fp16", s.data.zero));
  if (s.grad_dtype && s.stack == Stack::deepspeed) {
    json.key("data_types");
    json.begin_object(JsonWriter::Layout::line);
    json.member("grad_accum_dtype", name_of(*s.grad_dtype));
    json.end_object();
  }
}

void write_optimizer(JsonWriter& json, const Workload& w, bool trainer, Notes& notes) {
  const Strategy& s = w.strategy;
  const models::OptimizerRule& rule = models::rule_of(s.optimizer);
  const models::DeepSpeedOptimizer& optimizer = rule.deepspeed;
  if (optimizer.type == nullptr && optimizer.refusal == nullptr && rule.trainer.name != nullptr) {
    json.member("zero_allow_untested_optimizer", true);
    if (!trainer)
      notes.push_back(
          fmt::format("the optimizer is the script's own, and not DeepSpeed's: optim=\"{}\" of "
                      "TrainingArguments, or the object that deepspeed.initialize is given",
                      rule.trainer.name));
    return;
  }
  check(optimizer.type != nullptr, ErrorKind::unsupported, [] {
    return fmt::format("export --to deepspeed: only {} are exported",
                       models::optimizer_names([](const models::OptimizerRule& r) {
                         return r.deepspeed.type != nullptr;
                       }));
  });
  json.key("optimizer");
  json.begin_object();
  json.member("type", optimizer.type);
  json.key("params");
  json.begin_object(JsonWriter::Layout::line);
  if (trainer)
    for (const char* const setting : optimizer.trainer_settings) json.member(setting, kAuto);
  // Absent, AdamW is DeepSpeed's own fused kernel.
  if (optimizer.steps_flat && s.optimizer_impl && *s.optimizer_impl != models::OptimizerImpl::fused)
    json.member("torch_adam", true);
  if (optimizer.setting != nullptr) {
    json.key(optimizer.setting);
    json.raw(optimizer.setting_value);
  }
  json.end_object();
  json.end_object();
  if (!optimizer.tested && s.data.zero >= 1) json.member("zero_allow_untested_optimizer", true);
  if (!trainer)
    notes.push_back(
        "a plan has no learning rate: set optimizer.params.lr, a scheduler and "
        "gradient_clipping");
}

constexpr const char* kNvmePath = "/local_nvme";  // DeepSpeed's own example: a note says so

void write_zero(JsonWriter& json, const Strategy& s) {
  const DeepSpeedOptions& o = s.data.deepspeed;
  const int stage = s.data.zero;
  json.key("zero_optimization");
  json.begin_object();
  json.member("stage", stage);
  if (stage == 0) {
    json.end_object();
    return;
  }
  const auto offload = [&](const char* section, bool it_is) {
    if (!it_is) return;
    json.key(section);
    json.begin_object(JsonWriter::Layout::line);
    json.member("device", s.offload.nvme ? "nvme" : "cpu");
    json.member("pin_memory", s.offload.pinned);
    if (s.offload.nvme) {
      json.member("nvme_path", kNvmePath);
      const bool states = std::string_view(section) == "offload_optimizer";
      json.member("buffer_count",
                  states ? o.nvme.optimizer_buffer_count : o.nvme.param_buffer_count);
      if (!states) {
        json.member("buffer_size", o.nvme.param_buffer_size);
        json.member("max_in_cpu", o.nvme.max_in_cpu);
      }
    }
    json.end_object();
  };
  offload("offload_optimizer", s.offload.optimizer);
  offload("offload_param", s.offload.params);
  json.member("overlap_comm", o.overlap_comm.value_or(stage == 3));
  json.member("contiguous_gradients", o.contiguous_gradients);
  json.member("reduce_scatter", o.reduce_scatter);
  json.member("reduce_bucket_size", o.reduce_bucket_size);
  if (stage < 3) json.member("allgather_bucket_size", o.allgather_bucket_size);
  if (o.round_robin_gradients) json.member("round_robin_gradients", true);
  if (stage == 3) {
    json.member("sub_group_size", o.sub_group_size);
    json.member("stage3_prefetch_bucket_size", o.prefetch_bucket_size);
    json.member("stage3_param_persistence_threshold", o.param_persistence_threshold);
    if (o.model_persistence_threshold != DeepSpeedOptions{}.model_persistence_threshold)
      json.member("stage3_model_persistence_threshold", o.model_persistence_threshold);
    json.member("stage3_max_live_parameters", o.max_live_parameters);
    json.member("stage3_max_reuse_distance", o.max_reuse_distance);
    json.member("stage3_gather_16bit_weights_on_model_save", true);
  }
  json.end_object();
}

void add_stack_notes(const Strategy& s, Notes& notes) {
  if (s.stack != Stack::deepspeed)
    notes.push_back(
        fmt::format("the plan is of stack {}; DeepSpeed's buffers and copies differ: "
                    "`plimsoll fit --stack deepspeed` gives its figures",
                    s.stack == Stack::pytorch ? "pytorch" : "plimsoll"));
  if (s.offload.nvme)
    notes.push_back(
        fmt::format("nvme_path {} is an example: name the folder of your own NVMe", kNvmePath));
  if (s.stack == Stack::pytorch && s.data.zero == 2)
    notes.push_back("--zero 2 on pytorch shards parameters between steps, ZeRO-2 does not");
  if (s.stack == Stack::pytorch && is_mixed(s.precision) && loaded_dtype(s) == DType::fp32)
    notes.push_back(
        "DeepSpeed trains 16-bit weights with fp32 masters, not fp32 weights under "
        "autocast");
  if (s.data.shard_group > 0)
    notes.push_back(
        fmt::format("sharding inside groups of {} ranks: DeepSpeed 0.19 has no such "
                    "setting (MiCS was removed; ZeRO++'s zero_hpz_partition_size adds "
                    "a second copy instead)",
                    s.data.shard_group));
}

}  // namespace

std::string deepspeed_json(const Workload& w, bool trainer, Notes& notes) {
  add_stack_notes(w.strategy, notes);
  std::string text;
  JsonWriter json(text, JsonWriter::Style::pretty);
  json.begin_object();
  write_batch(json, w, trainer);
  write_precision(json, w, notes);
  write_optimizer(json, w, trainer, notes);
  write_zero(json, w.strategy);
  if (trainer) json.member("gradient_clipping", kAuto);  // else the Trainer's max_grad_norm is lost
  json.end_object();
  return text;
}

Exported export_deepspeed(const Workload& w) {
  check_exportable(w, "deepspeed");
  Exported out;
  out.text = deepspeed_json(w, false, out.notes) + "\n";
  const Strategy& s = w.strategy;
  if (const std::string code = needed_code_note(s); !code.empty()) out.notes.push_back(code);
  if (s.recompute.kind == models::RecomputeKind::full)
    out.notes.push_back("full recompute: call " + checkpointing_call(s) +
                        " (DeepSpeed's activation_checkpointing "
                        "section is for models that call its own checkpoint function)");
  if (s.lora || !s.freeze.empty())
    out.notes.push_back(fmt::format(
        "{} are made in Python before deepspeed.initialize: --to transformers writes "
        "them",
        s.quantize ? "the packed base and its adapters" : "adapters and frozen parameters"));
  add_allocator_note(s, out.notes);
  add_model_notes(w, out.notes);
  return out;
}

}  // namespace plimsoll::reports

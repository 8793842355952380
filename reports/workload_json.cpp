#include "reports/workload_json.h"

#include "models/decisions/exchange.h"
#include "models/decisions/layer.h"
#include "models/run_names.h"
#include "models/stack_versions.h"
#include "reports/fingerprint.h"

namespace plimsoll::reports {

namespace {
namespace decisions = models::decisions;
using models::Precision;
using models::Strategy;

// Resolved: an option that spells out its default is the same workload.
DType param_dtype(const Strategy& s) {
  if (s.param_dtype) return *s.param_dtype;
  if (s.precision == Precision::bf16) return DType::bf16;
  if (s.precision == Precision::fp16) return DType::fp16;
  return DType::fp32;
}

std::optional<std::string_view> name_if(const std::optional<DType>& dtype) {
  if (!dtype) return std::nullopt;
  return name_of(*dtype);
}

void write_names(JsonWriter& json, const std::vector<std::string>& names) {
  json.begin_array(JsonWriter::Layout::line);
  for (const std::string& name : names) json.value(name);
  json.end_array();
}

void write_model(JsonWriter& json, const Plan& plan, bool named) {
  json.begin_object();
  json.key("config");
  json.raw(plan.config_json.empty() ? "null" : plan.config_json);
  if (named)
    json.member("name", plan.model_name.empty() ? std::optional<std::string>() : plan.model_name);
  if (plan.config_json.empty()) json.member("parameters", plan.parameters);
  json.end_object();
}

// FSDP as Accelerate uses it, which is what the planner plans: autocast stays on beside FSDP's
// policy, and gradients are reduced in the low dtype where nothing else is asked for.
bool under_fsdp(const Strategy& s) {
  return s.stack == models::Stack::pytorch && s.data.zero >= 2;
}

std::optional<DType> gradient_dtype(const Strategy& s) {
  if (s.grad_dtype || !under_fsdp(s) || !is_mixed(s.precision)) return s.grad_dtype;
  if (s.data.reduce_dtype) return s.data.reduce_dtype;
  return s.precision == models::Precision::bf16_mixed ? DType::bf16 : DType::fp16;
}

// Where it is not what the stack does of itself.
void write_reentrant(JsonWriter& json, const Strategy& s) {
  const bool reentrant = decisions::reentrant_checkpoints(s);
  if (decisions::recomputes_layers(s.recompute.kind) &&
      reentrant != decisions::usually_reentrant(s))
    json.member("use_reentrant", reentrant);
}

// Under DeepSpeed's own names, what is absent resolved.
void write_deepspeed(JsonWriter& json, const Strategy& s) {
  const models::DeepSpeedOptions& o = s.data.deepspeed;
  if (const auto conf = text_of(s.allocator)) json.member("allocator_conf", *conf);
  json.key("deepspeed");
  json.begin_object();
  json.member("allgather_bucket_size", o.allgather_bucket_size);
  json.member("check_grad_overflow", o.check_grad_overflow);
  json.member("contiguous_gradients", o.contiguous_gradients);
  json.member("overlap_comm", o.overlap_comm.value_or(s.data.zero == 3));
  json.member("reduce_bucket_size", o.reduce_bucket_size);
  json.member("reduce_scatter", o.reduce_scatter);
  json.member("stage3_max_live_parameters", o.max_live_parameters);
  json.member("stage3_max_reuse_distance", o.max_reuse_distance);
  json.member("stage3_model_persistence_threshold", o.model_persistence_threshold);
  json.member("stage3_param_persistence_threshold", o.param_persistence_threshold);
  json.member("stage3_prefetch_bucket_size", o.prefetch_bucket_size);
  json.member("sub_group_size", o.sub_group_size);
  json.end_object();
  json.member("device", name_of(s.device));
  json.member("name", name_of(s.stack));
  json.member("optimizer_impl", name_of(s.optimizer_impl.value_or(models::OptimizerImpl::fused)));
  json.member("torch_version", models::kTorchVersion);
  json.member("transformers_version", models::text_of(s.transformers));
  write_reentrant(json, s);
  json.member("version", models::kDeepSpeedVersion);
  json.end_object();
}

void write_stack(JsonWriter& json, const Strategy& s) {
  const bool pytorch = s.stack == models::Stack::pytorch;
  json.begin_object();
  if (s.stack == models::Stack::deepspeed) return write_deepspeed(json, s);
  if (!pytorch) {
    json.member("device", name_of(s.device));
    if (s.gpus > 1 && decisions::exchange_of(s) != decisions::usual_exchange(s.device))
      json.member("exchange", name_of(*s.exchange));
    json.member("name", name_of(s.stack));
    json.end_object();
    return;
  }
  json.member("allocator_conf", text_of(s.allocator));
  json.member("compile", s.compile);
  json.member("fsdp_autocast", is_fsdp1(s) && is_mixed(s.precision));
  json.member("fsdp_units", under_fsdp(s) && s.data.fsdp_version == 2 ? "accelerate" : "layers");
  json.member("fsdp_version", s.data.fsdp_version);
  json.member("hold_outputs", s.hold_outputs);
  json.member("kernels", name_of(s.kernels));
  json.member("name", name_of(s.stack));
  json.member("optimizer_impl", name_of(s.optimizer_impl.value_or(models::OptimizerImpl::foreach)));
  json.member("sdpa_backend", "auto");
  json.member("transformers_version", models::text_of(s.transformers));
  json.member("use_cache", false);
  write_reentrant(json, s);
  json.member("version", models::kTorchVersion);
  json.end_object();
}

void write_lora(JsonWriter& json, const models::Lora& lora) {
  json.begin_object(JsonWriter::Layout::line);
  json.member("adapter_dtype", name_of(lora.dtype));
  json.member("alpha", lora.alpha);
  json.member("dropout", lora.dropout);
  json.member("rank", lora.rank);
  std::string targets;
  for (const std::string& target : lora.targets) targets += (targets.empty() ? "" : ",") + target;
  json.member("targets", targets);
  json.end_object();
}

void write_bucket(JsonWriter& json, const models::DataParallel& data) {
  constexpr std::int64_t mib = 1 << 20;
  json.key("ddp");
  json.begin_object(JsonWriter::Layout::line);
  if (data.bucket_cap.value() % mib == 0)
    json.member("bucket_cap_mb", data.bucket_cap.value() / mib);
  else
    json.member("bucket_cap_mb", data.bucket_cap.real() / mib);
  json.member("bucket_view", data.gradient_as_bucket_view);
  json.member("wrap", nullptr);
  json.end_object();
}

}  // namespace

void write_batch(JsonWriter& json, const models::Batch& batch) {
  json.begin_object(JsonWriter::Layout::line);
  json.member("grad_accum", batch.grad_accum);
  json.member("micro_batch", batch.micro_batch);
  json.member("seq_len", batch.seq_len);
  json.end_object();
}

void write_strategy(JsonWriter& json, const Strategy& s) {
  json.begin_object();
  json.member("attention", name_of(s.attention));
  json.member("cp", s.cp);
  write_bucket(json, s.data);
  if (s.deterministic) json.member("deterministic", true);
  json.member("ep", s.ep);
  json.key("freeze");
  write_names(json, s.freeze);
  json.member("fsdp_upcast", s.data.fsdp_upcast.value_or(true));
  json.member("galore_rank", nullptr);
  json.member("grad_dtype", name_if(gradient_dtype(s)));
  json.member("kbit_prep", nullptr);
  json.key("lora");
  if (s.lora)
    write_lora(json, *s.lora);
  else
    json.value(nullptr);
  json.member("loss", name_of(s.loss));
  json.member("master_weights", s.master_weights);
  json.key("offload");
  write_names(json, {});
  json.member("offload_to", "cpu");
  json.member("optimizer", name_of(s.optimizer));
  json.member("optimizer_in_backward", false);
  json.member("param_dtype", name_of(param_dtype(s)));
  json.member("pp", s.pp);
  json.member("pp_schedule", nullptr);
  json.member("precision", name_of(s.precision));
  json.member("quant_storage", nullptr);
  json.member("quantize", nullptr);
  json.member("recompute", models::text_of(s.recompute));
  json.member("sequence_parallel", false);
  json.member("shard_group", s.data.shard_group > 0
                                 ? std::optional<std::int64_t>(s.data.shard_group)
                                 : std::nullopt);
  json.member("tp", s.tp);
  json.key("train");
  write_names(json, s.train);
  json.member("virtual_stages", 1);
  json.member("world_size", s.gpus);
  json.member("zero", s.data.zero);
  json.end_object();
}

std::string canonical_workload(const Plan& plan) {
  std::string text;
  JsonWriter json(text, JsonWriter::Style::compact);
  json.begin_object();
  json.key("batch");
  write_batch(json, plan.batch);
  json.key("model");
  write_model(json, plan, false);
  json.key("stack");
  write_stack(json, plan.strategy);
  json.key("strategy");
  write_strategy(json, plan.strategy);
  json.end_object();
  return text;
}

std::string fingerprint_of(const models::Workload& workload) {
  Plan plan;
  plan.strategy = workload.strategy;
  plan.batch = workload.batch;
  plan.config_json = workload.model_config;
  return fingerprint(canonical_workload(plan));
}

void write_workload(JsonWriter& json, const Plan& plan) {
  json.begin_object();
  json.member("fingerprint", plan.fingerprint);
  json.key("model");
  write_model(json, plan, true);
  json.key("stack");
  write_stack(json, plan.strategy);
  json.key("strategy");
  write_strategy(json, plan.strategy);
  json.key("batch");
  write_batch(json, plan.batch);
  json.end_object();
}

}  // namespace plimsoll::reports

#include "reports/workload_json.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "models/bitsandbytes.h"
#include "models/decisions/exchange.h"
#include "models/decisions/layer.h"
#include "models/decisions/precision.h"
#include "models/host_optimizer.h"
#include "models/options.h"
#include "models/prompt_adapters.h"
#include "models/recompute.h"
#include "models/run_names.h"
#include "models/stack_versions.h"
#include "models/storages.h"
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
  return s.precision == models::Precision::fp16_mixed ? DType::fp16 : DType::bf16;
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
  if (s.offload.nvme && s.offload.optimizer)
    json.member("offload_optimizer_buffer_count", o.nvme.optimizer_buffer_count);
  if (s.offload.nvme && s.offload.params) {
    json.member("offload_param_buffer_count", o.nvme.param_buffer_count);
    json.member("offload_param_buffer_size", o.nvme.param_buffer_size);
    json.member("offload_param_max_in_cpu", o.nvme.max_in_cpu);
  }
  json.member("overlap_comm", o.overlap_comm.value_or(s.data.zero == 3));
  json.member("reduce_bucket_size", o.reduce_bucket_size);
  json.member("reduce_scatter", o.reduce_scatter);
  if (o.round_robin_gradients) json.member("round_robin_gradients", true);
  json.member("stage3_max_live_parameters", o.max_live_parameters);
  json.member("stage3_max_reuse_distance", o.max_reuse_distance);
  json.member("stage3_model_persistence_threshold", o.model_persistence_threshold);
  json.member("stage3_param_persistence_threshold", o.param_persistence_threshold);
  json.member("stage3_prefetch_bucket_size", o.prefetch_bucket_size);
  json.member("sub_group_size", o.sub_group_size);
  json.end_object();
  json.member("device", name_of(s.device));
  if (s.kernels != models::Kernels::eager) json.member("kernels", name_of(s.kernels));
  json.member("name", name_of(s.stack));
  json.member("optimizer_impl", name_of(s.optimizer_impl.value_or(models::OptimizerImpl::fused)));
  json.member("torch_version", models::text_of(s.torch));
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
  if (s.bitsandbytes != models::kBitsandbytes && models::runs_bitsandbytes(s))
    json.member("bitsandbytes_version", models::text_of(s.bitsandbytes));
  if (s.compile == models::Compile::no)
    json.member("compile", false);
  else
    json.member("compile", name_of(s.compile));
  if (s.data.fsdp_checkpoints) json.member("fsdp_activation_checkpointing", true);
  json.member("fsdp_autocast", is_fsdp1(s) && is_mixed(s.precision));
  if (s.data.sync_module_states) json.member("fsdp_sync_module_states", true);
  const bool units =
      under_fsdp(s) && s.data.fsdp_version == 2 &&
      (models::is_transformers(s.code) || s.code == models::ModelCode::torchtitan_0_2_2);
  json.member("fsdp_units", units ? "accelerate" : "layers");
  if (!s.data.use_orig_params) json.member("fsdp_use_orig_params", false);
  json.member("fsdp_version", s.data.fsdp_version);
  json.member("hold_outputs", s.hold_outputs);
  json.member("kernels", name_of(s.kernels));
  if (!models::is_transformers(s.code)) json.member("model_code", name_of(s.code));
  json.member("name", name_of(s.stack));
  // On the host it has one form (CPUOffloadOptimizer).
  json.member("optimizer_impl",
              name_of(s.optimizer_impl.value_or(models::has_host_optimizer(s)
                                                    ? models::OptimizerImpl::fused
                                                    : models::OptimizerImpl::foreach)));
  json.member("sdpa_backend", "auto");
  json.member("transformers_version", models::text_of(s.transformers));
  json.member("use_cache", false);
  write_reentrant(json, s);
  json.member("version", models::text_of(s.torch));
  json.end_object();
}

std::optional<std::int64_t> shard_group(const Strategy& s) {
  return s.data.shard_group > 0 ? std::optional(s.data.shard_group) : std::nullopt;
}

void write_lora(JsonWriter& json, const std::optional<models::Lora>& adapters) {
  if (!adapters) return json.value(nullptr);
  const models::Lora& lora = *adapters;
  json.begin_object(JsonWriter::Layout::line);
  const auto list = [](const std::vector<std::string>& names) {
    std::string out;
    for (const std::string& name : names) out += (out.empty() ? "" : ",") + name;
    return out;
  };
  using models::AdapterKind;
  json.member("adapter_dtype", name_of(lora.dtype));
  if (models::learns_prompt(lora.kind)) {
    if (lora.kind == AdapterKind::p_tuning || lora.encoder_hidden > 0)
      json.member("encoder_hidden", lora.encoder_hidden);
    json.member("kind", name_of(lora.kind));
    json.member("virtual_tokens", lora.virtual_tokens);
    return json.end_object();
  }
  if (lora.adapters > 1) json.member("adapters", lora.adapters);
  if (lora.kind == AdapterKind::lora) json.member("alpha", lora.alpha);
  if (lora.kind != AdapterKind::ia3) json.member("dropout", lora.dropout);
  if (!lora.feedforward.empty()) json.member("feedforward", list(lora.feedforward));
  if (lora.kind != AdapterKind::lora) json.member("kind", name_of(lora.kind));
  if (lora.bias) json.member("lora_bias", true);
  if (!lora.modules_to_save.empty()) json.member("modules_to_save", list(lora.modules_to_save));
  if (lora.kind != AdapterKind::ia3) json.member("rank", lora.rank);
  if (!lora.parameters.empty()) json.member("target_parameters", list(lora.parameters));
  json.member("targets", list(lora.targets));
  if (lora.dora) json.member("use_dora", true);
  json.end_object();
}

void write_bucket(JsonWriter& json, const models::DataParallel& data) {
  constexpr std::int64_t mib = 1 << 20;
  json.begin_object(JsonWriter::Layout::line);
  if (data.bucket_cap.value() % mib == 0)
    json.member("bucket_cap_mb", data.bucket_cap.value() / mib);
  else
    json.member("bucket_cap_mb", data.bucket_cap.real() / mib);
  json.member("bucket_view", data.gradient_as_bucket_view);
  json.member("wrap", nullptr);
  json.end_object();
}

using Write = void (*)(JsonWriter& json, const Strategy& s);

struct Member {
  std::string_view key;
  Write write;
  bool (*stands)(const Strategy& s) = nullptr;  // always, where absent
};

// What is modelled of "strategy", in the order of the document; fingerprints are over all of it.
constexpr Member kStrategy[] = {
    {"attention", [](JsonWriter& json, const Strategy& s) { json.value(name_of(s.attention)); }},
    {"cp", [](JsonWriter& json, const Strategy& s) { json.value(s.cp); }},
    {"data_parallel", [](JsonWriter& json, const Strategy& s) { json.value(name_of(s.data.kind)); },
     [](const Strategy& s) { return s.data.kind != models::DataParallelKind::ddp; }},
    {"ddp", [](JsonWriter& json, const Strategy& s) { write_bucket(json, s.data); }},
    {"deterministic", [](JsonWriter& json, const Strategy& s) { json.value(s.deterministic); },
     [](const Strategy& s) { return s.deterministic; }},
    {"ep", [](JsonWriter& json, const Strategy& s) { json.value(s.ep); }},
    {"fp8_all_gather", [](JsonWriter& json, const Strategy& s) { json.value(s.fp8_all_gather); },
     [](const Strategy& s) { return s.precision == models::Precision::fp8_mixed; }},
    {"fp8_recipe", [](JsonWriter& json, const Strategy& s) { json.value(name_of(s.fp8_recipe)); },
     [](const Strategy& s) { return s.precision == models::Precision::fp8_mixed; }},
    {"freeze", [](JsonWriter& json, const Strategy& s) { write_names(json, s.freeze); }},
    {"fsdp_upcast",
     [](JsonWriter& json, const Strategy& s) {
       json.value(s.data.fsdp_upcast.value_or(!s.quantize));
     }},
    {"galore_rank",
     [](JsonWriter& json, const Strategy& s) {
       json.value(s.galore_rank > 0 ? std::optional(s.galore_rank) : std::nullopt);
     }},
    {"grad_dtype",
     [](JsonWriter& json, const Strategy& s) { json.value(name_if(gradient_dtype(s))); }},
    {"kbit_casting", [](JsonWriter& json, const Strategy&) { json.value(true); },
     [](const Strategy& s) { return models::casts_behind_kbit(s); }},
    {"kbit_prep",
     [](JsonWriter& json, const Strategy& s) {
       json.value(s.quantize ? std::optional(models::kbit_prepared(s)) : std::nullopt);
     }},
    {"lora", [](JsonWriter& json, const Strategy& s) { write_lora(json, s.lora); }},
    {"loss", [](JsonWriter& json, const Strategy& s) { json.value(name_of(s.loss)); }},
    {"master_weights", [](JsonWriter& json, const Strategy& s) { json.value(s.master_weights); }},
    {"offload",
     [](JsonWriter& json, const Strategy& s) {
       json.begin_array(JsonWriter::Layout::line);
       const models::Offload& o = s.offload;
       if (o.optimizer) json.value("optimizer");
       if (o.gradients) json.value("gradients");
       if (o.params) json.value("params");
       if (o.activations) json.value("activations");
       json.end_array();
     }},
    {"offload_pin", [](JsonWriter& json, const Strategy& s) { json.value(s.offload.pinned); },
     [](const Strategy& s) { return s.offload.any() && !s.offload.pinned; }},
    {"offload_to",
     [](JsonWriter& json, const Strategy& s) { json.value(s.offload.nvme ? "nvme" : "cpu"); }},
    {"optimizer", [](JsonWriter& json, const Strategy& s) { json.value(name_of(s.optimizer)); }},
    {"optimizer_in_backward",
     [](JsonWriter& json, const Strategy& s) { json.value(s.optimizer_in_backward); }},
    {"param_dtype",
     [](JsonWriter& json, const Strategy& s) { json.value(name_of(param_dtype(s))); }},
    {"pp", [](JsonWriter& json, const Strategy& s) { json.value(s.pp); }},
    {"precision", [](JsonWriter& json, const Strategy& s) { json.value(name_of(s.precision)); }},
    {"quant_storage",
     [](JsonWriter& json, const Strategy& s) {
       json.value(s.quantize ? std::optional(name_of(s.quantize->held_in)) : std::nullopt);
     }},
    {"quantize",
     [](JsonWriter& json, const Strategy& s) {
       json.value(s.quantize ? std::optional(s.quantize->storage->name) : std::nullopt);
     }},
    {"recompute",
     [](JsonWriter& json, const Strategy& s) { json.value(models::text_of(s.recompute)); }},
    {"reduce_dtype",
     [](JsonWriter& json, const Strategy& s) { json.value(name_if(s.data.reduce_dtype)); },
     [](const Strategy& s) {
       return s.stack == models::Stack::plimsoll && decisions::reduce_dtype(s).has_value();
     }},
    {"rows", [](JsonWriter& json, const Strategy& s) { json.value(name_of(s.rows)); },
     [](const Strategy& s) { return s.rows != models::Rows::full; }},
    {"shard_group", [](JsonWriter& json, const Strategy& s) { json.value(shard_group(s)); }},
    {"tp", [](JsonWriter& json, const Strategy& s) { json.value(s.tp); }},
    {"train", [](JsonWriter& json, const Strategy& s) { write_names(json, s.train); }},
    {"world_size", [](JsonWriter& json, const Strategy& s) { json.value(s.gpus); }},
    {"zero", [](JsonWriter& json, const Strategy& s) { json.value(s.data.zero); }},
};
static_assert(std::ranges::is_sorted(kStrategy, {}, &Member::key));

std::vector<std::pair<std::string_view, std::string_view>> unmodelled_members() {
  std::vector<std::pair<std::string_view, std::string_view>> members;
  for (const models::Option& option : models::plan_options()) {
    if (option.document.empty()) continue;
    members.emplace_back(option.member.substr(option.member.find('/') + 1), option.document);
  }
  std::ranges::sort(members);
  return members;
}

}  // namespace

void write_batch(JsonWriter& json, const models::Batch& batch) {
  json.begin_object(JsonWriter::Layout::line);
  json.member("grad_accum", batch.grad_accum);
  json.member("micro_batch", batch.micro_batch);
  const auto where_known = [&](const char* key, std::int64_t count) {
    if (count > 0) json.member(key, count);
  };
  where_known("real_tokens", batch.real_tokens);
  where_known("row_samples", batch.row_samples);
  where_known("row_tokens", batch.row_tokens);
  json.member("seq_len", batch.seq_len);
  json.end_object();
}

void write_strategy(JsonWriter& json, const Strategy& s) {
  // Options that are not modelled have a member too: both lists are in the order of their keys.
  static const std::vector<std::pair<std::string_view, std::string_view>> others =
      unmodelled_members();
  auto other = others.begin();
  const auto write_others = [&](std::string_view before) {
    for (; other != others.end() && (before.empty() || other->first < before); ++other) {
      json.key(other->first);
      json.raw(other->second);
    }
  };
  json.begin_object();
  for (const Member& member : kStrategy) {
    write_others(member.key);
    if (member.stands != nullptr && !member.stands(s)) continue;
    json.key(member.key);
    member.write(json, s);
  }
  write_others({});
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

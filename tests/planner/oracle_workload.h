// Workloads as tools/oracle/README.md defines them, as the planner's types.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "models/model_catalog.h"
#include "models/model_reader.h"
#include "models/recompute.h"
#include "models/run_names.h"
#include "models/run_spec.h"
#include "models/storages.h"
#include "tests/planner/oracle_adapters.h"

namespace plimsoll::tests {

using nlohmann::json;

inline std::optional<models::Quantization> quantization_of(const json& strategy) {
  if (strategy.value("quantize", json()).is_null()) return std::nullopt;
  const json &name = strategy["quantize"], held_in = strategy.value("quant_storage", json()),
             prepared = strategy.value("kbit_prep", json());
  models::Quantization out{.storage = models::find_packed_storage(name.get<std::string>())};
  if (held_in.is_string()) out.held_in = *dtype_from(held_in.get<std::string>());
  out.kbit_prep = prepared.is_boolean() && prepared.get<bool>();
  out.kbit_casting = strategy.contains("kbit_casting");
  return out;
}

inline models::Strategy strategy_of(const json& workload) {
  const json &s = workload["strategy"], &stack = workload["stack"];
  models::Strategy out;
  out.precision = choice<models::Precision>(s["precision"]);
  out.gpus = s["world_size"];
  out.tp = s["tp"];
  out.data.zero = s["zero"];
  if (s.contains("data_parallel"))
    out.data.kind = choice<models::DataParallelKind>(s["data_parallel"]);
  out.data.fsdp_version = stack["fsdp_version"];
  out.data.fsdp_checkpoints = stack.value("fsdp_activation_checkpointing", false);
  out.data.sync_module_states = stack.value("fsdp_sync_module_states", false);
  out.data.use_orig_params = stack.value("fsdp_use_orig_params", true);
  if (s["shard_group"].is_number()) out.data.shard_group = s["shard_group"];
  if (s["param_dtype"].is_string())
    out.param_dtype = dtype_from(s["param_dtype"].get<std::string>());
  const bool mixed = is_mixed(out.precision);
  if (s.contains("fp8_recipe")) out.fp8_recipe = choice<models::Fp8Recipe>(s["fp8_recipe"]);
  if (s.contains("fp8_all_gather")) out.fp8_all_gather = s["fp8_all_gather"];
  if (s["grad_dtype"].is_string())
    out.data.reduce_dtype = dtype_from(s["grad_dtype"].get<std::string>());
  else if (out.data.zero >= 2 && mixed)
    out.data.reduce_dtype = DType::fp32;
  out.optimizer = choice<models::Optimizer>(s["optimizer"]);
  if (s.contains("galore_rank") && s["galore_rank"].is_number()) out.galore_rank = s["galore_rank"];
  if (s.contains("optimizer_in_backward")) out.optimizer_in_backward = s["optimizer_in_backward"];
  out.optimizer_impl = choice<models::OptimizerImpl>(stack["optimizer_impl"]);
  if (stack["transformers_version"].is_string())
    out.transformers = *models::release_from(stack["transformers_version"].get<std::string>());
  // Older recordings say null: the release that is planned where nothing is said.
  if (stack.contains("version") && stack["version"].is_string())
    out.torch = *models::release_from(stack["version"].get<std::string>());
  if (stack.contains("bitsandbytes_version"))
    out.bitsandbytes = *models::release_from(stack["bitsandbytes_version"].get<std::string>());
  if (stack["allocator_conf"].is_string())
    out.allocator = models::allocator_conf_from(stack["allocator_conf"].get<std::string>(), "");
  out.hold_outputs = stack["hold_outputs"];
  if (stack["compile"].is_string()) out.compile = choice<models::Compile>(stack["compile"]);
  if (stack.contains("kernels")) out.kernels = choice<models::Kernels>(stack["kernels"]);
  if (stack.contains("model_code")) out.code = choice<models::ModelCode>(stack["model_code"]);
  out.attention = choice<models::Attention>(s["attention"]);
  out.loss = choice<models::Loss>(s["loss"]);
  if (s.contains("rows")) out.rows = choice<models::Rows>(s["rows"]);
  const std::string recompute = s["recompute"];
  out.recompute = models::recompute_from(recompute).value();
  if (stack.contains("use_reentrant") && !stack["use_reentrant"].is_null())
    out.use_reentrant = stack["use_reentrant"].get<bool>();
  out.data.gradient_as_bucket_view = s["ddp"]["bucket_view"];
  out.data.bucket_cap = Bytes(s["ddp"]["bucket_cap_mb"].get<std::int64_t>() << 20);
  out.lora = lora_of(s["lora"]);
  out.quantize = quantization_of(s);
  if (s.contains("offload"))
    for (const json& part : s["offload"]) set_offload(out.offload, part.get<std::string>());
  if (s.contains("fsdp_upcast") && !s["fsdp_upcast"].get<bool>()) out.data.fsdp_upcast = false;
  for (const json& part : s["freeze"]) out.freeze.push_back("*" + part.get<std::string>() + "*");
  for (const json& part : s["train"]) out.train.push_back("*" + part.get<std::string>() + "*");
  return out;
}

inline models::Batch batch_of(const json& workload) {
  const json& b = workload["batch"];
  return {b["seq_len"], b["micro_batch"], b["grad_accum"], 0, 0, b.value("real_tokens", 0)};
}

// A name of the catalog, or a configuration.
inline models::ModelSpec oracle_model_of(const json& model) {
  if (model.is_string()) return models::catalog_model(model.get<std::string>());
  return models::read_model(model.dump(), "tiny", "tiny", {});
}

}  // namespace plimsoll::tests

// DeepSpeed's workloads as tools/oracle/deepspeed_measure.py takes them, as the planner's types.
#pragma once

#include "tests/planner/oracle_workload.h"

namespace plimsoll::tests {

inline models::DeepSpeedOptions deepspeed_options_of(const json& stack) {
  models::DeepSpeedOptions out;
  const json given = stack.value("deepspeed", json::object());
  const auto size = [&](const char* key, std::int64_t& target) {
    if (given.contains(key)) target = given[key];
  };
  size("reduce_bucket_size", out.reduce_bucket_size);
  size("sub_group_size", out.sub_group_size);
  size("stage3_prefetch_bucket_size", out.prefetch_bucket_size);
  size("stage3_param_persistence_threshold", out.param_persistence_threshold);
  size("stage3_max_live_parameters", out.max_live_parameters);
  size("stage3_max_reuse_distance", out.max_reuse_distance);
  if (given.contains("overlap_comm")) out.overlap_comm = given["overlap_comm"].get<bool>();
  out.round_robin_gradients = given.value("round_robin_gradients", false);
  const json states = given.value("offload_optimizer", json::object());
  const json params = given.value("offload_param", json::object());
  out.nvme = {states.value("buffer_count", out.nvme.optimizer_buffer_count),
              params.value("buffer_count", out.nvme.param_buffer_count),
              params.value("buffer_size", out.nvme.param_buffer_size),
              params.value("max_in_cpu", out.nvme.max_in_cpu)};
  return out;
}

// What is absent is DeepSpeed's default.
inline models::Strategy deepspeed_strategy_of(const json& workload) {
  const json &s = workload["strategy"], &stack = workload["stack"];
  models::Strategy out;
  out.stack = models::Stack::deepspeed;
  out.gpus = s["world_size"];
  out.data.zero = s["zero"];
  out.data.deepspeed = deepspeed_options_of(stack);
  if (s.contains("precision")) out.precision = choice<models::Precision>(s["precision"]);
  if (s.contains("param_dtype")) out.param_dtype = dtype_from(s["param_dtype"].get<std::string>());
  if (s.contains("grad_dtype")) out.grad_dtype = dtype_from(s["grad_dtype"].get<std::string>());
  if (s.contains("optimizer")) out.optimizer = choice<models::Optimizer>(s["optimizer"]);
  if (s.contains("attention")) out.attention = choice<models::Attention>(s["attention"]);
  if (s.contains("recompute"))
    out.recompute = models::recompute_from(s["recompute"].get<std::string>()).value();
  if (stack.contains("use_reentrant")) out.use_reentrant = stack["use_reentrant"].get<bool>();
  if (s.contains("lora")) out.lora = lora_of(s["lora"]);
  out.quantize = quantization_of(s);
  if (stack.contains("transformers_version"))
    out.transformers = *models::release_from(stack["transformers_version"].get<std::string>());
  if (s.contains("rows")) out.rows = choice<models::Rows>(s["rows"]);
  if (s.contains("loss")) out.loss = choice<models::Loss>(s["loss"]);
  if (stack.contains("kernels")) out.kernels = choice<models::Kernels>(stack["kernels"]);
  if (stack.contains("optimizer_impl"))
    out.optimizer_impl = choice<models::OptimizerImpl>(stack["optimizer_impl"]);
  const json knobs = stack.value("deepspeed", json::object());
  out.offload.optimizer = knobs.contains("offload_optimizer");
  out.offload.params = knobs.contains("offload_param");
  const json of = knobs.value("offload_optimizer", knobs.value("offload_param", json::object()));
  out.offload.pinned = of.value("pin_memory", true);
  out.offload.nvme = of.value("device", "") == "nvme";
  return out;
}

}  // namespace plimsoll::tests

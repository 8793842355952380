#include "reports/plan_json.h"

#include "reports/data_set.h"
#include "reports/gpu_json.h"
#include "reports/savings_json.h"
#include "reports/workload_json.h"

namespace plimsoll::reports {

namespace {
using Layout = JsonWriter::Layout;

// A part of the answer that a states-only plan does not have.
template <class T>
std::optional<T> known(const Plan& plan, const T& value) {
  return plan.states_only ? std::nullopt : std::optional<T>(value);
}

std::optional<std::string> text_or_null(const std::string& text) {
  return text.empty() ? std::nullopt : std::optional<std::string>(text);
}

void write_environment(JsonWriter& json, const Plan& plan) {
  json.key("environment");
  json.begin_object();
  json.key("gpu");
  if (plan.gpu)
    write_gpu(json, *plan.gpu);
  else
    json.value(nullptr);
  json.key("cluster");
  json.begin_object();
  json.member("gpus", plan.strategy.gpus);
  json.member("gpus_per_node", plan.strategy.gpus_per_node);
  json.member("gpu_memory_bytes", plan.cluster.memory);
  json.member("reserve_bytes", plan.cluster.reserve);
  json.member("intra_node_bytes_per_second", plan.cluster.intra_node_bandwidth);
  json.member("inter_node_bytes_per_second", plan.cluster.inter_node_bandwidth);
  json.end_object();
  json.end_object();
}

void write_model(JsonWriter& json, const Plan& plan) {
  json.key("model");
  json.begin_object();
  json.member("name", text_or_null(plan.model_name));
  json.member("architecture", text_or_null(plan.architecture));
  json.member("model_type", text_or_null(plan.model_type));
  json.member("parameters", plan.parameters);
  json.member("trainable_parameters", plan.trainable_parameters);
  json.member("active_parameters", plan.active_parameters);
  json.end_object();
}

void write_high_end(JsonWriter& json, const Plan& plan) {
  json.key("high_end");
  if (!plan.high_end) return json.value(nullptr);
  json.begin_object(Layout::line);
  json.member("device_bytes", plan.high_end->device());
  json.member("reserved_bytes", plan.high_end->reserved);
  json.member("outside_allocator_bytes", plan.high_end->overhead);
  json.member("fits", plan.usable ? std::optional<bool>(plan.high_end->fits) : std::nullopt);
  json.end_object();
}

void write_flushing(JsonWriter& json, const Plan& plan) {
  json.key("flushing");
  if (!plan.flushing) return json.value(nullptr);
  const Flushing& flushing = *plan.flushing;
  json.begin_object(Layout::line);
  json.member("device_bytes", flushing.reserved + plan.overhead.total());
  json.member("reserved_bytes", flushing.reserved);
  json.member("flushes_per_step", flushing.flushes);
  json.member("segments_freed_per_step", flushing.frees);
  json.member("segments_allocated_per_step", flushing.mallocs);
  json.member("allocated_bytes_per_step", flushing.malloced);
  json.member("seconds_per_step", flushing.seconds);
  json.end_object();
}

// Only where it was asked for.
void write_load(JsonWriter& json, const Plan& plan) {
  if (!plan.load) return;
  const Load& load = *plan.load;
  json.key("load");
  json.begin_object();
  json.member("dtype", name_of(load.dtype));
  json.member("peak_bytes", load.peak);
  json.member("resident_bytes", load.resident);
  json.member("reserved_bytes", load.reserved);
  json.member("needed_bytes", load.needed);
  json.member("device_bytes", load.device);
  json.member("fits", plan.usable ? std::optional<bool>(load.fits) : std::nullopt);
  json.member("decides", load.decides);
  json.member("stage", load.stage);
  json.member("where", load.where);
  json.key("stages");
  json.begin_array();
  for (const LoadStage& stage : load.stages) {
    json.begin_object(Layout::line);
    json.member("name", stage.name);
    json.member("peak_bytes", stage.peak);
    json.member("reserved_bytes", stage.reserved);
    json.member("resident_bytes", stage.resident);
    json.end_object();
  }
  json.end_array();
  json.end_object();
}

void write_verdict(JsonWriter& json, const Plan& plan) {
  const auto verdict = verdict_text(plan);
  json.member("fits", verdict ? std::optional<bool>(plan.fits) : std::nullopt);
  json.member("verdict", verdict);
  json.member("capacity_bytes", plan.capacity);
  json.member("usable_bytes", plan.usable);
  json.member("device_bytes", known(plan, plan.device));
  json.member("headroom_bytes", plan.states_only ? std::nullopt : plan.headroom);
  json.member("peak_bytes", known(plan, plan.peak));
  json.member("resident_bytes", known(plan, plan.resident));
  json.member("reserved_bytes", known(plan, plan.reserved));
  json.key("range");
  if (plan.range) {
    json.begin_object();
    json.member("low_bytes", plan.range->low);
    json.member("high_bytes", plan.range->high);
    json.member("why", plan.range->why);
    json.end_object();
  } else {
    json.value(nullptr);
  }
  write_high_end(json, plan);
  write_flushing(json, plan);
  write_load(json, plan);
}

void write_texts(JsonWriter& json, const char* key, const std::vector<std::string>& texts) {
  json.key(key);
  json.begin_array(Layout::line);
  for (const std::string& text : texts) json.value(text);
  json.end_array();
}

// All of it, so that the plan can be made again elsewhere.
void write_calibration(JsonWriter& json, const std::optional<models::Calibration>& calibration) {
  json.key("calibration");
  if (!calibration) return json.value(nullptr);
  json.begin_object();
  json.member("stack", calibration->stack);
  json.member("gpu", calibration->gpu);
  json.member("driver", calibration->driver);
  json.member("evidence", calibration->evidence);
  json.member("context_bytes", calibration->context);
  json.member("libraries_bytes", calibration->libraries);
  json.member("deviation_bytes", calibration->deviation);
  write_texts(json, "fitted", calibration->fitted);
  write_texts(json, "fitted_fingerprints", calibration->fitted_fingerprints);
  write_texts(json, "judged", calibration->judged);
  write_texts(json, "judged_fingerprints", calibration->judged_fingerprints);
  json.end_object();
}

void write_peak(JsonWriter& json, const Plan& plan) {
  json.key("peak");
  if (plan.states_only) {
    json.value(nullptr);
  } else {
    json.begin_object(Layout::line);
    json.member("rank", plan.peak_place.rank);
    json.member("phase", plan.peak_place.phase);
    json.member("where", plan.peak_place.where);
    json.end_object();
  }
  json.key("states");
  write_states(json, plan.states);
  json.key("at_peak");
  if (plan.states_only)
    json.value(nullptr);
  else
    write_by_category(json, plan.at_peak);
  json.key("outside_allocator");
  if (plan.states_only) {
    json.value(nullptr);
  } else {
    json.begin_object(Layout::line);
    json.member("context_bytes", plan.overhead.context);
    json.member("libraries_bytes", plan.overhead.libraries);
    json.member("nccl_bytes", plan.overhead.nccl);
    json.end_object();
  }
  write_calibration(json, plan.calibration);
}

void write_host(JsonWriter& json, const Plan& plan) {
  json.key("host");
  if (plan.states_only) {
    json.value(nullptr);
  } else {
    json.begin_object(Layout::line);
    json.member("pinned_bytes", plan.host_pinned);
    json.member("pageable_bytes", plan.host_pageable);
    json.member("nvme_bytes", plan.nvme);
    if (plan.strategy.offload.any() || plan.host_memory) {
      json.member("node_bytes", plan.host_node);
      json.member("memory_bytes", plan.host_memory);
      json.member("fits", plan.host_memory ? std::optional(plan.host_fits) : std::nullopt);
    }
    json.end_object();
  }
}

void write_work(JsonWriter& json, const Plan& plan) {
  json.key("flops");
  json.begin_object();
  json.member("model_flops_per_step", known(plan, plan.model_flops_per_step));
  json.member("hardware_flops_per_step", known(plan, plan.hardware_flops_per_step));
  json.end_object();
  json.key("communication");
  json.begin_object();
  json.member("bytes_sent_per_gpu_per_step", known(plan, plan.bytes_sent_per_gpu_per_step));
  json.key("collectives");
  json.begin_array();
  for (const Collective& collective : plan.collectives) {
    json.begin_object(Layout::line);
    json.member("kind", collective.kind);
    json.member("count", collective.count);
    json.member("array_bytes", collective.array);
    json.member("group", collective.group);
    json.end_object();
  }
  json.end_array();
  json.end_object();
}

void write_time(JsonWriter& json, const Time& time) {
  json.key("time");
  json.begin_object();
  json.member("step_seconds", time.step_seconds);
  json.member("compute_seconds", time.compute_seconds);
  json.member("exposed_communication_seconds", time.exposed_communication_seconds);
  json.member("pipeline_bubble_seconds", time.pipeline_bubble_seconds);
  json.member("optimizer_seconds", time.optimizer_seconds);
  json.member("tokens_per_second", time.tokens_per_second);
  json.member("tokens_per_second_per_gpu", time.tokens_per_second_per_gpu);
  json.member("mfu", time.mfu);
  json.member("mfu_full_attention", time.mfu_full_attention);
  json.member("hfu", time.hfu);
  json.member("peak_flops", time.peak_flops);
  json.member("communication_seconds", time.communication_seconds);
  json.member("limited_by", text_or_null(time.limited_by));
  json.end_object();
}

void write_timeline(JsonWriter& json, const Plan& plan) {
  json.key("timeline");
  json.begin_array();
  for (const TimelinePoint& point : plan.timeline) {
    json.begin_object(Layout::line);
    json.member("op", point.op);
    json.member("phase", point.phase);
    json.member("allocated_bytes", point.allocated);
    json.member("high_water_bytes", point.high_water);
    json.key("by_category");
    write_by_category(json, point.by_category);
    json.end_object();
  }
  json.end_array();
}

void write_tensors(JsonWriter& json, const Plan& plan) {
  json.key("tensors");
  json.begin_array();
  for (const TensorLine& tensor : plan.tensors) {
    json.begin_object(Layout::line);
    json.member("name", tensor.name);
    json.member("category", tensor.category);
    json.member("bytes", tensor.bytes);
    json.member("repeat", tensor.repeat);
    json.member("born", tensor.born);
    json.member("dies", tensor.dies);
    if (tensor.born_op) json.member("born_op", *tensor.born_op);
    if (tensor.dies_op) json.member("dies_op", *tensor.dies_op);
    json.member("at_peak", tensor.at_peak);
    json.key("ranks");
    json.begin_array(Layout::line);
    json.value(plan.peak_place.rank);
    json.end_array();
    json.end_object();
  }
  json.end_array();
}

void write_advice(JsonWriter& json, const Plan& plan) {
  json.key("advice");
  json.begin_array();
  for (const std::string& line : plan.advice) json.value(line);
  json.end_array();
  json.key("remedies");
  write_remedies(json, plan.remedies);
  write_savings(json, plan);
  json.key("assumptions");
  json.begin_array();
  for (const Assumption& assumption : plan.assumptions) {
    json.begin_object(Layout::line);
    json.member("what", assumption.what);
    json.key("value");
    json.raw(assumption.value.empty() ? "null" : assumption.value);
    json.member("basis", assumption.basis);
    json.member("source", assumption.source);
    json.end_object();
  }
  json.end_array();
}
}  // namespace

void write_by_category(JsonWriter& json, const ByCategory& parts) {
  json.begin_object(Layout::line);
  for (std::size_t i = 0; i < parts.size(); ++i)
    json.member(std::string(models::name_of(static_cast<models::Category>(i))) + "_bytes",
                parts[i]);
  json.end_object();
}

void write_remedies(JsonWriter& json, const std::vector<Remedy>& remedies) {
  json.begin_array();
  for (const Remedy& remedy : remedies) {
    json.begin_object(Layout::line);
    json.member("option", remedy.option);
    json.member("saves_bytes", remedy.saves);
    json.member("device_bytes", remedy.device);
    json.member("fits", remedy.fits);
    json.member("concession", text_or_null(remedy.concession));
    json.end_object();
  }
  json.end_array();
}

void write_states(JsonWriter& json, const States& states) {
  json.begin_object(Layout::line);
  json.member("parameters_bytes", states.parameters);
  json.member("gradients_bytes", states.gradients);
  json.member("optimizer_bytes", states.optimizer);
  json.end_object();
}

std::optional<std::string_view> verdict_text(const Plan& plan) {
  if (!plan.usable) return std::nullopt;
  switch (plan.verdict) {
    case Verdict::does_not_fit:
      return "does not fit";
    case Verdict::borderline:
      if (!plan.states_only) return "borderline";
      break;
    case Verdict::fits:
      if (!plan.states_only) return "fits";
      break;
  }
  return std::nullopt;
}

void write_plan(JsonWriter& json, const Plan& plan, const Tool& tool) {
  json.begin_object();
  json.member("schema", "plimsoll.plan/1");
  json.key("tool");
  json.begin_object(Layout::line);
  json.member("version", tool.version);
  json.member("commit", tool.commit);
  json.end_object();
  if (!tool.command.empty()) json.member("command", tool.command);
  json.key("workload");
  write_workload(json, plan);
  write_environment(json, plan);
  write_model(json, plan);
  write_verdict(json, plan);
  write_peak(json, plan);
  write_host(json, plan);
  write_ranks(json, plan);
  write_work(json, plan);
  write_time(json, plan.time);
  write_data(json, plan);
  write_timeline(json, plan);
  write_tensors(json, plan);
  write_advice(json, plan);
  json.end_object();
}

}  // namespace plimsoll::reports

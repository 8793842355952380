#include "tools/cli/plan_source.h"

#include <fmt/format.h>

#include "models/base/utf8.h"
#include "models/config_reader.h"
#include "models/model_reader.h"
#include "models/storages.h"
#include "reports/workload_json.h"
#include "tools/cli/layers_json.h"
#include "tools/cli/phase.h"

namespace plimsoll::tools {

namespace {
using models::Config;

LoadedModel model_of(const std::string& config, const std::string& name,
                     const std::string& source) {
  LoadedModel model;
  model.spec = models::read_model(config, name, source + ": workload.model.config");
  model.config = config;
  return model;
}

// The machine that the plan was made for; what is missing was not given.
models::ClusterSpec cluster_of(const Config& document) {
  models::ClusterSpec cluster;
  const std::optional<Config> environment = document.section("environment");
  if (!environment) return cluster;
  if (const std::optional<Config> gpu = environment->section("gpu"))
    cluster.gpu = GpuSource().named(gpu->text("name", ""));
  if (const std::optional<Config> host = document.section("host");
      host && host->has("memory_bytes"))
    cluster.host_memory = Bytes(host->natural("memory_bytes", 0));
  if (const std::optional<Config> seen = document.section("calibration"))
    cluster.calibrations = {models::read_calibration(*seen)};
  const std::optional<Config> machine = environment->section("cluster");
  if (!machine) return cluster;
  if (machine->has("gpu_memory_bytes"))
    cluster.memory = Bytes(machine->count("gpu_memory_bytes", 1));
  cluster.reserve = Bytes(machine->natural("reserve_bytes", 0));
  const auto bandwidth = [&](const char* key, std::optional<double>& target) {
    if (machine->has(key)) target = machine->real(key, 0);
  };
  bandwidth("intra_node_bytes_per_second", cluster.intra_node_bandwidth);
  bandwidth("inter_node_bytes_per_second", cluster.inter_node_bandwidth);
  return cluster;
}
}  // namespace

namespace {
// Whether loading was asked about, too. What is moved to the device was not loaded there.
planner::Question::Load load_of(const Config& document, const models::Strategy& strategy) {
  const std::optional<Config> load = document.section("load");
  if (!load) return {};
  const bool maps = !strategy.quantize || strategy.quantize->storage->grouped;
  return {.asked = true, .device_map = maps && load->text("stage", "") != "model.to"};
}
}  // namespace

Request request_from_plan(const std::string& text, const std::string& source) {
  const models::Workload workload = models::read_workload(text, source);
  check(!workload.model_config.empty(), ErrorKind::bad_input,
        [&] { return source + ": a plan of a bare parameter count; give a MODEL to run"; });
  const std::string fingerprint = reports::fingerprint_of(workload);
  check(workload.fingerprint == fingerprint, ErrorKind::bad_input, [&] {
    return fmt::format(
        "{}: the fingerprint {} is not the workload's, {}: it was edited, or written "
        "by another version",
        source, shortened(workload.fingerprint), fingerprint);
  });
  Request request;
  request.model = std::make_shared<const LoadedModel>(
      model_of(workload.model_config, workload.model_name, source));
  request.question.model = &request.model->spec;
  request.question.strategy = workload.strategy;
  request.question.batch = workload.batch;
  const Config document = Config::parse(text, source);
  request.question.cluster = cluster_of(document);
  request.question.load = load_of(document, workload.strategy);
  use_packed_checkpoint(*request.model, request.question);
  request.question.detail = planner::Detail::full;
  return request;
}

std::shared_ptr<const LoadedModel> with_layers(const LoadedModel& model, std::int64_t layers) {
  const std::int64_t all = model.spec.decoder ? model.spec.decoder->layers : 0;
  check(layers >= 1 && layers <= all, ErrorKind::bad_input, [&] {
    return fmt::format("--reduce-layers {}: {} has {} layers", layers, model.spec.name, all);
  });
  LoadedModel cut =
      model_of(config_with_layers(model.config, layers), model.spec.name, "--reduce-layers");
  check(cut.spec.decoder && cut.spec.decoder->layers == layers, ErrorKind::bad_input, [&] {
    return fmt::format("--reduce-layers {}: the layers of {} stand nowhere in its configuration",
                       layers, model.spec.name);
  });
  return std::make_shared<const LoadedModel>(std::move(cut));
}

}  // namespace plimsoll::tools

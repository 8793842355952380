#include "tools/run/on_gpu.h"

#include <algorithm>
#include <cstdlib>

#include "models/decisions/mesh.h"
#include "models/decisions/precision.h"
#include "runtime/probe.h"
#include "tools/cli/gpu_source.h"
#include "tools/cli/output.h"

namespace plimsoll::tools {

namespace {

std::optional<double> median(std::vector<double> values) {
  if (values.empty()) return std::nullopt;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

runtime::comm::JobOptions job_options(const models::Strategy& strategy, double timeout_seconds,
                                      std::function<void(const Error&)> record) {
  runtime::comm::JobOptions job;
  job.device = strategy.device;
  job.ranks = static_cast<int>(models::decisions::mesh_of(strategy).ranks());
  job.deterministic = strategy.deterministic;
  job.cuda.mode =
      strategy.deterministic ? kernels::cuda::Mode::deterministic : kernels::cuda::Mode::fast;
  if (const char* cache = std::getenv("PLIMSOLL_AUTOTUNE_CACHE")) job.cuda.autotune_cache = cache;
  job.timeout_seconds = timeout_seconds;
  job.ending.report = [](const Error& error) { say(error.message()); };
  job.ending.record = std::move(record);
  return job;
}

std::optional<double> peak_flops_of(const std::string& driver_name, models::Precision precision) {
  const std::optional<models::Gpu> gpu = gpu_by_driver_name(driver_name);
  if (!gpu) return std::nullopt;
  models::Strategy strategy;
  strategy.precision = precision;
  switch (models::decisions::regime_of(strategy).compute) {
    case DType::bf16:
      return gpu->bf16_flops;
    case DType::fp16:
      return gpu->fp16_flops;
    case DType::fp32:  // GEMMs in TF32 are not asked for
      return gpu->fp32_flops;
    default:
      return std::nullopt;
  }
}

std::optional<double> bytes_per_second_of(const std::string& driver_name) {
  const std::optional<models::Gpu> gpu = gpu_by_driver_name(driver_name);
  return gpu ? std::optional(gpu->memory_bandwidth) : std::nullopt;
}

void describe_gpu(reports::Environment& environment) {
  const int gpu = runtime::this_gpu();
  const runtime::GpuFacts facts = runtime::gpu_facts(gpu);
  environment.device = facts.name;
  const runtime::GpuReading now = runtime::read_gpu(gpu);
  environment.capacity = now.total;
  environment.other_processes = now.other_processes;
  if (!facts.driver.empty()) environment.driver = facts.driver;
  environment.versions.emplace_back("cuda_driver", facts.cuda_driver);
  environment.versions.emplace_back("cuda_runtime", facts.cuda_runtime);
  if (const std::string nccl = runtime::comm::nccl_version(); !nccl.empty())
    environment.versions.emplace_back("nccl", nccl);
  std::ranges::sort(environment.versions);
}

void ClockSamples::read() {
  const runtime::GpuReading now = runtime::read_gpu(runtime::this_gpu());
  ++samples_;
  if (now.sm_clock_hertz) sm_.push_back(*now.sm_clock_hertz * 1e-6);
  if (now.memory_clock_hertz) memory_.push_back(*now.memory_clock_hertz * 1e-6);
  if (now.power_watts) power_.push_back(*now.power_watts);
  if (now.temperature_celsius) temperature_.push_back(*now.temperature_celsius);
}

std::optional<reports::Clocks> ClockSamples::medians() const {
  if (samples_ == 0) return std::nullopt;
  return reports::Clocks{samples_, median(sm_), median(memory_), median(power_),
                         median(temperature_)};
}

}  // namespace plimsoll::tools

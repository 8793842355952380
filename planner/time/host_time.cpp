#include "planner/time/host_time.h"

#include <algorithm>

#include "models/decisions/layer.h"
#include "planner/stacks/stack_info.h"

namespace plimsoll::planner {

using models::Strategy;

namespace {

constexpr const char* kMeasured =
    "steps of the real packages on a CUDA runtime that computes nothing, one Xeon "
    "(tests/golden/host_times.json)";

// Nothing of the layers' own Python is left.
bool runs_python(const Strategy& s) {
  return !stack_info(s.stack).own_kernels && s.compile == models::Compile::no;
}

// A loop's experts are one module to DeepSpeed.
double modules_of(const LayerPart& layer) {
  const models::ExpertLoop& loop = layer.block->loop;
  const std::size_t in_loop = static_cast<std::size_t>(loop.experts * loop.modules);
  return static_cast<double>(layer.linears.size() - in_loop + (in_loop > 0 ? 1 : 0) +
                             layer.norms.size() + layer.experts.size());
}

double adapted_share(const LayerPart& layer) {
  double adapted = 0, all = 0;
  for (const LinearPart& of : layer.linears) {
    const double weights = static_cast<double>(of.in) * static_cast<double>(of.out);
    all += weights;
    if (of.adapted()) adapted += weights;
  }
  return adapted > 0 ? adapted / all : 1;
}

}  // namespace

Share launch_seconds(const Strategy& s) {
  if (!runs_python(s))
    return {3e-6, "assumed", "a launch from C++ or compiled code; the host's speed decides"};
  if (s.kernels == models::Kernels::eager) return {9e-6, "calibrated", kMeasured};
  if (s.kernels == models::Kernels::liger) return {24e-6, "calibrated", kMeasured};
  return {24e-6, "assumed", "as Liger's, whose launches are Triton's and so Python"};
}

Share message_seconds(const Strategy& s) {
  // Beside those of tensor parallelism, which nobody measured, FSDP's are few.
  if (!stack_info(s.stack).has_fsdp || s.data.zero < 2 || s.tp > 1) return {};
  return {s.data.fsdp_version == 1 ? 0.55e-3 : 0.85e-3, "calibrated", kMeasured};
}

Share hook_seconds(const Strategy& s) {
  if (!stack_info(s.stack).hooks_modules || s.data.zero < 3) return {};
  return {0.45e-3, "calibrated", kMeasured};
}

Share checkpoint_seconds(const Strategy& s) {
  if (!models::decisions::recomputes_layers(s.recompute.kind) || !runs_python(s)) return {};
  return {models::decisions::reentrant_checkpoints(s) ? 0.6e-3 : 1.7e-3, "calibrated", kMeasured};
}

Share adapter_seconds(const Strategy& s) {
  if (!s.lora || !runs_python(s)) return {};
  return {0.15e-3, "calibrated", kMeasured};
}

LayerHost layer_host(const LayerRun& run, std::size_t place, const Strategy& s) {
  const LayerPart& layer = run.pattern[place];
  const auto adapters = static_cast<double>(
      std::ranges::count_if(layer.linears, [](const LinearPart& of) { return of.adapted(); }));
  const bool again = models::decisions::recomputes_layer(
      s.recompute, run.first + static_cast<std::int64_t>(place));
  const auto layers =
      static_cast<double>(models::decisions::layers_per_checkpoint(s.recompute, run.count));
  const double checkpoint = again ? checkpoint_seconds(s).value / layers : 0;
  // Half of an adapter's is its forward's.
  const double pass = adapters * adapter_seconds(s).value / 2 +
                      (modules_of(layer) + 2 * adapters) * hook_seconds(s).value;
  LayerHost host;
  host.python.forward.launches = pass + checkpoint / 3;
  host.python.backward.launches = (again ? 2 : 1) * pass + checkpoint * 2 / 3;
  if (models::is_fsdp1(s) && s.data.zero == 3) host.between_units = adapted_share(layer);
  return host;
}

}  // namespace plimsoll::planner

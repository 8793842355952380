#include "planner/time/offload_time.h"

#include <algorithm>

#include "models/run_names.h"
#include "planner/stacks/stack_info.h"

namespace plimsoll::planner {

// PCIe's 128b/130b code, headers of packets of 256 bytes and flow control leave 25 to 27 of the
// 32 GB/s that 16 lanes of PCIe 4.0 are sold with.
Share pinned_copy_share() {
  return {0.8, "assumed", "no copy was timed; links share their host's memory"};
}

// OffloadActivations copies on a stream of its own. Forward the step waits for a layer's copy three
// layers later, backward copies are issued as fast as the host runs ahead: both hide behind a
// quarter and three quarters of the compute. The loss is read back as soon as it was copied out,
// and nothing runs beside that.
//
// Our own runtime (models/decisions/offload.h) copies a layer's input while that layer runs, and
// the one below's while a layer runs again and backward: the same shares. Beside nothing comes back
// the uppermost's alone, and the loss copies nothing.
OffloadTime offload_time(const models::Gpu& gpu, const ModelParts& parts, const models::Strategy& s,
                         const models::Batch& batch, double compute) {
  const models::Decoder& d = parts.decoder;
  const bool own = stack_info(s.stack).own_kernels;
  const double rate = gpu.pcie_bandwidth * pinned_copy_share().value;
  const double tokens = static_cast<double>(batch.tokens()) * static_cast<double>(batch.grad_accum);
  // FSDP's modules hand on what they compute in, and so do ours.
  const bool wide = s.precision == models::Precision::fp32 ||
                    (is_mixed(s.precision) && s.data.zero < 2 && !own &&
                     s.param_dtype.value_or(DType::fp32) == DType::fp32);
  const double width = wide ? 4 : 2;
  const double inputs = tokens * static_cast<double>(d.hidden * d.layers) * width;
  const double loss = tokens * static_cast<double>(d.vocab) * 4;
  const double copy = inputs / rate;
  const double exposed = std::max(0.0, copy - compute / 4) + std::max(0.0, copy - compute * 3 / 4);
  if (own) {
    const double first = copy / static_cast<double>(d.layers);
    return {inputs, 2 * copy, exposed + first};
  }
  return {inputs + loss, 2 * (copy + loss / rate), exposed + 2 * loss / rate};
}

}  // namespace plimsoll::planner

#include "planner/memory/framework_overhead.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/decisions/mesh.h"
#include "models/run_names.h"
#include "models/stack_versions.h"
#include "planner/stacks/stack_info.h"

namespace plimsoll::planner {

using models::Overhead;

namespace {

using Which = std::int64_t Overhead::Range::*;  // low, typical, high

std::int64_t figure(const std::vector<Overhead>& overheads, std::string_view name, Which which) {
  const Overhead* entry = models::find_overhead(overheads, name);
  return entry != nullptr && entry->range ? (*entry->range).*which : 0;
}

void assume(std::vector<reports::Assumption>& out, std::string what, Bytes bytes,
            const Overhead* entry) {
  out.push_back({std::move(what), std::to_string(bytes.value()),
                 entry != nullptr && entry->basis == "derived" ? "derived" : "assumed",
                 entry != nullptr ? entry->source : "no figure for this GPU"});
}

// Each communicator: what was seen, where that is known for the family; else the sum of its parts:
// channels × connections × buffers, NVLS buffers of the node's ranks; and NCCL's own once.
Bytes nccl_buffers(const std::vector<Overhead>& overheads, int communicators,
                   std::int64_t local_ranks, Which which) {
  if (const Overhead* seen = models::find_overhead(overheads, "nccl_communicator");
      seen != nullptr && seen->range)
    return Bytes((*seen->range).*which) * communicators;
  const std::int64_t buffers = figure(overheads, "nccl_connection", which) *
                               figure(overheads, "nccl_channels", which) *
                               figure(overheads, "nccl_connections", which);
  const std::int64_t nvls = figure(overheads, "nccl_nvls", which) * local_ranks;
  return Bytes(buffers + nvls) * communicators + Bytes(figure(overheads, "nccl_base", which));
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

void add_context(const std::vector<Overhead>& overheads, bool kernels_are_ours,
                 FrameworkOverhead& overhead) {
  if (!overhead.calibration) {
    const Overhead* context = models::find_overhead(overheads, "context");
    overhead.typical.context = Bytes(figure(overheads, "context", &Overhead::Range::typical));
    overhead.high.context = Bytes(figure(overheads, "context", &Overhead::Range::high));
    assume(overhead.assumptions, "device context and lazily loaded kernels, bytes",
           overhead.typical.context, context);
    return;
  }
  const models::Calibration& seen = *overhead.calibration;
  overhead.typical.context = seen.context;
  overhead.typical.libraries = seen.libraries;
  overhead.high = overhead.typical;
  overhead.high.libraries += seen.deviation.value_or(Bytes(0));
  // What was measured are some kernels of one driver. Where a step may load others (Triton's,
  // bitsandbytes', DeepSpeed's), the most that was published stays the high end.
  if (!kernels_are_ours)
    overhead.high.libraries =
        std::max(overhead.high.libraries,
                 Bytes(figure(overheads, "context", &Overhead::Range::high)) - seen.context);
  const std::string source =
      fmt::format("{}: {}; driver {}", seen.evidence, listed(seen.fitted), seen.driver);
  const auto add = [&](const char* what, Bytes bytes) {
    overhead.assumptions.push_back({what, std::to_string(bytes.value()), "calibrated", source});
  };
  add("device context, bytes", seen.context);
  add("libraries and lazily loaded kernels, bytes", seen.libraries);
}

// NCCL's share of the range is the catalog's: nothing else is known of it.
void add_range(Bytes nccl_low, Bytes nccl_high, FrameworkOverhead& overhead) {
  const models::Calibration& seen = *overhead.calibration;
  if (!seen.deviation) return;
  const Bytes own = seen.context + seen.libraries;
  std::string why = fmt::format(
      "reserved bytes are exact; outside them {} measured {:.1f} MiB away at most, on {} it was "
      "fitted on and {} it was not",
      seen.evidence, seen.deviation->real() / (1 << 20), seen.fitted.size(), seen.judged.size());
  if (nccl_high > Bytes(0)) why += "; NCCL's buffers as published, not measured";
  overhead.range = {std::max(Bytes(0), own - *seen.deviation) + nccl_low,
                    own + *seen.deviation + nccl_high, std::move(why)};
}

}  // namespace

int communicators_of(const models::Strategy& s) {
  const models::decisions::Mesh mesh = models::decisions::mesh_of(s);
  if (!mesh.communicates()) return 0;
  const int data = s.data.zero >= 2 && models::decisions::shards_in_groups(s) ? 2 : 1;
  return (mesh.data().ranks > 1 ? data : 0) + (mesh.divides_layers() ? 1 : 0);
}

FrameworkOverhead framework_overhead_of(const Question& question) {
  const models::Strategy& strategy = question.strategy;
  const models::ClusterSpec& cluster = question.cluster;
  FrameworkOverhead overhead;
  if (!cluster.gpu || strategy.device == models::Device::cpu) return overhead;
  const StackInfo& info = stack_info(strategy.stack);
  const models::Stack stack = info.processes;
  const auto overheads =
      models::overheads_of(models::name_of(stack), *cluster.gpu, models::text_of(strategy.torch));
  if (const auto* seen = models::find_calibration(cluster.calibrations, models::name_of(stack)))
    overhead.calibration = *seen;
  add_context(overheads, info.reserves_exactly, overhead);
  overhead.reserved_more =
      figure(models::overheads_of(models::name_of(strategy.stack), *cluster.gpu,
                                  models::text_of(strategy.torch)),
             "reserved_underestimate", &Overhead::Range::high);
  Bytes low;  // of NCCL
  if (const int communicators = communicators_of(strategy); communicators > 0) {
    const std::int64_t local = models::decisions::mesh_of(strategy).ranks_in_node();
    const auto all = [&](Which which) {
      return nccl_buffers(overheads, communicators, local, which);
    };
    overhead.typical.nccl = all(&Overhead::Range::typical);
    low = all(&Overhead::Range::low);
    overhead.high.nccl = all(&Overhead::Range::high);
    const Overhead* seen = models::find_overhead(overheads, "nccl_communicator");
    assume(overhead.assumptions, "NCCL buffers, bytes", overhead.typical.nccl,
           seen != nullptr ? seen : models::find_overhead(overheads, "nccl_connection"));
  }
  // What other stacks reserve is an estimate.
  if (overhead.calibration && info.reserves_exactly) add_range(low, overhead.high.nccl, overhead);
  return overhead;
}

}  // namespace plimsoll::planner

#include "planner/outside.h"

#include <algorithm>

#include "models/run_names.h"
#include "models/stack_versions.h"

namespace plimsoll::planner {

using models::Overhead;

namespace {

std::int64_t typical(const std::vector<Overhead>& overheads, std::string_view name,
                     std::int64_t otherwise) {
  const Overhead* entry = models::find_overhead(overheads, name);
  return entry != nullptr && entry->range ? entry->range->typical : otherwise;
}

void assume(std::vector<reports::Assumption>& out, std::string what, Bytes bytes,
            const Overhead* entry) {
  out.push_back({std::move(what), std::to_string(bytes.value()),
                 entry != nullptr && entry->basis == "derived" ? "derived" : "assumed",
                 entry != nullptr ? entry->source : "no figure for this GPU"});
}

// Per communicator: what was seen, where that is known for the family; else the sum of its parts:
// channels × connections × buffers, NVLS buffers of the node's ranks, and a base.
Bytes communicator(const std::vector<Overhead>& overheads, std::int64_t local_ranks) {
  if (const Overhead* seen = models::find_overhead(overheads, "nccl_communicator");
      seen != nullptr && seen->range)
    return Bytes(seen->range->typical);
  const std::int64_t buffers = typical(overheads, "nccl_connection", 0) *
                               typical(overheads, "nccl_channels", 0) *
                               typical(overheads, "nccl_connections", 0);
  return Bytes(buffers + typical(overheads, "nccl_nvls", 0) * local_ranks +
               typical(overheads, "nccl_base", 0));
}

}  // namespace

Outside outside_allocator(const models::Strategy& strategy, const models::ClusterSpec& cluster,
                          int communicators, std::int64_t group) {
  Outside outside;
  if (!cluster.gpu || strategy.device == models::Device::cpu) return outside;
  // DeepSpeed's ranks are PyTorch processes.
  const models::Stack stack =
      strategy.stack == models::Stack::deepspeed ? models::Stack::pytorch : strategy.stack;
  const auto overheads =
      models::overheads_of(models::name_of(stack), *cluster.gpu, models::kTorchVersion);
  const Overhead* context = models::find_overhead(overheads, "context");
  if (context != nullptr && context->range)
    outside.typical.context = Bytes(context->range->typical);
  assume(outside.assumptions, "device context and lazily loaded kernels, bytes",
         outside.typical.context, context);
  if (group > 1 && communicators > 0) {
    const std::int64_t local = std::min(group, strategy.gpus_per_node);
    outside.typical.nccl = communicator(overheads, local) * communicators;
    const Overhead* seen = models::find_overhead(overheads, "nccl_communicator");
    assume(outside.assumptions, "NCCL buffers, bytes", outside.typical.nccl,
           seen != nullptr ? seen : models::find_overhead(overheads, "nccl_connection"));
  }
  return outside;
}

}  // namespace plimsoll::planner

#include "planner/time/plan_time.h"

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "models/decisions/mesh.h"
#include "models/run_names.h"
#include "planner/stacks/stack_info.h"
#include "planner/time/host_time.h"
#include "planner/time/offload_time.h"
#include "planner/time/step_time.h"

namespace plimsoll::planner {

namespace {

void assume(reports::Plan& plan, const char* what, double value, const char* basis,
            const std::string& source) {
  std::string text = std::to_string(value);
  while (text.ends_with('0')) text.pop_back();
  if (text.ends_with('.')) text.pop_back();
  // A published figure stands for the machine at hand as much as a fitted one.
  const bool published = std::string_view(basis) == "published";
  plan.assumptions.push_back({what, text, published ? "calibrated" : basis, source});
}

void assume(reports::Plan& plan, const char* what, const Share& share) {
  assume(plan, what, share.value, share.basis, share.source);
}

void add_host(reports::Plan& plan, const models::Strategy& s) {
  const auto microseconds = [&](const char* what, const Share& of) {
    if (of.value > 0) assume(plan, what, of.value * 1e6, of.basis, of.source);
  };
  microseconds("time: host's microseconds to issue a kernel", launch_seconds(s));
  microseconds("time: host's microseconds beside it, a checkpoint", checkpoint_seconds(s));
  microseconds("time: host's microseconds beside it, an adapted linear", adapter_seconds(s));
  microseconds("time: host's microseconds beside it, a module's hooks", hook_seconds(s));
  if (models::decisions::mesh_of(s).communicates())
    microseconds("time: host's microseconds beside it, a message", message_seconds(s));
}

void add_assumptions(const Question& question, reports::Plan& plan) {
  const models::Gpu& gpu = *question.cluster.gpu;
  const StackInfo& stack = stack_info(question.strategy.stack);
  const FamilyShares shares = family_shares(gpu, question.strategy.attention,
                                            stack.own_kernels ? Kernels::own : Kernels::torch);
  if (question.strategy.precision == models::Precision::fp32) {
    assume(plan, "time: GEMMs, share of the peak", shares.fp32);
  } else {
    assume(plan, "time: best GEMM, share of the peak", shares.gemms);
    assume(plan, "time: of that, kept within a step", shares.kept);
  }
  assume(plan, "time: fused attention forward, share of the peak", shares.attention_forward);
  assume(plan, "time: fused attention backward, share of the peak", shares.attention_backward);
  assume(plan, "time: memory bandwidth, share of the peak", shares.memory);
  if (plan.flushing && plan.flushing->malloced > Bytes(0))
    assume(plan, "time: memory allocated anew near the capacity, GB/s", flush_rate().value / 1e9,
           flush_rate().basis, flush_rate().source);
  const models::Strategy& s = question.strategy;
  add_host(plan, s);
  if (stack.own_kernels && gpu.family != "hopper")
    plan.assumptions.push_back(
        {"time: GEMMs and attention of stack " + std::string(name_of(s.stack)),
         "\"as fast as PyTorch's\"", "assumed", "no run of it on such a GPU has been timed"});
  const models::decisions::Mesh mesh = models::decisions::mesh_of(s);
  if (!mesh.communicates()) return;
  assume(plan, "time: share of the GPU that a collective takes", communication_use());
  assume(plan, "time: spread of the GPUs' speed, standard deviation", speed_spread());
  const Fabric fabric = fabric_of(question.cluster);
  const Link link = inside_link(fabric, group_of(mesh.all(), mesh.node));
  assume(
      plan, "time: links inside a node, GB/s per GPU", link.rate / 1e9, "derived",
      question.cluster.intra_node_bandwidth ? "--intra-node-bandwidth" : "models/specs/gpus.json");
  assume(plan, "time: of that, reached by large messages", link.share);
  if (!mesh.crosses_nodes()) return;
  assume(plan, "time: share of the nodes that are slow", slow_nodes());
  assume(plan, "time: what a slow node needs more", slowdown_of_slow_node());
  // Fernandez et al. lost 37 % for each GPU from 128 to 2048 with FSDP, most of it in messages.
  if (mesh.ranks() > 512)
    plan.assumptions.push_back({"time: more GPUs than in any run it was compared with",
                                std::to_string(mesh.ranks()), "assumed",
                                "reports/accuracy.md: up to 512; published losses beyond differ "
                                "widely (arXiv 2411.13055: 37 % from 128 to 2048 with FSDP)"});
  assume(
      plan, "time: links between nodes, GB/s per GPU", fabric.inter_node / 1e9,
      question.cluster.inter_node_bandwidth ? "derived" : "assumed",
      question.cluster.inter_node_bandwidth ? "--inter-node-bandwidth" : fabric.inter_node_source);
  assume(plan, "time: of that, reached by large messages between nodes", fabric.inter_share);
}

// Of a step that runs only by giving cached segments back; 0 elsewhere.
double add_flushing(reports::Plan& plan) {
  if (!plan.flushing) return 0;
  plan.flushing->seconds = plan.flushing->malloced.real() / flush_rate().value;
  return *plan.flushing->seconds;
}

// Of activations to the host and back; nothing elsewhere.
OffloadTime add_copies(const Question& question, const ModelParts& parts, double compute,
                       reports::Plan& plan) {
  if (!question.strategy.offload.activations) return {};
  const models::Gpu& gpu = *question.cluster.gpu;
  const OffloadTime copies = offload_time(gpu, parts, question.strategy, question.batch, compute);
  const bool own = stack_info(question.strategy.stack).own_kernels;
  assume(plan, "time: copied to the host in a step, and as much back, GB", copies.bytes / 1e9,
         "derived",
         own ? "layers' inputs (models/decisions/offload.h)"
             : "layers' inputs, and what the loss saved; trl 1.16, activation_offloading.py");
  assume(plan, "time: GPU to host, GB/s in one direction", gpu.pcie_bandwidth / 1e9, "derived",
         "models/specs/gpus.json");
  assume(plan, "time: of that, reached by copies of pinned memory", pinned_copy_share());
  assume(plan, "time: copies that nothing hides, milliseconds", copies.exposed * 1e3, "assumed",
         own ? "copies run beside the layers, the first one back beside nothing; none was timed"
             : "layers' copies run beside the layers, the loss's beside nothing; none was timed");
  return copies;
}

// Such a step takes as long with more sequences.
void advise_on_host(const StepTime& step, reports::Plan& plan) {
  if (step.limit != Limit::launches) return;
  plan.advice.push_back(fmt::format(
      "The host is the limit: it needs {:.3g} ms to issue forward and backward, the GPU {:.3g} ms "
      "to compute them. A larger --micro-batch costs hardly more until the GPU needs as long.",
      1e3 * step.compute, 1e3 * step.busy));
}

}  // namespace

void add_time(const Question& question, const ModelParts& parts, const models::StepFlops& flops,
              reports::Plan& plan) {
  const models::Strategy& s = question.strategy;
  plan.time = {};
  if (s.device != models::Device::cuda || !question.cluster.gpu) return;
  const TimeModel model(parts, question.cluster);
  if (!model.knows(s.precision)) return;
  // Without checkpoints every saved tensor is copied: no run has shown what hides behind what.
  const bool by_host = s.offload.optimizer || s.offload.params ||
                       (s.offload.activations && s.recompute.kind == models::RecomputeKind::none);
  if (by_host || (s.offload.activations && question.cluster.gpu->pcie_bandwidth == 0)) {
    plan.assumptions.push_back(
        {"time", "null", "assumed",
         "not predicted: nothing measured says how fast the host steps the optimizer, and how much "
         "of the copies over PCIe runs beside the GPU's work"});
    return;
  }
  if (s.data.kind == models::DataParallelKind::dp) {
    plan.assumptions.push_back({"time", "null", "assumed",
                                "not predicted: the GPUs' threads of torch.nn.DataParallel take "
                                "turns at one Python interpreter, and nothing measured says how "
                                "much they wait"});
    return;
  }
  const StepTime step = model(s, question.batch);
  const double flushing = add_flushing(plan);
  const OffloadTime copies = add_copies(question, parts, step.compute, plan);
  const double seconds = step.step + flushing + copies.exposed;
  const models::decisions::Mesh mesh = models::decisions::mesh_of(s);
  const auto gpus = static_cast<double>(mesh.ranks());
  const double peak = model.peak_flops(s.precision);
  const double tokens = static_cast<double>(question.batch.tokens()) *
                        static_cast<double>(question.batch.grad_accum) *
                        static_cast<double>(mesh.data().ranks);
  reports::Time& time = plan.time;
  time.step_seconds = seconds;
  time.compute_seconds = step.compute;
  time.exposed_communication_seconds = step.exposed_communication + copies.exposed;
  time.pipeline_bubble_seconds = step.pipeline_bubble;
  time.optimizer_seconds = step.optimizer;
  time.tokens_per_second = tokens / seconds;
  time.tokens_per_second_per_gpu = tokens / seconds / gpus;
  const double available = seconds * gpus * peak;
  time.mfu = flops.model / available;
  time.mfu_full_attention = flops.model_full_attention() / available;
  time.hfu = plan.hardware_flops_per_step / available;
  time.peak_flops = peak;
  time.communication_seconds = step.communication + copies.seconds;
  time.limited_by = name_of(step.limit);
  advise_on_host(step, plan);
  add_assumptions(question, plan);
}

}  // namespace plimsoll::planner

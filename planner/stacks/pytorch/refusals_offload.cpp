// What stack pytorch does not plan of --offload optimizer, gradients and params.
#include "models/decisions/mesh.h"
#include "models/host_optimizer.h"
#include "planner/stacks/pytorch/refusals.h"
#include "planner/stacks/pytorch/regime.h"
#include "planner/stacks/pytorch/stack.h"

namespace plimsoll::planner::pytorch {

using models::decisions::mesh_of;

namespace {
void refuse(bool bad, ErrorKind kind, const char* why) {
  check(!bad, kind, [&] { return std::string("--offload ") + why; });
}

bool is_plain(models::Optimizer optimizer) {
  return optimizer == models::Optimizer::adamw || optimizer == models::Optimizer::sgd ||
         optimizer == models::Optimizer::momentum;
}

// torchao's (host_optimizer.h).
void refuse_host_optimizer(const models::Strategy& s, const models::Batch& batch) {
  using enum ErrorKind;
  refuse(s.data.zero >= 2, bad_input,
         "optimizer with --zero 2 or 3: FSDP offloads parameters, gradients and states together "
         "(--offload params)");
  refuse(mesh_of(s).communicates(), bad_input,
         "optimizer on several GPUs: torchao's CPUOffloadOptimizer is for one; FSDP offloads "
         "parameters, gradients and states together (--zero 3 --offload params), DeepSpeed states "
         "alone (--stack deepspeed)");
  refuse(!s.offload.pinned, bad_input,
         "optimizer with --offload-pin no: torchao's CPUOffloadOptimizer pins what it copies");
  refuse(!is_plain(s.optimizer), unsupported,
         "optimizer on stack pytorch is modelled with adamw, sgd and momentum");
  refuse(s.optimizer_impl && *s.optimizer_impl != models::OptimizerImpl::fused, bad_input,
         "optimizer steps AdamW fused (torchao's CPUOffloadOptimizer): --optimizer-impl must be "
         "fused, or left out");
  refuse(s.optimizer_in_backward, bad_input,
         "optimizer with --optimizer-in-backward: torchao's CPUOffloadOptimizer steps behind the "
         "backward");
  refuse(s.precision == models::Precision::fp16_mixed, unsupported,
         "optimizer with --precision fp16-mixed (a scaler that reads gradients on the host) is not "
         "modelled yet");
  refuse(s.offload.gradients && batch.grad_accum > 1, bad_input,
         "optimizer,gradients with --grad-accum: torchao's offload_gradients keeps the last "
         "micro-batch's alone");
  refuse(s.offload.gradients && s.kernels == models::Kernels::fused, unsupported,
         "optimizer,gradients with --kernels fused is not modelled yet");
}
}  // namespace

void refuse_offload(const models::Strategy& s, const models::Batch& batch) {
  using enum ErrorKind;
  const models::Offload& offload = s.offload;
  refuse(offload.gradients && !offload.optimizer, bad_input,
         "gradients goes with optimizer (torchao's CPUOffloadOptimizer, offload_gradients)");
  // FSDP takes gradients and the optimizer with the parameters.
  if (offload.optimizer && !offload.params) refuse_host_optimizer(s, batch);
  if (!offload.params || offload.activations) return;
  refuse(offload.gradients, bad_input,
         "gradients with params: FSDP takes them with the parameters (--offload params)");
  refuse(s.data.zero < 2, bad_input,
         "params needs --zero 2 or 3 on pytorch (FSDP's CPUOffloadPolicy)");
  refuse(!mesh_of(s).shards(), unsupported, "params on one rank is not modelled yet");
  refuse(s.precision == models::Precision::fp16_mixed, unsupported,
         "params with --precision fp16-mixed (a scaler that reads gradients on the host) is not "
         "modelled yet");
  refuse(!is_plain(s.optimizer), unsupported, "params is modelled with adamw, sgd and momentum");
  refuse(is_fsdp1(s) && !offload.pinned, unsupported,
         "params with --fsdp-version 1, not pinned, is not modelled yet");
}

void assume_host_optimizer(const models::Strategy& s, std::vector<reports::Assumption>& out) {
  if (!models::has_host_optimizer(s)) return;
  out.push_back({"optimizer states", "\"on the host, of parameters of 4,096 elements and more\"",
                 "derived",
                 "torchao 0.18, optim/cpu_offload.py, CPUOffloadOptimizer(model.parameters()); "
                 "tests/golden/dry_runs_host_optimizer.json"});
  if (s.offload.gradients)
    out.push_back({"blocks of gradients that are copied to the host",
                   "\"free for others as soon as they are let go\"", "assumed",
                   "torch holds them until the copy is done (record_stream), so that reserved "
                   "bytes depend on timing"});
}

}  // namespace plimsoll::planner::pytorch

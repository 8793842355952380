// FSDP's offloading of parameters: what is refused of it, and what is on the host.
#include "models/decisions/mesh.h"
#include "models/optimizers.h"
#include "planner/stacks/pytorch/stack.h"
#include "planner/stacks/pytorch/step.h"

namespace plimsoll::planner::pytorch {

// It takes gradients and the optimizer with the parameters.
void refuse_offload(const models::Strategy& s) {
  const models::Offload& offload = s.offload;
  if (!offload.any()) return;
  const auto refuse = [](bool bad, ErrorKind kind, const char* why) {
    check(!bad, kind, std::string("--offload ") + why);
  };
  refuse(offload.activations, ErrorKind::unsupported, "activations is not modelled yet");
  refuse(!offload.params, ErrorKind::bad_input,
         "optimizer: PyTorch has no such switch; FSDP offloads parameters, gradients and states "
         "together (--offload params), DeepSpeed states alone (--stack deepspeed)");
  refuse(s.data.zero < 2, ErrorKind::bad_input,
         "params needs --zero 2 or 3 on pytorch (FSDP's CPUOffloadPolicy)");
  const models::decisions::Mesh mesh = models::decisions::mesh_of(s);
  refuse(mesh[models::decisions::Axis::shard].ranks == 1, ErrorKind::unsupported,
         "params on one rank is not modelled yet");
  refuse(s.precision == models::Precision::fp16_mixed, ErrorKind::unsupported,
         "params with --precision fp16-mixed (a scaler that reads gradients on the host) is not "
         "modelled yet");
  refuse(s.optimizer != models::Optimizer::adamw && s.optimizer != models::Optimizer::sgd &&
             s.optimizer != models::Optimizer::momentum,
         ErrorKind::unsupported, "params is modelled with adamw, sgd and momentum");
  refuse(is_fsdp1(s) && !offload.pinned, ErrorKind::unsupported,
         "params with --fsdp-version 1, not pinned, is not modelled yet");
}

// CPUOffloadPolicy: each shard pinned as it is padded, its gradient as DTensor's local part (what a
// copy to the host that does not block allocates); states are made like the shard, pageable.
void StepWriter::declare_on_host(const Unit& unit, std::int64_t copies) {
  const auto add = [&](Bytes bytes, bool pinned) {
    for (std::int64_t i = 0; i < copies; ++i) host_.add(bytes, pinned);
  };
  for (const Parameter& p : *unit.parameters) {
    const std::int64_t row = p.elements / p.rows;
    const Count padded(checked_multiply(ceil_divide(p.rows, shards_), row));
    add(storage(padded, stored(p)), strategy_.offload.pinned);
    if (!p.trainable) continue;
    const models::SteppedTensor own = own_part(p);
    add(storage(Count(own.elements), stored(p)), strategy_.offload.pinned);
    for (const models::KeptState& state : models::kept_states(strategy_.optimizer, own))
      add(state.bytes, false);
  }
}

}  // namespace plimsoll::planner::pytorch

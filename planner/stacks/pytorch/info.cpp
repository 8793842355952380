// What the rest of the planner is told of stack pytorch.
#include "models/optimizers.h"
#include "planner/stacks/pytorch/stack.h"

namespace plimsoll::planner::pytorch {

TableStates table_states(const ParameterCounts& counts, const models::Strategy& s) {
  const models::OptimizerRule& rule = models::rule_of(s.optimizer);
  check(!rule.torch.package, ErrorKind::unsupported, [&] {
    return "--optimizer " + std::string(rule.name) +
           " is planned where the model's step is: its states are not as many values as there are "
           "parameters";
  });
  const DType adapter = s.lora ? s.lora->dtype : DType::fp32;
  const DType stored = regime_of(s, s.data.zero >= 2, false).stored;
  check(!s.quantize, ErrorKind::unsupported,
        "--quantize needs a model whose training step is planned");
  const DType frozen = s.param_dtype.value_or(stored);
  const Bytes trained =
      storage(counts.trainable - counts.adapters, stored) + storage(counts.adapters, adapter);
  return {{.parameters = trained + storage(counts.total - counts.trainable, frozen),
           .gradients = trained,
           .optimizer = trained * std::ssize(rule.states)},
          2,
          2,
          1};
}

namespace {

// FSDP's policy casts other things than autocast; how many share the parameters changes nothing.
models::Strategy compute_as(const models::Strategy& s) {
  models::Strategy out = s;
  const bool fsdp = s.data.zero >= 2;
  out.data = {};
  out.data.fsdp_version = s.data.fsdp_version;
  out.data.zero = fsdp ? 3 : 0;
  out.gpus = out.gpus_per_node = fsdp ? 2 : 1;
  return out;
}

}  // namespace

constinit const StackInfo kStack{
    .kind = models::Stack::pytorch,
    .title = "PyTorch",
    .rungs = {"Plain DDP", "ZeRO-1 (ZeroRedundancyOptimizer)", "ZeRO-2 (FSDP without resharding)",
              "ZeRO-3 (FSDP full shard)"},
    .write_step = write_step,
    .compute_as = compute_as,
    .write_compute = write_compute,
    .write_optimizer = write_optimizer,
    .write_messages = write_messages,
    .table_states = table_states,
    .processes = models::Stack::pytorch,
    .runs_transformers = true,
    .has_fsdp = true,
    .mixed_is_autocast = true,
    .foreach_by_default = true,
    .packs_bases = true,
    .hybrid_from_stage = 2,
};

}  // namespace plimsoll::planner::pytorch

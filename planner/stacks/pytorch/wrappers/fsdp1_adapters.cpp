// LoRA under FSDP1: the layers' own parameters are frozen, adapters have units of their own.
//
// Source: peft 0.21, utils/other.py, fsdp_auto_wrap_policy, which the Trainer puts in the place of
// its own: every leaf module that trains is wrapped, so each A and each B is a flat parameter. What
// is frozen has no gradient and is resharded when the gradient of its unit's input is there
// (_runtime_utils.py, _register_post_backward_reshard_only_hook).
//
// Planned is not what each leaf gathers but, for a layer's backward, twice the largest (the next is
// fetched ahead): some 100 KiB. Gradients are reduced leaf by leaf, and the layer before is fetched
// with the first leaf, which comes last.
//
// That hook refers to the node behind the unit's input. In a checkpoint around the unit, which is
// reentrant, that is the detached input itself, which then stays with its gradient until the
// backward ends: two hidden values for each token and layer, which without FSDP1, without anything
// frozen, or with checkpoints inside the unit, nobody holds.
//
// Fused adapters (fused_adapters.cpp) are read where their modules' hooks do not run: FSDP is told
// to ignore them (fms-acceleration @876e2ed, plugins/fused-ops-and-kernels, utils.py,
// lora_adapters_switch_ddp_from_fsdp), so that they and their states are whole on each rank, and a
// hook of each gradient averages it. They are in 16 bits, and gradients stay, as the published
// bytes between steps say: 8 bytes a parameter, on two GPUs and on four.
#include <algorithm>

#include "planner/stacks/pytorch/wrappers/fsdp1.h"

namespace plimsoll::planner::pytorch {

using models::kNoGroup;
using models::Residency;
using models::Stream;

bool FlatParameters::ignores_adapters() const {
  return regime_.patch.adapters == KernelPatch::Adapters::fms && strategy_.quantize.has_value();
}

DType FlatParameters::adapter_stored() const {
  if (ignores_adapters()) return regime_.adapter;
  return s_.stored({.trainable = true, .adapter = true});
}

FlatParameters::Flat FlatParameters::adapter_of(std::int64_t elements) const {
  return flat_of(elements, regime_.adapter, adapter_stored(),
                 strategy_.data.reduce_dtype.value_or(regime_.adapter));
}

void FlatParameters::size_adapters(Unit& unit) const {
  for (const Parameter& p : *unit.parameters) {
    if (!p.adapter) continue;
    if (ignores_adapters()) {
      unit.parts.push_back({.elements = p.elements, .dtype = adapter_stored()});
      unit.adapters += b_.rounded(storage(Count(p.elements), adapter_stored()));
      continue;
    }
    const Flat flat = adapter_of(p.elements);
    unit.parts.push_back(
        {.elements = ceil_divide(p.elements, s_.shards), .dtype = adapter_stored()});
    unit.adapters += flat.shard;
    const bool holds_shard =
        strategy_.offload.params && flat.cast == Bytes(0) && strategy_.data.use_orig_params;
    unit.adapter_gathered =
        larger(unit.adapter_gathered, flat.full + (holds_shard ? flat.shard : Bytes(0)));
    ++unit.adapter_count;
  }
}

void FlatParameters::declare_adapter_tensors(Unit& unit) {
  unit.adapter_backward = kNoTensor;
  if (unit.adapter_count == 0) return;
  unit.adapter_backward =
      b_.tensor_in(unit.group, "fsdp.adapter.backward", unit.adapter_gathered * 2,
                   Category::parameters, Residency::step, Stream::gather);
}

// At the beginning of a layer's backward.
void FlatParameters::before_backward(Unit& unit) {
  adapters_reduced_ = 0;
  if (unit.adapter_backward == kNoTensor) return;
  b_.op("fsdp.all_gather", Phase::backward).write(unit.adapter_backward);
}

// A leaf's gradient, as soon as it is there: flattened, cast, scattered. Earlier micro-batches keep
// the flat one.
void FlatParameters::reduce_adapter(TensorId grad) {
  if (ignores_adapters()) {
    b_.op("fsdp.adapter.accumulate_grad", Phase::backward).read(grad);
    return;
  }
  keep_or_reduce_adapter(grad);
  // Each unit's backward fetches the one before it, and before the first leaf is the next layer.
  if (++adapters_reduced_ == s_.unit->adapter_count)
    prefetch_unit_before(checkpoints_.number(), checkpoints_.last());
}

void FlatParameters::keep_or_reduce_adapter(TensorId grad) {
  const Flat flat = adapter_of(adapter_elements_);
  const bool last = s_.last_micro();
  const auto tensor = [&](const char* name, Bytes bytes, Stream stream, Residency residency) {
    return b_.tensor_in(s_.unit->group, name, bytes, Category::gradients, residency, stream);
  };
  if (s_.micro == 0 && !last) {
    s_.unit->kept.push_back(
        tensor("fsdp.adapter.grad.sum", flat.full, Stream::gather, Residency::step));
    b_.op("fsdp.flatten_grads", Phase::backward).read(grad).write(s_.unit->kept.back());
    return;
  }
  TensorId sum = kNoTensor;
  if (s_.micro > 0) {
    sum = s_.unit->kept[s_.unit->next++];
    b_.op("fsdp.accumulate_grad", Phase::backward).read(grad).update(sum).scratch(flat.full);
    if (!last) return;
  }
  const TensorId shard =
      tensor("fsdp.adapter.sharded_grad",
             flat.shard_grad_cast == Bytes(0) ? flat.reduce_output : flat.shard_grad_cast,
             Stream::reduce, strategy_.offload.params ? Residency::step : kept_gradient());
  if (!strategy_.offload.params) s_.unit->adapter_grads.push_back(shard);
  const Bytes low = flat.reduce_input == flat.full ? Bytes(0) : flat.reduce_input;
  const Bytes output = flat.shard_grad_cast == Bytes(0) ? Bytes(0) : flat.reduce_output;
  b_.op("fsdp.reduce_scatter", Phase::backward)
      .read(grad)
      .read(sum)
      .write(shard)
      .scratch((sum == kNoTensor ? flat.full : Bytes(0)) + low + output, Category::communication);
}

void FlatParameters::end_backward() {
  Fsdp::end_backward();
  if (!checkpoints_around() || s_.root.trains) return;
  for (std::size_t r = s_.runs.size(); r-- > 0;) {
    b_.open(s_.runs[r].group, true, s_.times);
    auto held = b_.op("fsdp.forget_inputs", Phase::backward);
    for (std::size_t j = s_.runs[r].stride(); j-- > 0;)
      for (const Ref ref : {s_.input_of(r, j), s_.input_gradient_of(r, j)})
        held.touch(ref.tensor, ref.delta, ref.beyond, models::Access::release);
    b_.close();
  }
}

}  // namespace plimsoll::planner::pytorch

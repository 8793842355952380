#include "planner/stacks/pytorch/regime.h"

#include "models/bitsandbytes.h"
#include "models/storages.h"

namespace plimsoll::planner::pytorch {

using models::Precision;

DType low_dtype(Precision precision) {
  return precision == Precision::fp16_mixed || precision == Precision::fp16 ? DType::fp16
                                                                            : DType::bf16;
}

Regime regime_of(const models::Strategy& s, bool sharded, bool autocast_with_fsdp,
                 bool embedding_norm) {
  const bool mixed = is_mixed(s.precision);
  Regime r;
  r.by_node = hooks_take_all(s);
  if (!mixed) {
    const DType own = s.precision == Precision::fp32 ? DType::fp32 : low_dtype(s.precision);
    r.stored = r.weight = r.compute = r.residual = s.param_dtype.value_or(own);
  } else if (sharded) {
    const bool upcast = s.data.fsdp_upcast.value_or(!s.quantize);
    r.stored = upcast ? DType::fp32 : s.param_dtype.value_or(DType::fp32);
    r.weight = r.compute = r.residual = low_dtype(s.precision);
    r.autocast = autocast_with_fsdp;
  } else {
    const DType loaded = s.param_dtype.value_or(DType::fp32);
    r.stored = r.weight = r.residual = models::kbit_prepared(s) ? DType::fp32 : loaded;
    r.compute = low_dtype(s.precision);
    r.autocast = true;
  }
  // Fabric packs halves (plugins/precision/bitsandbytes.py, _Linear4bit.quantize).
  const bool halves = models::is_litgpt(s.code) || (models::packs_with_bitsandbytes(s) &&
                                                    s.bitsandbytes < models::kPacksAsLoaded);
  r.unpacked = halves ? DType::fp16 : s.param_dtype.value_or(r.stored);
  if (embedding_norm && r.autocast) r.residual = DType::fp32;
  r.reduce = s.data.reduce_dtype.value_or(s.grad_dtype.value_or(r.weight));
  if (!s.lora) return r;
  r.adapter = sharded && mixed ? r.weight : s.lora->dtype;
  // FSDP1: A's own unit is not gathered yet when PEFT asks for its dtype.
  r.adapter_input = !is_fsdp1(s) || r.adapter == s.lora->dtype ? r.adapter : r.stored;
  return r;
}

bool hooks_take_all(const models::Strategy& s) {
  return s.offload.activations && s.recompute.kind == models::RecomputeKind::none &&
         s.kernels != models::Kernels::unsloth;
}

bool stream_widens(const models::Strategy& s, models::NormKind norm) {
  if (!s.quantize || models::is_rms(norm) || !is_mixed(s.precision) || models::kbit_prepared(s))
    return false;
  return s.data.zero >= 2 ? is_fsdp1(s) : s.param_dtype.value_or(DType::fp32) != DType::fp32;
}

}  // namespace plimsoll::planner::pytorch

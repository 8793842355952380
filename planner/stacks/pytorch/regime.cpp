#include "planner/stacks/pytorch/regime.h"

#include "models/bitsandbytes.h"
#include "models/storages.h"

namespace plimsoll::planner::pytorch {

using models::Precision;

DType low_dtype(Precision precision) {
  return precision == Precision::fp16_mixed || precision == Precision::fp16 ? DType::fp16
                                                                            : DType::bf16;
}

Regime regime_of(const models::Strategy& s, bool sharded, bool autocast_with_fsdp) {
  const bool mixed = is_mixed(s.precision);
  Regime r;
  r.by_node = hooks_take_all(s);
  if (!mixed) {
    const DType own = s.precision == Precision::fp32 ? DType::fp32 : low_dtype(s.precision);
    // DeepSpeed's engine casts what was loaded; only a packed base is what it was packed from.
    const bool casts = s.stack == models::Stack::deepspeed;
    r.stored = r.weight = r.compute = casts ? own : s.param_dtype.value_or(own);
  } else if (sharded) {
    const bool upcast = s.data.fsdp_upcast.value_or(!s.quantize);
    r.stored = upcast ? DType::fp32 : s.param_dtype.value_or(DType::fp32);
    r.weight = r.compute = low_dtype(s.precision);
    r.autocast = autocast_with_fsdp;
  } else {
    const DType loaded = s.param_dtype.value_or(DType::fp32);
    r.stored = r.weight = models::kbit_prepared(s) ? DType::fp32 : loaded;
    r.compute = low_dtype(s.precision);
    r.autocast = true;
  }
  r.norm = r.weight;
  if (models::casts_behind_kbit(s)) r.weight = r.compute;
  r.embedded = r.residual = r.weight;
  // Fabric packs halves (plugins/precision/bitsandbytes.py, _Linear4bit.quantize).
  const bool halves = models::is_litgpt(s.code) || (models::packs_with_bitsandbytes(s) &&
                                                    s.bitsandbytes < models::kPacksAsLoaded);
  r.unpacked = halves ? DType::fp16 : s.param_dtype.value_or(r.stored);
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

DType norm_dtype(models::NormKind kind, DType input, const Regime& regime) {
  if (multiplies_in_fp32(kind)) return input;
  if (kind == models::NormKind::layer_norm && regime.autocast) return DType::fp32;
  return promoted(input, regime.norm);
}

void set_stream(Regime& r, const models::Strategy& s, const models::Decoder& d) {
  r.embedded = d.embedding_norm && r.autocast ? DType::fp32 : r.weight;
  const bool as_given = models::packs_with_bitsandbytes(s);
  const DType given =
      r.patch.norms == NormKernel::eager ? norm_dtype(d.norm, r.embedded, r) : r.embedded;
  r.residual = promoted(r.embedded, as_given ? given : r.compute);
}

}  // namespace plimsoll::planner::pytorch

#include "planner/stacks/pytorch/regime.h"

namespace plimsoll::planner::pytorch {

using models::Precision;

namespace {
DType low_dtype(Precision precision) {
  return precision == Precision::bf16_mixed || precision == Precision::bf16 ? DType::bf16
                                                                            : DType::fp16;
}
}  // namespace

Regime regime_of(const models::Strategy& s, bool sharded) {
  const bool mixed = s.precision == Precision::bf16_mixed || s.precision == Precision::fp16_mixed;
  Regime r;
  if (s.precision == Precision::fp32) {
    r.stored = s.param_dtype.value_or(DType::fp32);
    r.weight = r.compute = r.residual = r.stored;
  } else if (!mixed) {
    const DType low = s.param_dtype.value_or(low_dtype(s.precision));
    r = {low, low, low, low, low};
  } else if (sharded) {
    const DType low = low_dtype(s.precision);
    const bool upcast = s.data.fsdp_upcast.value_or(true);
    r.stored = upcast ? DType::fp32 : s.param_dtype.value_or(DType::fp32);
    r.weight = r.compute = r.residual = low;
  } else {
    r.stored = r.weight = s.param_dtype.value_or(DType::fp32);
    r.compute = low_dtype(s.precision);
    r.residual = r.weight;
  }
  r.reduce = s.data.reduce_dtype.value_or(s.grad_dtype.value_or(r.weight));
  return r;
}

}  // namespace plimsoll::planner::pytorch

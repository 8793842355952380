#include "models/decisions/precision.h"

#include <string>

namespace plimsoll::models::decisions {

namespace {

bool sixteen(DType dtype) {
  return bits(dtype) == 16;
}

DType compute_dtype(Precision precision) {
  switch (precision) {
    case Precision::fp32:
      return DType::fp32;
    case Precision::bf16_mixed:
    case Precision::fp8_mixed:
    case Precision::bf16:
      return DType::bf16;
    case Precision::fp16_mixed:
      return DType::fp16;
    case Precision::fp16:
      fail(ErrorKind::unsupported,
           "--precision fp16 without masters does not train: use fp16-mixed, or bf16");
  }
  fail(ErrorKind::internal, "a precision of no kind");
}

TrainedDtypes base_dtypes(const Strategy& s, DType compute) {
  TrainedDtypes base{compute, s.grad_dtype.value_or(compute), false, DType::fp32};
  base.masters = s.master_weights.value_or(is_mixed(s.precision));
  if (s.precision == Precision::bf16) base.moments = DType::bf16;
  check(base.gradient == compute || base.gradient == DType::fp32, ErrorKind::bad_input, [&] {
    return "--grad-dtype " + std::string(name_of(base.gradient)) + ": plimsoll takes " +
           std::string(name_of(compute)) + (compute == DType::fp32 ? "" : " or fp32") +
           " with this --precision";
  });
  check(!base.masters || sixteen(compute), ErrorKind::bad_input,
        "--master-weights yes: fp32 weights are their own masters");
  check(base.masters || compute != DType::fp16, ErrorKind::bad_input,
        "--master-weights no: fp16 weights do not train without masters");
  return base;
}

TrainedDtypes adapter_dtypes(const Strategy& s, const TrainedDtypes& base, DType compute) {
  if (!s.lora) return base;
  const DType weight = s.lora->dtype;
  check(weight == DType::fp32 || weight == compute, ErrorKind::bad_input, [&] {
    return "--adapter-dtype " + std::string(name_of(weight)) + ": plimsoll takes fp32" +
           (compute == DType::fp32 ? "" : " or " + std::string(name_of(compute))) +
           " with this --precision";
  });
  if (weight == DType::fp32) return {weight, DType::fp32, false, DType::fp32};
  return {weight, base.gradient, base.masters, base.moments};
}

}  // namespace

Regime regime_of(const Strategy& strategy) {
  Regime regime;
  regime.compute = compute_dtype(strategy.precision);
  regime.base = base_dtypes(strategy, regime.compute);
  regime.adapters = adapter_dtypes(strategy, regime.base, regime.compute);
  regime.loss_scaling = regime.compute == DType::fp16;
  regime.float8 = strategy.precision == Precision::fp8_mixed;
  return regime;
}

}  // namespace plimsoll::models::decisions

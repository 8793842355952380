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

// Adapters freeze the base, but for what --train names.
bool trains_base(const Strategy& s) {
  return !s.lora || !s.train.empty();
}

DType base_gradient(const Strategy& s, DType compute) {
  return s.grad_dtype.value_or(compute);
}

DType adapter_gradient(const Strategy& s, DType base) {
  return s.lora->dtype == DType::fp32 ? DType::fp32 : base;
}

TrainedDtypes base_dtypes(const Strategy& s, DType compute) {
  TrainedDtypes base{compute, base_gradient(s, compute), false, DType::fp32};
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
  const DType gradient = adapter_gradient(s, base.gradient);
  if (weight == DType::fp32) return {weight, gradient, false, DType::fp32};
  return {weight, gradient, base.masters, base.moments};
}

void check_reduction(const Strategy& s, const Regime& regime) {
  if (!s.data.reduce_dtype) return;
  const DType asked = *s.data.reduce_dtype;
  const auto fits = [&](DType gradient) {
    check(gradient == DType::fp32 || gradient == asked, ErrorKind::bad_input, [&] {
      const std::string own(name_of(gradient));
      return "--reduce-dtype " + std::string(name_of(asked)) + ": gradients are " + own +
             " and are reduced in it; plimsoll takes " + own +
             ", or a dtype narrower than fp32 gradients (--grad-dtype fp32)";
    });
  };
  if (trains_base(s)) fits(regime.base.gradient);
  if (s.lora) fits(regime.adapters.gradient);
  check(asked != DType::fp16 || regime.loss_scaling, ErrorKind::bad_input,
        "--reduce-dtype fp16 needs --precision fp16-mixed: without loss scaling nothing skips the "
        "step of a sum that overflows (above 65504); bf16 has the range of fp32");
}

}  // namespace

std::optional<DType> reduce_dtype(const Strategy& s) {
  const std::optional<DType> asked = s.data.reduce_dtype;
  if (!asked || !sixteen(*asked)) return std::nullopt;
  const DType base = base_gradient(s, s.precision == Precision::fp32 ? DType::fp32 : *asked);
  const bool wide = (trains_base(s) && base == DType::fp32) ||
                    (s.lora && adapter_gradient(s, base) == DType::fp32);
  return wide ? asked : std::nullopt;
}

Regime regime_of(const Strategy& strategy) {
  Regime regime;
  regime.compute = compute_dtype(strategy.precision);
  regime.base = base_dtypes(strategy, regime.compute);
  regime.adapters = adapter_dtypes(strategy, regime.base, regime.compute);
  regime.loss_scaling = regime.compute == DType::fp16;
  regime.float8 = strategy.precision == Precision::fp8_mixed;
  regime.reduce = reduce_dtype(strategy);
  check_reduction(strategy, regime);
  return regime;
}

}  // namespace plimsoll::models::decisions

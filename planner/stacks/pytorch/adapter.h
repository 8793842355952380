// An adapted linear's dtypes and GEMMs, as PEFT's modules see them.
#pragma once

#include "models/storages.h"
#include "planner/stacks/pytorch/module_types.h"

namespace plimsoll::planner::pytorch {

inline bool is_hqq(const LinearPart& part) {
  return part.packed != nullptr && part.packed->gemm == models::PackedGemm::hqq;
}
// Of an adapted linear's result, and of what its adapter reads.
inline DType result_dtype(const LinearPart& part, const Regime& regime, DType input) {
  return part.packed != nullptr && !is_hqq(part) ? input : regime.compute;
}
// Of both's sum. PEFT casts it back but around a packed base under autocast (tuners/lora/bnb.py),
// where DoRA's magnitudes widen it.
inline DType adapted_result(const LinearPart& part, const Regime& regime, DType result) {
  const bool widens = part.dora && part.packed != nullptr && regime.autocast;
  return widens ? promoted(result, regime.adapter) : result;
}
// Whether the base's own result is asked for a gradient.
inline bool base_grad(const LinearPart& part, bool input_grad) {
  return input_grad || part.train_weight || (part.bias && part.train_bias);
}
inline bool is_gptq(const LinearPart& part) {
  return part.packed != nullptr && part.packed->gemm == models::PackedGemm::gptq;
}
inline bool is_awq(const LinearPart& part) {
  return part.packed != nullptr && part.packed->gemm == models::PackedGemm::awq;
}
inline bool is_torchao(const LinearPart& part) {
  return part.packed != nullptr && part.packed->gemm == models::PackedGemm::torchao;
}
// Whose PEFT layer casts what B made, and not the sum as a plain linear's does.
inline bool casts_before_sum(const LinearPart& part) {
  return part.packed != nullptr && !is_torchao(part) && !is_hqq(part);
}
// What is moved where a packed weight is unpacked.
inline double unpacked_bytes(const LinearPart& part, DType dtype) {
  const Count values(checked_multiply(part.in, part.out));
  return (storage(values, dtype) + Bytes(ceil_divide(values.value() * part.packed->bits, 8)))
      .real();
}
inline Gemm gemm_of(DType dtype, SymInt m, SymInt n, SymInt k) {
  return {dtype, m.real(), n.real(), k.real()};
}
inline bool has_new_peft(const models::Strategy& s) {
  return s.transformers >= models::Release{5, 0, 0};
}
// Around a packed base PEFT casts x without autocast only, but GPTQ's with the PEFT of Transformers
// 5 always.
inline DType adapter_input(const LinearPart& part, const Regime& regime, const models::Strategy& s,
                           DType input) {
  const bool as_it_is = part.packed != nullptr && !is_torchao(part) && regime.autocast &&
                        !(is_gptq(part) && has_new_peft(s));
  return as_it_is ? input : regime.adapter_input;
}

// `weight_is_cast`: for another GEMM that ran before.
inline WeightGemm adapter_a(const LinearPart& part, DType dtype, bool weight_is_cast = false) {
  return {.in = part.in,
          .out = part.lora_rank,
          .weight = dtype,
          .adapter = true,
          .weight_is_cast = weight_is_cast};
}
inline WeightGemm adapter_b(const LinearPart& part, DType dtype, bool weight_is_cast = false) {
  return {.in = part.lora_rank,
          .out = part.out,
          .weight = dtype,
          .bias = part.lora_bias,
          .trains_bias = part.lora_bias,
          .adapter = true,
          .weight_is_cast = weight_is_cast,
          .reads_made = true};
}

}  // namespace plimsoll::planner::pytorch

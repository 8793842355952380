// PEFT's DoRA around a GEMM.
#pragma once

#include <vector>

#include "planner/stacks/pytorch/adapter_names.h"
#include "planner/stacks/pytorch/modules.h"

namespace plimsoll::planner::pytorch {

// Dtypes of what its forward makes, by PyTorch's promotion.
struct DoraDtypes {
  bool again = false;  // the base's GEMM runs once more, on what dropout left
  DType own, low;  // of A and B, and of their GEMMs
  DType result, asked;  // of the base's result, and of what the adapter reads
  DType scale, bias, of_base, both, sum, out;
};
DoraDtypes dora_dtypes(const LinearPart& part, const Regime& regime,
                       const models::Strategy& strategy, DType input, bool drops);

class DoraWriter {
 public:
  // `x_grad`: x's gradient is asked for.
  DoraWriter(ModuleWriter& writer, const LinearNames& names, const LinearPart& part,
             const DoraDtypes& dtypes, bool x_grad)
      : w_(writer),
        names_(names),
        n_(dora_names(names.base.module)),
        part_(part),
        d_(dtypes),
        grad_(x_grad || (!dtypes.again && (part.train_weight || (part.bias && part.train_bias)))),
        x_grad_(x_grad) {}

  // The linear's result; nothing where a recomputation stops before it.
  TensorId forward(Ref x, Category category, bool stops, LinearSaved& s);
  // `d_sum`: of the sum before it was cast. Returns what has arrived of x's gradient, and adds to
  // `d_base`, that of the base's result.
  Sum backward(const LinearSaved& s, TensorId d_sum, TensorId& d_base, const Place& at, Sum sum);

 private:
  TensorId lora_weight(LinearSaved& s, std::vector<TensorId>& held);
  TensorId base_weight();
  void scale(TensorId weight, TensorId gemm, LinearSaved& s);
  TapePart shares() const;
  TapeCounts counts() const;
  TensorId add_share(TensorId d_base, TensorId d_share, bool in_place);
  void magnitude_gradient(TensorId d_scale, const LinearSaved& s);
  std::int64_t weights() const { return checked_multiply(part_.in, part_.out); }

  ModuleWriter& w_;
  const LinearNames& names_;
  const DoraNames& n_;
  const LinearPart& part_;
  const DoraDtypes& d_;
  bool grad_, x_grad_;  // of the result that is scaled anew, and of x
};

}  // namespace plimsoll::planner::pytorch

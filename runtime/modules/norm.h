// LayerNorm or RMSNorm: of the stream, or of each head.
#pragma once

#include "models/decisions/names.h"
#include "models/decoder.h"
#include "runtime/modules/operand.h"
#include "runtime/parameter.h"

namespace plimsoll::runtime {

// Each method is one op. Rows are as wide as the weight.
class Norm {
 public:
  Norm(Worker& worker, const models::decisions::NormNames& names, const NormParameters& parameters,
       models::NormKind kind, float eps)
      : worker_(worker), names_(names), parameters_(parameters), kind_(kind), eps_(eps) {}

  // A new tensor under the name `out`; `statistics`, where given, is made too. Without `keeps` the
  // result dies with the op.
  Tensor forward(Operand x, const char* out, Tensor* statistics, bool keeps = true);
  void forward_in_place(Tensor& x);
  // The same bits again, from what was saved.
  Tensor again(ConstTensorView x, ConstTensorView statistics);

  // Adds to the parameters' gradients and, where `input`, dx to `d_x`, which is made under `name`
  // where it is none.
  void backward(Operand x, Tensor statistics, Operand d_y, Tensor& d_x, bool input,
                const char* name);
  // The same, but `d` becomes dx; where that is not wanted it dies.
  void backward_in_place(Operand x, Tensor statistics, Tensor& d, bool input);

  bool trains() const { return parameters_.weight.trains() || parameters_.bias.trains(); }
  Bytes workspace() const;

 private:
  void forward(ConstTensorView x, TensorView y, TensorView statistics);
  void backward(ConstTensorView x, ConstTensorView statistics, ConstTensorView d_y, bool accumulate,
                TensorView d_x);
  TensorView partial();
  float offset() const { return kind_ == models::NormKind::rms_norm_one_plus ? 1.0f : 0.0f; }

  Worker& worker_;
  const models::decisions::NormNames& names_;
  NormParameters parameters_;
  models::NormKind kind_;
  float eps_;
};

}  // namespace plimsoll::runtime

// torchao's Float8Linear (--precision fp8-mixed), for the writer of modules.
//
// torchao 0.18, torchao/float8: matmul_with_hp_or_float8_args (float8_linear.py) is one function of
// Python's. It saves its input and the weight as they come, in 16 or 32 bits, and casts both again
// in the backward. Each cast (float8_scaling_utils.py, float8_utils.py) is a row of kernels: the
// magnitude, its largest value or values, the scale by way of fp64, the product with it in fp32,
// clamped, in 8 bits. Before torch._scaled_mm operands are padded (Accelerate's own config alone)
// and laid out as the kernel needs them (float8_ops.py, preprocess_addmm).
#pragma once

#include "planner/stacks/pytorch/modules.h"

namespace plimsoll::planner::pytorch {

struct Float8Names {
  struct Cast {
    const char *values, *scale;
  };
  Cast input, weight, grad;  // grad: of the result
  Cast grad_of_columns, input_of_columns;  // for the weight's gradient
  const char* product;  // before the bias is added
};
const Float8Names& float8_names(const char* name);

class Float8Writer {
 public:
  // `input`: the dtype of what the linear reads.
  Float8Writer(ModuleWriter& writer, const LinearNames& names, const LinearPart& part, DType input)
      : w_(writer),
        names_(names),
        eight_(float8_names(names.base.module)),
        part_(part),
        input_(input) {}

  // `stops`: a recomputation, which saves what it read when all has run and ends in front of the
  // bias; `kept`: its GEMM's result is there.
  void forward(Ref input, Category category, bool stops, bool kept, GemmSaved& s);
  Sum backward(bool input_grad, const GemmSaved& s, TensorId d_out, Sum sum, const Place& at);

 private:
  enum class Over : std::uint8_t { all, rows, columns };  // whose values share a scale
  struct Source {
    SymInt rows, columns;
    DType dtype;
    DType to = DType::fp8_e4m3;
    Over over = Over::all;
    bool transposed = false;  // read as the transpose of what is stored
  };
  struct Operand {
    TensorId values = kNoTensor, scale = kNoTensor;
    Over over = Over::all;
  };
  struct Product {
    SymInt m, n, k;
    DType out;
    bool fast;  // use_fast_accum
    bool lays_out_a, lays_out_b;
  };
  Operand cast(const Float8Names::Cast& names, const Source& source, Ref from);
  OpBuilder multiply(const Operand& a, const Operand& b, const Product& product, Ref out);
  void bias_backward(TensorId d_out);
  Sum return_input(TensorId d_in, Sum sum, const Place& at);
  Source of_input(Over over) const;
  Source of_weight(Over over, bool backward) const;
  Source of_grad(Over over) const;
  bool by_rows() const { return w_.strategy_.fp8_recipe != models::Fp8Recipe::tensorwise; }
  bool pads() const { return !by_rows() && models::is_transformers(w_.strategy_.code); }
  bool wide_gradient() const {
    return w_.strategy_.fp8_recipe == models::Fp8Recipe::rowwise_with_gw_hp;
  }
  // FSDP2 gathers weights that are cast: the module's is one.
  bool weight_is_cast() const { return w_.strategy_.fp8_all_gather; }
  Operand cast_weight(Over over, bool backward) {
    return weight_is_cast() ? Operand{} : cast(eight_.weight, of_weight(over, backward), {});
  }
  SymInt tokens() const { return w_.tokens_.total(); }
  SymBytes fp32(SymInt values) const { return w_.fp32(values); }

  ModuleWriter& w_;
  const LinearNames& names_;
  const Float8Names& eight_;
  const LinearPart& part_;
  DType input_;
};

}  // namespace plimsoll::planner::pytorch

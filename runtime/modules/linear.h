// A GEMM with a weight, and with the adapter beside it.
#pragma once

#include "models/decisions/float8.h"
#include "models/decisions/names.h"
#include "runtime/modules/operand.h"
#include "runtime/parameter.h"

namespace plimsoll::runtime {

// The scratch of a GEMM's op; other scratch of the op stands behind it.
TensorView gemm_panels(Worker& worker);
Bytes gemm_scratch(const Worker& worker);

// A matrix cast to 8 bits, as it lies and turned, or one of the two (models/decisions/float8.h).
struct Float8Cast {
  Tensor values, transposed;
  Tensor own_scale;  // of a gradient of a result alone
  TensorView scale;

  kernels::Float8Matrix straight() const { return {values.view(), scale}; }
  kernels::Float8Matrix turned() const { return {transposed.view(), scale}; }
  void die_with(Op& op);
};
struct Float8Ways {
  bool straight = false, turned = false;
};
// Where the scale of a cast is: one of its tensors, or in the runtime's, where it may be `known`.
struct Float8Scale {
  TensorView kept;
  bool known = false;
};
// Made within `op`, a scale of its own first.
Float8Cast cast_to_float8(Worker& worker, Op& op, const models::decisions::Float8Names& names,
                          ConstTensorView x, DType to, Float8Ways ways, Float8Scale scale = {});

// Each method is one op or, for an adapter, a few. x [T, in], y [T, out], a = x · A [T, r]. The
// adapter's product comes first, and the weight's adds to it: that one is bound by arithmetic, and
// takes no longer where it adds (683 us either way, an H100's; the adapter's 460 instead of 168).
class Linear {
 public:
  // `stream`: of the adapter's dropout. `names` and `worker` outlive it.
  Linear(Worker& worker, const models::decisions::LinearNames& names,
         const LinearParameters& parameters, std::uint32_t stream)
      : worker_(worker), names_(names), parameters_(parameters), stream_(stream) {}

  // Whether its products have operands of 8 bits: then `input8` and the methods that end in 8 take
  // the place of forward, backward_weight and backward_input.
  bool in_float8() const {
    return models::decisions::in_float8(worker_.regime, parameters_.in, parameters_.out);
  }
  // An op of its own, for all linears that read x; the first of them asks, in backward too.
  Float8Cast input8(Operand x, models::Phase phase, Float8Ways ways);
  // `last`: x dies with the op.
  Tensor forward8(Float8Cast& x, bool last, const char* out);
  // The result's gradient, which dies with the op unless the bias wants it: as it lies where the
  // `input` has a gradient, turned where the weight has one; none where neither has.
  Float8Cast gradient8(Operand d_y, bool input);
  // Adds to the gradient of the weight, from what is turned, and to the bias's, from `d_y`. `last`:
  // x8 dies with the op.
  void backward_weight8(Operand d_y, Float8Cast& d_y8, Float8Cast& x8, bool last);
  void backward_input8(Float8Cast& d_y8, const char* name, Tensor& d_x);
  bool trains_weight() const { return parameters_.weight.trains(); }

  bool adapted() const { return static_cast<bool>(parameters_.lora_a); }
  // Its weight or its bias.
  bool trains_own() const { return parameters_.weight.trains() || parameters_.bias.trains(); }
  // For the gradient of its weight, or of the adapter's.
  bool reads_input() const { return parameters_.weight.trains() || adapted(); }

  // y, under the name `out`; a stays in `saved` where it `leaves` one.
  Tensor forward(Operand x, const char* out, bool leaves, Tensor& saved);
  // a alone: what backward reads of a GEMM whose result nobody needs.
  Tensor adapter(Operand x);

  // The adapter's part, first: adds to B's gradient and returns a's, or none.
  Tensor backward_adapter(Operand d_y, Tensor a);
  // Adds to the gradients of weight and bias, then of A. `d_a` of backward_adapter.
  void backward_weight(Operand d_y, Operand x, Operand d_a);
  // Both of the above; `d_y` dies where no `input` gradient is wanted. Returns a's, which then is
  // dead too.
  Tensor backward_parameters(Gradient& d_y, Operand x, Tensor a, bool input);
  // Of x: made under `name` where `d_x` is none, else added to it.
  void backward_input(Operand d_y, Operand d_a, const char* name, Tensor& d_x);

  Bytes workspace() const;

 private:
  kernels::Dropout dropout() const;
  bool drops() const { return parameters_.lora_dropout > 0; }
  Tensor dropped(Operand x, models::Phase phase);
  // A or B as GEMMs read it: in the compute dtype, in the workspace behind the panels.
  ConstTensorView cast(const Parameter& parameter);
  void backward_a(Operand x, Operand d_a);
  // The adapter's part of x's gradient: written where it is the `first`, else added.
  void backward_adapter_input(Op& op, Operand d_a, bool first, Tensor& d_x);
  // The weight as GEMMs read it; a packed one is made anew in `made`, which dies with the op.
  ConstTensorView weight(Op& op, Tensor& made);
  // Of the input or of the weight; known in backward, which casts what forward has cast.
  Float8Scale scale8(std::int64_t first, bool backward) const;
  kernels::Float8Matrix weight8(Op& op, Float8Cast& made, bool backward);
  void backward_bias(Operand d_y);

  Worker& worker_;
  const models::decisions::LinearNames& names_;
  LinearParameters parameters_;
  std::uint32_t stream_;
};

}  // namespace plimsoll::runtime

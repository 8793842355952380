// A parameter as a module sees it. Who stores, gathers and reduces it is not the module's business.
#pragma once

#include <vector>

#include "kernels/packed_weights.h"
#include "runtime/tensor.h"

namespace plimsoll::runtime {

// The parameters of one unit (models/decisions/sharding.h), by their index in it.
class ParameterStore {
 public:
  virtual ~ParameterStore() = default;
  // The whole parameter. Error{internal}: it is not gathered.
  virtual ConstTensorView value(std::size_t index) const = 0;
  // The same of a packed one; none: it is not packed.
  virtual kernels::PackedWeight packed(std::size_t) const { return {}; }
  // The whole gradient of this micro-batch's backward, to add into. The first call, inside the op
  // that writes, allocates the unit's gradients and sets them to 0.
  virtual TensorView gradient(std::size_t index) = 0;
};

// None by default: the model has no such parameter.
class Parameter {
 public:
  Parameter() = default;
  Parameter(ParameterStore& store, std::size_t index, bool trains)
      : store_(&store), index_(index), trains_(trains) {}

  explicit operator bool() const { return store_ != nullptr; }
  bool trains() const { return trains_; }
  ConstTensorView value() const { return store_ ? store_->value(index_) : ConstTensorView{}; }
  kernels::PackedWeight packed() const {
    return store_ ? store_->packed(index_) : kernels::PackedWeight{};
  }
  // None where it is not trained.
  TensorView gradient() const { return trains_ ? store_->gradient(index_) : TensorView{}; }

 private:
  ParameterStore* store_ = nullptr;
  std::size_t index_ = 0;
  bool trains_ = false;
};

// A GEMM's. Adapters: y += scale · (x · Aᵀ) · Bᵀ, A [rank, in], B [out, rank].
struct LinearParameters {
  Parameter weight, bias;
  bool transposed = false;  // weight stored [in, out]
  Parameter lora_a, lora_b;
  float lora_scale = 1;
  float lora_dropout = 0;
  std::int64_t in = 0, out = 0, lora_rank = 0;
  // fp32 [kFloat8ScaleWords] of models/decisions/float8.h, where products have operands of 8 bits.
  TensorView float8_scales;
};

struct NormParameters {
  Parameter weight, bias;
  std::int64_t width = 0;
};

// Of all experts: gate_up [E, 2f, h], down [E, h, f].
struct ExpertsParameters {
  Parameter gate_up, down;
};

// A layer's, by the place of a module among its block's linears, norms or experts.
struct LayerParameters {
  std::vector<LinearParameters> linears;
  std::vector<NormParameters> norms;
  std::vector<ExpertsParameters> experts;
};

}  // namespace plimsoll::runtime

// Signatures of the optimizer, the gradient's norm and plain copies; conventions in
// kernels/kernel_table.h.
#pragma once

#include <span>

#include "kernels/dynamic_map.h"
#include "kernels/philox.h"
#include "kernels/tensor_view.h"

namespace plimsoll::kernels {

// What one optimizer op updates in place: n elements of a flat part, of which the first has the
// global index `first_element`.
//
// With a master (fp32) the step is taken on it and the weight is its rounding (to nearest). Without
// one a 16-bit weight is rounded stochastically, and so are 16-bit moments, or a second moment that
// decays by less than half its spacing would never decay. Words 0, 1, 2 of
// random_block(key, global index) round weight, first and second moment.
//
// Moments in 8 bits (uint8; all of an op's or none) are codes of kernels/dynamic_map.h, with a sign
// the first, without the second. Their blocks begin at the first of the n elements; what the step
// makes of a moment goes into the weight before it is coded. Bytes and scales that are all 0 are
// moments of 0.
struct OptimizerTensors {
  TensorView weight;
  TensorView master;  // fp32, or none
  TensorView first_moment;  // or none: plain SGD
  TensorView second_moment;  // AdamW only
  // Of moments in 8 bits: fp32 [ceil(n / kStateBlock)]; none of others.
  TensorView first_scales = {}, second_scales = {};
  ConstTensorView gradient;
  ConstTensorView
      factor;  // fp32 [1]: the gradient counts times this (clip, 1 / loss scale); none: 1
  ConstTensorView overflow;  // int32 [1]: not 0, nothing is changed; none: 0
  std::uint64_t first_element = 0;
  RandomKey key;
};

struct AdamW {
  float learning_rate = 1e-3f;
  float beta1 = 0.9f, beta2 = 0.999f;
  float eps = 1e-8f;
  float weight_decay = 0.01f;
  std::int64_t step = 1;  // counts from 1: bias corrections 1 - beta^step
};

struct Sgd {
  float learning_rate = 1e-3f;
  float momentum = 0;
  float weight_decay = 0;
};

struct Lion {
  float learning_rate = 1e-4f;
  float beta1 = 0.9f, beta2 = 0.99f;
  float weight_decay = 0;
};

// Part of a tensor: those of its elements from `first` on; sums: fp64, all of the tensor's.
struct SquaredPiece {
  ConstTensorView piece;
  std::int64_t first = 0;
  TensorView sums;
};

struct OptimizerKernels {
  // Loshchilov, Hutter, arXiv 1711.05101, in PyTorch's order: w -= lr · wd · w; m = b1 m + (1-b1)
  // g; v = b2 v + (1-b2) g²; w -= lr / (1 - b1^t) · m / (sqrt(v) / sqrt(1 - b2^t) + eps).
  void (*adamw)(const OptimizerTensors& tensors, const AdamW& options);
  // g += wd · w; m = momentum · m + g (from 0); w -= lr · m, or lr · g without a moment.
  void (*sgd)(const OptimizerTensors& tensors, const Sgd& options);
  // Chen et al., arXiv 2302.06675, algorithm 2, the decay first: w -= lr · wd · w;
  // w -= lr · sign(b1 m + (1-b1) g), sign(0) = 0; m = b2 m + (1-b2) g.
  void (*lion)(const OptimizerTensors& tensors, const Lion& options);

  // Squares of elements in fp64, for all of `pieces` one sum for each `chunk` elements of the
  // *whole* tensor. Each sum goes on from the value that it has, in the order of the elements:
  // where a chunk is cut between two ranks, the second goes on from the first's value and the bits
  // are those of the whole. No two of `pieces` have a sum in common.
  void (*sum_of_squares)(std::span<const SquaredPiece> pieces, std::int64_t chunk);
  // totals[i] = the sum, in order, of the sums from ends[i - 1] (0 of the first) to before ends[i];
  // both fp64, ends ascend to at most the number of sums.
  void (*total)(ConstTensorView sums, std::span<const std::int64_t> ends, TensorView totals);
  // From the sum of squares of gradients that carry `loss_scale`: norm fp32 [1] =
  // sqrt(squares) / loss_scale; overflow int32 [1] = 1 where it is inf or NaN, else 0;
  // factor fp32 [1] = min(1, max_norm / (norm + 1e-6)) / loss_scale as torch's clip_grad_norm_;
  // max_norm 0: no clipping. On overflow factor is 0.
  void (*clip)(ConstTensorView squares, float max_norm, float loss_scale, TensorView norm,
               TensorView factor, TensorView overflow);

  // y = x in y's dtype, rounded to nearest even.
  void (*cast)(ConstTensorView x, TensorView y);
  // y += x, rounded to y's dtype once.
  void (*add)(ConstTensorView x, TensorView y);
  // y *= factor.
  void (*scale)(float factor, TensorView y);
  // All elements of y become `value`; a storage type or int32.
  void (*fill)(float value, TensorView y);
};

}  // namespace plimsoll::kernels

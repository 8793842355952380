// Signatures of the ops of a layer; conventions in kernels/kernel_table.h.
#pragma once

#include "kernels/philox.h"
#include "kernels/tensor_view.h"

namespace plimsoll::kernels {

// Element e of the op's tensor is dropped when the number of global element `first_element` + e is
// below `rate`; what stays is multiplied by 1 / (1 - rate). Rate 0 draws nothing.
// Number of element i: word i mod 4 of random_block(key, i / 4), times 2^-32.
struct Dropout {
  float rate = 0;
  RandomKey key;
  std::uint64_t first_element = 0;
};

enum class Activation : std::uint8_t { gelu_tanh, gelu_erf, relu, silu };

struct LinearOptions {
  bool transposed = false;  // weight stored [in, out] (GPT-2's Conv1D), not [out, in]
  bool accumulate = false;  // the result is added to what is there, rounded once
  float scale = 1;  // of the GEMM (an adapter's alpha / rank), not of the bias
};

// Frequencies of the rotation. Llama 3 (Hugging Face rope_type "llama3"): wave lengths above
// `original_positions` / low_factor are stretched by `factor`, those below
// `original_positions` / high_factor stay, between them the two are blended. Factor 1: none of it.
struct RotaryFrequencies {
  double theta = 10000;
  double factor = 1, low_factor = 1, high_factor = 4;
  std::int64_t original_positions = 8192;
};

struct LayerKernels {
  // out[t, :] = drop(table[ids[t], :] + positions[t mod length, :]).
  // ids int32 [T]; table [V, h]; positions [P, h] with P >= length, or none; out [T, h].
  // Error{bad_input}: an id outside of the table.
  void (*embedding_forward)(ConstTensorView ids, ConstTensorView table, ConstTensorView positions,
                            std::int64_t length, const Dropout& dropout, TensorView out);
  // Masks d_out [T, h] in place as the forward dropped, then adds its rows to d_table [V, h] and
  // d_positions [P, h] (either may be none): tokens of one row are summed in fp32 in their order.
  // sorted: int32 [4, T], scratch.
  void (*embedding_backward)(ConstTensorView ids, std::int64_t length, const Dropout& dropout,
                             TensorView d_out, TensorView d_table, TensorView d_positions,
                             TensorView sorted);

  // y = (x - mean) / sqrt(var + eps) · weight + bias; mean and var (biased) of each row.
  // x, y [R, w]; y may be x; weight, bias (or none) [w]; statistics fp32 [R, 2]: mean and
  // 1 / sqrt(var + eps), or none.
  void (*layer_norm_forward)(ConstTensorView x, ConstTensorView weight, ConstTensorView bias,
                             float eps, TensorView y, TensorView statistics);
  // y again from x and the statistics: the same bits.
  void (*layer_norm_again)(ConstTensorView x, ConstTensorView statistics, ConstTensorView weight,
                           ConstTensorView bias, TensorView y);
  // With n the normalized x and g = d_y · weight: dx = (g - mean(g) - n · mean(g · n)) / std.
  // d_x [R, w] becomes dx, or d_x + dx where `accumulate`; it may be d_y, or none.
  // Adds sum(d_y · n) to d_weight [w] and sum(d_y) to d_bias [w]; either may be none.
  // partial: fp32 [2, P, w] scratch where one of the two is wanted: row r is summed in partial
  // r mod P, partials one after another; P decides the rounding.
  void (*layer_norm_backward)(ConstTensorView x, ConstTensorView statistics, ConstTensorView weight,
                              ConstTensorView d_y, bool accumulate, TensorView d_x,
                              TensorView d_weight, TensorView d_bias, TensorView partial);

  // y = x / sqrt(mean(x^2) + eps) · (offset + weight); statistics fp32 [R]: 1 / sqrt(...).
  // Otherwise as above. offset: 0, or 1 (Gemma). The norms of q and k (Qwen3) are this one with x
  // as [T · heads, head_dim].
  void (*rms_norm_forward)(ConstTensorView x, ConstTensorView weight, float offset, float eps,
                           TensorView y, TensorView statistics);
  void (*rms_norm_again)(ConstTensorView x, ConstTensorView statistics, ConstTensorView weight,
                         float offset, TensorView y);
  // dx = (g - n · mean(g · n)) / rms; partial fp32 [P, w].
  void (*rms_norm_backward)(ConstTensorView x, ConstTensorView statistics, ConstTensorView weight,
                            float offset, ConstTensorView d_y, bool accumulate, TensorView d_x,
                            TensorView d_weight, TensorView partial);

  // y = scale · x · weightᵀ + bias. x [T, in]; weight [out, in]; bias [out] or none; y [T, out].
  // With `accumulate` y += all that. Rows of y and d_y may be wider. panels: fp32 [n], scratch
  // where an operand has 16 bits, n >= 3; its size decides the tiles, and so the rounding.
  void (*linear_forward)(ConstTensorView x, ConstTensorView weight, ConstTensorView bias,
                         const LinearOptions& options, Columns y, TensorView panels);
  // d_x [T, in] = scale · d_y · weight.
  void (*linear_backward_input)(ConstColumns d_y, ConstTensorView weight,
                                const LinearOptions& options, TensorView d_x, TensorView panels);
  // d_weight [out, in] = scale · d_yᵀ · x.
  void (*linear_backward_weight)(ConstColumns d_y, ConstTensorView x, const LinearOptions& options,
                                 TensorView d_weight, TensorView panels);
  // y [T, out] += bias [out], in place.
  void (*bias_add)(ConstTensorView bias, TensorView y);
  // d_bias [out] += sum of the rows of d_y [T, out]; partial fp32 [P, out] as in the norms.
  void (*bias_backward)(ConstColumns d_y, TensorView d_bias, TensorView partial);

  // table fp32 [2, length, d / 2]: cosines, then sines, of position · frequency (both in fp32, as
  // Transformers computes them); d even.
  void (*rotary_table)(const RotaryFrequencies& frequencies, TensorView table);
  // In place, x [T, heads · d]: of each head, elements i and i + d / 2 are turned by the angle of
  // position t mod length and frequency i. `backward` turns back, which is the gradient.
  void (*rotary)(ConstTensorView table, bool backward, Columns x);

  // p = act(x), elementwise; p may be x. tanh: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)));
  // silu: x / (1 + exp(-x)).
  void (*activation_forward)(Activation kind, ConstTensorView x, TensorView p);
  // In place: x becomes the gradient d_p · act'(x), and d_p becomes p = act(x).
  void (*activation_backward)(Activation kind, TensorView x, TensorView d_p);
  // p [T, w] = act(gate) · up, p may be gate. Gate and up may be columns of one tensor.
  void (*gated_forward)(Activation kind, ConstColumns gate, ConstColumns up, TensorView p);
  // In place: gate and up become their gradients, and d_p becomes p.
  void (*gated_backward)(Activation kind, Columns gate, Columns up, TensorView d_p);

  // y = drop(y) + x, in place: the sum into the residual stream.
  void (*residual_add)(ConstTensorView x, const Dropout& dropout, TensorView y);
  // In place: d becomes d + e, and e drop(d): the gradients of the stream, to which another reader
  // of it has left e, and of the branch.
  void (*residual_backward)(const Dropout& dropout, TensorView d, TensorView e);
  // y = drop(x), or y += drop(x) where `accumulate`; y may be x. It is its own gradient.
  void (*dropout)(ConstTensorView x, const Dropout& dropout, bool accumulate, TensorView y);
};

}  // namespace plimsoll::kernels

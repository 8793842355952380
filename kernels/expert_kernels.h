// Signatures of the ops of a mixture of experts; conventions in kernels/kernel_table.h.
#pragma once

#include "kernels/layer_kernels.h"

namespace plimsoll::kernels {

// Which experts a token visits. E experts, k of them for each of T tokens: n = T · k pairs, of
// which p belongs to token p / k. An expert's rows are its pairs in their order, one expert after
// another. All int32.
struct Routes {
  TensorView offsets;  // [E + 1]: the first row of each expert, and how many rows there are
  TensorView chosen;  // [n]: the expert of a pair
  TensorView pairs;  // [n]: the pair of a row
  TensorView places;  // [n]: the row of a pair
  std::int64_t active = 1;  // k

  std::int64_t experts() const { return offsets.elements() - 1; }
  std::int64_t rows() const { return pairs.elements(); }
  std::int64_t tokens() const { return rows() / active; }
};
constexpr std::int64_t routes_elements(std::int64_t experts, std::int64_t pairs) {
  return experts + 1 + 3 * pairs;
}
// The four of them, one after another in `all` [routes_elements].
inline Routes routes_in(TensorView all, std::int64_t experts, std::int64_t active) {
  const std::int64_t n = (all.elements() - experts - 1) / 3, first = experts + 1;
  const TensorView flat = all.as({all.elements()});
  return {flat.rows(0, first), flat.rows(first, n), flat.rows(first + n, n),
          flat.rows(first + 2 * n, n), active};
}

// An operand of a grouped GEMM: a row for each row of the experts, or for each token, whose rows
// are those of its pairs.
struct RoutedRows {
  ConstTensorView view;
  bool by_token = false;
};

struct ExpertKernels {
  // The k largest logits of each token, the first where some are equal; scores fp32 [n] are the
  // softmax over all experts, with `normalizes` over the chosen ones. logits [T, E]. Fills
  // `routes`.
  void (*route)(ConstTensorView logits, bool normalizes, const Routes& routes, TensorView scores);
  // d_logits [T, E] from d_scores fp32 [n]. logits: none where `normalizes`.
  void (*route_backward)(ConstTensorView logits, bool normalizes, const Routes& routes,
                         ConstTensorView scores, ConstTensorView d_scores, TensorView d_logits);

  // y [n, out] = x · weight[e]ᵀ, e the row's expert. weight [E, out, in]. panels: as of
  // linear_forward.
  void (*experts_forward)(const Routes& routes, RoutedRows x, ConstTensorView weight, TensorView y,
                          TensorView panels);
  // d_x [n, in] = d_y · weight[e].
  void (*experts_backward_input)(const Routes& routes, RoutedRows d_y, ConstTensorView weight,
                                 TensorView d_x, TensorView panels);
  // d_weight[e] [out, in] += the sum over its rows of d_yᵀ · x.
  void (*experts_backward_weight)(const Routes& routes, RoutedRows d_y, RoutedRows x,
                                  TensorView d_weight, TensorView panels);
  // y [T, w] = the sum of a token's rows; y += that where `accumulate`.
  void (*experts_sum)(const Routes& routes, ConstTensorView rows, bool accumulate, TensorView y);

  // p [n, w] = score · act(gate) · up: gate and up side by side in `gate_up` [n, 2w].
  void (*scored_gate_forward)(Activation kind, const Routes& routes, ConstTensorView gate_up,
                              ConstTensorView scores, TensorView p);
  // In place: gate and up become their gradients and d_p becomes p; d_scores fp32 [n], or none, is
  // the sum over the row of d_p · act(gate) · up.
  void (*scored_gate_backward)(Activation kind, const Routes& routes, TensorView gate_up,
                               ConstTensorView scores, TensorView d_p, TensorView d_scores);
};

}  // namespace plimsoll::kernels

// Final norm, head and loss (models/decisions/loss.h).
#pragma once

#include "runtime/modules/linear.h"
#include "runtime/modules/norm.h"
#include "runtime/modules/settings.h"

namespace plimsoll::runtime {

struct HeadParameters {
  NormParameters norm;
  Parameter head;  // [V, h]; tied: the token table
};

struct LossFactors {
  float gradient = 1;  // of the sum of the tokens' losses, loss scale included
  double loss = 1;
};

// Ops stand behind the worker's prefix, which is empty here; it moves it for chunks.
class Head {
 public:
  // `below`: something below the final norm is trained.
  Head(Worker& worker, const ModelSettings& settings, const HeadParameters& parameters, bool below);

  // From the stream after the last layer [T, h] to the loss: `loss` fp64 [1] += factor · the sum
  // over the tokens. targets int32 [T], kIgnoreIndex does not count. Fused: the head's gradients
  // too. The trainer may run ops of its own before `backward`.
  void forward(Tensor x, ConstTensorView targets, const LossFactors& factors, TensorView loss);
  // The gradient of the stream after the last layer; none without anything trained below.
  Tensor backward(ConstTensorView targets);

  // [T, V] alone, for who wants to see them. `x` stays the caller's.
  Tensor logits(Tensor& x);
  // The largest scratch that one of its ops needs.
  Bytes workspace() const;

 private:
  Tensor normalize(Tensor x, bool saves);
  void forward_full(ConstTensorView targets, const LossFactors& factors);
  void forward_chunks(ConstTensorView targets, const LossFactors& factors);
  void backward_chunks(ConstTensorView targets);
  void loss_sum(double factor, TensorView loss);
  // Of all rows, or of a chunk's, of which it is the last.
  Tensor product(models::Phase phase, std::int64_t first, std::int64_t rows, bool last_reader);
  void weight_gradient(ConstTensorView d_logits, std::int64_t first, bool last_reader);
  template <class Visit>
  void in_chunks(Visit visit);

  Worker& worker_;
  const ModelSettings& settings_;
  Norm norm_;
  LinearParameters head_;
  NormWants norm_wants_;
  LinearWants head_wants_;
  // Between forward and backward.
  Tensor x_, statistics_, normalized_, logits_, rows_, logsumexp_;
  LossFactors factors_;
};

}  // namespace plimsoll::runtime

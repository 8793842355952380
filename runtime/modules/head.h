// Final norm, head and loss (models/decisions/loss.h).
#pragma once

#include "runtime/modules/norm.h"
#include "runtime/modules/settings.h"

namespace plimsoll::runtime {

struct HeadParameters {
  NormParameters norm;
  Parameter head;  // [V, h]; tied: the token table
  Parameter bias;  // [V], or none
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
  // over the tokens. targets int32 [T]; kIgnoreIndex does not count. Fused: the head's gradients
  // too. The trainer may run ops of its own before `backward`.
  void forward(Tensor x, ConstTensorView targets, const LossFactors& factors, TensorView loss);
  // The gradient of the stream after the last layer; none without anything trained below.
  Tensor backward(ConstTensorView targets);

  // Alone, for who wants to see them: [T, models::decisions::logits_stride]. `x` stays the
  // caller's.
  Tensor logits(const Tensor& x);
  // The largest scratch that one of its ops needs.
  Bytes workspace() const;

 private:
  bool full() const { return settings_.loss == models::Loss::full; }
  bool chunked() const { return settings_.loss == models::Loss::chunked; }
  bool norm_wanted() const { return below_ || norm_.trains(); }
  bool wanted() const { return trains_ || norm_wanted(); }
  bool last(std::int64_t first, std::int64_t rows) const {
    return first + rows == worker_.tokens();
  }
  // Visits (first row, rows) behind the prefix of each chunk; full: all of them, behind none.
  template <class Visit>
  void in_chunks(Visit visit);
  // Of `rows` rows from `first` on. All chunks use one buffer of logits.
  kernels::Columns logits_of(std::int64_t rows);
  void gemm(Operand normalized, Phase phase);
  void loss(ConstTensorView targets, std::int64_t first, std::int64_t rows);
  void loss_again(ConstTensorView targets, std::int64_t first, std::int64_t rows);
  // From the logits' gradient to the head's and the normalized stream's.
  void backward_gemm(std::int64_t first, std::int64_t rows);
  void weight_gradient(Operand logits, std::int64_t first);
  void input_gradient(Operand logits, std::int64_t first);

  Worker& worker_;
  const ModelSettings& settings_;
  Norm norm_;
  Parameter head_, bias_;
  bool below_;  // the gradient of the stream is wanted
  bool trains_;  // the head, or its bias
  // From forward to backward.
  LossFactors factors_;
  Tensor x_, statistics_, normalized_, logits_, rows_, logsumexp_;
  Tensor d_;  // of the normalized stream; chunks write it over that
};

}  // namespace plimsoll::runtime

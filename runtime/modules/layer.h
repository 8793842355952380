// A layer: attention and MLP, each behind its norm and added to the stream
// (models/decisions/layer.h).
#pragma once

#include "models/decisions/names.h"
#include "runtime/modules/attention.h"
#include "runtime/modules/mlp.h"
#include "runtime/modules/norm.h"
#include "runtime/modules/sites.h"

namespace plimsoll::runtime {

// What forward leaves for backward. None of what is not wanted.
struct LayerSaved {
  Tensor input_statistics, normalized;
  AttentionSaved attention;
  Tensor between, post_statistics, post_normalized;  // between: the stream after attention
  MlpSaved mlp;
};

// Ops of the worker's phase, behind the worker's prefix; the caller sets both.
class Layer {
 public:
  // `rotary_table`: fp32 [2, length, head_dim / 2], or none. `worker` and `settings` outlive it.
  Layer(Worker& worker, const ModelSettings& settings, const LayerParameters& parameters,
        std::int64_t index, ConstTensorView rotary_table);

  // The stream after the layer, from `x` [T, h] before it. `x` stays the caller's, unless
  // `consume_x`: then it dies with its last reader. `last_of_checkpoint`: values are made again and
  // nothing after the layer reads them; ends with the last one that backward reads, returns none.
  Tensor forward(Tensor& x, bool consume_x, const Wants& wants, bool last_of_checkpoint,
                 LayerSaved& saved);

  // `x`: what forward read, where wants.reads_input(); else none. `d` [T, h], the gradient of the
  // stream, is updated in place; without anything wanted below it dies with its last reader.
  void backward(Tensor x, Tensor& d, LayerSaved saved, const Wants& wants);

  // The largest scratch that one of its ops needs.
  Bytes workspace(const Wants& wants) const;

 private:
  kernels::Dropout dropout(Site site) const;
  // Of a branch's result, from the stream's: that itself, or a masked copy.
  Gradient branch(Tensor& d, bool keeps_d, Site site);
  void backward_mlp(Tensor& d, LayerSaved& saved, const Wants& wants);
  void backward_attention(Tensor& x, Tensor& d, LayerSaved& saved, const Wants& wants);

  Worker& worker_;
  const ModelSettings& settings_;
  std::int64_t index_;
  const models::decisions::LayerNames& names_;
  Norm input_norm_, post_norm_;
  Attention attention_;
  Mlp mlp_;
};

}  // namespace plimsoll::runtime

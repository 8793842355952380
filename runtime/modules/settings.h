// What every module of a model needs to know beside its own parameters.
#pragma once

#include "kernels/kernel_table.h"
#include "models/decisions/layer.h"
#include "models/decoder.h"
#include "models/numerics.h"
#include "models/run_spec.h"

namespace plimsoll::runtime {

struct ModelSettings {
  models::Decoder decoder;
  float norm_eps = 1e-5f;
  // The second: of layers with the window, where Decoder::local_rotary says so.
  kernels::RotaryFrequencies rotary, local_rotary;
  float attention_scale = 1;  // of q · k
  float embedding_scale = 1, residual_scale = 1, logits_scale = 1;
  float attention_cap = 0, logits_cap = 0;  // 0: none
  models::decisions::Keeps keeps;
  models::Attention attention = models::Attention::flash;
  models::Loss loss = models::Loss::full;

  bool rotates() const { return decoder.position == models::PositionKind::rope; }
};

ModelSettings settings_of(const models::Decoder& decoder, const models::Numerics& numerics,
                          const models::Strategy& strategy);

}  // namespace plimsoll::runtime

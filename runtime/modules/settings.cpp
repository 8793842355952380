#include "runtime/modules/settings.h"

namespace plimsoll::runtime {

namespace {
kernels::RotaryFrequencies frequencies_of(const models::Rotary& rotary) {
  return {rotary.theta, rotary.factor, rotary.low_factor, rotary.high_factor,
          rotary.original_positions};
}
}  // namespace

ModelSettings settings_of(const models::Decoder& decoder, const models::Numerics& numerics,
                          const models::Strategy& strategy) {
  ModelSettings settings;
  settings.decoder = decoder;
  settings.norm_eps = static_cast<float>(numerics.norm_eps);
  if (numerics.rotary) settings.rotary = frequencies_of(*numerics.rotary);
  if (numerics.local_rotary) settings.local_rotary = frequencies_of(*numerics.local_rotary);
  settings.attention_scale = static_cast<float>(numerics.attention_scale);
  settings.embedding_scale = static_cast<float>(numerics.embedding_scale);
  settings.residual_scale = static_cast<float>(numerics.residual_scale);
  settings.logits_scale = static_cast<float>(numerics.logits_scale);
  settings.attention_cap = static_cast<float>(numerics.attention_cap);
  settings.logits_cap = static_cast<float>(numerics.logits_cap);
  settings.keeps = models::decisions::keeps_of(strategy.recompute.kind);
  settings.attention = strategy.attention;
  settings.loss = strategy.loss;
  return settings;
}

}  // namespace plimsoll::runtime

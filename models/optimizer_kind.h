// Optimizers, in the order of the rows of models/optimizers.h.
#pragma once

#include <cstdint>

namespace plimsoll::models {

enum class Optimizer : std::uint8_t {
  adamw,
  sgd,
  momentum,
  adam8bit,
  paged_adam8bit,
  paged_adamw,
  adafactor,
  lion,
  lion8bit,
  paged_lion8bit,
  paged_lion,
  ademamix,
  ademamix8bit,
  paged_ademamix,
  paged_ademamix8bit,
  muon,
  galore,
  galore8bit,
  q_galore,
  lomo,
  torchao_adam8bit,
  torchao_adam4bit,
  torchao_adamfp8,
  schedule_free_adamw,
  schedule_free_sgd,
  schedule_free_radam,
  apollo,
  apollo_mini,
  adam_mini,
  adalomo,
  rmsprop,
  rmsprop_bnb,
  rmsprop8bit,
  adagrad,
  stable_adamw,
  grokadamw,
};

}  // namespace plimsoll::models

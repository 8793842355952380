// Where dropout draws: a stream of random numbers for each place of the model, counted through all
// tokens of the whole job's step.
#pragma once

#include "models/decisions/layer_ops.h"
#include "runtime/worker.h"

namespace plimsoll::runtime {

inline constexpr std::uint32_t kEmbeddingStream = 0;
// Streams from here on belong to the optimizer.
inline constexpr std::uint32_t kFirstOptimizerStream = std::uint32_t{1} << 31;

// `site`: of the layer's (models/decisions/layer_ops.h).
constexpr std::uint32_t stream_of(std::int64_t layer, std::uint8_t site) {
  return static_cast<std::uint32_t>(layer + 1) * models::decisions::kLayerSites + site;
}

// Of a tensor with `elements` for each sequence, of which the worker's micro-batch is a part.
inline kernels::Dropout dropout_at(const Worker& worker, double rate, std::uint32_t stream,
                                   std::int64_t elements) {
  return {static_cast<float>(rate),
          {worker.seed, worker.step, stream},
          static_cast<std::uint64_t>(checked_multiply(worker.first_sequence, elements))};
}

}  // namespace plimsoll::runtime

// What tests of the search ask: a model on some GPUs of a kind, in rows of one length.
#pragma once

#include "models/gpu_catalog.h"
#include "planner/search/search.h"

namespace plimsoll::tests {

// `model` stays.
inline planner::search::Scope scope_of(const models::ModelSpec& model, const char* gpu,
                                       std::int64_t gpus, std::int64_t seq_len) {
  planner::search::Scope scope;
  scope.base.model = &model;
  scope.base.cluster.gpu = models::find_gpu(gpu);
  scope.base.strategy.gpus = scope.gpus = gpus;
  scope.base.batch.seq_len = seq_len;
  return scope;
}

// On A100s of 40 GB that have `memory`, all named alike and without packed bases.
inline planner::search::Scope scope_of(const models::ModelSpec& model, std::int64_t gpus,
                                       std::int64_t seq_len, Bytes memory) {
  planner::search::Scope scope = scope_of(model, "a100-40gb", gpus, seq_len);
  scope.base.cluster.memory = memory;
  scope.fixed = {"gpus", "optimizer-impl"};
  scope.most_concession = planner::search::kMostWithoutPacking;
  return scope;
}

}  // namespace plimsoll::tests

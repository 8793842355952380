// What an axis offers beside what has been chosen so far, for the tests of axes.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "models/gpu_catalog.h"
#include "models/model_catalog.h"
#include "planner/search/axes.h"

namespace plimsoll::planner::search::tests {

using Words = std::vector<std::string>;

inline const Axis& axis_named(std::string_view name) {
  const auto found = std::ranges::find(axes(), name, &Axis::name);
  REQUIRE(found != axes().end());
  return *found;
}

struct Asked {
  models::ModelSpec model;
  Scope scope;
  Setting so_far;

  explicit Asked(std::int64_t gpus = 8, std::int64_t per_node = 8, const char* gpu = "h100",
                 const char* name = "llama-3.2-1b")
      : model(models::catalog_model(name)) {
    scope.base.model = &model;
    scope.base.cluster.gpu = models::find_gpu(gpu);
    scope.base.strategy.gpus = scope.gpus = gpus;
    scope.base.strategy.gpus_per_node = per_node;
    scope.base.batch.seq_len = 1024;
    so_far.strategy = scope.base.strategy;
  }
  models::Strategy& strategy() { return so_far.strategy; }

  std::vector<Setting> choices(std::string_view axis) {
    std::vector<Setting> out;
    axis_named(axis).choices(scope, so_far, out);
    return out;
  }
  Words values(std::string_view axis) {
    Words out;
    for (const Setting& s : choices(axis)) out.push_back(axis_named(axis).value(s));
    return out;
  }
  Words options(std::string_view axis) {
    Words out;
    for (const Setting& s : choices(axis)) out.push_back(axis_named(axis).option(s));
    return out;
  }
  std::vector<int> concessions(std::string_view axis) {
    std::vector<int> out;
    for (const Setting& s : choices(axis)) out.push_back(s.concession);
    return out;
  }
};

}  // namespace plimsoll::planner::search::tests

#include "planner/search/savings.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "models/decisions/mesh.h"
#include "models/zero_stage.h"
#include "planner/search/words.h"
#include "planner/stacks/stack_info.h"

namespace plimsoll::planner::search {

using models::RecomputeKind;
using models::Strategy;

std::string what_frees_memory(const Found& best, Evaluator& evaluator) {
  struct Step {
    std::string option;
    Setting setting;
  };
  std::vector<Step> steps;
  const auto change = [&](std::string option, auto apply) {
    Setting s = best.setting;
    apply(s);
    steps.push_back({std::move(option), std::move(s)});
  };
  const Strategy& s = best.setting.strategy;
  const models::decisions::Mesh mesh = models::decisions::mesh_of(s);
  for (int zero = s.data.zero + 1; mesh.communicates() && zero <= 3; ++zero)
    change(fmt::format("--zero {}", zero), [&](Setting& x) { set_zero(x.strategy, zero); });
  if (models::decisions::shards_in_groups(s))
    change("sharding over all ranks", [](Setting& x) { x.strategy.data.shard_group = 0; });
  if (s.kernels == models::Kernels::eager && stack_info(s.stack).runs_transformers)
    change("--kernels liger", [](Setting& x) {
      x.strategy.kernels = models::Kernels::liger;
      x.strategy.loss = models::Loss::fused;
    });
  if (s.loss != models::Loss::fused)
    change("--loss fused", [](Setting& x) { x.strategy.loss = models::Loss::fused; });
  if (s.recompute.kind == RecomputeKind::none || s.recompute.kind == RecomputeKind::selective)
    change("--recompute full", [](Setting& x) { x.strategy.recompute.kind = RecomputeKind::full; });
  if (best.setting.batch.micro_batch > 1)
    change("--micro-batch 1", [](Setting& x) { x.batch.micro_batch = 1; });
  std::vector<std::pair<Bytes, std::string>> freed;
  for (const Step& step : steps) {
    const std::optional<Need> need = evaluator.need(step.setting, step.setting.batch);
    if (need && need->least() < best.need.least())
      freed.emplace_back(best.need.least() - need->least(), step.option);
  }
  std::ranges::sort(freed, [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text;
  for (const auto& [bytes, option] : freed)
    if (bytes.real() > 0.005 * best.need.least().real())
      text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", option, gib(bytes));
  return text;
}

}  // namespace plimsoll::planner::search

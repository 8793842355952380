#include "planner/search/speed_limit.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "planner/search/axes.h"

namespace plimsoll::planner::search {

namespace {

// Micro-batches of any number of GPUs, smallest first.
std::vector<models::Batch> all_batches(const Scope& scope, Setting family) {
  family.strategy.gpus = 1;
  std::vector<models::Batch> all = batches(scope, family);
  for (models::Batch& batch : all) batch.grad_accum = 1;
  return all;
}

// What the time of a GPU without others depends on.
Setting alone(const Setting& family) {
  Setting s = family;
  s.strategy.gpus = 1;
  s.strategy.gpus_per_node = 1;
  s.strategy.data.shard_group = 0;
  s.strategy.optimizer_impl.reset();
  return s;
}

// Families that differ in other axes (groups, the optimizer's kernels) compute alike, and the
// least memory is that of sharding over all.
using KindKey = std::tuple<int, models::Stack, models::Precision, int, models::RecomputeKind,
                           std::int64_t, models::Kernels, models::Loss, models::Attention>;

KindKey key_of(const Setting& x) {
  const models::Strategy& s = x.strategy;
  return {x.parts,   s.stack, s.precision, s.data.zero, s.recompute.kind, s.recompute.layers,
          s.kernels, s.loss,  s.attention};
}

}  // namespace

void SpeedLimit::Kind::find_fastest() {
  fastest = 0;
  for (const auto& [batch, speed] : speeds) fastest = std::max(fastest, speed);
}

SpeedLimit::SpeedLimit(const Scope& scope, const Space& space, Evaluator& evaluator, int concession,
                       std::int64_t most)
    : space_(space), evaluator_(evaluator) {
  const std::vector<Setting> all = families(scope, {.concession = concession, .gpus = most});
  std::vector<models::Batch> sizes;
  if (!all.empty()) sizes = all_batches(scope, all.front());
  std::set<KindKey> known;
  for (const Setting& family : all) {
    if (!known.insert(key_of(family)).second) continue;
    Kind kind{.setting = family};
    kind.setting.strategy.data.shard_group = 0;  // all of them: the least on each
    const std::int64_t most_tokens = space.most_tokens(family);
    std::vector<models::Batch> some;
    for (const models::Batch& batch : sizes)
      if (some.empty() || batch.tokens() <= most_tokens) some.push_back(batch);
    const std::vector<double> speeds = space.compute_speeds(alone(family), some);
    if (speeds.empty()) continue;
    for (std::size_t i = 0; i < speeds.size(); ++i) kind.speeds.emplace_back(some[i], speeds[i]);
    kind.find_fastest();
    alone_ = std::max(alone_, kind.fastest);
    kinds_.push_back(std::move(kind));
  }
  sort();
}

void SpeedLimit::sort() {
  std::erase_if(kinds_, [](const Kind& kind) { return kind.speeds.empty(); });
  kinds_.sort([](const Kind& a, const Kind& b) { return a.fastest > b.fastest; });
}

bool SpeedLimit::hopeless(const Kind& kind, models::Batch batch) {
  // The structures of a step with one, two and more micro-batches.
  for (batch.grad_accum = 1; batch.grad_accum <= 3; ++batch.grad_accum) {
    const std::optional<Need> need = evaluator_.need(kind.setting, batch);
    ++evaluated_;
    if (!need) return true;  // refused, whatever the batch is
    if (need->peak - need->scratch <= *space_.usable()) return false;
  }
  return true;
}

void SpeedLimit::check(Kind& kind) {
  kind.checked = true;
  if (!space_.usable()) return;
  const auto first_hopeless =
      std::partition_point(kind.speeds.begin(), kind.speeds.end(),
                           [&](const auto& size) { return !hopeless(kind, size.first); });
  kind.speeds.erase(first_hopeless, kind.speeds.end());
  kind.find_fastest();
}

double SpeedLimit::of(std::int64_t gpus, double enough) {
  const auto n = static_cast<double>(gpus);
  if (gpus == 1) return alone_;
  while (!kinds_.empty() && !kinds_.front().checked && n * kinds_.front().fastest >= enough) {
    check(kinds_.front());
    sort();
  }
  return kinds_.empty() ? 0 : n * kinds_.front().fastest;
}

}  // namespace plimsoll::planner::search

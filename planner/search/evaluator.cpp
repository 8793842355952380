#include "planner/search/evaluator.h"

#include "planner/flops.h"
#include "planner/outside.h"

namespace plimsoll::planner::search {

Space::Space(const Scope& scope, const std::vector<Setting>& families) {
  for (const Setting& setting : families) {
    if (setting.parts >= parts_.size()) {
      parts_.resize(setting.parts + 1u);
      times_.resize(setting.parts + 1u);
    }
    if (parts_[setting.parts]) continue;
    parts_[setting.parts] = model_parts(*scope.base.model, setting.strategy);
    times_[setting.parts].emplace(*parts_[setting.parts], scope.base.cluster);
  }
  usable_ = capacity_of(scope.base).usable;
}

// Where the card's rates are not known: its arithmetic alone.
Pace Space::pace(const Setting& setting) const {
  const double tokens = static_cast<double>(setting.tokens_per_step());
  const TimeModel& time = *times_[setting.parts];
  if (time.knows(setting.strategy.precision))
    return {tokens / time(setting.strategy, setting.batch).step, true};
  const StepFlops flops = step_flops(parts(setting), setting.strategy, setting.batch);
  return {tokens * static_cast<double>(setting.strategy.gpus) / flops.hardware, false};
}

Evaluator::Evaluator(const Scope& scope, const Space& space)
    : space_(space), question_(scope.base) {
  question_.detail = Detail::none;
  step_.program_only = true;
}

// The same for all settings with the same communicators.
Bytes Evaluator::outside(const models::Strategy& s) {
  const bool hybrid = s.data.shard_group > 0 && s.data.shard_group < s.gpus && s.data.zero >= 2;
  const auto [entry, is_new] = outside_.try_emplace({s.stack, s.gpus, hybrid});
  if (is_new) entry->second = outside_of(question_).typical.total();
  return entry->second;
}

std::optional<Need> Evaluator::need(const Setting& setting) {
  question_.strategy = setting.strategy;
  question_.batch = setting.batch;
  try {
    write_step(question_, space_.parts(setting), step_);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::unsupported && error.kind() != ErrorKind::bad_input) throw;
    refusal_ = error.message();
    return std::nullopt;
  }
  const Peak peak = finder_.find(step_.program);
  return Need{peak.bytes, outside(setting.strategy), peak.scratch};
}

}  // namespace plimsoll::planner::search

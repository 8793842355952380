#include "planner/remedies.h"

#include <algorithm>
#include <string>

namespace plimsoll::planner {

using models::Attention;
using models::Loss;
using models::Optimizer;
using models::OptimizerImpl;
using models::Precision;
using models::RecomputeKind;
using models::Strategy;

namespace {

struct Change {
  std::string option;
  std::function<void(Question&)> apply;
};

// Ordered by what they cost the user: nothing, then time, then hardware, then numerics.
std::vector<Change> changes_for(const Question& q) {
  const Strategy& s = q.strategy;
  std::vector<Change> out;
  const auto add = [&](std::string option, std::function<void(Question&)> apply) {
    out.push_back({std::move(option), std::move(apply)});
  };
  if (s.attention != Attention::flash)
    add("--attention flash", [](Question& c) { c.strategy.attention = Attention::flash; });
  if (s.optimizer == Optimizer::adamw && s.stack == models::Stack::pytorch &&
      s.optimizer_impl.value_or(OptimizerImpl::foreach) != OptimizerImpl::fused)
    add("--optimizer-impl fused",
        [](Question& c) { c.strategy.optimizer_impl = OptimizerImpl::fused; });
  if (s.loss != Loss::fused)
    add("--loss fused", [](Question& c) { c.strategy.loss = Loss::fused; });
  if (s.gpus > 1)
    for (int zero = s.data.zero + 1; zero <= 3; ++zero)
      add("--zero " + std::to_string(zero), [zero](Question& c) { c.strategy.data.zero = zero; });
  if (s.recompute.kind == RecomputeKind::none && s.attention != Attention::flash)
    add("--recompute selective",
        [](Question& c) { c.strategy.recompute.kind = RecomputeKind::selective; });
  if (s.recompute.kind == RecomputeKind::none || s.recompute.kind == RecomputeKind::selective)
    add("--recompute full", [](Question& c) { c.strategy.recompute.kind = RecomputeKind::full; });
  if (q.batch.micro_batch > 1)
    add("--micro-batch 1 --grad-accum " + std::to_string(q.batch.grad_accum * q.batch.micro_batch),
        [](Question& c) {
          c.batch.grad_accum *= c.batch.micro_batch;
          c.batch.micro_batch = 1;
        });
  if (q.batch.seq_len > 1024)
    add("--seq-len " + std::to_string(q.batch.seq_len / 2),
        [](Question& c) { c.batch.seq_len /= 2; });
  const std::int64_t more = s.gpus < 8 ? 8 : s.gpus * 2;
  add("--gpus " + std::to_string(more) + " --zero 3", [more](Question& c) {
    c.strategy.gpus = more;
    c.strategy.data.zero = 3;
    c.strategy.data.shard_group = 0;
  });
  if (s.precision == Precision::bf16_mixed || s.precision == Precision::fp32)
    add("--precision bf16", [](Question& c) {
      c.strategy.precision = Precision::bf16;
      c.strategy.param_dtype.reset();
      c.strategy.data.reduce_dtype.reset();
    });
  if (!s.lora && s.freeze.empty() && s.train.empty())
    add("--lora-rank 16 --lora-targets all-linear --param-dtype bf16", [](Question& c) {
      c.strategy.lora = models::Lora{.rank = 16, .alpha = 32, .targets = {"all-linear"}};
      if (c.strategy.stack == models::Stack::pytorch) c.strategy.param_dtype = DType::bf16;
    });
  return out;
}

// At least half a per cent: less does not make a plan fit.
bool worth_saying(Bytes before, Bytes after) {
  return (before - after).real() >= 0.005 * before.real();
}

}  // namespace

std::vector<reports::Remedy> find_remedies(const Question& question, Bytes before,
                                           const std::function<Outcome(const Question&)>& replan) {
  std::vector<reports::Remedy> remedies;
  std::vector<Change> useful;
  const auto attempt = [&](const Question& changed) -> std::optional<Outcome> {
    try {
      return replan(changed);
    } catch (const Error&) {
      return std::nullopt;  // a combination that cannot be, or is not modelled
    }
  };
  bool any = false;
  for (Change& change : changes_for(question)) {
    Question changed = question;
    change.apply(changed);
    const std::optional<Outcome> outcome = attempt(changed);
    if (!outcome || !worth_saying(before, outcome->least)) continue;
    remedies.push_back({change.option, before - outcome->least, outcome->device, outcome->fits});
    any = any || outcome->fits;
    useful.push_back(std::move(change));
  }
  if (any) return remedies;
  // Together, in order; of several --zero or --gpus the last one counts.
  Question joined = question;
  std::string options;
  for (const Change& change : useful) {
    if (change.option.starts_with("--zero") && !change.option.ends_with("3")) continue;
    change.apply(joined);
    options += (options.empty() ? "" : " ") + change.option;
    const std::optional<Outcome> outcome = attempt(joined);
    if (!outcome || !outcome->fits) continue;
    remedies.push_back({options, before - outcome->least, outcome->device, true});
    break;
  }
  return remedies;
}

}  // namespace plimsoll::planner

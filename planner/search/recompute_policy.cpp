#include "planner/search/recompute_policy.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "models/decisions/layer.h"
#include "models/recompute.h"
#include "planner/model_parts.h"
#include "planner/program/peak.h"
#include "planner/stack_step.h"
#include "planner/time/hardware_flops.h"
#include "planner/time/step_time.h"

namespace plimsoll::planner::search {

using models::Recompute;
using models::RecomputeKind;

namespace {

// More would be compared for minutes; the widest layer has 8.
constexpr std::size_t kMostKept = 10;

// Each set of what a layer can keep but none (that is `full`).
void add_kept(const models::ModelSpec& model, std::vector<Recompute>& out) {
  std::set<std::string> names;
  for (const auto& block : model.blocks)
    for (const std::string& name : models::keepable(*block)) names.insert(name);
  if (names.size() > kMostKept) return;
  for (std::uint32_t bits = 1; bits < 1u << names.size(); ++bits) {
    Recompute policy{RecomputeKind::ops};
    std::uint32_t bit = 1;
    for (const std::string& name : names) {
      if ((bits & bit) != 0) policy.kept.push_back(name);
      bit <<= 1;
    }
    out.push_back(std::move(policy));
  }
}

std::vector<Recompute> all_policies(const models::ModelSpec& model) {
  std::vector<Recompute> out{
      {RecomputeKind::none}, {RecomputeKind::selective}, {RecomputeKind::full}};
  for (std::int64_t k = 2; k <= model.decoder->layers; ++k)
    out.push_back({RecomputeKind::every, k});
  for (std::int64_t n = 1; n < model.decoder->layers; ++n) out.push_back({RecomputeKind::block, n});
  out.push_back({RecomputeKind::ops, 1, {models::kTorchtitanOps}});
  add_kept(model, out);
  return out;
}

// Adapters on a frozen base need the input's gradient where layers are checkpoints, and some layers
// may be checkpoints where others are not: parts and times are of one kind of policy or another.
class Comparison {
 public:
  Comparison(const Question& question, const std::optional<Bytes>& peak)
      : question_(question), peak_(peak) {
    question_.detail = Detail::none;
    question_.remedies = false;
    limit_ = peak ? *peak : *capacity_of(question).usable;
  }

  struct Policy {
    Recompute recompute;
    double cost = 0;  // seconds, or FLOPs
    Bytes peak;  // of what is requested: at most the plan's
  };
  // Error{unsupported}, {bad_input}: the stack does not plan it.
  Policy bound(const Recompute& recompute) {
    question_.strategy.recompute = recompute;
    const Kind& kind = kind_of(recompute);
    StackStep step;
    step.program_only = true;
    write_step(question_, kind.parts, step);
    Policy out{recompute, 0, PeakFinder().find(step.program).bytes};
    out.cost = kind.time.knows(question_.strategy.precision)
                   ? kind.time(question_.strategy, question_.batch).step
                   : hardware_flops(question_, kind.parts);
    return out;
  }
  bool may_hold(const Policy& policy) const { return policy.peak <= limit_; }
  PolicyCost plan(const Recompute& recompute) {
    question_.strategy.recompute = recompute;
    const reports::Plan plan = planner::plan(question_);
    PolicyCost out{recompute, plan.peak, plan.device, plan.time.step_seconds.value_or(0)};
    out.holds = peak_ ? out.peak <= *peak_ : plan.fits;
    return out;
  }

  // By the peak that is asked about, or what the device holds: policies whose bound is above what
  // another plan needs are not planned.
  PolicyCost least(std::vector<Policy> policies) {
    std::ranges::sort(policies, {}, &Policy::peak);
    const auto need = [&](const PolicyCost& cost) { return peak_ ? cost.peak : cost.device; };
    PolicyCost best = plan(policies.front().recompute);
    for (std::size_t i = 1; i < policies.size() && policies[i].peak < need(best); ++i)
      if (PolicyCost other = plan(policies[i].recompute); need(other) < need(best))
        best = std::move(other);
    return best;
  }

 private:
  struct Kind {
    ModelParts parts;
    TimeModel time;
  };
  const Kind& kind_of(const Recompute& recompute) {
    const bool some = recompute.kind == RecomputeKind::block;  // no policy is nth
    std::unique_ptr<Kind>& kind =
        kinds_[{models::decisions::recomputes_layers(recompute.kind), some ? recompute.layers : 0}];
    if (!kind) {
      const ModelParts parts = model_parts(*question_.model, question_.strategy);
      kind = std::make_unique<Kind>(Kind{parts, TimeModel(parts, question_.cluster)});
    }
    return *kind;
  }

  Question question_;
  std::optional<Bytes> peak_;
  Bytes limit_;
  std::map<std::pair<bool, std::int64_t>, std::unique_ptr<Kind>> kinds_;
};

// The fastest first; of equally fast ones what keeps less (the last GEMM of a layer is never
// computed again: a recomputation stops in front of it).
bool before(const Comparison::Policy& a, const Comparison::Policy& b) {
  return std::tuple(a.cost, a.peak, a.recompute.kept.size(), models::text_of(a.recompute)) <
         std::tuple(b.cost, b.peak, b.recompute.kept.size(), models::text_of(b.recompute));
}

}  // namespace

PolicyChoice cheapest_recompute(const Question& question, const std::optional<Bytes>& peak) {
  check(peak || capacity_of(question).usable, ErrorKind::bad_input,
        "--recompute fit: into what? --gpu or --gpu-memory says how much there is; or --recompute "
        "budget:SIZE");
  Comparison comparison(question, peak);
  std::vector<Comparison::Policy> policies;
  std::optional<Error> refusal;
  for (const Recompute& recompute : all_policies(*question.model)) try {
      policies.push_back(comparison.bound(recompute));
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::unsupported && error.kind() != ErrorKind::bad_input) throw;
      if (!refusal) refusal = error;
    }
  if (policies.empty()) throw Error(*refusal);
  std::ranges::sort(policies, before);
  PolicyChoice out;
  out.compared = std::ssize(policies);
  for (const Comparison::Policy& policy : policies) {
    if (!comparison.may_hold(policy)) continue;
    out.chosen = comparison.plan(policy.recompute);
    if (out.chosen.holds) break;
  }
  if (!out.chosen.holds) out.chosen = comparison.least(policies);
  for (const RecomputeKind kind :
       {RecomputeKind::none, RecomputeKind::selective, RecomputeKind::full})
    if (std::ranges::any_of(policies, [&](const auto& p) { return p.recompute.kind == kind; }))
      out.fixed.push_back(comparison.plan({kind}));
  return out;
}

}  // namespace plimsoll::planner::search

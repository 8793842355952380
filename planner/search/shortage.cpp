#include "planner/search/shortage.h"

#include <algorithm>

#include "models/run_names.h"
#include "planner/search/closest.h"
#include "planner/search/concessions.h"
#include "planner/stacks/stack_info.h"

namespace plimsoll::planner::search {

namespace {

constexpr std::int64_t kMostGpus = 4096;

class Changes {
 public:
  Changes(const Scope& scope, const Control& control) : scope_(scope), control_(control) {
    all_ = scope_.most_concession;
    scope_.most_concession = std::min(all_, kMostWithoutPacking);
  }

  std::vector<WouldFit> take() { return std::move(out_); }

  // Something may fit while the assumed overheads stay at what is typical.
  void less_headroom() {
    if (scope_.overheads == Overheads::typical) return;
    Scope changed = scope_;
    changed.overheads = Overheads::typical;
    attempt(changed, [](const Found&) { return std::string("--min-headroom 0"); });
  }

  void fewer_tokens() {
    Scope changed = scope_;
    changed.most_concession = all_;
    changed.objective = Objective::context;
    attempt(changed,
            [](const Found& f) { return "--seq-len " + std::to_string(f.setting.batch.seq_len); });
  }

  // Twice as many until something fits, then the fewest between; and the same for plans that ask
  // for nothing else.
  void more_gpus() {
    if (scope_.fixed.contains("gpus")) return;
    const int least = fewest_gpus(scope_.most_concession);
    if (least > 0) fewest_gpus(0);
  }

  // The card with the least memory that will do.
  void other_gpu(std::vector<models::Gpu> gpus) {
    std::ranges::stable_sort(gpus, [](const models::Gpu& a, const models::Gpu& b) {
      return a.cuda_total.bytes < b.cuda_total.bytes;
    });
    for (const models::Gpu& gpu : gpus) {
      Scope changed = scope_;
      changed.base.cluster.gpu = gpu;
      changed.base.cluster.memory.reset();
      if (capacity_of(changed.base).usable <= capacity_of(scope_.base).usable) continue;
      if (!attempt(changed, [&](const Found&) { return "--gpu " + gpu.name; })) continue;
      out_.back().gpu = gpu.name;
      return;
    }
  }

 private:
  // The concession of what was found; negative: nothing fits.
  int fewest_gpus(int most_concession) {
    for (std::int64_t n = scope_.gpus * 2; n <= kMostGpus; n *= 2) {
      Scope changed = scope_;
      changed.most_concession = most_concession;
      changed.gpus = n;
      changed.fixed.insert("gpus");
      const std::optional<Found> most = best_of(changed, control_);
      if (!most) continue;
      changed.most_concession = most->setting.concession;
      changed.fixed.erase("gpus");
      changed.objective = Objective::gpus;
      attempt(changed,
              [](const Found& f) { return "--gpus " + std::to_string(f.setting.strategy.gpus); });
      return most->setting.concession;
    }
    return -1;
  }

  template <class Name>
  bool attempt(const Scope& changed, Name name) {
    std::optional<Found> found = best_of(changed, control_);
    if (!found) return false;
    std::string change = name(*found);
    const models::Strategy& s = found->setting.strategy;
    if (found->setting.parts & kOwnAdapters) change += " with LoRA";
    if (concedes(found->setting, kPackedBase)) change += " on a packed base";
    if (s.optimizer != scope_.base.strategy.optimizer) change += " and 8-bit states";
    if (s.offload != scope_.base.strategy.offload) change += ", offloaded";
    if (s.precision == models::Precision::bf16 && s.precision != scope_.base.strategy.precision)
      change += " in pure bf16";
    if (stack_info(s.stack).untried_on_gpus && !scope_.fixed.contains("stack"))
      change += " on stack " + std::string(name_of(s.stack));
    out_.push_back({std::move(change), "", std::move(*found)});
    return true;
  }

  Scope scope_;
  const Control& control_;
  int all_ = 0;  // concessions that the scope allows; more GPUs are looked at with fewer
  std::vector<WouldFit> out_;
};

}  // namespace

Shortage shortage(const Scope& scope, const std::vector<models::Gpu>& other_gpus,
                  const Control& control) {
  Shortage out;
  out.closest = closest(scope);
  if (!out.closest) return out;
  const reports::Plan& plan = out.closest->plan;
  if (plan.usable) out.missing = counted_need(scope, *out.closest) - *plan.usable;
  Changes changes(scope, control);
  changes.less_headroom();
  changes.fewer_tokens();
  changes.more_gpus();
  changes.other_gpu(other_gpus);
  out.would_fit = changes.take();
  return out;
}

}  // namespace plimsoll::planner::search

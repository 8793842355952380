#include "planner/search/reasons.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "models/decisions/mesh.h"
#include "models/run_names.h"
#include "planner/search/axes.h"
#include "planner/search/closest.h"
#include "planner/search/concessions.h"
#include "planner/search/family.h"
#include "planner/search/savings.h"
#include "planner/search/words.h"
#include "planner/stacks/stack_info.h"

namespace plimsoll::planner::search {

using models::Strategy;
using models::decisions::mesh_of;

namespace {
std::string with(const std::string& before, const std::string& text) {
  return text.empty() ? "" : before + text;
}

class Reasons {
 public:
  Reasons(const Scope& scope, const std::vector<Found>& ranked, const Control& control)
      : scope_(scope),
        ranked_(ranked),
        control_(control),
        space_(scope),
        evaluator_(scope, space_) {}

  std::vector<std::vector<std::string>> all() {
    for (std::size_t i = 0; i < ranked_.size(); ++i) {
      out_.emplace_back();
      if (i == 0 && !stopped()) ladder(ranked_[0]);
      limit(ranked_[i]);
      larger_batch(ranked_[i]);
      if (i + 1 < ranked_.size()) against(ranked_[i], ranked_[i + 1], i + 2);
      if (i > 0) continue;
      const std::string freed = what_frees_memory(ranked_[0], evaluator_);
      if (!freed.empty()) say("What would free memory, each alone: " + freed + ".");
    }
    return std::move(out_);
  }

 private:
  bool stopped() const { return control_.stop != nullptr && *control_.stop; }
  void say(std::string text) { out_.back().push_back(std::move(text)); }

  // The space of the winner's stack, GPUs and concession, with one axis held.
  Scope rung(const Found& best, const char* axis, const std::string& value) const {
    Scope s = scope_;
    const Strategy& strategy = best.setting.strategy;
    s.only.clear();
    s.without.clear();
    s.only["stack"] = {std::string(name_of(strategy.stack))};
    s.only["gpus"] = {std::to_string(strategy.gpus)};
    s.only[axis] = {value};
    s.most_concession = best.setting.concession;
    return s;
  }

  // What comes closest. Where its peak alone is too much the allocator has no say: such a plan may
  // have hundreds of kinds of ranks, each with a replay of its own.
  std::optional<Found> nearest(const Scope& scope) const {
    std::optional<Found> near = least_needy(scope);
    if (near && space_.usable() && near->need.least() <= *space_.usable())
      near->plan = plan_of(scope, near->setting);
    return near;
  }

  // What the best plan of `scope` lacks.
  bool say_rung(const Found& best, const std::string& name, const Scope& scope) {
    const std::optional<Found> found = best_of(scope, control_);
    if (found) {
      say(compared(best, *found, name));
      return true;
    }
    if (stopped()) return false;  // then nothing found says nothing
    const std::optional<Found> near = nearest(scope);
    if (near && space_.usable()) say_lack(name, *near);
    return false;
  }

  std::string compared(const Found& best, const Found& other, const std::string& name) const {
    const double slower = 1 - other.speed() / best.speed();
    if (scope_.objective == Objective::memory)
      return fmt::format("{} fits and needs {} more.", name,
                         gib(other.need.least() - best.need.least()));
    if (sized() && other.rank.first > best.rank.first)
      return fmt::format("{} reaches {}.", name, size_text(other));
    const bool equal = !best.throughput.known || as_fast(best, other);
    if (!equal && slower > 0)
      return fmt::format("{} fits and is {} slower{}.", name, percent(slower), cause(best, other));
    if (!equal)
      return fmt::format("{} is {} faster by the estimate{}.", name, percent(-slower),
                         with(", too little for a plan that ", demerit(best, other)));
    return fmt::format("{} is as fast within the estimate's error{}{}.", name, in_brackets(slower),
                       with(", and ", demerit(best, other)));
  }

  bool as_fast(const Found& a, const Found& b) const {
    const bool alike = effort(a.setting).kind == effort(b.setting).kind;
    const double margin = -std::log1p(-(alike ? kSameKindMargin : kTieMargin));
    return std::abs(std::log(a.speed() / b.speed())) < margin;
  }

  // Of a plan that is as fast and comes later; "" where it has none but its speed.
  std::string demerit(const Found& first, const Found& later) const {
    const Bytes held = counted_need(scope_, first), later_held = counted_need(scope_, later);
    const Bytes more = later_held - held;
    if (tightness(space_, later_held) > tightness(space_, held)) return "leaves hardly any room";
    if (effort(later.setting) > effort(first.setting)) return "takes more setting up";
    if (more > 0_B) return fmt::format("leaves {} less room", gib(more));
    return "";
  }

  void say_lack(const std::string& name, const Found& near) {
    const Bytes typical = std::max(near.need.least(), near.plan.device);
    if (typical > *space_.usable())
      return say(fmt::format("{} does not fit: it needs at least {}; {} is available.", name,
                             gib(typical), gib(*space_.usable())));
    say(
        fmt::format("{} fits only if the assumed overheads stay low: it needs {} then, and {} with "
                    "overheads at their high end; {} is available.",
                    name, gib(typical), gib(counted_need(scope_, near)), gib(*space_.usable())));
  }

  // Which part of the step makes the difference.
  std::string cause(const Found& best, const Found& other) const {
    const std::optional<StepTime> x = space_.time(best.setting), y = space_.time(other.setting);
    if (!x || !y) return "";
    const double a = static_cast<double>(best.setting.tokens_per_step());
    const double b = static_cast<double>(other.setting.tokens_per_step());
    const std::array<std::pair<double, const char*>, 3> parts{
        {{y->compute / b - x->compute / a, "compute"},
         {y->exposed_communication / b - x->exposed_communication / a,
          "communication that nothing hides"},
         {y->optimizer / b - x->optimizer / a, "the optimizer's step"}}};
    const auto most = std::ranges::max_element(parts);
    std::string text = fmt::format(", because of {}", most->second);
    if (most == parts.begin())
      text += why_longer(best.setting, other.setting, y->communication > x->communication,
                         space_.parts(best.setting).decoder.python_gelu);
    return text;
  }

  void ladder(const Found& best) {
    const Strategy& s = best.setting.strategy;
    concessions(best);
    fewer_gpus(best);
    if (!scope_.fixed.contains("stack")) without_wrapper(best);
    if (mesh_of(s).communicates() && !scope_.fixed.contains("zero")) {
      bool simpler = false;
      for (int zero = 0; zero < s.data.zero; ++zero)
        simpler =
            say_rung(best, rung_name(s.stack, zero), rung(best, "zero", std::to_string(zero))) ||
            simpler;
      if (!simpler && s.data.zero < 3)
        say(rung_name(s.stack, s.data.zero) +
            " is the least sharding that fits; more would only add communication.");
    }
    groups(best);
    if (!scope_.fixed.contains("recompute")) {
      if (s.recompute.kind == models::RecomputeKind::none)
        say("No recomputation is needed.");
      else
        say_rung(best, "Without recomputation it", rung(best, "recompute", "none"));
    }
    if (s.kernels == models::Kernels::liger && !scope_.fixed.contains("kernels"))
      say_rung(best, "Without Liger's kernels it", rung(best, "kernels", "eager"));
    if (space_.parts(best.setting).decoder.python_gelu && stack_info(s.stack).runs_transformers)
      say(kOneKernelGelu);
  }

  bool allowed(models::Stack stack) const {
    return search::allowed(scope_, "stack", std::string(name_of(stack)));
  }

  void without_wrapper(const Found& best) {
    const StackInfo& stack = stack_info(best.setting.strategy.stack);
    const StackInfo& inner = stack_info(stack.processes);
    if (!stack.wraps_another() || !allowed(inner.kind)) return;
    say_rung(best, fmt::format("{} without {}", inner.title, stack.title),
             rung(best, "stack", std::string(name_of(inner.kind))));
  }

  static void leave_out_untried(Scope& scope) {
    for (const StackInfo* stack : stacks())
      if (stack->untried_on_gpus) scope.without["stack"].insert(std::string(name_of(stack->kind)));
  }

  void fewer_gpus(const Found& best) {
    if (scope_.objective != Objective::gpus) return;
    for (const auto& [n, per_node] : gpu_counts(scope_)) {  // the most first
      if (n >= best.setting.strategy.gpus) continue;
      Scope fewer = scope_;
      fewer.gpus = n;
      fewer.fixed.insert("gpus");
      fewer.most_concession = best.setting.concession;
      const std::optional<Found> near = nearest(fewer);
      if (near && space_.usable())
        say(fmt::format(
            "{} needs at least {}{}; {} is available.",
            n == 1 ? "One GPU" : fmt::format("With {} GPUs each", n),
            gib(counted_need(scope_, *near)),
            scope_.overheads == Overheads::high_end ? ", overheads at their high end" : "",
            gib(*space_.usable())));
      return;
    }
  }

  // Our own runtime stands first only where the stacks that GPUs have seen do not do it.
  void untried_stack(const Found& best) {
    if (!stack_info(best.setting.strategy.stack).untried_on_gpus || scope_.fixed.contains("stack"))
      return;
    std::string titles;
    for (const StackInfo* stack : stacks())
      if (!stack->untried_on_gpus)
        titles += (titles.empty() ? "" : " or ") + std::string(stack->title);
    Scope tried = scope_;
    leave_out_untried(tried);
    tried.most_concession = best.setting.concession;
    const std::optional<Found> near = nearest(tried);
    if (near && space_.usable())
      say_lack(fmt::format("{} in {} on {}", near->setting.strategy.lora ? "LoRA" : "Training",
                           name_of(near->setting.strategy.precision), titles),
               *near);
  }

  void say_lack_within(int most_concession, const char* packed = "") {
    Scope plain = scope_;
    plain.most_concession = most_concession;
    const std::optional<Found> near = nearest(plain);
    if (!near || !space_.usable()) return;
    const bool lora =
        near->setting.strategy.lora && !(scope_.base.strategy.lora && !most_concession);
    const char* const what = lora ? "LoRA" : "Training the whole model";
    say_lack(fmt::format("{} in {}{}", what, name_of(near->setting.strategy.precision), packed),
             *near);
  }

  // What does not fit without each of them, and what it costs.
  void concessions(const Found& best) {
    const Setting& x = best.setting;
    if (x.concession == 0) return;
    untried_stack(best);
    say_lack_within(0);
    if (x.concession > kMostWithoutPacking) say_lack_within(kMostWithoutPacking);
    if (concedes(x, kPackedBase) && concedes(x, kOffloadsPacked))
      say_lack_within(kOffloadsPacked - 1, " on a packed base that stays on the GPUs");
    for (std::string& cost : costs_of_concessions(x, best.plan)) say(std::move(cost));
    if (x.strategy.precision != models::Precision::bf16 && x.parts != 0) pure_bf16();
  }

  // Between adapters and more GPUs some would rather train the whole model with less precision.
  void pure_bf16() {
    Scope pure = scope_;
    pure.without["adapters"].insert("lora");
    leave_out_untried(pure);
    pure.most_concession = kMostWithoutPacking;
    const std::optional<Found> found = best_of(pure, control_);
    if (!found || found->setting.strategy.precision != models::Precision::bf16) return;
    const std::string speed =
        found->throughput.known ? fmt::format(" at {:.0f} tokens/s", found->speed()) : "";
    say(
        fmt::format("As a concession the whole model could be trained in pure bf16{} "
                    "(--without adapters=lora): {}.",
                    speed, kPureRisk));
  }

  void groups(const Found& best) {
    const Strategy& s = best.setting.strategy;
    const int from = std::max(2, stack_info(s.stack).hybrid_from_stage);
    if (scope_.fixed.contains("shard-group") || s.data.zero < from) return;
    if (mesh_of(s).replicates())
      say_rung(best, "Sharding over all ranks", rung(best, "shard-group", "all"));
    else if (mesh_of(s).crosses_nodes())
      say_rung(best, fmt::format("Sharding inside nodes of {} (hybrid)", s.gpus_per_node),
               rung(best, "shard-group", std::to_string(s.gpus_per_node)));
  }

  void limit(const Found& found) {
    if (const std::optional<StepTime> time = space_.time(found.setting)) say(parts_of_step(*time));
  }

  void larger_batch(const Found& found) {
    if (scope_.fixed.contains("micro-batch") || !space_.usable()) return;
    if (scope_.objective == Objective::context || scope_.objective == Objective::memory) return;
    std::vector<models::Batch> all = batches(scope_, found.setting);
    if (scope_.objective == Objective::batch) {
      all = {found.setting.batch};
      ++all.front().micro_batch;
    }
    const auto next = std::ranges::find_if(all, [&](const models::Batch& b) {
      return b.micro_batch > found.setting.batch.micro_batch;
    });
    if (next == all.end()) return;
    const std::optional<Need> need = evaluator_.need(found.setting, *next);
    if (!need) return;
    const bool high = need->least() <= *space_.usable();
    if (need->counted() > *space_.usable())
      return say(fmt::format("Micro-batch {} needs {}{}; {} is available.", next->micro_batch,
                             gib(high ? need->counted() : need->least()),
                             high ? " with the assumed overheads at their high end" : "",
                             gib(*space_.usable())));
    if (!fits(scope_, plan_of(scope_, {.strategy = found.setting.strategy, .batch = *next})))
      return say(fmt::format("Micro-batch {} fits by its peak, but not with the allocator's gaps.",
                             next->micro_batch));
    if (!found.throughput.known) return;
    const double gain =
        space_.throughput(found.setting, *next).tokens_per_second / found.speed() - 1;
    if (gain <= 0)
      say(fmt::format("Micro-batch {} is no faster.", next->micro_batch));
    else if (gain < kSameKindMargin)
      say(
          fmt::format("Micro-batch {} would leave less room and be as fast within the estimate's "
                      "error.",
                      next->micro_batch));
  }

  void against(const Found& a, const Found& b, std::size_t place) {
    const std::optional<StepTime> x = space_.time(a.setting), y = space_.time(b.setting);
    const Bytes less = b.need.least() - a.need.least();
    if (scope_.objective == Objective::memory && less < 1_MiB)
      return say(fmt::format("As little as {}, to a MiB.", place));
    if (scope_.objective == Objective::memory)
      return say(fmt::format("Before {}: {} less at the peak on each GPU.", place, gib(less)));
    if (a.rank.first != b.rank.first && scope_.objective == Objective::gpus)
      return say(fmt::format("Before {}: {} GPUs against {}.", place, a.setting.strategy.gpus,
                             b.setting.strategy.gpus));
    if (a.rank.first != b.rank.first && sized())
      return say(fmt::format("Before {}: {} against {}.", place, size_text(a), size_text(b)));
    if (!x || !y) return;
    const double gain = a.speed() / b.speed() - 1;
    if (as_fast(a, b) && gain > 0 && demerit(a, b).empty())
      return say(fmt::format("{} faster than {}, which leaves {} more room.", percent(gain), place,
                             gib(counted_need(scope_, a) - counted_need(scope_, b))));
    if (as_fast(a, b))
      return say(fmt::format("Before {}: as fast within the estimate's error{}{}.", place,
                             in_brackets(-gain),
                             with(fmt::format(", and {} ", place), demerit(a, b))));
    // Per token, so that plans of different batches compare.
    const auto each = [](double s, const Found& f) {
      return 1e6 * s / static_cast<double>(f.setting.tokens_per_step());
    };
    if (gain < 0)
      return say(fmt::format("Before {}: {} is {} faster by the estimate{}.", place, place,
                             percent(-gain), with(", too little for a plan that ", demerit(a, b))));
    std::string text = fmt::format(
        "{} faster than {}. Microseconds a token (those of {} in brackets):", percent(gain), place,
        place);
    const auto part = [&](const char* name, double StepTime::*member) {
      const double p = each((*x).*member, a), q = each((*y).*member, b);
      text += fmt::format("{} {} {:.3g} ({:.3g})", text.ends_with(':') ? "" : ",", name, p, q);
    };
    part("compute", &StepTime::compute);
    part("communication not hidden", &StepTime::exposed_communication);
    part("optimizer", &StepTime::optimizer);
    say(text + ".");
  }

  bool sized() const {
    return scope_.objective == Objective::context || scope_.objective == Objective::batch;
  }
  std::string size_text(const Found& found) const {
    const Setting& x = found.setting;
    if (scope_.objective == Objective::context) return fmt::format("{} tokens", x.batch.seq_len);
    return fmt::format("{} sequences", x.batch.micro_batch * mesh_of(x.strategy).data().ranks);
  }

  const Scope& scope_;
  const std::vector<Found>& ranked_;
  const Control& control_;
  Space space_;
  Evaluator evaluator_;
  std::vector<std::vector<std::string>> out_;
};

}  // namespace

std::vector<std::vector<std::string>> reasons(const Scope& scope, const std::vector<Found>& ranked,
                                              const Control& control) {
  if (ranked.empty()) return {};
  return Reasons(scope, ranked, control).all();
}

}  // namespace plimsoll::planner::search

#include "planner/search/reasons.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "models/run_names.h"
#include "planner/search/axes.h"
#include "planner/search/closest.h"

namespace plimsoll::planner::search {

using models::RecomputeKind;
using models::Stack;
using models::Strategy;

namespace {

// The time model's median error is several per cent (reports/accuracy.md).
constexpr double kEstimateError = 0.03;

std::string gib(Bytes bytes) {
  const double value = bytes.real() / (1 << 30);
  if (value < 0.1) return fmt::format("{:.0f} MiB", 1024 * value);
  return value < 10 ? fmt::format("{:.2f} GiB", value) : fmt::format("{:.1f} GiB", value);
}

std::string seconds(double s) {
  return s < 1 ? fmt::format("{:.0f} ms", 1000 * s) : fmt::format("{:.2f} s", s);
}

std::string percent(double share) {
  const double p = 100 * share;
  return p < 0.95 ? fmt::format("{:.2f} %", p) : fmt::format("{:.1f} %", p);
}

std::string rung_name(Stack stack, int zero) {
  if (zero == 0) return stack == Stack::plimsoll ? "DDP" : "Plain DDP";
  std::string text = fmt::format("ZeRO-{}", zero);
  if (stack == Stack::pytorch) {
    if (zero == 1) text += " (ZeroRedundancyOptimizer)";
    if (zero == 2) text += " (FSDP without resharding)";
    if (zero == 3) text += " (FSDP full shard)";
  }
  return text;
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
      if (i == 0) further_steps(ranked_[0]);
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
    s.top = 1;
    return s;
  }

  // "… does not fit: at least …", or by how much it is slower.
  bool say_rung(const Found& best, const std::string& name, const Scope& scope,
                bool simpler = true) {
    const std::optional<Found> found = best_of(scope, control_);
    if (found) {
      const double ratio = best.pace.tokens_per_second / found->pace.tokens_per_second;
      if (scope_.objective == Objective::memory)
        say(fmt::format("{} fits and needs {} more.", name,
                        gib(found->need.least() - best.need.least())));
      else if (sized() && found->rank.first > best.rank.first)
        say(fmt::format("{} reaches {}.", name, size_text(*found)));
      else if (best.pace.known && ratio > 1)
        say(fmt::format("{} fits and is {} slower{}.", name, percent(1 - 1 / ratio),
                        cause(best, *found, 1 - 1 / ratio, simpler)));
      else
        say(name + " fits and is no better.");
      return true;
    }
    if (stopped()) return false;  // then nothing found says nothing
    const std::optional<Found> near = closest(scope);
    if (near && space_.usable()) say_lack(name, *near);
    return false;
  }

  void say_lack(const std::string& name, const Found& near) {
    const Bytes typical = std::max(near.need.least(), near.plan.device);
    if (typical > *space_.usable())
      return say(fmt::format("{} does not fit: at least {} of {}.", name, gib(typical),
                             gib(*space_.usable())));
    say(
        fmt::format("{} fits only while the assumed overheads stay low: {} of {}, but {} with them "
                    "at their high end.",
                    name, gib(typical), gib(*space_.usable()), gib(counted_need(scope_, near))));
  }

  // Which part of the step makes the difference.
  std::string cause(const Found& best, const Found& other, double share, bool simpler) const {
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
    std::string text = fmt::format(", by {}", most->second);
    if (most == parts.begin()) text += longer(best, other, y->communication > x->communication);
    if (share < kEstimateError) {
      text += "; that is within the estimate's error";
      if (simpler) text += ", and it is the simpler one";
    }
    return text;
  }

  // FSDP's policy and DeepSpeed cast the modules once.
  static bool autocasts(const Strategy& s) {
    return s.stack == Stack::pytorch && s.data.zero < 2 &&
           (s.precision == models::Precision::bf16_mixed ||
            s.precision == models::Precision::fp16_mixed);
  }

  // What makes the other one's compute longer.
  static std::string longer(const Found& best, const Found& other, bool sends_more) {
    const Strategy &mine = best.setting.strategy, &s = other.setting.strategy;
    if (s.recompute != mine.recompute && s.recompute.kind != RecomputeKind::none)
      return fmt::format(" (it must recompute: {})", models::text_of(s.recompute));
    if (autocasts(s) && !autocasts(mine))
      return " (autocast casts the weights and keeps the residual stream in fp32)";
    const std::int64_t batch = other.setting.batch.micro_batch;
    if (batch < best.setting.batch.micro_batch)
      return fmt::format(" (its micro-batch is {})", batch);
    return sends_more ? " (collectives beside it take their share of the GPU)" : "";
  }

  void ladder(const Found& best) {
    const Strategy& s = best.setting.strategy;
    concessions(best);
    fewer_gpus(best);
    if (s.stack == Stack::deepspeed && !scope_.fixed.contains("stack") && allowed("pytorch"))
      say_rung(best, "PyTorch without DeepSpeed", rung(best, "stack", "pytorch"));
    if (s.gpus > 1 && !scope_.fixed.contains("zero")) {
      bool simpler = false;
      for (int zero = 0; zero < s.data.zero; ++zero)
        simpler =
            say_rung(best, rung_name(s.stack, zero), rung(best, "zero", std::to_string(zero))) ||
            simpler;
      if (!simpler && s.data.zero < 3)
        say(rung_name(s.stack, s.data.zero) +
            " is the least sharding that does it: more would only send more.");
    }
    groups(best);
    if (scope_.fixed.contains("recompute")) return;
    if (s.recompute.kind == RecomputeKind::none)
      say("Recomputation is not needed.");
    else
      say_rung(best, "The same without recomputation", rung(best, "recompute", "none"));
  }

  bool allowed(const std::string& stack) const {
    const auto only = scope_.only.find("stack"), without = scope_.without.find("stack");
    return (only == scope_.only.end() || only->second.contains(stack)) &&
           (without == scope_.without.end() || !without->second.contains(stack));
  }

  void fewer_gpus(const Found& best) {
    if (scope_.objective != Objective::gpus) return;
    for (const std::int64_t n : gpu_counts(scope_)) {  // the most first
      if (n >= best.setting.strategy.gpus) continue;
      Scope fewer = scope_;
      fewer.gpus = n;
      fewer.fixed.insert("gpus");
      fewer.most_concession = best.setting.concession;
      const std::optional<Found> near = closest(fewer);
      if (near && space_.usable())
        say(fmt::format("With {} GPU{} the least is {} on each, of {}.", n, n == 1 ? "" : "s",
                        gib(counted_need(scope_, *near)), gib(*space_.usable())));
      return;
    }
  }

  // Our own runtime stands first only where the stacks that GPUs have seen do not do it.
  void untried_stack(const Found& best) {
    if (best.setting.strategy.stack != Stack::plimsoll || scope_.fixed.contains("stack")) return;
    if (!allowed("pytorch") && !allowed("deepspeed")) return;
    Scope tried = scope_;
    tried.without["stack"].insert("plimsoll");
    tried.most_concession = best.setting.concession;
    const std::optional<Found> near = closest(tried);
    if (near && space_.usable())
      say_lack(fmt::format("{} in {} on a stack that has run on GPUs",
                           near->setting.strategy.lora ? "LoRA" : "Training",
                           name_of(near->setting.strategy.precision)),
               *near);
  }

  void concessions(const Found& best) {
    if (best.setting.concession == 0) return;
    untried_stack(best);
    Scope plain = scope_;
    plain.most_concession = 0;
    plain.top = 1;
    const std::optional<Found> near = closest(plain);
    if (near && space_.usable())
      say_lack(fmt::format("Training the whole model in {} on a tried stack",
                           name_of(near->setting.strategy.precision)),
               *near);
  }

  void groups(const Found& best) {
    const Strategy& s = best.setting.strategy;
    if (scope_.fixed.contains("shard-group") || s.data.zero < 2 || s.stack == Stack::deepspeed)
      return;
    if (s.data.shard_group > 0)
      say_rung(best, "Sharding over all ranks", rung(best, "shard-group", "all"));
    else if (s.gpus > s.gpus_per_node)
      say_rung(best, fmt::format("Sharding inside nodes of {} (hybrid)", s.gpus_per_node),
               rung(best, "shard-group", std::to_string(s.gpus_per_node)), false);
  }

  void limit(const Found& found) {
    const std::optional<StepTime> time = space_.time(found.setting);
    if (!time) return;
    std::string text = fmt::format("Limited by {}: of {} a step, {} compute", name_of(time->limit),
                                   seconds(time->step), seconds(time->compute));
    if (time->communication > 0)
      text += fmt::format(", {} communication not hidden (of {})",
                          seconds(time->exposed_communication), seconds(time->communication));
    say(text + fmt::format(", {} optimizer.", seconds(time->optimizer)));
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
    if (need->counted() > *space_.usable())
      say(fmt::format("Memory ends it at micro-batch {}: {} would need {} of {}{}.",
                      found.setting.batch.micro_batch, next->micro_batch,
                      gib(need->least() > *space_.usable() ? need->least() : need->counted()),
                      gib(*space_.usable()),
                      need->least() > *space_.usable()
                          ? ""
                          : ", with the assumed overheads at their high end"));
    else
      say(fmt::format(
          "Micro-batch {} {}.", next->micro_batch,
          space_.pace(found.setting, *next).tokens_per_second < found.pace.tokens_per_second
              ? "is slower"
              : "would fit by its peak, and not with the allocator's gaps"));
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
    const double gain = a.pace.tokens_per_second / b.pace.tokens_per_second - 1;
    if (gain < 5e-4) return say(fmt::format("As good as {} by this estimate.", place));
    if (gain < 0.01)
      return say(fmt::format("Less than 1 % faster than {}: within the estimate's error.", place));
    // Per token, so that plans of different batches compare.
    const auto each = [](double s, const Found& f) {
      return 1e6 * s / static_cast<double>(f.setting.tokens_per_step());
    };
    std::string text =
        fmt::format("{} faster than {}{}; microseconds a token:", percent(gain), place,
                    gain < kEstimateError ? ", within the estimate's error" : "");
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
    if (scope_.objective == Objective::context)
      return fmt::format("{} tokens", found.setting.batch.seq_len);
    return fmt::format("{} sequences",
                       found.setting.batch.micro_batch * found.setting.strategy.gpus);
  }

  // Single changes of the winner, and the memory that each frees.
  void further_steps(const Found& best) {
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
    for (int zero = s.data.zero + 1; s.gpus > 1 && zero <= 3; ++zero)
      change(fmt::format("--zero {}", zero), [&](Setting& x) {
        x.strategy.data.zero = zero;
        x.strategy.data.reshard_after_forward = !(s.stack == Stack::pytorch && zero == 2);
      });
    if (s.data.shard_group > 0)
      change("sharding over all ranks", [](Setting& x) { x.strategy.data.shard_group = 0; });
    if (s.loss != models::Loss::fused)
      change("--loss fused", [](Setting& x) { x.strategy.loss = models::Loss::fused; });
    if (s.recompute.kind == RecomputeKind::none || s.recompute.kind == RecomputeKind::selective)
      change("--recompute full",
             [](Setting& x) { x.strategy.recompute.kind = RecomputeKind::full; });
    if (best.setting.batch.micro_batch > 1)
      change("--micro-batch 1", [](Setting& x) { x.batch.micro_batch = 1; });
    if (s.precision == models::Precision::bf16_mixed)
      change("--precision bf16", [](Setting& x) {
        x.strategy.precision = models::Precision::bf16;
        x.strategy.param_dtype.reset();
      });
    std::vector<std::pair<Bytes, std::string>> freed;
    for (const Step& step : steps) {
      const std::optional<Need> need = evaluator_.need(step.setting, step.setting.batch);
      if (need && need->least() < best.need.least())
        freed.emplace_back(best.need.least() - need->least(), step.option);
    }
    std::ranges::sort(freed, [](const auto& a, const auto& b) { return a.first > b.first; });
    std::string text;
    for (const auto& [bytes, option] : freed)
      if (bytes.real() > 0.005 * best.need.least().real())
        text += fmt::format("{}{} {}", text.empty() ? "" : ", ", option, gib(bytes));
    if (!text.empty()) say("One more step would free: " + text + ".");
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

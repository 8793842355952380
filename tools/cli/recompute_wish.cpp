#include "tools/cli/recompute_wish.h"

#include <fmt/format.h>

#include "models/recompute.h"
#include "planner/search/recompute_policy.h"
#include "reports/text.h"
#include "tools/cli/values.h"

namespace plimsoll::tools {

namespace {

constexpr std::string_view kFit = "fit", kBudget = "budget:";

std::string cost_text(const planner::search::PolicyCost& cost) {
  std::string text = fmt::format("{}: peak {}, device {}", models::text_of(cost.recompute),
                                 reports::bytes_text(cost.peak), reports::bytes_text(cost.device));
  if (cost.seconds > 0) text += fmt::format(", {:.3g} s", cost.seconds);
  return text;
}

}  // namespace

bool wishes_recompute(const Options& options) {
  const std::string* value = options.find("recompute");
  return value != nullptr && (*value == kFit || value->starts_with(kBudget));
}

void choose_recompute(const Options& options, Request& request) {
  const std::string& wish = *options.find("recompute");
  check(!request.parameters && request.question.model->decoder.has_value(), ErrorKind::unsupported,
        [&] { return "--recompute " + wish + ": needs a model whose step is planned"; });
  std::optional<Bytes> peak;
  if (wish != kFit) peak = size_value("recompute", std::string_view(wish).substr(kBudget.size()));
  const planner::search::PolicyChoice choice =
      planner::search::cheapest_recompute(request.question, peak);
  request.question.strategy.recompute = choice.chosen.recompute;
  const std::string goal =
      peak ? fmt::format("a planned peak of at most {}", reports::bytes_text(*peak))
           : "a plan that fits";
  std::string note =
      fmt::format("--recompute {}: {} ", wish, models::text_of(choice.chosen.recompute));
  note += choice.chosen.holds
              ? fmt::format(
                    "is the {} of {} recomputations (one way for all layers, or for the first of "
                    "them) with {}",
                    choice.chosen.seconds > 0 ? "fastest" : "one with the fewest FLOPs",
                    choice.compared, goal)
              : fmt::format("needs least of {} recomputations, none of which has {}",
                            choice.compared, goal);
  note += ". Beside it";
  char before = ':';
  for (const planner::search::PolicyCost& fixed : choice.fixed) {
    note += fmt::format("{} {}", before, cost_text(fixed));
    before = ';';
  }
  request.notes.push_back(note + ".");
}

}  // namespace plimsoll::tools

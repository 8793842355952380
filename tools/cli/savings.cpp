#include "tools/cli/savings.h"

#include <vector>

#include "planner/plan.h"
#include "planner/techniques.h"
#include "tools/cli/progress_line.h"

namespace plimsoll::tools {

void add_savings(const Request& request, bool quiet, reports::Plan& plan) {
  if (plan.states_only) return;
  std::vector<planner::Technique> techniques = planner::techniques_of(request.question);
  if (!plan.fits) std::erase_if(techniques, [](const auto& one) { return !one.used; });
  ProgressLine progress("techniques", techniques.size(), quiet);
  plan.savings = planner::savings_of(
      request.question, plan, techniques,
      [](const planner::Question& question) { return planner::plan(question); },
      [&] { progress.advance(); });
}

}  // namespace plimsoll::tools

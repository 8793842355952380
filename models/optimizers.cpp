#include "models/optimizers.h"

#include "models/run_names.h"

namespace plimsoll::models {

namespace {

constexpr bool in_order() {
  for (std::size_t i = 0; i < kOptimizers.size(); ++i)
    if (kOptimizers[i].kind != static_cast<Optimizer>(i)) return false;
  return true;
}
static_assert(in_order(), "rows stand in the order of the enumerators");

constexpr const char* kNotYet = "is not modelled yet";

// nullptr: there is none.
const char* refusal(const OptimizerRule& rule, Stack stack) {
  switch (stack) {
    case Stack::pytorch:
      return rule.torch.refusal;
    case Stack::deepspeed:
      return rule.deepspeed.refusal;
    case Stack::plimsoll:
      return rule.in_runtime ? nullptr : kNotYet;
    case Stack::megatron:
      break;
  }
  return kNotYet;
}

}  // namespace

std::string optimizer_names(bool (*wanted)(const OptimizerRule&)) {
  std::string names;
  std::string_view last;
  for (const OptimizerRule& rule : kOptimizers) {
    if (!wanted(rule)) continue;
    if (!last.empty()) names.append(names.empty() ? "" : ", ").append(last);
    last = rule.name;
  }
  return names + (names.empty() ? "" : " and ") + std::string(last);
}

void check_optimizer(const Strategy& strategy) {
  const OptimizerRule& rule = rule_of(strategy.optimizer);
  check(rule.torch.projects_to > 0 || strategy.galore_rank == 0, ErrorKind::bad_input, [] {
    return "--galore-rank is for --optimizer " +
           optimizer_names([](const OptimizerRule& r) { return r.torch.projects_to > 0; });
  });
  check(!rule.torch.behind || strategy.optimizer_in_backward || strategy.stack != Stack::pytorch,
        ErrorKind::bad_input, [&] {
          return "--optimizer " + std::string(rule.name) +
                 " steps in the backward: strategy.optimizer_in_backward says no";
        });
  const char* const why = refusal(rule, strategy.stack);
  if (why == nullptr) return;
  std::string others;
  for (const Stack stack : {Stack::pytorch, Stack::deepspeed, Stack::plimsoll})
    if (refusal(rule, stack) == nullptr)
      others += (others.empty() ? "" : ", ") + std::string(name_of(stack));
  fail(ErrorKind::unsupported,
       "--optimizer " + std::string(rule.name) + " with --stack " +
           std::string(name_of(strategy.stack)) + ": " + why +
           (others.empty() ? "" : "; it is modelled with --stack " + others));
}

}  // namespace plimsoll::models

#include "tools/cli/refusals.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "models/base/utf8.h"
#include "models/optimizers.h"
#include "tools/cli/values.h"

namespace plimsoll::tools {

namespace {
[[noreturn]] void unsupported(std::string_view option, std::string_view value,
                              std::string_view why) {
  fail(ErrorKind::unsupported,
       fmt::format("--{}{}{}: {}", option, value.empty() ? "" : " ", shortened(value), why));
}

void refuse_name(const Option& option, const std::string& value) {
  if (name_index(option.name, value, option.names) >= option.modelled)
    unsupported(option.name, value, option.unmodelled_name);
}

void refuse_optimizer(const std::string& value) {
  const auto kind = choice<models::Optimizer>("optimizer", value);
  const models::OptimizerRule& rule = models::rule_of(kind);
  if (rule.planned()) return;
  unsupported("optimizer", value,
              fmt::format("{} ({} are)", rule.torch.refusal,
                          models::optimizer_names(
                              [](const models::OptimizerRule& r) { return r.planned(); })));
}
}  // namespace

// Names are read first, then counts of ranks: the order in which errors are told.
void refuse_unmodelled(const Options& options) {
  const auto each = [&](auto refuse) {
    for (const Option& option : plan_options())
      if (const std::string* value = options.find(option.name)) refuse(option, *value);
  };
  each([](const Option& option, const std::string& value) {
    if (!option.names.empty()) refuse_name(option, value);
  });
  if (const std::string* value = options.find("optimizer")) refuse_optimizer(*value);
  each([](const Option& option, const std::string& value) {
    if (!option.only_one_of.empty() && whole(option.name, value, 1, 1 << 30) != 1)
      unsupported(option.name, value, fmt::format("{} is not modelled yet", option.only_one_of));
  });
  each([](const Option& option, const std::string& value) {
    if (!option.unmodelled.empty()) unsupported(option.name, value, option.unmodelled);
  });
}

void refuse_with_params(const Options& options) {
  for (const Option& option : plan_options()) {
    const std::string* value = options.find(option.name);
    if (value == nullptr || !option.says_of_step) continue;
    if (option.name == "optimizer" && *value == "adamw") continue;
    fail(ErrorKind::bad_input,
         fmt::format("--params with --{}: a bare count is answered in the ZeRO paper's layout "
                     "(AdamW, no stack, no step); give a MODEL for more",
                     option.name));
  }
  const std::string* precision = options.find("precision");
  if (precision != nullptr &&
      (*precision == "bf16" || *precision == "fp16" || *precision == "fp8-mixed"))
    fail(ErrorKind::bad_input,
         fmt::format("--params with --precision {}: the ZeRO paper's layout has fp32 and mixed "
                     "precision only; give a MODEL for more",
                     *precision));
}

}  // namespace plimsoll::tools

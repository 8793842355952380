#include "reports/savings_json.h"

#include <optional>
#include <string>

namespace plimsoll::reports {

namespace {
std::optional<std::string> text_or_null(const std::string& text) {
  return text.empty() ? std::nullopt : std::optional<std::string>(text);
}
}  // namespace

void write_savings(JsonWriter& json, const Plan& plan) {
  if (plan.savings.empty()) return;
  json.key("savings");
  json.begin_array();
  for (const Saving& saving : plan.savings) {
    using OptionalBytes = std::optional<Bytes>;
    const auto& planned = saving.planned;
    json.begin_object(JsonWriter::Layout::line);
    json.member("used", saving.used);
    json.member("option", saving.option);
    json.member("instead", text_or_null(saving.instead));
    json.member("peak_bytes", planned ? OptionalBytes(planned->peak) : std::nullopt);
    json.member("device_bytes", planned ? OptionalBytes(planned->device) : std::nullopt);
    json.member("saves_peak_bytes", planned ? OptionalBytes(planned->saves_peak) : std::nullopt);
    json.member("saves_device_bytes",
                planned ? OptionalBytes(planned->saves_device) : std::nullopt);
    json.member("fits", planned && plan.usable ? std::optional<bool>(planned->fits) : std::nullopt);
    json.member("concession", text_or_null(saving.concession));
    json.member("refusal", text_or_null(saving.refusal));
    json.end_object();
  }
  json.end_array();
}

}  // namespace plimsoll::reports

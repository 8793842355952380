// A measurement against itself.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "models/base/quantity.h"
#include "reports/checked_document.h"
#include "reports/document_check.h"

namespace plimsoll::reports {

namespace {
using nlohmann::json;

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// plimsoll-run does not time the first of several steps; others say which are timed.
void check_measured_time(const CheckedDocument& document) {
  const json& steps = document.root()["steps"];
  const json& time = document.root()["time"];
  std::vector<double> timed;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const bool counts =
        steps[i].contains("timed") ? steps[i]["timed"].get<bool>() : i > 0 || steps.size() == 1;
    if (counts && !steps[i]["seconds"].is_null()) timed.push_back(steps[i]["seconds"]);
  }
  if (timed.empty() || time.is_null()) return;
  document.expect("time.timed_steps", time["timed_steps"], timed.size(), "of steps[]");
  if (!time["step_seconds"].is_null())
    document.expect_near("time.step_seconds", time["step_seconds"], median(timed),
                         "the median of steps[].seconds");
}

void check_measured_rank(const CheckedDocument& document, const json& rank,
                         const std::string& where) {
  document.expect_at_most(where + "resident_bytes", rank["resident_bytes"], rank["peak_bytes"],
                          "peak_bytes");
  document.expect_at_most(where + "peak_bytes", rank["peak_bytes"], rank["reserved_bytes"],
                          "reserved_bytes");
  // Other programs count the blocks of their allocator in peak_bytes.
  const json* peak = &rank["peak_bytes"];
  std::string name = where + "peak_bytes";
  if (const auto place = rank.find("peak"); place != rank.end() && place->is_object()) {
    peak = &(*place)["requested_peak_bytes"];
    name = where + "peak.requested_peak_bytes";
  }
  if (!peak->is_null() && !rank["at_peak"].is_null())
    document.expect(name, *peak, sum_of_members(rank["at_peak"]),
                    "the categories of at_peak together");
  const auto ledgers = rank.find("ledgers");
  if (ledgers == rank.end() || ledgers->empty()) return;
  std::int64_t highest = 0;
  std::vector<json> residents;
  for (const json& ledger : *ledgers) {
    std::int64_t most = 0;
    for (const json& op : ledger["timeline"]) most = std::max(most, whole(op["high_water_bytes"]));
    if (most > highest) residents.clear();
    highest = std::max(highest, most);
    if (most == highest && !ledger["timeline"].empty())
      residents.push_back(ledger["timeline"].back()["allocated_bytes"]);
  }
  document.expect(where + "peak_bytes", rank["peak_bytes"], highest, "the highest of its ledgers");
  if (!residents.empty() && std::ranges::find(residents, rank["resident_bytes"]) == residents.end())
    document.expect(where + "resident_bytes", rank["resident_bytes"], residents.front(),
                    "what its ledgers leave after a step");
}
}  // namespace

void check_measurement(std::string_view text, const std::string& source) {
  const CheckedDocument document(text, source, "measurement");
  const json& measurement = document.root();
  const bool completed = measurement["outcome"] == "completed";
  check(completed == measurement["error"].is_null(), ErrorKind::bad_input, [&] {
    return fmt::format("{}: outcome is {}, and error is {}", source, measurement["outcome"].dump(),
                       completed ? "there" : "null");
  });
  const json& ranks = measurement["ranks"];
  for (std::size_t i = 0; i < ranks.size(); ++i)
    check_measured_rank(document, ranks[i], fmt::format("ranks[{}].", i));
  check_measured_time(document);
}

}  // namespace plimsoll::reports

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
// plimsoll-run knows a loss of every step, and says in its outcome where they train nothing.
void check_outcome(const CheckedDocument& document) {
  const json& measurement = document.root();
  const bool completed = measurement["outcome"] == "completed";
  if (completed != measurement["error"].is_null())
    document.refuse(fmt::format("outcome is {}, and error is {}", measurement["outcome"].dump(),
                                completed ? "there" : "null"));
  if (!completed || measurement["tool"]["name"] != "plimsoll-run") return;
  const json& steps = measurement["steps"];
  bool stepped = steps.empty();
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].value("loss", json()).is_null())
      document.refuse(fmt::format("outcome is \"completed\", and steps[{}].loss is null", i));
    stepped = stepped || !steps[i].value("skipped", false);
  }
  if (!stepped) document.refuse("outcome is \"completed\", and every one of steps[] was skipped");
}

void check_rates(const CheckedDocument& document) {
  const json& measurement = document.root();
  const json& time = measurement["time"];
  if (time.is_null() || measurement["tool"]["name"] != "plimsoll-run") return;
  if (time["step_seconds"].is_null() || time["tokens_per_second"].is_null()) return;
  const json& batch = measurement["workload"]["batch"];
  const json ranks = measurement["workload"]["strategy"].value("world_size", json(1));
  if (!ranks.is_number()) return;  // the reader says so
  double tokens = ranks.get<double>();
  for (const char* part : {"seq_len", "micro_batch", "grad_accum"})
    tokens *= batch[part].get<double>();
  document.expect_near("time.tokens_per_second", time["tokens_per_second"],
                       tokens / time["step_seconds"].get<double>(),
                       "the tokens of a step over step_seconds");
}
}  // namespace

void check_measurement(std::string_view text, const std::string& source) {
  const CheckedDocument document(text, source, "measurement");
  const json& ranks = document.root()["ranks"];
  name_source(source, [&] {
    check_outcome(document);
    for (std::size_t i = 0; i < ranks.size(); ++i)
      check_measured_rank(document, ranks[i], fmt::format("ranks[{}].", i));
    check_measured_time(document);
    check_rates(document);
  });
}

}  // namespace plimsoll::reports

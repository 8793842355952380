// A plan held against a snapshot of torch's allocator.
#include <fmt/format.h>

#include <algorithm>

#include "reports/page/sections.h"
#include "reports/text.h"

namespace plimsoll::reports {

namespace {
std::string difference_text(const Json& figure) {
  const auto value = number(figure, "difference_bytes");
  if (!value) return "–";
  const auto size = Bytes(static_cast<std::int64_t>(*value < 0 ? -*value : *value));
  return (*value < 0 ? "−" : *value > 0 ? "+" : "") + bytes_text(size);
}

Cell maybe_bytes(const Json& object, const char* key) {
  const auto value = bytes(object, key);
  return value ? bytes_cell(*value) : number_cell("–");
}

void figures(const Json& comparison, Html& html) {
  Table table("In one step", {text_cell(""), number_cell("predicted"), number_cell("measured"),
                              number_cell("difference"), number_cell("highest in the history")});
  for (const char* key : {"peak", "reserved"}) {
    const Json& figure = comparison.at(key);
    table.row({text_cell(key), maybe_bytes(figure, "predicted_bytes"),
               maybe_bytes(figure, "measured_bytes"), number_cell(difference_text(figure)),
               maybe_bytes(figure, "highest_measured_bytes")});
  }
  html.raw(table.take());
}

void shares(const Json& comparison, Html& html) {
  Table table("Found", {text_cell(""), number_cell("found"), number_cell("of"),
                        number_cell("bytes"), number_cell("without a partner"), text_cell("")});
  for (const auto& [key, name] : {std::pair("planned_tensors", "tensors of the plan"),
                                  {"allocations", "allocations of the snapshot"},
                                  {"allocations_at_peak", "those at the peak"}}) {
    const Json& share = comparison.at(key);
    const double lost = number_of(share, "without_partner");
    table.row(
        {text_cell(name),
         number_cell(whole_number(number_of(share, "found"))),
         number_cell(whole_number(number_of(share, "count"))),
         maybe_bytes(share, "bytes"),
         number_cell(percent(lost)),
         {bar_html({{1 - lost, "var(--good)", "found"}, {lost, "var(--bad)", "not found"}}, 1)}});
  }
  html.raw(table.take());
  if (const Json& scratch = comparison.at("scratch"); number_of(scratch, "count") > 0)
    html.paragraph(fmt::format(
        "And {} allocations, {}, of scratch that comes and goes within an "
        "operator; the plan counts it while that runs.",
        whole_number(number_of(scratch, "count")), bytes_text(bytes_of(scratch, "bytes"))));
}

void groups(const Json& list, const char* title, bool planned, Html& html) {
  if (list.empty()) return;
  constexpr std::size_t kMost = 50;
  html.heading(2, title);
  Table table(list.size() > kMost ? fmt::format("the largest {} of {} kinds", kMost, list.size())
                                  : std::string(),
              {number_cell("together"), number_cell("each"), number_cell("count"),
               text_cell(planned ? "tensor" : "where"), text_cell("")});
  for (std::size_t i = 0; i < std::min(kMost, list.size()); ++i) {
    const Json& group = list[i];
    const std::string name = text(group, planned ? "name" : "where");
    std::string remark = planned ? text(group, "category") : "";
    if (!planned && group.at("at_peak").get<bool>()) remark = "at the peak";
    if (group.at("stays").get<bool>()) remark += remark.empty() ? "stays" : ", stays";
    table.row({maybe_bytes(group, "total_bytes"), maybe_bytes(group, "bytes"),
               number_cell(whole_number(number_of(group, "count"))),
               text_cell(name.empty() ? "no stack was recorded" : name), text_cell(remark)});
  }
  html.raw(table.take());
}

void one_comparison(const Json& comparison, Html& html) {
  const bool agrees = comparison.at("agrees").get<bool>();
  html.paragraph(agrees ? "The plan and the snapshot agree" : "The plan and the snapshot disagree",
                 agrees ? "verdict agrees" : "verdict not");
  html.paragraph(text(comparison, "prediction") + " and " + text(comparison, "snapshot"), "faint");
  figures(comparison, html);
  shares(comparison, html);
  groups(comparison.at("only_measured"), "In the snapshot, and not in the plan", false, html);
  groups(comparison.at("only_planned"), "In the plan, and not in the snapshot", true, html);
  groups(comparison.at("outlived"), "Found, and kept beyond the step", true, html);
  const Json& step = comparison.at("step");
  html.paragraph(fmt::format(
      "The step: events {} to {} of {}, on device {}.",
      whole_number(number_of(step, "first_event")), whole_number(number_of(step, "last_event")),
      whole_number(number_of(step, "events")), whole_number(number_of(step, "device"))));
  if (const auto left = bytes(comparison, "left_behind_bytes"); left && *left > Bytes(0))
    html.paragraph("It leaves " + bytes_text(*left) + " more allocated than it found.",
                   "borderline");
  html.list(comparison.at("notes").get<std::vector<std::string>>());
}
}  // namespace

void snapshot_page(const Json& document, Html& html) {
  html.heading(1, "A run's memory against its plan");
  const auto several = document.find("comparisons");
  if (several == document.end()) return one_comparison(document, html);
  for (const Json& one : *several) {
    html.heading(2, text(one, "snapshot"));
    one_comparison(one, html);
  }
}

}  // namespace plimsoll::reports

// Who goes where in a fleet, and what is to be bought.
#include <fmt/format.h>

#include "reports/page/sections.h"
#include "reports/text.h"

namespace plimsoll::reports {

namespace {
std::string price(const Json& fleet, double value) {
  const std::string currency = text(fleet, "currency");
  return (value == static_cast<double>(static_cast<std::int64_t>(value))
              ? whole_number(value)
              : fmt::format("{:.2f}", value)) +
         (currency.empty() ? "" : " " + currency);
}

// Of a job in one pool: the fewest GPUs on which it runs, else what stands in its way; a pool that
// the job does not name was not asked.
Cell on_pool(const Json& job, const std::string& pool) {
  std::string why;
  bool asked = false;
  for (const Json& option : job.at("options")) {
    if (text(option, "pool") != pool) continue;
    asked = true;
    if (option.at("possible").get<bool>()) {
      const auto rate = number(option, "tokens_per_second");
      return {fmt::format(
          "<b class=\"fits\">{} GPU{}</b>{}{}", whole_number(number_of(option, "gpus")),
          number_of(option, "gpus") == 1 ? "" : "s",
          bytes(option, "device_bytes") ? "<br>" + bytes_cell(bytes_of(option, "device_bytes")).html
                                        : "",
          rate ? "<br>" + whole_number(*rate) + " tokens/s" : "")};
    }
    why = text(option, "why");
  }
  if (!asked) return {"<span class=\"faint\">not asked</span>"};
  return {"<span class=\"not\">no</span>" +
          (why.empty() ? "" : "<br><small>" + xml_escaped(why) + "</small>")};
}

void fits_table(const Json& fleet, Html& html) {
  html.heading(2, "Where each job fits, on the fewest GPUs");
  html.raw("<div class=\"wide\" tabindex=\"0\"><table><thead><tr><th scope=\"col\">job</th>");
  for (const Json& pool : fleet.at("pools"))
    html.raw("<th scope=\"col\">" + xml_escaped(text(pool, "name")) + "<br><small>" +
             xml_escaped(text(pool, "gpu")) + "</small></th>");
  html.raw("</tr></thead>\n<tbody>\n");
  for (const Json& job : fleet.at("jobs")) {
    const std::int64_t count = job.at("count").get<std::int64_t>();
    html.raw("<tr><td class=\"w\">" + (count == 1 ? "" : std::to_string(count) + " × ") +
             xml_escaped(text(job, "name")) + "</td>");
    for (const Json& pool : fleet.at("pools"))
      html.raw("<td class=\"w\">" + on_pool(job, text(pool, "name")).html + "</td>");
    html.raw("</tr>\n");
  }
  html.raw("</tbody></table></div>\n");
}

void solution_section(const Json& fleet, const Json& solution, const char* title, Html& html) {
  html.heading(2, title);
  html.paragraph(fmt::format("{} of {} jobs have a place ({}).", solution.at("placed").dump(),
                             fleet.at("jobs_in_all").dump(), text(solution, "certainty")));
  Table pools("", {text_cell("pool"), number_cell("owned"), number_cell("bought"),
                   number_cell("in use"), number_cell("price"), text_cell("jobs")});
  for (const Json& pool : solution.at("pools")) {
    std::string jobs;
    for (const Json& one : solution.at("placements"))
      if (text(one, "pool") == text(pool, "pool"))
        jobs += fmt::format("{}{} × {} on {}", jobs.empty() ? "" : ", ", one.at("count").dump(),
                            text(one, "job"), one.at("gpus").dump());
    pools.row(
        {text_cell(text(pool, "pool")), number_cell(pool.at("owned_gpus").dump()),
         number_cell(pool.at("bought_gpus").dump()), number_cell(pool.at("used_gpus").dump()),
         number_cell(number_of(pool, "bought_gpus") > 0 ? price(fleet, number_of(pool, "cost"))
                                                        : "–"),
         text_cell(jobs)});
  }
  html.raw(pools.take());
  std::vector<std::string> left;
  for (const Json& one : solution.at("left"))
    left.push_back(
        fmt::format("without a place: {} × {}", one.at("count").dump(), text(one, "job")));
  html.list(left);
}
}  // namespace

void fleet_page(const Json& fleet, Html& html) {
  html.heading(1, "A fleet of GPUs and its jobs");
  const bool fits = fleet.at("fits").get<bool>();
  html.paragraph(text(fleet, "verdict"), fits                             ? "verdict fits"
                                         : fleet.at("purchase").is_null() ? "verdict not"
                                                                          : "verdict borderline");
  fits_table(fleet, html);
  solution_section(fleet, fleet.at("owned"), "On what is there", html);
  if (const Json& purchase = fleet.at("purchase"); !purchase.is_null())
    solution_section(fleet, purchase, "With what is to be bought", html);
  html.paragraph("Assigned by " + text(fleet.at("solver"), "name") + ", whole nodes considered.",
                 "faint");
}

}  // namespace plimsoll::reports

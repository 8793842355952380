#include <fmt/format.h>

#include <algorithm>

#include "reports/page/sections.h"
#include "reports/text.h"

namespace plimsoll::reports {

namespace {

void ranked(const Json& list, Html& html) {
  Table table("", {number_cell("#"), text_cell("strategy"), number_cell("GPUs"),
                   text_cell("recompute"), number_cell("batch"), number_cell("device"),
                   number_cell("free"), number_cell("tokens/s"), number_cell("MFU")});
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Json& plan = list[i].at("plan");
    const Json &strategy = plan.at("workload").at("strategy"),
               &batch = plan.at("workload").at("batch"), &time = plan.at("time");
    const auto device = bytes_of(plan, "device_bytes");
    const auto usable = bytes(plan, "usable_bytes");
    const auto rate = number(time, "tokens_per_second"), mfu = number(time, "mfu");
    table.row({number_cell(std::to_string(i + 1)),
               text_cell(strategy_text(plan) + ", " + text(strategy, "precision")),
               number_cell(whole_number(number_of(strategy, "world_size"))),
               text_cell(text(strategy, "recompute")),
               number_cell(whole_number(number_of(batch, "micro_batch")) + " × " +
                           whole_number(number_of(batch, "grad_accum"))),
               bytes_cell(device), usable ? bytes_cell(*usable - device) : text_cell(""),
               number_cell(rate ? whole_number(*rate) : ""),
               number_cell(mfu ? percent(*mfu) : "")});
  }
  html.raw(table.take());
}

// Memory against speed: each point beats every other in one of them.
void front(const Json& points, Html& html) {
  if (points.size() < 2) return;
  constexpr double kLeft = 80, kWidth = 840, kTop = 16, kHeight = 260;
  double memory = 0, rate = 0;
  for (const Json& point : points) {
    memory = std::max(memory, number(point, "least_device_bytes").value_or(0));
    rate = std::max(rate, number(point, "tokens_per_second").value_or(0));
  }
  if (memory <= 0 || rate <= 0) return;
  html.heading(2, "Memory against speed");
  std::string svg = fmt::format(
      "<div class=\"picture\"><svg viewBox=\"0 0 960 330\" role=\"img\" aria-label=\"tokens per "
      "second over device memory\"><style>.axis{{stroke:var(--line)}}.dot{{fill:var(--bar)}}svg "
      "text{{font:13px system-ui,sans-serif;fill:var(--fg)}}</style>"
      "<path class=\"axis\" fill=\"none\" d=\"M{} {}v{}h{}\"/>",
      kLeft, kTop, kHeight, kWidth);
  for (const Json& point : points) {
    const auto speed = number(point, "tokens_per_second");
    if (!speed) continue;  // it has no place in the picture
    const double x = kLeft + kWidth * number_of(point, "least_device_bytes") / memory / 1.02;
    const double y = kTop + kHeight * (1 - *speed / rate / 1.05);
    svg += fmt::format(
        "<circle class=\"dot\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\"><title>{}, {} "
        "tokens/s: {}</title></circle>",
        x, y, bytes_text(bytes_of(point, "least_device_bytes")), whole_number(*speed),
        xml_escaped(text(point, "options")));
  }
  svg += fmt::format(
      "<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text><text x=\"{}\" y=\"{}\">0</text>"
      "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{} on each device</text>"
      "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">tokens/s</text></svg></div>\n",
      kLeft - 6, kTop + kHeight * (1 - 1 / 1.05) + 4, whole_number(rate), kLeft,
      kTop + kHeight + 18, kLeft + kWidth, kTop + kHeight + 18,
      bytes_text(Bytes(static_cast<std::int64_t>(memory))), kLeft - 6, kTop + kHeight - 2);
  html.raw(svg);
  Table table("",
              {number_cell("least device memory"), number_cell("tokens/s"), text_cell("options")});
  for (const Json& point : points) {
    const auto speed = number(point, "tokens_per_second");
    table.row({bytes_cell(bytes_of(point, "least_device_bytes")),
               number_cell(speed ? whole_number(*speed) : "not known"),
               {"<code>" + xml_escaped(text(point, "options")) + "</code>"}});
  }
  html.raw("<details><summary>The points as a table</summary>\n" + table.take() + "</details>\n");
}

void nothing_fits(const Json& nothing, Html& html) {
  html.paragraph("Nothing fits", "verdict not");
  if (const auto missing = bytes(nothing, "shortfall_bytes"))
    html.paragraph("The closest plan lacks " + bytes_text(*missing) + " on each device.");
  const Json &changes = nothing.at("would_fit"), &commands = nothing.at("commands");
  if (!changes.empty()) html.heading(2, "What would fit");
  for (std::size_t i = 0; i < changes.size(); ++i) {
    html.heading(3, changes[i].get<std::string>());
    if (i < commands.size()) html.code(commands[i].get<std::string>());
  }
  if (const Json& closest = nothing.at("closest"); !closest.is_null()) {
    html.heading(2, "The closest plan");
    plan_sections(closest, 3, html);
  }
}

}  // namespace

void recommendation_page(const Json& recommendation, Html& html) {
  html.heading(1, "How to run " + text(recommendation, "model"));
  const Json& list = recommendation.at("ranked");
  if (list.empty()) {
    if (const Json& nothing = recommendation.at("nothing_fits"); !nothing.is_null())
      nothing_fits(nothing, html);
    return;
  }
  const Json& best = list.front();
  verdict_line(best.at("plan"), html);
  html.code(text(best, "command"));
  html.heading(2, "The plans, best first");
  ranked(list, html);
  html.heading(2, "Why the first");
  html.list(best.at("why").get<std::vector<std::string>>());
  front(recommendation.at("pareto"), html);
  html.heading(2, "The first plan");
  plan_sections(best.at("plan"), 3, html);
  for (std::size_t i = 1; i < list.size(); ++i) {
    html.raw(fmt::format("<details><summary>Plan {}: {}</summary>\n", i + 1,
                         xml_escaped(strategy_text(list[i].at("plan")))));
    html.code(text(list[i], "command"));
    html.list(list[i].at("why").get<std::vector<std::string>>());
    html.raw("</details>\n");
  }
}

}  // namespace plimsoll::reports

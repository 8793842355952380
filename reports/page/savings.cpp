// What would make a plan fit, and what each technique saves.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "reports/page/sections.h"
#include "reports/text.h"

namespace plimsoll::reports {

namespace {

Cell code_cell(const std::string& code, const std::string& below) {
  return {"<span class=\"what\"><code>" + xml_escaped(code) + "</code>" +
          (below.empty() ? "" : "<br><small>" + xml_escaped(below) + "</small>") + "</span>"};
}

// What a technique costs is no saving, and says so.
Cell saved_cell(Bytes saved) {
  if (saved >= Bytes(0)) return bytes_cell(saved);
  Cell cell = bytes_cell(Bytes(0) - saved);
  cell.html = "costs " + cell.html;
  return cell;
}

// What is needed with the technique, and what it saves beside that.
Cell saving_bar(double with, double without, double whole, double usable) {
  std::vector<BarPart> parts{{std::min(with, without), "var(--bar)", ""}};
  if (without > with) parts.push_back({without - with, "var(--saved)", "saved"});
  return {bar_html(parts, whole, usable)};
}

// Less than half a per cent of the device is nothing that anybody would do it for.
constexpr double kWorthSaying = 0.005;

struct Savings {
  const Json& plan;
  bool used;
  double usable = 0, whole = 1;
  std::vector<const Json*> rows = {};
  std::string idle = {};  // options that would save nothing

  Savings(const Json& of, bool wanted);
  double without(const Json& saving) const {
    return number_of(used ? saving : plan, "device_bytes");
  }
  double with(const Json& saving) const { return number_of(used ? plan : saving, "device_bytes"); }
  bool saves_nothing(const Json& saving) const;
  Table table() const;
  void add(const Json& saving, Table& table) const;
  void write(const char* how, Html& html) const;
};

Savings::Savings(const Json& of, bool wanted)
    : plan(of), used(wanted), usable(number(of, "usable_bytes").value_or(0)) {
  whole = std::max(usable, 1.0);
  for (const Json& saving : plan.at("savings")) {
    if (saving.value("used", false) != used) continue;
    if (!used && saves_nothing(saving)) {
      idle += (idle.empty() ? "" : ", ") + text(saving, "option");
      continue;
    }
    rows.push_back(&saving);
    if (number(saving, "device_bytes")) whole = std::max({whole, with(saving), without(saving)});
  }
}

bool Savings::saves_nothing(const Json& saving) const {
  const double worth = kWorthSaying * number(plan, "device_bytes").value_or(0);
  return number(saving, "saves_peak_bytes").value_or(0) < worth &&
         number(saving, "saves_device_bytes").value_or(0) < worth;
}

Table Savings::table() const {
  return {"",
          {text_cell(used ? "technique" : "option"), number_cell("saves"), text_cell(""),
           number_cell(used ? "peak without" : "peak then"),
           number_cell(used ? "device without" : "device then"), text_cell("")}};
}

void Savings::add(const Json& saving, Table& table) const {
  const std::string below =
      used ? "without it: " + text(saving, "instead") : text(saving, "concession");
  const Cell name = code_cell(text(saving, "option"), below);
  const auto saves = bytes(saving, "saves_device_bytes");
  if (!saves) {
    const Cell none = text_cell("");
    table.row({name, none, text_cell("not planned: " + text(saving, "refusal")), none, none, none});
    return;
  }
  const bool stops_fitting = used && plan.value("fits", false) && saving.at("fits") == false;
  table.row({name,
             saved_cell(*saves),
             saving_bar(with(saving), without(saving), whole, usable),
             bytes_cell(bytes_of(saving, "peak_bytes")),
             bytes_cell(bytes_of(saving, "device_bytes")),
             {stops_fitting ? "<span class=\"verdict not\">would not fit</span>" : ""}});
}

void Savings::write(const char* how, Html& html) const {
  html.paragraph(how, "faint");
  Table rows_of_all = table();
  for (const Json* row : rows) add(*row, rows_of_all);
  if (!rows.empty()) html.raw(rows_of_all.take());
  if (!idle.empty()) html.paragraph("Would save nothing here: " + idle + ".", "faint");
}

}  // namespace

void remedies(const Json& plan, int level, Html& html) {
  const auto found = plan.find("remedies");
  const auto usable = bytes(plan, "usable_bytes");
  if (found == plan.end() || found->empty() || !usable) return;
  html.heading(level, "What would help, cheapest first");
  const double whole = std::max(number(plan, "device_bytes").value_or(0), usable->real());
  Table table("The red mark is the usable memory.",
              {text_cell("change"), number_cell("saves"), number_cell("needed then"), text_cell(""),
               text_cell("")});
  for (const Json& remedy : *found) {
    const bool fits = remedy.value("fits", false);
    const double left = number_of(remedy, "device_bytes");
    table.row({{"<code>" + xml_escaped(text(remedy, "option")) + "</code>"},
               bytes_cell(bytes_of(remedy, "saves_bytes")),
               bytes_cell(bytes_of(remedy, "device_bytes")),
               {bar_html({{left, fits ? "var(--good)" : "var(--bar)", ""}}, whole, usable->real())},
               {fits ? "<span class=\"verdict fits\">fits</span>" : ""}});
  }
  html.raw(table.take());
}

void savings(const Json& plan, int level, Html& html) {
  if (!plan.contains("savings")) return;
  const Savings used(plan, true), unused(plan, false);
  if (!used.rows.empty()) {
    html.heading(level, "What each technique saves");
    used.write(
        "Device memory: the same workload was planned again without each, all else as it is, so "
        "they do not add up. The red mark is what is usable.",
        html);
  }
  if (!unused.rows.empty() || !unused.idle.empty()) {
    html.heading(level, "What would save more, with the same result");
    unused.write(
        "Planned again with each. Model, batch and what is computed stay as they are; time may "
        "not.",
        html);
  }
}

}  // namespace plimsoll::reports

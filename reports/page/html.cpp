#include "reports/page/html.h"

#include <fmt/format.h>

#include <algorithm>

#include "reports/text.h"

namespace plimsoll::reports {

void Html::heading(int level, std::string_view text) {
  out_ += fmt::format("<h{0}>{1}</h{0}>\n", level, xml_escaped(text));
}

void Html::paragraph(std::string_view text, std::string_view style) {
  const std::string attribute = style.empty() ? "" : fmt::format(" class=\"{}\"", style);
  out_ += fmt::format("<p{}>{}</p>\n", attribute, xml_escaped(text));
}

void Html::code(std::string_view text) {
  out_ += fmt::format("<pre>{}</pre>\n", xml_escaped(text));
}

void Html::list(const std::vector<std::string>& items) {
  if (items.empty()) return;
  out_ += "<ul>\n";
  for (const std::string& item : items) out_ += "<li>" + xml_escaped(item) + "</li>\n";
  out_ += "</ul>\n";
}

Cell text_cell(std::string_view text) {
  return {xml_escaped(text)};
}

Cell number_cell(std::string_view text) {
  return {xml_escaped(text), true};
}

// The exact figure for a reader who hovers or copies.
Cell bytes_cell(Bytes bytes) {
  return {fmt::format("<data value=\"{0}\" title=\"{0} bytes\">{1}</data>", bytes.value(),
                      bytes_text(bytes)),
          true};
}

Table::Table(std::string_view caption, std::initializer_list<Cell> header) {
  out_ = "<div class=\"wide\" tabindex=\"0\"><table>";
  if (!caption.empty()) out_ += "<caption>" + xml_escaped(caption) + "</caption>";
  out_ += "<thead><tr>";
  for (const Cell& cell : header)
    out_ +=
        fmt::format("<th{} scope=\"col\">{}</th>", cell.number ? " class=\"n\"" : "", cell.html);
  out_ += "</tr></thead>\n<tbody>\n";
}

void Table::row(const std::vector<Cell>& cells, bool total) {
  ++rows_;
  out_ += total ? "<tr class=\"total\">" : "<tr>";
  for (const Cell& cell : cells)
    out_ += fmt::format("<td class=\"{}\">{}</td>", cell.number ? "n" : "w", cell.html);
  out_ += "</tr>\n";
}

std::string Table::take() {
  return std::move(out_) + "</tbody></table></div>\n";
}

std::string bar_html(const std::vector<BarPart>& parts, double whole, double limit) {
  std::string out = "<span class=\"bar\">";
  for (const BarPart& part : parts)
    out += fmt::format("<i style=\"width:{:.2f}%;background:{}\" title=\"{}\"></i>",
                       100 * std::clamp(part.value / whole, 0.0, 1.0), part.colour,
                       xml_escaped(part.name));
  if (limit > 0 && limit < whole)
    out += fmt::format("<b style=\"left:{:.2f}%\"></b>", 100 * limit / whole);
  return out + "</span>";
}

}  // namespace plimsoll::reports

#include "tools/cli/batch_answers.h"

#include <fmt/format.h>

#include <charconv>

#include "models/base/error.h"
#include "reports/json_writer.h"
#include "reports/page/html.h"
#include "reports/page/page.h"
#include "reports/text.h"
#include "tools/cli/doors.h"

namespace plimsoll::tools {

namespace {
// What a table has where --fields does not say.
constexpr std::string_view kUsualFields =
    "verdict,peak_bytes,reserved_bytes,device_bytes,usable_bytes,headroom_bytes,"
    "time.step_seconds,time.tokens_per_second";

std::string error_object(const BatchLine& line) {
  std::string out;
  reports::JsonWriter json(out, reports::JsonWriter::Style::compact);
  json.begin_object();
  if (!line.id.empty()) {
    json.key("id");
    json.raw(line.id);
  }
  json.member("line", line.number);
  json.key("error");
  json.begin_object();
  json.member("kind", line.kind);
  json.member("message", line.message);
  json.end_object();
  json.end_object();
  return out + '\n';
}

// GitHub's tables: a cell is one line, and | ends it.
std::string markdown_cell(std::string_view text) {
  std::string out;
  for (const char c : reports::printable(text)) {
    if (c == '|' || c == '\\' || c == '<' || c == '`') out += '\\';
    out += c;
  }
  return out;
}

std::string markdown_line(const std::vector<std::string>& cells) {
  std::string out = "|";
  for (const std::string& cell : cells) out += " " + markdown_cell(cell) + " |";
  return out + "\n";
}

std::optional<double> number_of(std::string_view json) {
  double value = 0;
  const auto [end, error] = std::from_chars(json.data(), json.data() + json.size(), value);
  if (error != std::errc() || end != json.data() + json.size()) return std::nullopt;
  return value;
}

// A field as people read it; the exact one stays in the cell.
std::string html_cell(const std::string& path, const std::string& json) {
  const std::optional<double> value = number_of(json);
  if (!value) return "<td class=\"w\">" + reports::xml_escaped(csv_cell(json)) + "</td>";
  std::string shown = json;
  if (path.ends_with("_bytes") && *value >= 0)
    shown = reports::bytes_text(Bytes(static_cast<std::int64_t>(*value)));
  else if (path.ends_with("_bytes"))
    shown = "-" + reports::bytes_text(Bytes(static_cast<std::int64_t>(-*value)));
  else if (json.find_first_of(".e") != std::string::npos)
    shown = fmt::format("{:.4g}", *value);
  return fmt::format("<td class=\"n\"><data value=\"{0}\" title=\"{0}\">{1}</data></td>", json,
                     shown);
}

std::string table_end(const BatchLine& last) {
  return fmt::format("</tbody></table></div>\n<p class=\"faint\">{} lines read.</p>\n",
                     last.number);
}
}  // namespace

BatchAnswers::BatchAnswers(const Options& options) {
  int forms = 0;
  for (const auto& [name, form] :
       {std::pair("csv", Form::csv), {"markdown", Form::markdown}, {"html", Form::html}}) {
    if (!options.has(name)) continue;
    form_ = form;
    check(++forms == 1, ErrorKind::bad_input,
          "--csv, --markdown, --html: give one of them, answers have one form");
    check(!options.has("json"), ErrorKind::bad_input,
          fmt::format("--{} with --json: give one of the two (--csv and --markdown write to "
                      "standard output)",
                      name));
  }
  const std::string* list = options.find("fields");
  if (list != nullptr || form_ != Form::json) fields_.emplace(list ? *list : kUsualFields);
}

std::string BatchAnswers::head() const {
  if (form_ == Form::json) return "";
  std::vector<std::string> cells{"line", "id"};
  cells.insert(cells.end(), fields_->paths().begin(), fields_->paths().end());
  cells.push_back("error");
  if (form_ == Form::csv) return csv_line(cells);
  if (form_ == Form::markdown) {
    std::string out = markdown_line(cells) + "|";
    for (std::size_t i = 0; i < cells.size(); ++i) out += " --- |";
    return out + "\n";
  }
  std::string out = reports::page_head("plimsoll: answers of a batch") +
                    "<h1>Answers of a batch</h1>\n<div class=\"wide\" tabindex=\"0\"><table>"
                    "<thead><tr>";
  for (const std::string& cell : cells)
    out += "<th scope=\"col\">" + reports::xml_escaped(cell) + "</th>";
  return out + "</tr></thead>\n<tbody>\n";
}

std::string BatchAnswers::body(const std::string& plan) const {
  if (form_ != Form::json) return cells_of(plan);
  return fields_ ? selected(plan) : plan;
}

std::string BatchAnswers::row(const BatchLine& line) const {
  const bool failed = !line.answered;
  const std::string id = line.id.empty() ? "" : csv_cell(line.id);
  const std::string number = std::to_string(line.number);
  const std::size_t fields = fields_ ? fields_->paths().size() : 0;
  switch (form_) {
    case Form::json:
      if (failed) return error_object(line);
      if (line.id.empty()) return line.body + "\n";
      return "{\"id\":" + line.id + (line.body == "{}" ? "" : ",") + line.body.substr(1) + "\n";
    case Form::csv: {
      std::string head = csv_line({number, id});
      head.resize(head.size() - 2);  // its line end
      return head + "," + (failed ? std::string(fields - 1, ',') : line.body) + "," +
             csv_line({line.message});
    }
    case Form::markdown: {
      std::string out = "| " + number + " | " + markdown_cell(id) + " |";
      for (std::size_t i = 0; failed && i < fields; ++i) out += "  |";
      return out + line.body + " " + markdown_cell(line.message) + " |\n";
    }
    case Form::html:
      break;
  }
  std::string out = "<tr><td class=\"n\">" + number + "</td><td class=\"w\">" +
                    reports::xml_escaped(id) + "</td>";
  for (std::size_t i = 0; failed && i < fields; ++i) out += "<td></td>";
  return out + line.body + "<td class=\"w not\">" + reports::xml_escaped(line.message) +
         "</td></tr>\n";
}

std::string BatchAnswers::foot(const BatchLine& last) const {
  if (form_ != Form::html) return "";
  return table_end(last) + reports::page_foot("plimsoll batch", this_tool());
}

// The fields' part of a row.
std::string BatchAnswers::cells_of(const std::string& plan) const {
  const std::vector<std::string> values = fields_->values(plan);
  std::string out;
  std::vector<std::string> cells;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (form_ == Form::csv)
      cells.push_back(csv_cell(values[i]));
    else if (form_ == Form::markdown)
      out += " " + markdown_cell(csv_cell(values[i])) + " |";
    else
      out += html_cell(fields_->paths()[i], values[i]);
  }
  if (form_ != Form::csv) return out;
  out = csv_line(cells);
  out.resize(out.size() - 2);
  return out;
}

std::string BatchAnswers::selected(const std::string& plan) const {
  std::string out;
  reports::JsonWriter json(out, reports::JsonWriter::Style::compact);
  json.begin_object();
  const std::vector<std::string> values = fields_->values(plan);
  for (std::size_t i = 0; i < values.size(); ++i) {
    json.key(fields_->paths()[i]);
    json.raw(values[i]);
  }
  json.end_object();
  return out;
}

}  // namespace plimsoll::tools

#include "tools/cli/query_csv.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/base/error.h"
#include "reports/json_writer.h"
#include "tools/cli/options.h"
#include "tools/cli/values.h"

namespace plimsoll::tools {

namespace {
std::string option_name(std::string key) {
  std::ranges::replace(key, '_', '-');
  return key;
}

// A byte order mark is what spreadsheets begin a file with.
std::string_view without_mark(std::string_view line) {
  if (line.starts_with("\xef\xbb\xbf")) line.remove_prefix(3);
  return line;
}
}  // namespace

std::vector<std::string> csv_cells(std::string_view line) {
  std::vector<std::string> cells(1);
  bool quoted = false, closed = false;  // inside quotes; behind them
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quoted && c == '"' && i + 1 < line.size() && line[i + 1] == '"') {
      cells.back() += c;
      ++i;
    } else if (c == '"' && quoted) {
      quoted = false;
      closed = true;
    } else if (c == '"' && cells.back().empty() && !closed) {
      quoted = true;
    } else if (c == ',' && !quoted) {
      cells.emplace_back();
      closed = false;
    } else {
      check(!closed, ErrorKind::bad_input, "CSV: text behind a quoted cell");
      cells.back() += c;
    }
  }
  check(!quoted, ErrorKind::bad_input, "CSV: a quoted cell does not end on its line");
  return cells;
}

std::optional<std::vector<std::string>> csv_keys(std::string_view line) {
  line = without_mark(line);
  if (line.find_first_of("{}\"") != std::string_view::npos) return std::nullopt;
  const std::vector<std::string> keys = csv_cells(line);
  bool asks = false;
  for (const std::string& key : keys) {
    if (key != "id" && key != "model" && find_plan_option(option_name(key)) == nullptr)
      return std::nullopt;
    asks = asks || key == "model" || key == "params";
  }
  return asks ? std::optional(keys) : std::nullopt;
}

std::string csv_query(const std::vector<std::string>& keys, std::string_view line) {
  const std::vector<std::string> cells = csv_cells(line);
  check(cells.size() == keys.size(), ErrorKind::bad_input, [&] {
    return fmt::format("CSV: {} cells, and the first row has {}", cells.size(), keys.size());
  });
  std::string out;
  reports::JsonWriter json(out, reports::JsonWriter::Style::compact);
  json.begin_object();
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (cells[i].empty()) continue;
    json.key(keys[i]);
    const Option* option = find_plan_option(option_name(keys[i]));
    if (option != nullptr && option->value.empty())
      json.value(yes_or_no(option->name, cells[i]));
    else
      json.value(cells[i]);
  }
  json.end_object();
  return out;
}

}  // namespace plimsoll::tools

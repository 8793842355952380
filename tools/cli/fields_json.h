// A few figures out of an answer, for spreadsheets and scripts: `batch --fields`, `batch --csv`.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace plimsoll::tools {

std::string_view plan_schema();  // the text of reports/schema/plan.schema.json

class Fields {
 public:
  // "peak_bytes,time.step_seconds,ranks.0.peak_bytes": dotted paths into plimsoll.plan/1, in the
  // order that answers keep. Error{bad_input}: a path that the schema does not have (the nearest is
  // named), or one that is given twice.
  explicit Fields(std::string_view list);

  const std::vector<std::string>& paths() const { return paths_; }

  // Their values in a plan's document, each as compact JSON text; "null" where this plan has none.
  std::vector<std::string> values(std::string_view plan) const;

 private:
  std::vector<std::string> paths_;
};

// One line of a table, by RFC 4180: cells with commas, quotes or line ends stand in quotes; CRLF.
std::string csv_line(const std::vector<std::string>& cells);

// JSON text as a cell: strings without their quotes, null as nothing.
std::string csv_cell(std::string_view json);

}  // namespace plimsoll::tools

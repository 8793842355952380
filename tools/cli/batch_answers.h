// How answers of a batch look: whole documents, a few of their fields, or rows of a table.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tools/cli/fields_json.h"
#include "tools/cli/options.h"

namespace plimsoll::tools {

// One line of the input, and what became of it.
struct BatchLine {
  std::int64_t number = 0;
  std::string id;  // as JSON text; "": none given
  bool answered = false;
  std::string body;  // what BatchAnswers::body() made of the plan
  std::string kind, message;
};

class BatchAnswers {
 public:
  // Of --fields, --csv, --markdown, --html. Error{bad_input}: two of the last three, or one with
  // --json.
  explicit BatchAnswers(const Options& options);

  std::string head() const;
  // Of a plan's document, whoever asked.
  std::string body(const std::string& plan) const;
  std::string row(const BatchLine& line) const;
  std::string foot(const BatchLine& last) const;

 private:
  enum class Form { json, csv, markdown, html };
  std::string selected(const std::string& plan) const;
  std::string cells_of(const std::string& plan) const;

  Form form_ = Form::json;
  std::optional<Fields> fields_;
};

}  // namespace plimsoll::tools

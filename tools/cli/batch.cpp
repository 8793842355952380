#include <fmt/format.h>

#include <optional>

#include "reports/json_writer.h"
#include "tools/cli/doors.h"
#include "tools/cli/fields_json.h"
#include "tools/cli/host_memory.h"
#include "tools/cli/line_reader.h"
#include "tools/cli/output.h"
#include "tools/cli/query_json.h"
#include "tools/cli/request.h"

namespace plimsoll::tools {

namespace {
// What --csv has where --fields does not say.
constexpr std::string_view kUsualFields =
    "verdict,peak_bytes,reserved_bytes,device_bytes,usable_bytes,headroom_bytes,"
    "time.step_seconds,time.tokens_per_second";

std::string compact_plan(const reports::Plan& plan) {
  std::string text;
  reports::JsonWriter json(text, reports::JsonWriter::Style::compact);
  reports::write_plan(json, plan, this_tool());
  return text;
}

// One line of the input, and what became of it.
struct Line {
  std::int64_t number = 0;
  std::string id;  // as JSON text; "": none given
  std::string plan;  // as JSON text; "": an error
  std::string kind, message;
};

// How answers look: whole documents, a few of their fields, or a table.
class Answers {
 public:
  explicit Answers(const Options& options) : csv_(options.has("csv")) {
    const std::string* list = options.find("fields");
    if (list != nullptr || csv_) fields_.emplace(list != nullptr ? *list : kUsualFields);
    check(!csv_ || !options.has("json"), ErrorKind::bad_input,
          "--csv with --json: give one of the two (--csv writes to standard output)");
  }

  std::string header() const {
    if (!csv_) return "";
    std::vector<std::string> cells{"line", "id"};
    cells.insert(cells.end(), fields_->paths().begin(), fields_->paths().end());
    cells.push_back("error");
    return csv_line(cells);
  }

  std::string text_of(const Line& line) const {
    if (csv_) return csv(line);
    if (line.plan.empty()) return error(line);
    const std::string plan = fields_ ? selected(line.plan) : line.plan;
    if (line.id.empty()) return plan + "\n";
    return "{\"id\":" + line.id + (plan == "{}" ? "" : ",") + plan.substr(1) + "\n";
  }

 private:
  std::string csv(const Line& line) const {
    std::vector<std::string> cells{std::to_string(line.number),
                                   line.id.empty() ? "" : csv_cell(line.id)};
    if (line.plan.empty()) {
      cells.resize(cells.size() + fields_->paths().size());
    } else {
      for (const std::string& value : fields_->values(line.plan)) cells.push_back(csv_cell(value));
    }
    cells.push_back(line.message);
    return csv_line(cells);
  }

  static std::string error(const Line& line) {
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

  std::string selected(const std::string& plan) const {
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

  bool csv_;
  std::optional<Fields> fields_;
};

Line answered(std::string_view text, std::int64_t number, Sources& sources) {
  Line line{.number = number};
  try {
    const Query query = query_from(text, line.id);
    Request request = request_from(query.model, query.options, sources);
    use_host_memory(request.question);
    if (!query.options.has("detail")) {
      request.question.detail = planner::Detail::none;
      request.question.remedies = false;
    }
    line.plan = compact_plan(answer(request));
  } catch (const Error& error) {
    line.kind = name_of(error.kind());
    line.message = error.message();
  } catch (const std::exception& error) {
    line.kind = name_of(ErrorKind::internal);
    line.message = error.what();
  }
  return line;
}

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\v\f\r") == std::string_view::npos;
}
}  // namespace

int batch(const CommandLine& line) {
  check(!line.argument.empty(), ErrorKind::bad_input,
        "QUERIES.jsonl is missing: a file, or - for standard input");
  const Answers answers(line.options);
  LineReader reader(line.argument);
  const std::string* target = line.options.find("json");
  std::optional<AtomicFile> file;
  if (target != nullptr && *target != "-") file.emplace(*target);
  Sources sources;
  std::string out = answers.header();
  std::int64_t lines = 0, asked = 0, refused = 0;
  bool listening = true;
  while (listening) {
    const std::optional<std::string_view> text = reader.next();
    if (text) ++lines;
    if (text && !is_blank(*text)) {
      const Line answer = answered(*text, lines, sources);
      ++asked;
      if (answer.plan.empty()) ++refused;
      out += answers.text_of(answer);
    }
    // Whoever waits for an answer has it before we wait for a question.
    if (!text || !reader.ready() || out.size() > (1 << 20)) {
      if (file)
        file->write(out);
      else
        listening = print(out);
      out.clear();
    }
    if (!text) break;
  }
  if (file) file->commit();
  if (refused > 0 && !line.options.has("quiet"))
    say(fmt::format("{} of {} lines got an error", refused, asked));
  return refused > 0 ? 2 : 0;
}

}  // namespace plimsoll::tools

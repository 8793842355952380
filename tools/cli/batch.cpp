#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>

#include "reports/json_writer.h"
#include "tools/cli/doors.h"
#include "tools/cli/output.h"
#include "tools/cli/query_json.h"
#include "tools/cli/request.h"

namespace plimsoll::tools {

namespace {
constexpr std::size_t kLongestLine = 16 << 20;

// Lines of a descriptor, as they come: what has been read is handed out before more is waited for.
class LineReader {
 public:
  explicit LineReader(const std::string& path) {
    descriptor_ = path == "-" ? STDIN_FILENO : ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    check(descriptor_ >= 0, ErrorKind::bad_input,
          [&] { return fmt::format("{}: {}", path, std::strerror(errno)); });
    path_ = path;
  }
  ~LineReader() {
    if (descriptor_ != STDIN_FILENO) ::close(descriptor_);
  }
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  // Whether a whole line is there already.
  bool ready() const { return buffer_.find('\n', at_) != std::string::npos; }

  // The next line without its end; nothing at the end of the input.
  std::optional<std::string_view> next() {
    for (std::size_t searched = at_;;) {
      const std::size_t end = buffer_.find('\n', searched);
      if (end != std::string::npos) return take(end, end + 1);
      if (ended_) {
        if (at_ == buffer_.size()) return std::nullopt;
        return take(buffer_.size(), buffer_.size());
      }
      buffer_.erase(0, at_);
      at_ = 0;
      searched = buffer_.size();
      fill();
    }
  }

 private:
  std::string_view take(std::size_t end, std::size_t next) {
    std::string_view line(buffer_.data() + at_, end - at_);
    if (line.ends_with('\r')) line.remove_suffix(1);
    at_ = next;
    return line;
  }

  void fill() {
    check(buffer_.size() <= kLongestLine, ErrorKind::bad_input,
          [&] { return fmt::format("{}: a line of more than 16 MiB", path_); });
    const std::size_t before = buffer_.size();
    buffer_.resize(before + (1 << 16));
    ssize_t got;
    do got = ::read(descriptor_, buffer_.data() + before, 1 << 16);
    while (got < 0 && errno == EINTR);
    check(got >= 0, ErrorKind::bad_input,
          [&] { return fmt::format("{}: {}", path_, std::strerror(errno)); });
    buffer_.resize(before + static_cast<std::size_t>(got));
    ended_ = got == 0;
  }

  int descriptor_ = -1;
  std::string path_;
  std::string buffer_;
  std::size_t at_ = 0;
  bool ended_ = false;
};

void write_error(std::string& out, std::int64_t line, std::string_view kind,
                 std::string_view message) {
  reports::JsonWriter json(out, reports::JsonWriter::Style::compact);
  json.begin_object();
  json.member("line", line);
  json.key("error");
  json.begin_object();
  json.member("kind", kind);
  json.member("message", message);
  json.end_object();
  json.end_object();
  out += '\n';
}

// One answer, appended to `out`; false for a line that got an error.
bool answer_line(std::string& out, std::string_view text, std::int64_t number, Sources& sources) {
  try {
    const Query query = query_from(text);
    Request request = request_from(query.model, query.options, sources);
    if (!query.options.has("detail")) {
      request.question.detail = planner::Detail::none;
      request.question.remedies = false;
    }
    const reports::Plan plan = answer(request);
    reports::JsonWriter json(out, reports::JsonWriter::Style::compact);
    reports::write_plan(json, plan, this_tool());
    out += '\n';
    return true;
  } catch (const Error& error) {
    write_error(out, number, name_of(error.kind()), error.message());
  } catch (const std::exception& error) {
    write_error(out, number, name_of(ErrorKind::internal), error.what());
  }
  return false;
}
}  // namespace

int batch(const CommandLine& line) {
  check(!line.argument.empty(), ErrorKind::bad_input,
        "QUERIES.jsonl is missing: a file, or - for standard input");
  LineReader reader(line.argument);
  const std::string* target = line.options.find("json");
  std::optional<AtomicFile> file;
  if (target != nullptr && *target != "-") file.emplace(*target);
  Sources sources;
  std::string out;
  std::int64_t lines = 0, refused = 0;
  bool listening = true;
  while (listening) {
    const std::optional<std::string_view> text = reader.next();
    if (text && !answer_line(out, *text, ++lines, sources)) ++refused;
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
    say(fmt::format("{} of {} lines got an error", refused, lines));
  return refused > 0 ? 2 : 0;
}

}  // namespace plimsoll::tools

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>

#include "models/base/remembered.h"
#include "reports/json_writer.h"
#include "tools/cli/batch_answers.h"
#include "tools/cli/doors.h"
#include "tools/cli/host_memory.h"
#include "tools/cli/line_reader.h"
#include "tools/cli/output.h"
#include "tools/cli/progress_line.h"
#include "tools/cli/query_csv.h"
#include "tools/cli/query_json.h"
#include "tools/cli/request.h"
#include "tools/cli/values.h"

namespace plimsoll::tools {

namespace {
std::string compact_plan(const reports::Plan& plan) {
  std::string text;
  reports::JsonWriter json(text, reports::JsonWriter::Style::compact);
  reports::write_plan(json, plan, this_tool());
  return text;
}

constexpr std::size_t kMostBytes = 32 << 20;  // of answers that are remembered, and as many again

std::string question_of(const Query& query) {
  std::vector<std::string> words;
  for (const auto& [name, value] : query.options.given()) words.push_back(name + '=' + value);
  std::ranges::sort(words);
  std::string out = query.model;
  for (const std::string& word : words) out += '\0' + word;
  return out;
}

// One thread's: sources remember what they have read.
class Answerer {
 public:
  explicit Answerer(const BatchAnswers& answers) : answers_(answers) {}

  // `keys`: of a table; empty: the text is a JSON object.
  BatchLine answered(const std::string& text, std::int64_t number,
                     const std::vector<std::string>& keys) {
    BatchLine line{.number = number};
    try {
      const Query query = query_from(keys.empty() ? text : csv_query(keys, text), line.id);
      const std::string question = question_of(query);
      const std::string* body = remembered_.find(question);
      line.body = body != nullptr ? *body : remembered(question, planned(query));
      line.answered = true;
    } catch (const Error& error) {
      line.kind = name_of(error.kind());
      line.message = error.message();
    } catch (const std::exception& error) {
      line.kind = name_of(ErrorKind::internal);
      line.message = error.what();
    }
    return line;
  }

 private:
  std::string planned(const Query& query) {
    Request request = request_from(query.model, query.options, sources_);
    use_host_memory(request.question);
    if (!query.options.has("detail")) {
      request.question.detail = planner::Detail::none;
      request.question.remedies = false;
    }
    return answers_.body(compact_plan(answer(request)));
  }

  const std::string& remembered(const std::string& question, std::string body) {
    const std::size_t bytes = question.size() + body.size();
    return remembered_.add(question, std::move(body), bytes);
  }

  const BatchAnswers& answers_;
  Sources sources_;
  // Answers to questions that were asked before, the same but for their id: memory stays bounded
  // however long the input.
  Remembered<std::string, std::string> remembered_{kMostBytes};
};

struct Asked {
  std::string text;
  std::int64_t number;
};

class Batch {
 public:
  Batch(const BatchAnswers& answers, std::size_t threads) {
    for (std::size_t i = 0; i < threads; ++i) answerers_.emplace_back(answers);
  }

  // Lines that are there already, as many as keep all threads busy for a while.
  std::vector<Asked> take(LineReader& reader) {
    constexpr std::size_t kMostLines = 256;
    std::vector<Asked> asked;
    do {
      const std::optional<std::string_view> text = reader.next();
      if (!text) {
        ended_ = true;
        break;
      }
      ++lines_;
      if (text->find_first_not_of(" \t\v\f\r") == std::string_view::npos) continue;
      if (!begun_) {
        begun_ = true;
        if (const auto keys = csv_keys(*text)) {
          keys_ = *keys;
          continue;
        }
      }
      asked.push_back({std::string(*text), lines_});
    } while (reader.ready() && asked.size() < kMostLines);
    return asked;
  }

  std::vector<BatchLine> answered(const std::vector<Asked>& asked) {
    std::vector<BatchLine> out(asked.size());
    std::atomic<std::size_t> next = 0;
    const auto work = [&](Answerer& answerer) {
      for (std::size_t i; (i = next++) < asked.size();)
        out[i] = answerer.answered(asked[i].text, asked[i].number, keys_);
    };
    std::vector<std::jthread> others;
    for (std::size_t i = 1; i < std::min(answerers_.size(), asked.size()); ++i)
      others.emplace_back(work, std::ref(answerers_[i]));
    work(answerers_[0]);
    others.clear();
    return out;
  }

  bool ended() const { return ended_; }
  std::int64_t lines() const { return lines_; }

 private:
  std::vector<Answerer> answerers_;
  std::vector<std::string> keys_;
  std::int64_t lines_ = 0;
  bool begun_ = false, ended_ = false;
};

std::size_t threads_of(const Options& options) {
  if (const std::string* text = options.find("threads"))
    return static_cast<std::size_t>(whole("threads", *text, 1, 1024));
  return std::max(1U, std::thread::hardware_concurrency());
}

// "json" and "html" name files; what has none goes to standard output.
std::optional<AtomicFile> target_of(const Options& options) {
  for (const char* name : {"json", "html"})
    if (const std::string* target = options.find(name); target != nullptr && *target != "-")
      return std::optional<AtomicFile>(std::in_place, *target, std::string("--") + name);
  return std::nullopt;
}
}  // namespace

int batch(const CommandLine& line) {
  if (line.options.has("fleet")) return plan_fleet(line);
  check(!line.options.has("solver-seconds"), ErrorKind::bad_input,
        "--solver-seconds: is for --fleet");
  check(!line.argument.empty(), ErrorKind::bad_input,
        "QUERIES.jsonl is missing: a file, or - for standard input");
  const BatchAnswers answers(line.options);
  LineReader reader(line.argument);
  std::optional<AtomicFile> file = target_of(line.options);
  ProgressLine progress("queries", 0, line.options.has("quiet") || !file);
  Batch work(answers, threads_of(line.options));
  std::int64_t asked = 0, refused = 0;
  bool listening = true;
  const auto write = [&](const std::string& text) {
    if (file)
      file->write(text);
    else
      listening = print(text);
  };
  std::string out = answers.head();
  // Whoever waits for an answer has it before we wait for a question.
  while (listening && !work.ended()) {
    for (const BatchLine& answer : work.answered(work.take(reader))) {
      ++asked;
      if (!answer.answered) ++refused;
      out += answers.row(answer);
      progress.advance();
    }
    write(out);
    out.clear();
  }
  if (listening) write(answers.foot({.number = work.lines()}));
  if (file) file->commit();
  if (refused > 0 && !line.options.has("quiet"))
    say(fmt::format("{} of {} lines got an error", refused, asked));
  return refused > 0 ? 2 : 0;
}

}  // namespace plimsoll::tools

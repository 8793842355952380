// `plimsoll oom`: what an out-of-memory error was.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "models/base/error.h"
#include "planner/memory/failed_allocation.h"
#include "reports/oom/answer.h"
#include "reports/oom/scanner.h"
#include "tools/cli/doors.h"
#include "tools/cli/output.h"
#include "tools/cli/request.h"

namespace plimsoll::tools {

namespace {
using reports::OomKind;
using reports::OomMessage;

class Descriptor {
 public:
  explicit Descriptor(const std::string& path)
      : number_(path == "-" ? STDIN_FILENO : ::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  ~Descriptor() {
    if (number_ > STDIN_FILENO) ::close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int number() const { return number_; }

 private:
  int number_;
};

reports::OomLog read_log(const std::string& path) {
  const Descriptor file(path);
  const auto verify = [&](bool ok) {
    check(ok, ErrorKind::bad_input,
          [&] { return fmt::format("{}: {}", path, std::strerror(errno)); });
  };
  verify(file.number() >= 0);
  reports::OomScanner scanner;
  std::array<char, 1 << 16> piece;
  for (;;) {
    const ssize_t got = ::read(file.number(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    verify(got >= 0);
    if (got == 0) break;
    scanner.feed({piece.data(), static_cast<std::size_t>(got)});
  }
  scanner.finish();
  return scanner.log();
}

// The card that it happened on, as far as nothing else was said: what the message says of it, less
// what others held.
void use_card_of(const OomMessage& message, const reports::OomReading& reading,
                 planner::Question& question) {
  if (!message.capacity || question.strategy.device != models::Device::cuda) return;
  models::ClusterSpec& cluster = question.cluster;
  const auto given = [&](const char* option) {
    return std::ranges::find(question.given, option) != question.given.end();
  };
  if (!given("gpu-memory")) cluster.memory = message.capacity->bytes;
  if (given("reserve")) return;
  cluster.reserve = std::min(reading.others, message.capacity->bytes);
  if (message.allowed)
    cluster.reserve =
        std::max(cluster.reserve, message.capacity->bytes -
                                      std::min(message.allowed->bytes, message.capacity->bytes));
}

// What PyTorch could reserve when the request failed.
std::optional<Bytes> room_of(const OomMessage& message, const reports::OomReading& reading) {
  if (!reading.reserved || !reading.missing) return std::nullopt;  // figures that can be
  const Bytes room = *reading.reserved + message.free->bytes;
  return message.allowed ? std::min(room, message.allowed->bytes) : room;
}

reports::OomCandidate candidate_of(const planner::FailedCandidate& c, const OomMessage& message) {
  reports::OomCandidate out{
      .tensor = c.tensor, .at = c.at, .printed = c.printed, .first_step = c.first_step};
  if (!message.allocated) return out;
  out.difference = c.at.allocated - message.allocated->bytes;
  out.agrees = planner::agrees(c.at.allocated, message.allocated->bytes);
  return out;
}

void find_failed(const planner::Question& question, const OomMessage& message,
                 reports::OomMatch& match) {
  planner::FailedAllocation failed = planner::find_failed_allocation(
      question,
      {.printed = message.tried->bytes,
       .margin = message.tried->margin,
       .rounded = message.kind == OomKind::allocator,
       .allocated = message.allocated ? std::optional(message.allocated->bytes) : std::nullopt,
       .room = match.room,
       .rank = message.rank});
  match.searched = true;
  for (const planner::FailedCandidate& c : failed.candidates)
    match.candidates.push_back(candidate_of(c, message));
  match.further = failed.further;
  if (failed.refused) match.refused = candidate_of(*failed.refused, message);
  match.lived = failed.lived;
  match.largest = std::move(failed.largest);
  if (match.candidates.empty())
    match.guesses = logits_guesses(message, question.model->decoder->vocab);
}

reports::OomMatch match_workload(const CommandLine& line, const OomMessage& message,
                                 const reports::OomReading& reading) {
  Sources sources;
  Request request =
      request_from(line.arguments.size() > 1 ? line.arguments[1] : "", line.options, sources);
  check(!request.parameters, ErrorKind::unsupported,
        "--params: model states alone make no requests; name the model");
  check(request.question.detail != planner::Detail::full, ErrorKind::bad_input,
        "--detail: has no effect here; plimsoll fit --detail lists every tensor");
  request.question.detail = planner::Detail::none;
  use_card_of(message, reading, request.question);
  reports::OomMatch match{.plan = answer(request), .room = room_of(message, reading)};
  const bool has_size =
      message.kind == OomKind::allocator || message.kind == OomKind::async_allocator;
  if (has_size && message.tried) find_failed(request.question, message, match);
  return match;
}
}  // namespace

int oom(const CommandLine& line) {
  check(!line.argument.empty(), ErrorKind::bad_input,
        "FILE is missing: a log with an out-of-memory message, or - for standard input");
  check(line.arguments.size() <= 2, ErrorKind::bad_input, [&] {
    return fmt::format("unexpected argument '{}' (oom takes FILE and MODEL)", line.arguments[2]);
  });
  reports::OomAnswer answer{.log = read_log(line.argument)};
  check(answer.log.first.has_value(), ErrorKind::bad_input, [&] {
    return fmt::format(
        "{}: no out-of-memory message in it (of PyTorch's allocator, the CUDA driver, NCCL, "
        "cuBLAS, "
        "cuDNN or the host)",
        line.argument == "-" ? "standard input" : line.argument);
  });
  answer.reading = reports::read_cause(*answer.log.first);
  const bool has_workload =
      line.arguments.size() > 1 || std::ranges::any_of(line.options.given(), [](const auto& given) {
        return std::ranges::none_of(
            output_options(), [&](const Option& option) { return option.name == given.first; });
      });
  if (has_workload) answer.match = match_workload(line, *answer.log.first, answer.reading);
  std::string document;
  if (wants_document(line.options)) {
    reports::JsonWriter json(document, reports::JsonWriter::Style::pretty);
    reports::write_oom(json, answer, this_tool());
    document += '\n';
  }
  deliver(line.options, document, reports::oom_table(answer, standard_output_terminal()));
  return 0;
}

}  // namespace plimsoll::tools

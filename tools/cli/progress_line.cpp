#include "tools/cli/progress_line.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace plimsoll::tools {

namespace {
constexpr double kFirstSeconds = 1, kBetweenSeconds = 0.2;
}

std::string progress_text(const std::string& what, std::size_t done, std::size_t all,
                          double seconds) {
  if (all == 0) return fmt::format("{}: {}, {:.0f} s", what, done, seconds);
  constexpr std::size_t kBar = 24;
  const double share = std::min(1.0, static_cast<double>(done) / static_cast<double>(all));
  const auto full = static_cast<std::size_t>(share * kBar);
  const std::string left =
      share > 0 ? fmt::format(", {:.0f} s to go", seconds * (1 - share) / share) : "";
  return fmt::format("{} [{:#<{}}{: <{}}] {} of {}{}", what, "", full, "", kBar - full, done, all,
                     left);
}

ProgressLine::ProgressLine(std::string what, std::size_t all, bool quiet)
    : what_(std::move(what)), all_(all), wanted_(!quiet && ::isatty(STDERR_FILENO) == 1) {}

ProgressLine::~ProgressLine() {
  if (shown_) std::fputs("\r\x1b[K", stderr);
}

void ProgressLine::advance(std::size_t steps) {
  done_ += steps;
  if (wanted_) show();
}

void ProgressLine::show() {
  const Clock::time_point now = Clock::now();
  const auto since = [&](Clock::time_point then) {
    return std::chrono::duration<double>(now - then).count();
  };
  if (since(began_) < kFirstSeconds || since(last_) < kBetweenSeconds) return;
  last_ = now;
  shown_ = true;
  std::fputs(("\r\x1b[K" + progress_text(what_, done_, all_, since(began_)).substr(0, 79)).c_str(),
             stderr);
}

}  // namespace plimsoll::tools

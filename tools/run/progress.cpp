#include "tools/run/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "reports/text.h"

namespace plimsoll::tools {

Progress::Progress(bool quiet, std::int64_t steps)
    : quiet_(quiet), terminal_(::isatty(STDERR_FILENO) == 1), steps_(steps) {}

void Progress::end() {
  if (open_) std::fputs("\n", stderr);
  open_ = false;
}

void Progress::note(const std::string& text) {
  if (quiet_) return;
  end();
  std::fputs((reports::printable(text) + "\n").c_str(), stderr);
}

void Progress::step(std::int64_t number, const runtime::StepResult& result, Bytes now) {
  if (quiet_) return;
  const double rate = result.seconds > 0 ? static_cast<double>(result.tokens) / result.seconds : 0;
  std::string line = fmt::format("step {}/{}  loss {:.4f}  {:.0f} tokens/s  memory {} now, {} peak",
                                 number, steps_, result.loss, rate, reports::bytes_text(now),
                                 reports::bytes_text(result.memory.peak));
  if (result.skipped) line += "  overflow: step skipped";
  if (terminal_)
    line = "\r" + line + "\x1b[K";  // clears what the last line left behind
  else
    line += "\n";
  open_ = terminal_;
  std::fputs(line.c_str(), stderr);
  std::fflush(stderr);
}

double LoopClock::seconds() const {
  return steps_ < 0 ? 0 : std::chrono::duration<double>(Clock::now() - began_).count();
}

void LoopClock::stepped() {
  if (++steps_ == 0) began_ = Clock::now();
}

}  // namespace plimsoll::tools

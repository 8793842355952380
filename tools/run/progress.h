// Steps as they go by, on standard error.
#pragma once

#include <chrono>

#include "reports/measurement.h"
#include "runtime/trainer.h"

namespace plimsoll::tools {

// On a terminal one line that is written over; else a line for each step.
class Progress {
 public:
  Progress(bool quiet, std::int64_t steps);
  ~Progress() { end(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void expect(std::int64_t steps) { steps_ = steps; }  // in all
  void end();  // of the line that is written over
  void note(const std::string& text);  // a line of its own
  // `now`: bytes that live between steps.
  void step(std::int64_t number, const runtime::StepResult& result, Bytes now);

 private:
  bool quiet_, terminal_;
  bool open_ = false;  // a line that has not ended
  std::int64_t steps_;
};

// Of the whole loop behind its first step (which loads and tunes): data, ledgers and logging too.
class LoopClock {
 public:
  double seconds() const;  // until now
  void stepped();
  void end() { seconds_ = seconds(); }
  reports::Loop seen() const { return {steps_, seconds_}; }

 private:
  using Clock = std::chrono::steady_clock;
  std::int64_t steps_ = -1;  // the first does not count
  Clock::time_point began_;
  double seconds_ = 0;
};

}  // namespace plimsoll::tools

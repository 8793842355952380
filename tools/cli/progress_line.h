// How far a command is, on standard error: only on a terminal, only where it takes over a second.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

namespace plimsoll::tools {

class ProgressLine {
 public:
  // `all` 0: not known.
  ProgressLine(std::string what, std::size_t all, bool quiet);
  ~ProgressLine();  // takes the line away
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void advance(std::size_t steps = 1);

 private:
  using Clock = std::chrono::steady_clock;
  void show();

  std::string what_;
  std::size_t all_, done_ = 0;
  bool shown_ = false, wanted_;
  Clock::time_point began_ = Clock::now(), last_ = began_;
};

// "jobs on pools  12 of 80 [####      ] 4 s to go", of at most 79 columns.
std::string progress_text(const std::string& what, std::size_t done, std::size_t all,
                          double seconds);

}  // namespace plimsoll::tools

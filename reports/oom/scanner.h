// Out-of-memory messages in a log of any length, in constant memory.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "reports/oom/message.h"

namespace plimsoll::reports {

// Takes a log as it comes, in pieces of any size: text with colours, in UTF-8 or UTF-16, cut or
// binary. Nothing in it is an error.
class OomScanner {
 public:
  void feed(std::string_view bytes);
  // At the end of the input.
  void finish();
  const OomLog& log() const { return log_; }

 private:
  // What stands in the window begins a line: at an offset of the whole text without blanks.
  struct Line {
    std::int64_t offset, number;
  };
  // Of a terminal's control sequence (ECMA-48).
  enum class Escape : std::uint8_t { none, begun, sequence, string, string_end };

  void take_special(char c);
  void follow_escape(char c);
  void scan(bool final);
  void look_at(std::size_t word);
  void note(OomMessage message);
  void group(const OomMessage& message);
  void forget(std::size_t until);
  const Line& line_of(std::size_t at) const;
  // What is behind `word`, without what a launcher puts before each line of a rank.
  std::string without_prefixes(std::size_t word) const;
  void place(std::size_t word, OomMessage& message) const;

  std::string text_;  // the window, without blanks
  std::int64_t dropped_ = 0;  // what stood before it
  std::size_t at_ = 0;  // looked at so far
  std::vector<Line> lines_{{0, 1}};
  std::int64_t line_ = 1;
  char held_ = 0;  // the first half of an escaped line end or of a wide blank
  Escape escape_ = Escape::none;
  bool all_timed_ = true;
  std::optional<OomMessage> earliest_;  // of those with a time
  std::int64_t last_driver_ = -1;  // offset of the last message of the driver
  OomLog log_;
};

}  // namespace plimsoll::reports

// The lines of a table on a terminal: wrapped, cut and padded to its width.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "reports/text.h"

namespace plimsoll::reports {

inline constexpr std::size_t kNameColumns = 15;
inline constexpr std::size_t kBytesColumns = 10;

class Lines {
 public:
  explicit Lines(const Terminal& terminal) : terminal_(terminal) {}

  void add(std::string_view text, Colour colour = Colour::none) {
    for (const std::string& line : wrapped(printable(text), terminal_.columns, "  "))
      put(coloured(clipped(line, terminal_.columns, terminal_), colour, terminal_));
  }
  void put(std::string_view line) {
    text_ += line;
    text_ += '\n';
  }
  void blank() { text_ += '\n'; }
  void heading(std::string_view text) {
    blank();
    put(clipped(printable(text), terminal_.columns, terminal_));
  }
  // "  name   bytes   rest", the rest cut where the line ends.
  void row(std::string_view name, std::size_t name_columns, Bytes bytes, std::string_view rest,
           Colour colour = Colour::none) {
    std::string line = "  " + padded(clipped(name, name_columns, terminal_), name_columns) + " " +
                       right(bytes_text(bytes), kBytesColumns);
    if (!rest.empty()) {
      const std::size_t room = terminal_.columns - width(line) - 2;
      line += "  " + coloured(clipped(rest, room, terminal_), colour, terminal_);
    }
    put(line);
  }

  void append(std::string_view lines) { text_ += lines; }

  const Terminal& terminal() const { return terminal_; }
  std::string take() { return std::move(text_); }

 private:
  const Terminal& terminal_;
  std::string text_;
};

}  // namespace plimsoll::reports

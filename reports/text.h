// Figures and lines for people: units, widths, colours.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/base/quantity.h"

namespace plimsoll::reports {

// How a terminal wants its text.
struct Terminal {
  bool colour = false;
  bool utf8 = true;  // bars of blocks; else of '#'
  std::size_t columns = 80;
};

enum class Colour { none, red, green, yellow, blue, faint };

// Three figures that count, binary units: "512 B", "1.50 KiB", "21.3 GiB", "1023 GiB".
std::string bytes_text(Bytes bytes);

// Four figures that count, decimal units as papers use them: "16.64 GB", "120.0 GB".
std::string decimal_bytes_text(Bytes bytes);

// "8,030,261,248".
std::string grouped(Count count);

// "8.03 B", "124 M"; for narrow columns.
std::string short_count(Count count);

// `text` with "?" for control characters and for bytes that are no UTF-8: names come from files,
// and a terminal obeys escape sequences.
std::string printable(std::string_view text);

// Columns that UTF-8 text takes (every code point one column: we print no wide ones).
std::size_t width(std::string_view text);

// `text` cut to `columns`, its end marked where something was lost.
std::string clipped(std::string_view text, std::size_t columns, const Terminal& terminal);

std::string padded(std::string_view text, std::size_t columns);  // blanks on the right
std::string right(std::string_view text, std::size_t columns);  // blanks on the left

std::string coloured(std::string_view text, Colour colour, const Terminal& terminal);

// A bar of at most `columns` for `share` of the whole (clamped to 0…1), in eighths of a column
// where the terminal has them; something that is not nothing shows.
std::string bar(double share, std::size_t columns, const Terminal& terminal);

// Text as lines of at most `columns`, broken at blanks, each but the first behind `indent`.
std::vector<std::string> wrapped(std::string_view text, std::size_t columns,
                                 std::string_view indent);

}  // namespace plimsoll::reports

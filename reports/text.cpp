#include "reports/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "models/base/utf8.h"

namespace plimsoll::reports {

namespace {
// `value` with `figures` significant ones and no exponent: 1.50, 21.3, 512, 1023.
std::string significant(double value, int figures) {
  int whole = 1;
  for (double v = std::fabs(value); v >= 10; v /= 10) ++whole;
  std::string text = fmt::format("{:.{}f}", value, std::max(0, figures - whole));
  // 9.999 becomes 10.00: one figure too many.
  const auto digits = std::count_if(text.begin(), text.end(), [](char c) { return c >= '0'; });
  if (digits > figures && text.find('.') != std::string::npos)
    text = fmt::format("{:.{}f}", value, std::max(0, figures - whole - 1));
  return text;
}

std::string in_units(double value, double step, const std::array<const char*, 6>& units,
                     int figures) {
  std::size_t unit = 0;
  // What would round up to a full step goes into the next unit.
  while (unit + 1 < units.size() && std::fabs(value) >= step - (step > 1000 ? 0.5 : 0.05)) {
    value /= step;
    ++unit;
  }
  if (unit == 0) return fmt::format("{:.0f} {}", value, units[0]);
  return significant(value, figures) + " " + units[unit];
}
}  // namespace

std::string bytes_text(Bytes bytes) {
  return in_units(bytes.real(), 1024, {"B", "KiB", "MiB", "GiB", "TiB", "PiB"}, 3);
}

std::string decimal_bytes_text(Bytes bytes) {
  return in_units(bytes.real(), 1000, {"B", "KB", "MB", "GB", "TB", "PB"}, 4);
}

std::string grouped(Count count) {
  std::string text = std::to_string(count.value());
  const std::size_t first = text[0] == '-' ? 1 : 0;
  for (std::size_t at = text.size(); at > first + 3;) {
    at -= 3;
    text.insert(at, ",");
  }
  return text;
}

std::string short_count(Count count) {
  return in_units(count.real(), 1000, {"", "K", "M", "B", "T", "P"}, 3);
}

std::string printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t length = utf8_sequence(text);
    const auto lead = static_cast<unsigned char>(text[0]);
    // C1 control characters are U+0080 … U+009F, in UTF-8 C2 80 … C2 9F.
    const bool control =
        lead < 0x20 || lead == 0x7F ||
        (lead == 0xC2 && length == 2 && static_cast<unsigned char>(text[1]) < 0xA0);
    out += length == 0 || control ? std::string_view("?") : text.substr(0, length);
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return out;
}

std::size_t width(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & '\xC0') != '\x80'; }));
}

std::string clipped(std::string_view text, std::size_t columns, const Terminal& terminal) {
  if (width(text) <= columns) return std::string(text);
  const std::string_view mark = terminal.utf8 ? "…" : "~";
  if (columns == 0) return "";
  std::size_t end = 0, seen = 0;
  while (end < text.size()) {
    if ((text[end] & '\xC0') != '\x80' && ++seen == columns) break;
    ++end;
  }
  return std::string(text.substr(0, end)) + std::string(mark);
}

std::string padded(std::string_view text, std::size_t columns) {
  const std::size_t w = width(text);
  return std::string(text) + std::string(columns > w ? columns - w : 0, ' ');
}

std::string right(std::string_view text, std::size_t columns) {
  const std::size_t w = width(text);
  return std::string(columns > w ? columns - w : 0, ' ') + std::string(text);
}

std::string coloured(std::string_view text, Colour colour, const Terminal& terminal) {
  if (!terminal.colour || colour == Colour::none || text.empty()) return std::string(text);
  constexpr std::array<std::string_view, 6> codes{"", "31;1", "32;1", "33;1", "34", "2"};
  return fmt::format("\x1b[{}m{}\x1b[0m", codes[static_cast<std::size_t>(colour)], text);
}

std::string bar(double share, std::size_t columns, const Terminal& terminal) {
  if (!(share > 0)) return "";
  const double exact = std::min(share, 1.0) * static_cast<double>(columns);
  if (!terminal.utf8) {
    const auto marks = static_cast<std::size_t>(std::lround(exact));
    return std::string(std::max<std::size_t>(1, marks), '#');
  }
  const auto eighths = std::max<std::size_t>(1, static_cast<std::size_t>(std::lround(exact * 8)));
  constexpr std::array<std::string_view, 8> parts{"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  std::string text;
  for (std::size_t i = 0; i < eighths / 8; ++i) text += "█";
  return text + std::string(parts[eighths % 8]);
}

std::vector<std::string> wrapped(std::string_view text, std::size_t columns,
                                 std::string_view indent) {
  std::vector<std::string> lines;
  std::string line;
  bool begun = false;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(text.size(), end + 1));
    if (begun && width(line) + 1 + width(word) > columns) {
      lines.push_back(line);
      line = indent;
      begun = false;
    }
    if (begun) line += ' ';
    line += word;
    begun = true;
  }
  if (begun) lines.push_back(line);
  return lines;
}

}  // namespace plimsoll::reports

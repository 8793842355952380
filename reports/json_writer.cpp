#include "reports/json_writer.h"

#include <array>
#include <charconv>
#include <cmath>

#include "models/base/utf8.h"
#include "reports/text.h"

namespace plimsoll::reports {

std::string number_text(double value) {
  if (!std::isfinite(value)) return "null";
  const double magnitude = std::fabs(value);
  const bool plain = magnitude == 0 || (magnitude >= 1e-4 && magnitude < 1e16);
  std::array<char, 64> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                 plain ? std::chars_format::fixed : std::chars_format::scientific)
                       .ptr;
  std::string text(buffer.data(), end);
  if (plain && text.find('.') == std::string::npos) text += ".0";
  return text;
}

namespace {
void append_escaped(std::string& out, char c) {
  switch (c) {
    case '"':
      out += "\\\"";
      return;
    case '\\':
      out += "\\\\";
      return;
    case '\n':
      out += "\\n";
      return;
    case '\t':
      out += "\\t";
      return;
    case '\r':
      out += "\\r";
      return;
    default:
      break;
  }
  const auto byte = static_cast<unsigned char>(c);
  if (byte >= 0x20) {
    out += c;
    return;
  }
  constexpr std::string_view digits = "0123456789abcdef";
  out += "\\u00";
  out += digits[byte >> 4];
  out += digits[byte & 15];
}
}  // namespace

std::string quoted(std::string_view text) {
  std::string out;
  out.reserve(text.size() + 2);
  out += '"';
  while (!text.empty()) {
    const std::size_t length = utf8_sequence(text);
    if (length == 0) {
      out += "\xEF\xBF\xBD";
      text.remove_prefix(1);
      continue;
    }
    if (length == 1)
      append_escaped(out, text[0]);
    else
      out += text.substr(0, length);
    text.remove_prefix(length);
  }
  out += '"';
  return out;
}

void JsonWriter::key(std::string_view name) {
  separate();
  out_ += quoted(name);
  out_ += style_ == Style::compact ? ":" : ": ";
  after_key_ = true;
}

void JsonWriter::open(char bracket, Layout layout) {
  separate();
  out_ += bracket;
  const bool inside_line = !levels_.empty() && levels_.back().layout == Layout::line;
  levels_.push_back({.layout = inside_line ? Layout::line : layout});
}

void JsonWriter::close(char bracket) {
  const Level level = levels_.back();
  levels_.pop_back();
  if (!level.empty && level.layout == Layout::lines) new_line();
  out_ += bracket;
}

void JsonWriter::scalar(std::string_view text) {
  separate();
  out_ += text;
}

// What stands between the previous value and the next one.
void JsonWriter::separate() {
  if (after_key_) {
    after_key_ = false;
    return;
  }
  if (levels_.empty()) return;
  Level& level = levels_.back();
  const bool lines = level.layout == Layout::lines;
  if (!level.empty) out_ += style_ == Style::compact || lines ? "," : ", ";
  level.empty = false;
  if (lines) new_line();
}

void JsonWriter::new_line() {
  if (style_ == Style::compact) return;
  out_ += '\n';
  out_.append(2 * levels_.size(), ' ');
}

}  // namespace plimsoll::reports

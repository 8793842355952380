// JSON written straight into a string: no document tree, so that a long timeline costs one pass.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/base/quantity.h"

namespace plimsoll::reports {

// A double as Python's repr writes it (the shortest text that reads back equal; "1e-05", "0.0001",
// "2.0", "1e+16"), so that other programs reproduce fingerprints; "null" for NaN and infinities.
std::string number_text(double value);

// `text` in quotes. Invalid UTF-8 becomes U+FFFD: a document is valid whatever a file name holds.
std::string quoted(std::string_view text);

// Calls must nest as JSON does: inside an object a key before each value.
class JsonWriter {
 public:
  enum class Style {
    compact,  // no whitespace at all
    pretty,  // two spaces a level; what is opened with Layout::line stands on one line
  };
  enum class Layout { lines, line };

  JsonWriter(std::string& out, Style style) : out_(out), style_(style) {}

  void begin_object(Layout layout = Layout::lines) { open('{', layout); }
  void end_object() { close('}'); }
  void begin_array(Layout layout = Layout::lines) { open('[', layout); }
  void end_array() { close(']'); }
  void key(std::string_view name);

  void value(std::nullptr_t) { scalar("null"); }
  void value(std::same_as<bool> auto b) { scalar(b ? "true" : "false"); }
  void value(std::integral auto n) requires(!std::same_as<decltype(n), bool>) {
    scalar(std::to_string(n));
  }
  void value(double d) { scalar(number_text(d)); }
  void value(std::string_view text) { scalar(reports::quoted(text)); }
  void value(const std::string& text) { scalar(reports::quoted(text)); }
  void value(const char* text) { scalar(reports::quoted(text)); }
  template <class Tag>
  void value(Quantity<Tag> quantity) {
    value(quantity.value());
  }
  template <class T>
  void value(const std::optional<T>& maybe) {
    if (maybe)
      value(*maybe);
    else
      value(nullptr);
  }
  // `json` must be one valid JSON value.
  void raw(std::string_view json) { scalar(json); }

  template <class T>
  void member(std::string_view name, const T& v) {
    key(name);
    value(v);
  }

 private:
  struct Level {
    Layout layout;
    bool empty = true;
  };

  void open(char bracket, Layout layout);
  void close(char bracket);
  void scalar(std::string_view text);
  void separate();
  void new_line();

  std::string& out_;
  Style style_;
  std::vector<Level> levels_;
  bool after_key_ = false;
};

}  // namespace plimsoll::reports

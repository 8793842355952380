// What a reader made of a configuration, for tests.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>

#include "models/base/error.h"
#include "models/file_settings.h"
#include "models/options.h"

namespace plimsoll::tests {

using Said = std::map<std::string, std::string>;

// Defaults stand in brackets; values of an option that may be repeated one behind another.
inline Said said(const models::FileSettings& file) {
  Said out;
  for (const models::FileSetting& s : file.settings) {
    const models::Option* const option = models::find_plan_option(s.option);
    REQUIRE_MESSAGE(option != nullptr, s.option);
    const std::string value = s.is_default ? "(" + s.value + ")" : s.value;
    const auto [at, is_new] = out.emplace(s.option, value);
    CHECK_MESSAGE((is_new || option->repeatable), s.option);
    if (!is_new) at->second += " " + value;
  }
  return out;
}
inline std::string notes(const models::FileSettings& file) {
  std::string out;
  for (const std::string& note : file.notes) out += note + "\n";
  return out;
}
inline bool says(const std::string& message, std::string_view part) {
  return message.find(part) != std::string::npos;
}
template <class Read>
std::string refusal(Read read, const std::string& text, ErrorKind kind = ErrorKind::unsupported) {
  try {
    (void)read(text);
  } catch (const Error& error) {
    CHECK_MESSAGE(error.kind() == kind, error.message());
    return error.message();
  }
  return "accepted";
}
constexpr auto kBad = ErrorKind::bad_input;

// All that more text in a file changes: "option=value" of options that are new or other, "-option"
// of those that are gone, "note: …" of notes that are new; or "bad: …", "unsupported: …".
template <class Read>
std::string changed(Read read, const std::string& base, const std::string& more) {
  const models::FileSettings before = read(base);
  models::FileSettings after;
  try {
    after = read(base + more);
  } catch (const Error& error) {
    CHECK(error.kind() != ErrorKind::internal);
    return (error.kind() == kBad ? "bad: " : "unsupported: ") + error.message();
  }
  const Said was = said(before), is = said(after);
  std::string out;
  const auto add = [&](const std::string& text) { out += (out.empty() ? "" : "; ") + text; };
  for (const auto& [option, value] : is)
    if (!was.contains(option) || was.at(option) != value) add(option + "=" + value);
  for (const auto& [option, value] : was)
    if (!is.contains(option)) add("-" + option);
  for (const std::string& note : after.notes)
    if (std::ranges::find(before.notes, note) == before.notes.end()) add("note: " + note);
  return out;
}
struct FileRow {
  const char* more;
  const char* changes;
};
template <class Read>
void check_rows(Read read, const std::string& base, std::initializer_list<FileRow> rows) {
  for (const FileRow& row : rows) {
    CAPTURE(row.more);
    CHECK(changed(read, base, row.more) == std::string(row.changes));
  }
}

}  // namespace plimsoll::tests

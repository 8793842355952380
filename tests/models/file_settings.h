// What a reader made of a configuration, for tests.
#pragma once

#include <doctest/doctest.h>

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

}  // namespace plimsoll::tests

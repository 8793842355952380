// What a user's file was read as.
#pragma once

#include <doctest/doctest.h>

#include <map>
#include <string>

#include "models/base/error.h"
#include "models/file_settings.h"

namespace plimsoll::tests {

using Said = std::map<std::string, std::string>;

// Defaults stand in brackets.
inline Said said(const models::FileSettings& file) {
  Said out;
  for (const models::FileSetting& s : file.settings)
    out[s.option] = s.is_default ? "(" + s.value + ")" : s.value;
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
std::string refusal(Read read, ErrorKind kind = ErrorKind::bad_input) {
  try {
    read();
  } catch (const Error& error) {
    CHECK_MESSAGE(error.kind() == kind, error.message());
    return error.message();
  }
  return "accepted";
}

}  // namespace plimsoll::tests

// How many of a golden file's runs are planned to the byte.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "planner/memory/reserved.h"

namespace plimsoll::tests {

// Their peak, what is reserved, what stays between steps. Within 4 KiB of the peak: older releases
// and packages hold a few blocks of 512 bytes more.
struct ToTheByte {
  int peaks = 0, close_peaks = 0, reserved = 0, resident = 0;
  bool operator==(const ToTheByte&) const = default;
  void count(const planner::Reserved& planned, const nlohmann::json& run);
};

// Against the table in to_the_byte.cpp.
void check_to_the_byte(const std::string& file, const ToTheByte& found);

}  // namespace plimsoll::tests

// What a library does for an op: chosen by its heuristic, or by our clock.
#pragma once

#include <optional>
#include <string>

namespace plimsoll::kernels {

struct LibraryChoice {
  std::string library, what;  // cuBLASLt, and the GEMM
  std::string algorithm;
  std::optional<double> seconds;  // by the clock, where candidates were timed
};

}  // namespace plimsoll::kernels

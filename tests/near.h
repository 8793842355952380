// Whether a figure is the expected one but for a relative error. doctest's Approx adds 1 to what
// its epsilon is relative to, so that against seconds or rates below 1 it accepts nearly anything;
// tools/check_tests.py refuses it.
#pragma once

#include <cmath>
#include <ostream>

#include "tests/near.h"

namespace plimsoll::tests {

struct Near {
  double value, expected, relative;
  // Against 0 only 0 is near; a NaN is near nothing.
  explicit operator bool() const {
    return std::abs(value - expected) <= relative * std::abs(expected);
  }
};

// CHECK(near(measured, expected, 0.01)): a failure says both, and how far they are apart.
inline Near near(double value, double expected, double relative) {
  return {value, expected, relative};
}

inline std::ostream& operator<<(std::ostream& out, const Near& near) {
  return out << near.value << " is " << (near.value / near.expected - 1) << " from "
             << near.expected << ", relative; at most " << near.relative << " is near";
}

}  // namespace plimsoll::tests

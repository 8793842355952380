// How much of a long law is tried. Sanitizers slow a test by ten to twenty times; what they look at
// is the code, which a tenth of the draws comes through as well.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>

namespace plimsoll::tests {

// Whether `tools/test --sanitize` runs the test.
inline bool is_sanitized() {
  return std::getenv("PLIMSOLL_SANITIZED") != nullptr;
}

// `everyday`, or a tenth of it, but one at least.
inline int draws(int everyday) {
  return is_sanitized() ? std::max(1, everyday / 10) : everyday;
}

// The same where one of so many is looked at.
inline std::size_t stride(std::size_t everyday) {
  return is_sanitized() ? 10 * everyday : everyday;
}

}  // namespace plimsoll::tests

// How much of a long law is tried. Sanitizers slow a test by ten to twenty times; what they look at
// is the code, which a tenth of the draws comes through as well.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>

namespace plimsoll::tests {

// `everyday`, or a tenth of it (but one at least) under `tools/test --sanitize`.
inline int draws(int everyday) {
  return std::getenv("PLIMSOLL_SANITIZED") == nullptr ? everyday : std::max(1, everyday / 10);
}

// The same of what is looked at every so often.
inline std::size_t stride(std::size_t everyday) {
  return draws(10) == 10 ? everyday : 10 * everyday;
}

}  // namespace plimsoll::tests

// Lists of texts that a failed check prints.
#pragma once

#include <ostream>
#include <string>
#include <vector>

namespace plimsoll::tests {

struct Lines : std::vector<std::string> {
  using vector::vector;
};
inline std::ostream& operator<<(std::ostream& out, const Lines& lines) {
  for (const std::string& line : lines) out << line << "; ";
  return out;
}

}  // namespace plimsoll::tests

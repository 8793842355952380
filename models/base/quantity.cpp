#include "models/base/quantity.h"

namespace plimsoll {

void overflow(const char* operation, std::int64_t a, std::int64_t b) {
  fail(ErrorKind::bad_input, "overflow: " + std::to_string(a) + " " + operation + " " +
                                 std::to_string(b) + " does not fit into 63 bits");
}

}  // namespace plimsoll

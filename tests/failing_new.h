// A global operator new that counts, and fails where it is told to: linked into the programs that
// make every allocation fail once (failing_new.cpp).
#pragma once

#include <cstdint>

namespace plimsoll::tests {

// The allocation that is `from_now` further ones away fails, in whatever thread; -1: none does.
void fail_allocation(std::int64_t from_now);
std::int64_t allocations();  // since the process began
std::int64_t live_allocations();  // that have not been given back

}  // namespace plimsoll::tests

// A global operator new that counts, and fails where it is told to: linked into the programs that
// make every allocation fail once (failing_new.cpp).
#pragma once

#include <cstdint>

namespace plimsoll::tests {

// The allocation that is `from_now` further ones away fails, in whatever thread; -1: none does.
void fail_allocation(std::int64_t from_now);
// The same of the calling thread's allocations alone; `for_ever`: of those that follow every one.
void fail_allocation_here(std::int64_t from_now, bool for_ever = false);
std::int64_t allocations_here();  // of the calling thread
std::int64_t allocations();  // since the process began
std::int64_t live_allocations();  // that have not been given back

}  // namespace plimsoll::tests

// What both programs make of the process that they are.
#pragma once

#include <functional>

namespace plimsoll::tools {

// The exit status of `program`, which throws nothing. A reader who has gone away and a file that
// may not grow are errors of write() and end no process; where the limit on the stack is low
// (`ulimit -s`), `program` and every thread that it starts have the usual room all the same.
int run_process(const std::function<int()>& program);

}  // namespace plimsoll::tools

// Whether a document is what it says it is: its shape is its schema's, its fingerprint is that of
// its workload, and every figure that is made of others is made of these. One that was altered, cut
// or made up is found here, before anything is compared with it, exported or run.
#pragma once

#include <string>
#include <string_view>

namespace plimsoll::reports {

// Error{bad_input} naming `source`, the field, its value and the one that is expected. What is left
// is what its tensors and ops contradict among themselves, in the same words, "" where they do not:
// it is returned, because a comparison tensor by tensor says better which one was altered.
std::string check_plan(std::string_view text, const std::string& source);

void check_measurement(std::string_view text, const std::string& source);

}  // namespace plimsoll::reports

// What is answered to questions over everything that can be asked, in one line each: figures, and a
// hash of each part of the document and of what is made of it. Changed code that should change no
// answer changes none of these lines; where answers are to change, the lines say which and in which
// part.
#pragma once

#include <cstdint>
#include <string>

namespace plimsoll::tests {

constexpr std::uint64_t kWidePins = 1000, kWideSearches = 50;

// A question that is refused is asked again without the option that its refusal names, until there
// is an answer or nothing to leave out; the refusals are part of the line.
std::string wide_pin(std::uint64_t number);
// The same of `recommend`, with the command of its first plan.
std::string wide_search_pin(std::uint64_t number);

}  // namespace plimsoll::tests

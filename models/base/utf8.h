// Texts whose encoding nobody has checked.
#pragma once

#include <cstddef>
#include <string_view>

namespace plimsoll {

// Length of the valid UTF-8 sequence at the front of `text` (not empty); 0 where there is none.
std::size_t utf8_sequence(std::string_view text);

}  // namespace plimsoll

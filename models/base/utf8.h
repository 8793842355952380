// Texts whose encoding nobody has checked.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace plimsoll {

// Length of the valid UTF-8 sequence at the front of `text` (not empty); 0 where there is none.
std::size_t utf8_sequence(std::string_view text);

// A stranger's text for a message: of one longer than `most` bytes its beginning with "...", `most`
// bytes at most and no character cut in two.
std::string shortened(std::string_view text, std::size_t most = 60);

}  // namespace plimsoll

// How Unsloth's fused loss is cut.
#pragma once

#include <cstdint>

namespace plimsoll::planner::pytorch {

// Rows of a chunk of so many rows of `vocab` values, with so many bytes of the card free (0: not
// known; the last argument is a SymFunction's).
std::int64_t unsloth_chunk_rows(std::int64_t rows, std::int64_t vocab, std::int64_t free,
                                std::int64_t = 0);

}  // namespace plimsoll::planner::pytorch

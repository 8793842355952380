// What can be told from an out-of-memory message alone.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reports/oom/message.h"

namespace plimsoll::reports {

enum class OomCause : std::uint8_t {
  overflow,  // a size that no card has: a wrong number, not a large model
  larger_than_card,  // more in one piece than the whole card has
  limit,  // of set_per_process_memory_fraction()
  fragmentation,  // cached memory would have been enough, had it been in one piece
  other_processes,  // what they held would have been enough
  room_elsewhere,  // the card had room: the driver or a pool refused
  need,  // none of these: the step needs more
  outside,  // NCCL, a library or the driver, beside PyTorch's allocator
  host,  // the machine's own memory
  unknown,  // the message has no figures
};
const char* name_of(OomCause cause);

// Something to try, cheapest first.
struct OomWay {
  std::string change, why;
  std::optional<Bytes> frees;  // at most
  bool enough = false;  // for the request that failed; later ones may want more
};

struct OomReading {
  OomCause cause = OomCause::unknown;
  std::string why;  // one or two sentences
  std::optional<Bytes> reserved, unallocated;  // by PyTorch, as printed or as it follows
  std::optional<Bytes> in_use;  // by this process
  bool in_use_inferred = false;  // of a process that is listed by number alone, by its size
  std::optional<Bytes> own_outside;  // of that, outside PyTorch's allocator
  Bytes others;  // by processes that are listed
  std::optional<Bytes> elsewhere;  // of the card, in none of the above
  std::optional<Bytes> missing;  // what had to be freed for the request that failed
  std::vector<OomWay> ways;
  std::vector<std::string> doubts;  // figures that cannot all be true
};

OomReading read_cause(const OomMessage& message);

}  // namespace plimsoll::reports

// What a step holds of Stream::gather, while its program counts levels of it (Start::gathers).
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "planner/memory/caching_allocator.h"
#include "planner/memory/start.h"

namespace plimsoll::planner {

// No block of another stream's is made for these, so that their place among the program's requests
// matters only where the room ends: where it counts so many bytes, as many are there.
class GatherReplay {
 public:
  using Handle = CachingAllocator::Handle;
  using Ask = std::function<std::optional<Handle>(Bytes)>;  // for a block that is not counted

  GatherReplay(CachingAllocator& allocator, const Start& start)
      : allocator_(allocator), start_(start) {}

  // False: refused.
  bool count(Bytes bytes, const Ask& ask);
  void discount(Bytes bytes);
  // What is left of the step, of which the program has no level.
  bool finish(const Ask& ask);
  void first_step_is_over() { first_step_ = false; }

 private:
  const Gathers& events() const { return start_.gathers(first_step_); }
  std::optional<std::size_t> reaching(Bytes level) const;  // behind the event from which on it is
  bool perform_until(std::size_t end, const Ask& ask);

  CachingAllocator& allocator_;
  const Start& start_;
  bool first_step_ = true;
  std::size_t next_ = 0;  // event
  Bytes counted_, there_;
  struct Taken {
    Handle block = -1;
    Bytes bytes;
  };
  std::vector<Taken> blocks_;
};

}  // namespace plimsoll::planner

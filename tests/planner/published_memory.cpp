#include "tests/planner/published_memory.h"

namespace plimsoll::tests {

MemoryRows memory_rows() {
  return {
      tools::published_answers(tools::read_published(tools::published_memory_text(), "memory"))};
}

}  // namespace plimsoll::tests

#include "reports/oom/message.h"

namespace plimsoll::reports {

const char* name_of(OomKind kind) {
  switch (kind) {
    case OomKind::allocator:
      return "allocator";
    case OomKind::async_allocator:
      return "async allocator";
    case OomKind::overflow:
      return "overflow";
    case OomKind::driver:
      return "driver";
    case OomKind::nccl:
      return "nccl";
    case OomKind::library:
      return "library";
    case OomKind::host:
      return "host";
  }
  return "";
}

}  // namespace plimsoll::reports

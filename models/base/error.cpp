#include "models/base/error.h"

namespace plimsoll {

std::string_view name_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::bad_input:
      return "bad_input";
    case ErrorKind::unsupported:
      return "unsupported";
    case ErrorKind::out_of_memory:
      return "out_of_memory";
    case ErrorKind::device:
      return "device";
    case ErrorKind::communicator:
      return "communicator";
    case ErrorKind::internal:
      return "internal";
  }
  return "internal";
}

void fail(ErrorKind kind, std::string message, Where where) {
  throw Error(kind, std::move(message), where);
}

}  // namespace plimsoll

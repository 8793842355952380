#include "models/base/file_error.h"

#include <cerrno>

namespace plimsoll {

ErrorKind kind_of_write_failure(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case EACCES:
    case EPERM:
    case EROFS:
    case ENAMETOOLONG:
    case ELOOP:
    case EINVAL:
    case ENXIO:  // a pipe that nobody reads
      return ErrorKind::bad_input;
    default:
      return ErrorKind::internal;
  }
}

}  // namespace plimsoll

// Whose fault it is that a file cannot be written.
#pragma once

#include "models/base/error.h"

namespace plimsoll {

// Of `error`, an errno: a path that can never be written (a folder that is missing or forbidden, a
// name that is a folder's) is bad_input; a full disk, a quota, a limit on the size of files or a
// broken device is internal.
ErrorKind kind_of_write_failure(int error);

}  // namespace plimsoll

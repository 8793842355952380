// Libraries that are loaded when they are first called.
#include "kernels/cuda/loaded_library.h"

#include <doctest/doctest.h>

#include <string>

#include "models/base/error.h"

using namespace plimsoll;
using namespace plimsoll::kernels::cuda;

namespace {

template <class Call>
std::string refusal(Call call) {
  try {
    call();
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::device);
    return error.message();
  }
  return "";
}

}  // namespace

TEST_CASE("a function is found when it is called, and not before") {
  const LoadedLibrary c("libc.so.6"), none("libnone-such.so.7");
  const LoadedFunction<int(int)> absolute(c, "abs");
  CHECK(absolute(-5) == 5);
  CHECK(absolute(7) == 7);
  const LoadedFunction<int(int)> missing(c, "none_such"), lost(none, "abs");
  CHECK(refusal([&] { missing(1); }).starts_with("none_such is not in libc.so.6: "));
  CHECK(refusal([&] { lost(1); }).starts_with("libnone-such.so.7 cannot be loaded: "));
}

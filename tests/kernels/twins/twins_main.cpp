#define DOCTEST_CONFIG_IMPLEMENT
#include "tests/kernels/twins/twins.h"

int main(int argc, char** argv) {
  if (const char* why = plimsoll::kernels::test::DeviceMemory::missing()) {
    std::fprintf(stderr, "skipped: %s\n", why);
    return 77;  // Meson: skipped
  }
  return doctest::Context(argc, argv).run();
}

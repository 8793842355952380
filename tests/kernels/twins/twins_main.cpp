#define DOCTEST_CONFIG_IMPLEMENT
#include "tests/kernels/twins/twins.h"

int main(int argc, char** argv) {
  if (const char* why = plimsoll::kernels::test::DeviceMemory::missing()) {
    std::fprintf(stderr, "skipped: %s\n", why);
    return 77;  // Meson: skipped
  }
  doctest::Context context(argc, argv);
  // Counted as skipped (tools/count_tests.py).
  using plimsoll::kernels::test::DeviceMemory;
  if (DeviceMemory::library() == nullptr) context.addFilter("test-case-exclude", "cuBLASLt:*");
  if (DeviceMemory::attention() == nullptr) context.addFilter("test-case-exclude", "cuDNN:*");
  return context.run();
}

// The program that libFuzzer drives (tools/fuzz): one target, named by PLIMSOLL_FUZZ.
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "tests/fuzz/targets.h"

namespace {
const plimsoll::tests::FuzzTarget* chosen = nullptr;
}

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  ::setenv("HF_HUB_OFFLINE", "1", 1);  // a drawn MODEL is nothing to ask the hub for
  const char* name = std::getenv("PLIMSOLL_FUZZ");
  chosen = plimsoll::tests::find_fuzz_target(name == nullptr ? "" : name);
  if (chosen != nullptr) return 0;
  std::fputs("PLIMSOLL_FUZZ names none of the targets:\n", stderr);
  for (const auto& target : plimsoll::tests::fuzz_targets())
    std::fprintf(stderr, "  %.*s\n", static_cast<int>(target.name.size()), target.name.data());
  std::exit(2);
}

// What a target throws ends the program, and libFuzzer keeps the input.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  chosen->run({reinterpret_cast<const char*>(data), size});
  return 0;
}

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
#include <stdlib.h>

namespace {
// No test asks the hub of Hugging Face; tests/python/test_hub.py has one of its own.
const int kOffline = ::setenv("HF_HUB_OFFLINE", "1", 1);
}  // namespace

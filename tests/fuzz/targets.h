// What strangers hand to the programs, one target for each kind: files, documents, questions, logs.
//
// A target ends in silence where the input is good or refused as it should be, and by Broken where
// a law does not hold. `tools/fuzz` runs them under libFuzzer with sanitizers; the suite `fuzz`
// replays the committed inputs of tests/fuzz/corpus.
#pragma once

#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace plimsoll::tests {

struct Broken : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct FuzzTarget {
  std::string_view name;  // also of its folder in the corpus
  void (*run)(std::string_view input);
};

std::span<const FuzzTarget> fuzz_targets();
std::span<const FuzzTarget> file_targets();  // those of them that are in file_targets.cpp
const FuzzTarget* find_fuzz_target(std::string_view name);  // nullptr: there is none

}  // namespace plimsoll::tests

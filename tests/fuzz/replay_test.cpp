// The committed inputs, among them every one that once broke something.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "tests/fuzz/targets.h"

using namespace plimsoll;
namespace fs = std::filesystem;

namespace {

std::vector<fs::path> inputs_of(const tests::FuzzTarget& target) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(fs::path(PLIMSOLL_CORPUS) / target.name))
    files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void hold(const tests::FuzzTarget& target, const std::string& input, const std::string& what) {
  INFO(target.name, " ", what);
  CHECK_NOTHROW(target.run(input));
}

}  // namespace

TEST_CASE("every committed input is read or refused") {
  for (const tests::FuzzTarget& target : tests::fuzz_targets()) {
    const std::vector<fs::path> files = inputs_of(target);
    REQUIRE_MESSAGE(!files.empty(), target.name);
    for (const fs::path& file : files) hold(target, text_of(file), file.filename());
  }
}

// What an editor, a broken transfer or a careless script leaves of a good file.
TEST_CASE("so is what is left when each is cut, doubled, or has bytes altered") {
  std::mt19937 random(20);
  for (const tests::FuzzTarget& target : tests::fuzz_targets())
    for (const fs::path& file : inputs_of(target)) {
      const std::string whole = text_of(file);
      if (whole.empty() || whole.size() > 20000) continue;
      const auto place = [&] { return random() % whole.size(); };
      for (int i = 0; i < 4; ++i) hold(target, whole.substr(0, place()), "cut");
      hold(target, whole + whole, "doubled");
      for (int i = 0; i < 8; ++i) {
        std::string altered = whole;
        altered[place()] = static_cast<char>(random());
        hold(target, altered, "altered: " + altered);
      }
    }
}

// Completions and the manual page, whole: golden/installed. test_install.py tries them in shells.
// PLIMSOLL_WRITE=1 writes them anew: read what changes.
#include "tools/cli/completion.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

using namespace plimsoll::tools;

TEST_CASE("completions of bash, zsh and fish and the manual page are those that stand to be read") {
  const CompletionNames names{.models = {"gpt2", "llama-3.1-8b"}, .gpus = {"h100", "rtx-4090"}};
  const std::pair<const char*, std::string> texts[] = {{"plimsoll.bash", bash_completion(names)},
                                                       {"plimsoll.zsh", zsh_completion(names)},
                                                       {"plimsoll.fish", fish_completion(names)},
                                                       {"plimsoll.1", manual_page("1.2.3")}};
  for (const auto& [name, text] : texts) {
    const std::filesystem::path path =
        std::filesystem::path(PLIMSOLL_SOURCE_ROOT) / "tests/golden/installed" / name;
    if (std::getenv("PLIMSOLL_WRITE") != nullptr) std::ofstream(path, std::ios::binary) << text;
    std::ifstream in(path, std::ios::binary);
    std::ostringstream expected;
    expected << in.rdbuf();
    std::istringstream lines(expected.str()), found(text);
    CAPTURE(name);
    for (std::string a, b; std::getline(lines, a) && std::getline(found, b);) REQUIRE(b == a);
    CHECK(text.size() == expected.str().size());
  }
}

// What a given option means to `recommend`: axes that stay, and what every plan has.
#include "tools/cli/search_scope.h"

#include <doctest/doctest.h>

using namespace plimsoll;
using namespace plimsoll::tools;

namespace {
using Axes = std::set<std::string, std::less<>>;

SearchRequest asked(const std::vector<std::pair<std::string, std::string>>& given) {
  Options options;
  for (const auto& [name, value] : given) options.add(name, value);
  Sources sources;
  return search_request("gpt2", options, sources);
}
Axes fixed(const std::vector<std::pair<std::string, std::string>>& given) {
  const auto& names = asked(given).scope.fixed;
  return Axes(names.begin(), names.end());
}
}  // namespace

TEST_CASE("an option that is given keeps the axes that it decides, and no other") {
  CHECK(fixed({}).empty());
  CHECK(fixed({{"seq-len", "512"}}).empty());
  CHECK(fixed({{"recompute", "full"}}) == Axes{"recompute"});
  CHECK(fixed({{"lora-rank", "8"}}) == Axes{"adapters"});
  // FSDP's reduce dtype: only pytorch has it, from --zero 2 on, and it follows the precision.
  CHECK(fixed({{"grad-dtype", "fp32"}, {"zero", "3"}}) == Axes{"precision", "stack", "zero"});
  CHECK(fixed({{"param-dtype", "bf16"}}) == Axes{"param-dtype", "precision", "stack"});
}

TEST_CASE("what is searched is written anew for each plan, and what is not stands in all of them") {
  const Options kept = asked({{"optimizer", "sgd"},
                              {"recompute", "full"},
                              {"gpus", "2"},
                              {"hold-outputs", ""},
                              {"objective", "memory"},
                              {"json", "-"}})
                           .kept;
  CHECK(kept.has("optimizer"));
  CHECK(kept.has("hold-outputs"));
  for (const char* option : {"recompute", "gpus", "objective", "json"}) CHECK(!kept.has(option));
}

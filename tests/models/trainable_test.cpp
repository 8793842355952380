#include "models/trainable.h"

#include <doctest/doctest.h>

#include <initializer_list>
#include <utility>

#include "models/model_catalog.h"
#include "models/model_reader.h"

using namespace plimsoll;
using models::ModelSpec;
using models::TrainableRow;
using models::wildcard_match;

namespace {
std::vector<TrainableRow> rows(const ModelSpec& model, std::vector<std::string> freeze,
                               std::vector<std::string> train = {}) {
  return models::trainable_rows(model, freeze, train);
}

Count trained(const ModelSpec& model, std::vector<std::string> freeze,
              std::vector<std::string> train = {}) {
  return models::trainable_parameter_count(rows(model, std::move(freeze), std::move(train)));
}

Count all(const std::vector<TrainableRow>& rows) {
  Count total;
  for (const TrainableRow& row : rows) total += row.row.elements();
  return total;
}
}  // namespace

TEST_CASE("wildcards match as the shell's do, over the whole name") {
  CHECK(wildcard_match("*", ""));
  CHECK(wildcard_match("*.bias", "h.0.attn.bias"));
  CHECK(!wildcard_match("bias", "h.0.attn.bias"));
  CHECK(wildcard_match("h.?.attn*", "h.3.attn.bias"));
  CHECK(!wildcard_match("h.?.attn*", "h.13.attn.bias"));
  CHECK(wildcard_match("h.[0-3].*", "h.2.x"));
  CHECK(!wildcard_match("h.[!0-3].*", "h.2.x"));
  CHECK(wildcard_match("h.[!0-3].*", "h.4.x"));
  CHECK(wildcard_match("a[]]b", "a]b"));
  CHECK(wildcard_match("a[b", "a[b"));
  CHECK(wildcard_match("*a*b*c", "xaybzabc"));
  CHECK(!wildcard_match("*a*b*c", "xaybzab"));
  CHECK(!wildcard_match("Bias", "bias"));
}

// Python's fnmatch.fnmatchcase says the same of each.
TEST_CASE("both ends of a range belong to it") {
  for (const char* name : {"h.3", "h.4", "h.7"})
    CHECK_MESSAGE(wildcard_match("h.[3-7]", name), name);
  for (const char* name : {"h.2", "h.8", "h.-", "h.", "h.33"})
    CHECK_MESSAGE(!wildcard_match("h.[3-7]", name), name);
  for (const char* name : {"h.3", "h.7"}) CHECK_MESSAGE(!wildcard_match("h.[!3-7]", name), name);
  for (const char* name : {"h.2", "h.8"}) CHECK_MESSAGE(wildcard_match("h.[!3-7]", name), name);
  CHECK(wildcard_match("h.[13-]", "h.-"));
  CHECK(!wildcard_match("h.[13-]", "h.2"));
  CHECK(wildcard_match("h.[1a-c]", "h.b"));
}

// Of fnmatch.fnmatchcase, too: what stands behind a star, a set that never closes, sets of ends.
TEST_CASE("stars, sets and ends of patterns, row by row") {
  for (const auto& [pattern, name] :
       std::initializer_list<std::pair<const char*, const char*>>{{"a*", "a"},
                                                                  {"a**", "abc"},
                                                                  {"*b*", "aabb"},
                                                                  {"a*b", "ab"},
                                                                  {"a*b*c", "abbc"},
                                                                  {"[a-]", "-"},
                                                                  {"[a-]", "a"},
                                                                  {"[]-a]", "]"},
                                                                  {"[]-a]", "^"},
                                                                  {"[!]]", "x"},
                                                                  {"[^a]", "b"},
                                                                  {"[", "["},
                                                                  {"a[!", "a[!"},
                                                                  {"[a-cx-z]", "y"},
                                                                  {"[a-cx-z]", "c"},
                                                                  {"x[0-9][0-9]", "x42"},
                                                                  {"*[0-9]", "layer.7"},
                                                                  {"??", "ab"},
                                                                  {"*.?", "a.b.c"}})
    CHECK_MESSAGE(wildcard_match(pattern, name), pattern << " " << name);
  for (const auto& [pattern, name] :
       std::initializer_list<std::pair<const char*, const char*>>{{"", "a"},
                                                                  {"a", ""},
                                                                  {"?", ""},
                                                                  {"a*b", "abc"},
                                                                  {"a*b*c", "acb"},
                                                                  {"[a-]", "b"},
                                                                  {"[!]]", "]"},
                                                                  {"[^a]", "a"},
                                                                  {"[a-cx-z]", "d"},
                                                                  {"[a-cx-z]", "-"},
                                                                  {"[ab]", "ab"},
                                                                  {"x[0-9][0-9]", "x4"},
                                                                  {"*[0-9]", "layer.x"},
                                                                  {"??", "a"},
                                                                  {"a?", "a"},
                                                                  {"a*", "b"}})
    CHECK_MESSAGE(!wildcard_match(pattern, name), pattern << " " << name);
}

TEST_CASE("many stars take no time") {
  std::string pattern, name(5000, 'a');
  for (int i = 0; i < 500; ++i) pattern += "a*";
  CHECK(!wildcard_match(pattern + "b", name));
}

TEST_CASE("freezing everything but the last blocks splits the rows by layer") {
  const ModelSpec gpt2 = models::catalog_model("gpt2");
  // One block of GPT-2: 12 * 768^2 + 13 * 768 = 7 087 872; ln_f 1536.
  const auto split = rows(gpt2, {"*"}, {"transformer.h.1[01].*", "transformer.ln_f.*"});
  CHECK(models::trainable_parameter_count(split) == Count(2 * 7'087'872 + 1536));
  CHECK(all(split) == gpt2.parameter_count());
  // 12 kinds of tensors in a block, each in two rows: layers 0-9 and 10-11; wte, wpe, ln_f's two
  // and the tied head in one each.
  CHECK(split.size() == 12 * 2 + 5);
  CHECK(split[2].row.ranges[0] == models::IndexRange{0, 10, 1});
  CHECK(split[3].row.ranges[0] == models::IndexRange{10, 2, 1});
  CHECK(!split[2].trainable);
  CHECK(split[3].trainable);
}

TEST_CASE("patterns without numbers keep rows whole") {
  const ModelSpec gpt2 = models::catalog_model("gpt2");
  // A block: biases 768 * (1 + 3 + 1 + 1 + 4 + 1), two norms' weights; and ln_f's two tensors.
  const auto split = rows(gpt2, {}, {"*.bias", "*.ln_*.weight"});
  CHECK(split.size() == gpt2.parameters.size());
  CHECK(models::trainable_parameter_count(split) == Count(12 * (768 * 11 + 2 * 768) + 2 * 768));
}

TEST_CASE("train alone means only these; freeze alone means all but these") {
  const ModelSpec llama = models::catalog_model("llama-2-7b");
  CHECK(trained(llama, {}, {"lm_head.*"}) == Count(32000 * 4096));
  CHECK(trained(llama, {"lm_head.*"}) == llama.parameter_count() - Count(32000 * 4096));
  CHECK(trained(llama, {}) == llama.parameter_count());
}

TEST_CASE("a tied head follows its embedding") {
  const ModelSpec gpt2 = models::catalog_model("gpt2");
  const auto split = rows(gpt2, {"transformer.wte.weight"});
  CHECK(split.back().row.name == "lm_head.weight");
  CHECK(!split.back().trainable);
  try {
    (void)rows(gpt2, {"lm_head.*"});
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(error.message().find("shares its storage") != std::string::npos);
  }
}

TEST_CASE("a pattern that matches nothing is refused with its option") {
  const ModelSpec gpt2 = models::catalog_model("gpt2");
  for (const char* pattern : {"model.layers.*", "", "transformer.h.12.*"}) {
    try {
      (void)rows(gpt2, {pattern});
      FAIL("accepted");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::bad_input);
      CHECK(error.message().starts_with(std::string("--freeze ") + pattern));
    }
  }
}

TEST_CASE("a pattern of --train that matches nothing is refused too, with as much as can be read") {
  const ModelSpec gpt2 = models::catalog_model("gpt2");
  const auto refused = [&](std::vector<std::string> freeze,
                           std::vector<std::string> train) -> std::string {
    try {
      (void)rows(gpt2, std::move(freeze), std::move(train));
    } catch (const Error& error) {
      return error.message();
    }
    return "accepted";
  };
  const std::string like = ": matches no parameter of gpt2 (names are like transformer.wte.weight)";
  CHECK(refused({"*"}, {"lm_haed"}) == "--train lm_haed" + like);
  CHECK(refused({std::string(101, 'x')}, {}) == "--freeze " + std::string(97, 'x') + "..." + like);
  CHECK(refused({"*"}, {"lm_head.weight"}) ==
        "--train lm_head.weight: lm_head.weight shares its storage with the embedding; name that "
        "instead");
}

TEST_CASE("every second block makes a row of each, neighbours with the same fate one row") {
  const ModelSpec gpt2 = models::catalog_model("gpt2");
  const auto bias = [&](std::vector<std::string> freeze) {
    std::string out;
    for (const TrainableRow& row : rows(gpt2, std::move(freeze)))
      if (row.row.name == "transformer.h.{}.ln_1.bias")
        out += (row.trainable ? "+" : "-") + std::to_string(row.row.ranges[0].first) + "x" +
               std::to_string(row.row.ranges[0].count) + " ";
    return out;
  };
  CHECK(bias({"transformer.h.[02].*"}) == "-0x1 +1x1 -2x1 +3x9 ");
  CHECK(bias({"transformer.h.1?.*"}) == "+0x10 -10x2 ");
  CHECK(bias({"transformer.h.*.ln_1.*"}) == "-0x12 ");
}

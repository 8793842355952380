// What each kind of field takes, what it is where it is absent or null, and how it is refused.
#include "models/config_reader.h"

#include <doctest/doctest.h>

using namespace plimsoll;
using namespace plimsoll::models;

namespace {
Config with(const std::string& value) {
  return Config::parse("{\"x\": " + value + ", \"null\": null}", "c.json");
}

template <class Read>
std::string refusal(Read read) {
  try {
    (void)read();
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::bad_input);
    return error.message();
  }
  return "";
}

// Of `call` on a config whose "x" is `value`: "" where it is taken.
template <class Call>
std::string refused(const std::string& value, Call call) {
  const Config config = with(value);
  return refusal([&] { return call(config); });
}
}  // namespace

TEST_CASE("a count is positive, whole and below 2^63; absent it is the fallback, null is refused") {
  const auto count = [](const Config& c) { return c.count("x", 7); };
  CHECK(count(with("1")) == 1);
  CHECK(count(with("9223372036854775807")) == 9223372036854775807);
  CHECK(with("1").count("absent", 7) == 7);
  for (const char* value : {"0", "-1", "1.0", "1.5", "\"1\"", "true", "null", "[]", "{}"})
    CHECK_MESSAGE(refused(value, count).ends_with("but a positive whole number is needed"), value);
  for (const char* value : {"9223372036854775808", "18446744073709551615", "1e30", "9.3e18"})
    CHECK_MESSAGE(
        refused(value, count)
            .ends_with("but a positive whole number below 2^63 (this one overflows) is needed"),
        value);
  CHECK(refused("0", count) == "c.json: x is 0, but a positive whole number is needed");
  CHECK(refused("{}", count) == "c.json: x is an object, but a positive whole number is needed");
  CHECK(refused("[1, 2]", count) ==
        "c.json: x is a list of 2, but a positive whole number is needed");
}

TEST_CASE("an optional count may be null, a natural number may be 0, null is 0 of it") {
  CHECK(with("null").optional_count("x", 7) == 7);
  CHECK(with("1").optional_count("x", 7) == 1);
  CHECK(with("1").optional_count("absent", 7) == 7);
  CHECK(refused("0", [](const Config& c) { return c.optional_count("x", 7); }) != "");
  CHECK(with("0").natural("x", 7) == 0);
  CHECK(with("3").natural("x", 7) == 3);
  CHECK(with("null").natural("x", 7) == 0);
  CHECK(with("3").natural("absent", 7) == 7);
  CHECK(refused("-1", [](const Config& c) { return c.natural("x", 7); }) ==
        "c.json: x is -1, but a whole number from 0 up is needed");
  CHECK(refused("9223372036854775808", [](const Config& c) {
          return c.natural("x", 7);
        }).find("from 0 up below 2^63 (this one overflows)") != std::string::npos);
}

TEST_CASE("what is repeated is repeated up to 65,536 times") {
  const auto repeats = [](const Config& c) { return c.repeats("x", 7); };
  CHECK(repeats(with("1")) == 1);
  CHECK(repeats(with("65536")) == 65536);
  CHECK(with("1").repeats("absent", 7) == 7);
  CHECK(refused("65537", repeats) ==
        "c.json: x is 65537, but a whole number up to 65536 is needed");
  CHECK(refused("0", repeats) != "");
}

TEST_CASE("a real number is any finite one, a probability is from 0 to 1") {
  CHECK(with("1.5").real("x", 7) == 1.5);
  CHECK(with("-2").real("x", 7) == -2);
  CHECK(with("-2").real("absent", 7) == 7);
  for (const char* value : {"null", "\"1\"", "true", "[]"})
    CHECK_MESSAGE(refused(value, [](const Config& c) { return c.real("x", 7); })
                      .ends_with("but a number is needed"),
                  value);
  const auto probability = [](const Config& c) { return c.probability("x", 0.25); };
  CHECK(probability(with("0")) == 0);
  CHECK(probability(with("1")) == 1);
  CHECK(probability(with("0.5")) == 0.5);
  CHECK(probability(with("null")) == 0);
  CHECK(with("1").probability("absent", 0.25) == 0.25);
  for (const char* value : {"-0.001", "1.001", "\"0.1\"", "false"})
    CHECK_MESSAGE(refused(value, probability).ends_with("but a probability from 0 to 1 is needed"),
                  value);
  const Config config = with("1");
  (void)config.probability({"absent", "x"}, 0);
  (void)config.probability("other", 0);
  CHECK(config.probabilities() == std::set<std::string, std::less<>>{"other", "x"});
}

TEST_CASE("flags and texts: null is no flag, and no text") {
  CHECK(with("true").flag("x", false));
  CHECK(!with("false").flag("x", true));
  CHECK(!with("null").flag("x", true));
  CHECK(with("0").flag("absent", true));
  for (const char* value : {"0", "1", "\"true\"", "[]"})
    CHECK_MESSAGE(refused(value, [](const Config& c) { return c.flag("x", true); })
                      .ends_with("but true or false is needed"),
                  value);
  CHECK(with("\"a\"").text("x", "b") == "a");
  CHECK(with("\"\"").text("x", "b") == "");
  CHECK(with("null").text("x", "b") == "b");
  CHECK(with("1").text("absent", "b") == "b");
  CHECK(refused("1", [](const Config& c) { return c.text("x", "b"); }) ==
        "c.json: x is 1, but a string is needed");
}

TEST_CASE("lists hold one kind of value, and at most as many as are believed") {
  const auto texts = [](const Config& c) { return c.texts("x", 2); };
  CHECK(texts(with(R"(["a", "b"])")) == std::vector<std::string>{"a", "b"});
  CHECK(texts(with("[]")).empty());
  CHECK(texts(with("null")).empty());
  CHECK(with("[]").texts("absent", 2).empty());
  CHECK(refused(R"(["a", "b", "c"])", texts) ==
        "c.json: x is a list of 3, but a list of at most 2 strings is needed");
  CHECK(refused("\"a\"", texts) != "");
  CHECK(refused(R"(["a", 1])", texts).ends_with("but a list of strings is needed"));
  const auto naturals = [](const Config& c) { return c.naturals("x", 2); };
  CHECK(naturals(with("[0, 5]")) == std::vector<std::int64_t>{0, 5});
  CHECK(naturals(with("null")).empty());
  CHECK(refused("[0, 5, 6]", naturals) ==
        "c.json: x is a list of 3, but a list of at most 2 whole numbers is needed");
  CHECK(refused("[-1]", naturals).ends_with("but a whole number from 0 up is needed"));
  CHECK(refused("{}", naturals) != "");
}

TEST_CASE("a section is an object of its own, which messages name behind its file") {
  const Config config = with(R"({"y": 0})");
  CHECK(refusal([&] { return config.section("x")->count("y", 1); }) ==
        "c.json: x: y is 0, but a positive whole number is needed");
  CHECK(!config.section("null"));
  CHECK(!config.section("absent"));
  CHECK(refused("[]", [](const Config& c) {
          return c.section("x");
        }).ends_with("but an object is needed"));
  const std::vector<Config> list = with(R"([{"y": 1}, {"y": 2}])").sections("x");
  REQUIRE(list.size() == 2);
  CHECK(list[1].count("y", 0) == 2);
  CHECK(list[1].source() == "c.json: x");
  CHECK(config.sections("null").empty());
  for (const char* value : {"{}", "[1]", "[{}, []]"})
    CHECK_MESSAGE(refused(value, [](const Config& c) { return c.sections("x"); })
                      .ends_with("but a list of objects is needed"),
                  value);
  CHECK(with("[1, 2, 3]").entries("x") == 3);
  CHECK(config.entries("x") == 1);
  CHECK(config.entries("null") == 0);
  CHECK(config.entries("absent") == 0);
  CHECK(refused("1", [](const Config& c) {
          return c.entries("x");
        }).ends_with("but a list or an object is needed"));
  CHECK(config.keys() == std::vector<std::string>{"null", "x"});
  CHECK(config.section("x")->dump() == R"({"y":0})");
}

TEST_CASE("of a field's names the first that is there counts, and is the one that is named") {
  const Config config = Config::parse(R"({"b": 2, "c": 3, "z": null})", "c.json");
  CHECK(config.count({"a", "b", "c"}, 1) == 2);
  CHECK(config.was_read("b"));
  CHECK(!config.was_read("a"));
  CHECK(!config.was_read("c"));
  CHECK(!config.was_missed("b"));
  CHECK(config.count({"d", "e"}, 1) == 1);
  CHECK(config.was_missed("d"));
  CHECK(config.was_missed("e"));
  CHECK(refusal([&] {
          config.refuse({"a", "c"}, "this");
        }) == "c.json: c is 3, but this is needed");
  CHECK(refusal([&] {
          config.refuse({"a", "d"}, "this");
        }) == "c.json: a is missing, but this is needed");
  CHECK(config.shown("b") == "2");
  CHECK(config.shown("a") == "missing");
  CHECK(config.has("b"));
  CHECK(!config.has("z"));
  CHECK(config.mentions("z"));
  CHECK(!config.mentions("a"));
  const Config copy = config;
  (void)copy.has("c");
  CHECK(config.was_read("c"));  // copies share what was read
}

TEST_CASE("kinds are told apart, and what is set is neither null nor empty nor 0") {
  struct Kinds {
    const char* value;
    bool list, string, object, flag, set;
  };
  for (const Kinds& k : {Kinds{"[1]", true, false, false, false, true},
                         {"[]", true, false, false, false, false},
                         {"\"a\"", false, true, false, false, true},
                         {"\"\"", false, true, false, false, false},
                         {R"({"a": 1})", false, false, true, false, true},
                         {"{}", false, false, true, false, false},
                         {"true", false, false, false, true, true},
                         {"false", false, false, false, true, false},
                         {"0", false, false, false, false, false},
                         {"0.5", false, false, false, false, true},
                         {"-1", false, false, false, false, true},
                         {"null", false, false, false, false, false}}) {
    const Config config = with(k.value);
    CAPTURE(k.value);
    CHECK(config.is_list("x") == k.list);
    CHECK(config.is_string("x") == k.string);
    CHECK(config.is_object("x") == k.object);
    CHECK(config.is_flag("x") == k.flag);
    CHECK(config.is_set("x") == k.set);
    CHECK(!config.is_set("absent"));
    CHECK(!config.is_list("absent"));
    CHECK(!config.is_string("absent"));
    CHECK(!config.is_object("absent"));
    CHECK(!config.is_flag("absent"));
    CHECK(!config.is_text("absent", ""));
  }
  CHECK(with("\"a\"").is_text("x", "a"));
  CHECK(!with("\"a\"").is_text("x", "b"));
  CHECK(!with("1").is_text("x", "1"));
}

TEST_CASE("a value of sixty letters is shown whole, of more the first 57") {
  const auto shown = [](std::size_t letters) {
    return with("\"" + std::string(letters, 'a') + "\"").shown("x");
  };
  CHECK(shown(58) == "\"" + std::string(58, 'a') + "\"");  // with its quotes 60
  CHECK(shown(59) == "\"" + std::string(56, 'a') + "...");
}

TEST_CASE("a part that does not divide the whole is refused with both fields") {
  const Config config = with("1");
  const auto divides = [&](std::int64_t part, std::int64_t whole) {
    return refusal([&] {
      config.check_divides({"heads", "n"}, part, {"hidden", "m"}, whole);
      return 0;
    });
  };
  CHECK(divides(3, 12) == "");
  CHECK(divides(12, 12) == "");
  CHECK(divides(5, 12) == "c.json: hidden 12 is not a multiple of heads 5");
  CHECK(divides(0, 12) == "c.json: hidden 12 is not a multiple of heads 0");
  CHECK(divides(-3, 12) == "c.json: hidden 12 is not a multiple of heads -3");
}

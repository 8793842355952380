// Whatever stands in a config: an answer, or one short refusal that names the field.
#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>

#include "models/model_reader.h"

using namespace plimsoll;
using nlohmann::json;

namespace {
// The refusal, or nothing where the config was read.
std::optional<Error> refusal(const json& config) {
  try {
    const Count count = models::read_model(config.dump(), "model", "config.json").parameter_count();
    CHECK(count > Count(0));
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

// One config of every model_type, from the golden tables.
std::vector<json> one_of_each_family() {
  std::ifstream in(std::string(PLIMSOLL_SOURCE_ROOT) + "/tests/golden/small_parameter_tables.json");
  std::vector<json> configs;
  std::set<std::string> seen;
  const json tables = json::parse(in);
  for (const auto& [name, table] : tables.items())
    if (seen.insert(table["config"]["model_type"]).second) configs.push_back(table["config"]);
  return configs;
}
}  // namespace

TEST_CASE("every number that a family reads is refused when it is no number of its kind") {
  const std::vector<json> bad{-3,
                              -1e30,
                              1e30,
                              2.5,
                              "12",
                              true,
                              json::array(),
                              json::object(),
                              std::uint64_t(9'223'372'036'854'775'808u)};
  const std::vector<json> configs = one_of_each_family();
  CHECK(configs.size() == 33);  // all but internlm2, which Transformers does not have
  int fields = 0;
  for (const json& config : configs) {
    for (const auto& [key, value] : config.items()) {
      if (!value.is_number_integer()) continue;
      if (key == "pad_token_id") continue;  // counted from the end where it is negative
      json changed = config;
      changed[key] = "text";
      if (!refusal(changed)) continue;  // a field that no table depends on
      ++fields;
      for (const json& wrong : bad) {
        changed[key] = wrong;
        const std::optional<Error> error = refusal(changed);
        INFO(config["model_type"].get<std::string>(), ": ", key, " = ", wrong.dump());
        REQUIRE(error.has_value());
        CHECK(error->kind() == ErrorKind::bad_input);
        CHECK(error->message().find(key) != std::string::npos);
        CHECK(error->message().size() < 250);
      }
    }
  }
  CHECK(fields > 33 * 5);
}

TEST_CASE("no value of any field makes the reader fail otherwise, hang or wrap") {
  const std::vector<json> values{nullptr,
                                 0,
                                 1,
                                 7,
                                 65'536,
                                 65'537,
                                 1'000'000'007,
                                 1LL << 40,
                                 1LL << 62,
                                 "",
                                 "gated-",
                                 json::array(),
                                 {nullptr},
                                 {{{{{}}}}},
                                 {-1, 1e300, "x"},
                                 json::object(),
                                 {{"a", 1}},
                                 false,
                                 std::string(100'000, 'x')};
  for (const json& config : one_of_each_family()) {
    for (const auto& [key, value] : config.items()) {
      for (const json& other : values) {
        json changed = config;
        changed[key] = other;
        INFO(config["model_type"].get<std::string>(), ": ", key);
        if (const std::optional<Error> error = refusal(changed)) {
          CHECK_MESSAGE(error->kind() != ErrorKind::internal, error->message());
          CHECK(error->message().size() < 500);
        }
      }
    }
  }
}

TEST_CASE("numbers near 2^63 are refused as overflow in every family") {
  for (const json& config : one_of_each_family()) {
    json changed = config;
    for (const auto& [key, value] : config.items()) {
      const bool width = key.find("vocab_size") != std::string::npos || key == "hidden_size" ||
                         key == "n_embd" || key == "d_model" || key == "num_labels";
      if (width) changed[key] = std::int64_t(3) << 60;
    }
    const std::optional<Error> error = refusal(changed);
    INFO(config["model_type"].get<std::string>());
    REQUIRE(error.has_value());
    CHECK_MESSAGE(error->message().find("overflow") != std::string::npos, error->message());
  }
}

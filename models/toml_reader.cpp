#include "models/toml_reader.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "models/base/error.h"
#include "models/base/utf8.h"

// toml++ asserts that its input is what it has looked for already, and is wrong about some of it
// (a bad escape inside a key): an error here, not an end of the program. With NDEBUG the compiler
// may take such input for impossible.
#undef NDEBUG
namespace plimsoll::models {
namespace {
struct TomlAssertion {};
[[noreturn]] void throw_assertion() {
  throw TomlAssertion();
}
}  // namespace
}  // namespace plimsoll::models
#define TOML_ASSERT(condition) \
  ((condition) ? static_cast<void>(0) : plimsoll::models::throw_assertion())
#define TOML_MAX_NESTED_VALUES 64
#include <toml++/toml.h>

namespace plimsoll::models {

namespace {
using Json = nlohmann::json;

class Converter {
 public:
  explicit Converter(const std::string& source) : source_(source) {}

  Json converted(const toml::node& node, int depth) const {
    if (depth > TOML_MAX_NESTED_VALUES) refuse(node, "nested deeper than 64 levels");
    if (const toml::table* table = node.as_table()) {
      Json out = Json::object();
      for (const auto& [key, value] : *table)
        out[std::string(key.str())] = converted(value, depth + 1);
      return out;
    }
    if (const toml::array* array = node.as_array()) {
      Json out = Json::array();
      for (const toml::node& value : *array) out.push_back(converted(value, depth + 1));
      return out;
    }
    if (const auto* text = node.as_string()) return text->get();
    if (const auto* whole = node.as_integer()) return whole->get();
    if (const auto* flag = node.as_boolean()) return flag->get();
    if (const auto* real = node.as_floating_point()) {
      if (!std::isfinite(real->get())) refuse(node, "a number that is infinite, or none");
      return real->get();
    }
    std::ostringstream moment;
    if (const auto* date = node.as_date()) moment << *date;
    if (const auto* time = node.as_time()) moment << *time;
    if (const auto* both = node.as_date_time()) moment << *both;
    return moment.str();
  }

 private:
  [[noreturn]] void refuse(const toml::node& node, std::string_view why) const {
    fail(ErrorKind::bad_input,
         fmt::format("{}: {} (line {})", source_, why, node.source().begin.line));
  }

  const std::string& source_;
};

}  // namespace

std::string json_from_toml(std::string_view text, const std::string& source) {
  try {
    const toml::table table = toml::parse(text, source);
    return Converter(source).converted(table, 0).dump(-1, ' ', false,
                                                      Json::error_handler_t::replace);
  } catch (const TomlAssertion&) {
    fail(ErrorKind::bad_input, source + ": not TOML");
  } catch (const toml::parse_error& error) {
    fail(ErrorKind::bad_input,
         fmt::format("{}: not TOML: {} (line {})", source, shortened(error.description(), 200),
                     error.source().begin.line));
  }
}

}  // namespace plimsoll::models

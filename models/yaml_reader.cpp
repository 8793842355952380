#include "models/yaml_reader.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "models/base/error.h"
#include "models/base/utf8.h"

namespace plimsoll::models {

namespace {
using Json = nlohmann::json;

constexpr int kDeepest = 64;
constexpr std::int64_t kMostValues = 100'000;

bool is_one_of(std::string_view text, std::initializer_list<std::string_view> words) {
  for (const std::string_view word : words)
    if (text == word) return true;
  return false;
}

template <class Number, class... Base>
bool whole_text(std::string_view text, Number& number, Base... base) {
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number, base...);
  return error == std::errc() && end == text.data() + text.size();
}

// PyYAML (resolver.py) has YAML 1.1's whole numbers: 010 is 8, 0x10 is 16, and 08 is a text.
Json with_leading_zero(const std::string& text, std::string_view digits, bool negative) {
  std::int64_t whole = 0;
  const bool hexadecimal = digits.starts_with("0x");
  if (hexadecimal) digits.remove_prefix(2);
  if (!whole_text(digits, whole, hexadecimal ? 16 : 8)) return text;
  return negative ? -whole : whole;
}

// Underscores inside numbers are YAML 1.1's.
std::string without_underscores(std::string_view text) {
  std::string out;
  for (const char c : text)
    if (c != '_') out += c;
  return out;
}

Json plain_scalar(const std::string& text) {
  if (is_one_of(text, {"", "~", "null", "Null", "NULL"})) return nullptr;
  if (is_one_of(text, {"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"})) return true;
  if (is_one_of(text, {"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"}))
    return false;
  // A number begins with a digit, a sign or a point.
  const bool number_like =
      std::string_view("0123456789+-.").find(text[0]) != std::string_view::npos;
  if (number_like) {
    const std::string digits = without_underscores(text);
    const bool is_signed = digits[0] == '+' || digits[0] == '-';
    const std::string_view unsigned_digits = std::string_view(digits).substr(is_signed ? 1 : 0);
    const bool leading_zero = unsigned_digits.size() > 1 && unsigned_digits[0] == '0' &&
                              (unsigned_digits[1] == 'x' ||
                               unsigned_digits.find_first_of(".eE") == std::string_view::npos);
    if (leading_zero) return with_leading_zero(text, unsigned_digits, digits[0] == '-');
    std::int64_t whole = 0;
    if (whole_text(digits, whole)) return whole;
    double real = 0;
    if (whole_text(digits, real) && std::isfinite(real)) return real;
  }
  return text;
}

// What PyYAML takes (reader.py, NON_PRINTABLE).
void check_characters(std::string_view text, const std::string& source) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = utf8_sequence(text.substr(at));
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[at + i]); };
    check(length > 0, ErrorKind::bad_input,
          [&] { return fmt::format("{}: not YAML: no UTF-8 at offset {}", source, at); });
    const bool plain =
        byte(0) >= 0x20 ? byte(0) != 0x7F : is_one_of(text.substr(at, 1), {"\t", "\n", "\r"});
    const bool c1 = byte(0) == 0xC2 && byte(1) < 0xA0 && byte(1) != 0x85;
    const bool none = length == 3 && byte(0) == 0xEF && byte(1) == 0xBF && byte(2) >= 0xBE;
    check(plain && !c1 && !none, ErrorKind::bad_input, [&] {
      return fmt::format("{}: not YAML: a {} at offset {}", source,
                         byte(0) == 0 ? "NUL byte" : "control character", at);
    });
    at += length;
  }
}

// Counts documents, which yaml-cpp's LoadAll does not: behind a value that a comma follows (",b",
// "[a], b") 0.7 finds empty ones for ever.
class Documents : public YAML::EventHandler {
 public:
  std::int64_t begun = 0;
  void OnDocumentStart(const YAML::Mark&) override { ++begun; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

bool is_one_document(std::string_view text) {
  std::istringstream stream{std::string(text)};
  YAML::Parser parser(stream);
  Documents documents;
  while (documents.begun < 2 && parser.HandleNextDocument(documents)) {
  }
  return documents.begun < 2;
}

class Converter {
 public:
  explicit Converter(const std::string& source) : source_(source) {}

  Json converted(const YAML::Node& node, int depth) {
    if (depth > kDeepest) refuse(node, fmt::format("nested deeper than {} levels", kDeepest));
    if (++values_ > kMostValues)
      refuse(node, fmt::format("more than {} values, its aliases written out", kMostValues));
    switch (node.Type()) {
      case YAML::NodeType::Scalar:
        // "!": quoted; "?": plain.
        return node.Tag() == "!" || node.Tag() == "tag:yaml.org,2002:str"
                   ? Json(node.Scalar())
                   : plain_scalar(node.Scalar());
      case YAML::NodeType::Sequence: {
        Json list = Json::array();
        for (const YAML::Node& item : node) list.push_back(converted(item, depth + 1));
        return list;
      }
      case YAML::NodeType::Map:
        return object(node, depth);
      case YAML::NodeType::Null:
      case YAML::NodeType::Undefined:
        break;
    }
    return nullptr;
  }

 private:
  [[noreturn]] void refuse(const YAML::Node& node, const std::string& why) const {
    const YAML::Mark mark = node.Mark();
    fail(ErrorKind::bad_input,
         fmt::format("{}: {}{}", source_, why,
                     mark.is_null() ? "" : fmt::format(" (line {})", mark.line + 1)));
  }

  Json object(const YAML::Node& node, int depth) {
    Json out = Json::object(), merged = Json::object();
    for (const auto& entry : node) {
      const YAML::Node &key = entry.first, &value = entry.second;
      if (!key.IsScalar()) refuse(key, "a key that is no word");
      if (key.Scalar() == "<<" && key.Tag() != "!") {
        merge(value, depth, merged);
        continue;
      }
      if (out.contains(key.Scalar()))
        refuse(key, fmt::format("{} is there twice", shortened(key.Scalar())));
      out[key.Scalar()] = converted(value, depth + 1);
    }
    for (auto& [key, value] : merged.items())
      if (!out.contains(key)) out[key] = std::move(value);
    return out;
  }

  // yaml.org/type/merge: a mapping or a list of them; of the same key the first counts.
  void merge(const YAML::Node& value, int depth, Json& merged) {
    const auto add = [&](const YAML::Node& from) {
      if (!from.IsMap()) refuse(from, "<< takes a mapping, or a list of them");
      const Json object = converted(from, depth + 1);
      for (const auto& [key, item] : object.items())
        if (!merged.contains(key)) merged[key] = item;
    };
    if (!value.IsSequence()) return add(value);
    for (const YAML::Node& from : value) add(from);
  }

  const std::string& source_;
  std::int64_t values_ = 0;
};

}  // namespace

std::string json_from_yaml(std::string_view text, const std::string& source) {
  check_characters(text, source);
  try {
    check(is_one_document(text), ErrorKind::bad_input,
          [&] { return source + ": several YAML documents where one is read"; });
    const YAML::Node document = YAML::Load(std::string(text));
    check(!document.IsNull(), ErrorKind::bad_input, [&] { return source + ": is empty"; });
    const Json json = Converter(source).converted(document, 0);
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
  } catch (const YAML::Exception& error) {
    std::string why = shortened(error.msg, 200);
    if (!error.mark.is_null()) why += fmt::format(" (line {})", error.mark.line + 1);
    fail(ErrorKind::bad_input, fmt::format("{}: not YAML: {}", source, why));
  }
}

std::string json_from_json_or_yaml(std::string text, const std::string& source) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  check(first != std::string::npos, ErrorKind::bad_input, [&] { return source + ": is empty"; });
  // A flow mapping of YAML begins like an object.
  const bool json = text[first] == '{' && (source.ends_with(".json") || Json::accept(text));
  return json ? std::move(text) : json_from_yaml(text, source);
}

}  // namespace plimsoll::models

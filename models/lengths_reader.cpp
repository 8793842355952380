// Lengths from a file: what is there is counted, nothing is guessed.
#include <charconv>
#include <nlohmann/json.hpp>

#include "models/base/error.h"
#include "models/base/utf8.h"
#include "models/json_reader.h"
#include "models/lengths.h"

namespace plimsoll::models {

namespace {
constexpr std::int64_t kMostBytes = std::int64_t{4} << 30;
constexpr std::int64_t kMostTokens = std::int64_t{1} << 40;
constexpr std::int64_t kMostSamples = 100'000'000;

[[noreturn]] void refuse(const std::string& source, std::int64_t line, const std::string& why) {
  fail(ErrorKind::bad_input, source + ", line " + std::to_string(line) + ": " + why);
}

// Each line that holds anything, without a carriage return.
template <class Take>
void each_line(std::string_view text, Take take) {
  std::int64_t number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.find_first_not_of(" \t") != line.npos) take(line, number);
  }
}

std::int64_t count_of(const nlohmann::json& value) {
  const bool counts = value.is_number_unsigned() && value.get<std::uint64_t>() <= kMostTokens;
  return counts ? value.get<std::int64_t>() : 0;
}

std::int64_t sample_of(const nlohmann::json& object, const std::string& source, std::int64_t line) {
  if (!object.is_object()) refuse(source, line, "an object is needed, as in {\"length\": 512}");
  for (const char* key : {"input_ids", "length", "num_tokens"}) {
    const auto found = object.find(key);
    if (found == object.end()) continue;
    const std::int64_t tokens =
        found->is_array() ? static_cast<std::int64_t>(found->size()) : count_of(*found);
    if (tokens < 1)
      refuse(source, line,
             std::string("\"") + key + "\": must be a list of tokens or a whole number from 1 on");
    return tokens;
  }
  refuse(source, line,
         "has neither \"input_ids\" nor \"length\" nor \"num_tokens\"; how many tokens a text has "
         "its tokenizer alone can say: write the tokenized data set, or the lengths");
}

std::int64_t whole(std::string_view text, const std::string& source, std::int64_t line) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > kMostTokens)
    refuse(source, line,
           "\"" + shortened(text) +
               "\" is no whole number from 1 on: rows are a length and its count");
  return value;
}

Lengths checked(Lengths lengths, const std::string& source) {
  check(!lengths.tokens.empty(), ErrorKind::bad_input, [&] { return source + ": has no sample"; });
  return lengths;
}
}  // namespace

Lengths lengths_from_jsonl(std::string_view text, const std::string& source) {
  Lengths out;
  each_line(text, [&](std::string_view line, std::int64_t number) {
    const auto where = source + ", line " + std::to_string(number);
    out.tokens.push_back(sample_of(parse_json(line, where), source, number));
  });
  return checked(std::move(out), source);
}

Lengths lengths_from_csv(std::string_view text, const std::string& source) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);  // a spreadsheet's mark
  Lengths out;
  bool headed = false;
  each_line(text, [&](std::string_view line, std::int64_t number) {
    if (!std::exchange(headed, true)) {
      if (line != "length,count")
        refuse(source, number, "a histogram begins with the heads length,count");
      return;
    }
    const std::size_t comma = line.find(',');
    if (comma == line.npos) refuse(source, number, "rows are a length and its count: 512,37");
    const std::int64_t length = whole(line.substr(0, comma), source, number);
    const std::int64_t count = whole(line.substr(comma + 1), source, number);
    if (count > kMostSamples - static_cast<std::int64_t>(out.tokens.size()))
      refuse(source, number, "more than " + std::to_string(kMostSamples) + " samples");
    out.tokens.insert(out.tokens.end(), static_cast<std::size_t>(count), length);
  });
  return checked(std::move(out), source);
}

Lengths read_lengths(const std::string& path) {
  const std::string text = read_text_file(path, kMostBytes);
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  const bool objects = first != text.npos && text[first] == '{';
  return objects ? lengths_from_jsonl(text, path) : lengths_from_csv(text, path);
}

}  // namespace plimsoll::models

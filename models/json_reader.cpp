#include "models/json_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "models/base/error.h"
#include "models/base/utf8.h"

namespace plimsoll::models {

namespace {
using nlohmann::json;

constexpr int kDeepest = 256;

// Looks only at brackets outside of strings: whatever is wrong otherwise, the parser will say.
int depth_of(std::string_view text) {
  int depth = 0, deepest = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
      continue;
    }
    if (c == '"') in_string = true;
    if (c == '[' || c == '{') deepest = std::max(deepest, ++depth);
    if (c == ']' || c == '}') --depth;
    if (deepest > kDeepest) break;
  }
  return deepest;
}

// "[json.exception.parse_error.101] parse error at line 1, column 2: …" without its number.
std::string reason(const json::exception& error) {
  const std::string_view what = error.what();
  const std::size_t end = what.find("] ");
  return shortened(end == std::string_view::npos ? what : what.substr(end + 2), 200);
}
}  // namespace

// git-lfs, docs/spec.md: the first line of a pointer file; of a few bytes as far as they go.
bool is_lfs_pointer(std::string_view text) {
  constexpr std::string_view first = "version https://git-lfs.github.com/spec/";
  return text.size() >= 8 && text.substr(0, first.size()) == first.substr(0, text.size());
}

json parse_json(std::string_view text, const std::string& source) {
  check(!is_lfs_pointer(text), ErrorKind::bad_input,
        [&] { return source + ": is a Git LFS pointer, not the file: run git lfs pull"; });
  const std::size_t nul = text.find('\0');  // the parser takes it for the end of the text
  check(nul == std::string_view::npos, ErrorKind::bad_input,
        [&] { return fmt::format("{}: not JSON: a NUL byte at offset {}", source, nul); });
  check(depth_of(text) <= kDeepest, ErrorKind::bad_input,
        [&] { return fmt::format("{}: nested deeper than {} levels", source, kDeepest); });
  try {
    return json::parse(text);
  } catch (const json::exception& error) {
    fail(ErrorKind::bad_input, fmt::format("{}: not JSON: {}", source, reason(error)));
  }
}

std::vector<LeafDifference> leaf_differences(std::string_view first, std::string_view second) {
  const json a = parse_json(first, "the first document").flatten();
  const json b = parse_json(second, "the second document").flatten();
  std::vector<LeafDifference> out;
  const auto add = [&](const std::string& pointer, const json* x, const json* y) {
    std::string path = pointer.empty() ? "" : pointer.substr(1);
    std::ranges::replace(path, '/', '.');
    const auto text = [](const json* value) {
      return value == nullptr ? std::string("absent")
                              : value->dump(-1, ' ', false, json::error_handler_t::replace);
    };
    out.push_back({std::move(path), text(x), text(y)});
  };
  for (const auto& [pointer, value] : a.items()) {
    const auto other = b.find(pointer);
    if (other == b.end())
      add(pointer, &value, nullptr);
    else if (*other != value)
      add(pointer, &value, &*other);
  }
  for (const auto& [pointer, value] : b.items())
    if (!a.contains(pointer)) add(pointer, nullptr, &value);
  std::ranges::sort(out, {}, &LeafDifference::path);
  return out;
}

std::string read_text_file(const std::string& path, std::int64_t most) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  check(fs::exists(status), ErrorKind::bad_input, [&] { return path + ": no such file"; });
  check(fs::is_regular_file(status), ErrorKind::bad_input,
        [&] { return path + ": not a regular file"; });
  const auto size = static_cast<std::int64_t>(fs::file_size(path, error));
  check(!error && size <= most, ErrorKind::bad_input, [&] {
    return fmt::format("{}: {} bytes, at most {} are read", path, error ? -1 : size, most);
  });
  std::ifstream in(path, std::ios::binary);
  check(in.good(), ErrorKind::bad_input, [&] { return path + ": cannot be opened"; });
  std::string text(static_cast<std::size_t>(size), '\0');
  in.read(text.data(), size);
  text.resize(static_cast<std::size_t>(in.gcount()));
  return text;
}

}  // namespace plimsoll::models

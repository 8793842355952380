// JSON text from a stranger: files that are no files, text that is no JSON, nesting without end.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace plimsoll::models {

// Whether a file that begins so holds, in the place of its content, Git LFS's note of where that
// is.
bool is_lfs_pointer(std::string_view text);

// The value that the text stands for. Error{bad_input} naming `source`: not JSON (a NUL byte is
// none, wherever it stands; a Git LFS pointer is named as such), or nested deeper than 256 (the
// parser and its values' destructors recurse).
nlohmann::json parse_json(std::string_view text, const std::string& source);

// A value inside two documents that is not the same in both: "strategy.zero", "2", "3" ("absent").
struct LeafDifference {
  std::string path, first, second;
};
// Of two JSON texts, in the order of the paths. Error{bad_input}: not JSON.
std::vector<LeafDifference> leaf_differences(std::string_view first, std::string_view second);

// The text of a regular file of at most `most` bytes. Error{bad_input}: no such file, a folder, a
// device, too large, not readable.
std::string read_text_file(const std::string& path, std::int64_t most);

}  // namespace plimsoll::models

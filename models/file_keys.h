// The keys of a user's file: which are read, which are refused, which change no memory, and what
// becomes of all others.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/config_reader.h"

namespace plimsoll::models {

struct KeyTable {
  std::span<const std::string_view> read;
  std::span<const std::string_view> unmodelled;  // refused where they are set
  std::span<const std::string_view> no_memory;  // of a step
};

// Throws Error{unsupported}: "<file>: <key> is <value>: <why>".
[[noreturn]] void refuse_key(const Config& file, std::string_view key, std::string_view why);
// Where one of them is set (not null, false, 0, "" or empty).
void refuse_unmodelled_keys(const Config& file, const KeyTable& table);

// In the file and in no list of the table.
std::vector<std::string> unknown_keys(const Config& file, const KeyTable& table);
// Throws Error{bad_input} for `key`, with the nearest one that is read.
[[noreturn]] void refuse_unknown_key(const Config& file, const std::string& key,
                                     const KeyTable& table);
// Which of the table's read keys `key` was probably meant to be; "": none.
std::string nearest_key(const std::string& key, const KeyTable& table);
// Those of the file's keys that are in `keys`, in its order.
std::vector<std::string> present(const Config& file, std::span<const std::string_view> keys);

// "a, b and c".
std::string listed(const std::vector<std::string>& names);

}  // namespace plimsoll::models

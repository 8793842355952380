// Typed access to a parsed JSON configuration, with errors that name the file, the field, the value
// and what is accepted. Hides the JSON library: families include this and compile in no time.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "models/base/error.h"
#include "models/json_reader.h"

namespace plimsoll::models {

// The most layers or experts a model is believed to have; beyond it a number is a slip or an
// attack.
inline constexpr std::int64_t kMostRepeats = 65536;

// One field under all the names that Transformers knows it by ("n_embd", "hidden_size"): the first
// one that is there counts.
class Key {
 public:
  Key(const char* name) : names_{name} {}  // NOLINT: a plain name is a key
  Key(std::string_view name) : names_{name} {}  // NOLINT
  Key(const std::string& name) : names_{name} {}  // NOLINT
  Key(std::initializer_list<std::string_view> names) : names_(names) {}
  const std::vector<std::string_view>& names() const { return names_; }

 private:
  std::vector<std::string_view> names_;
};

class Config {
 public:
  // Throws Error{bad_input} for text that is not a JSON object, or is nested deeper than 256.
  static Config parse(std::string_view text, std::string source);

  const std::string& source() const { return source_; }  // file name or catalog name, for messages

  bool has(const Key& key) const;  // there, and not null
  bool mentions(const Key& key) const;  // there, be it null
  bool is_list(const Key& key) const;
  bool is_text(const Key& key, std::string_view text) const;  // exactly this string
  bool is_set(const Key& key) const;  // there, and not null, false, 0, "" or empty
  bool is_string(const Key& key) const;
  bool is_object(const Key& key) const;
  bool is_flag(const Key& key) const;  // true or false
  std::string shown(const Key& key) const;  // its value, for a message; "an object"
  bool was_read(std::string_view name) const;  // by any of the calls of this class, of this object
  bool was_missed(std::string_view name) const;  // asked for by count() or repeats(), not there
  // What probability() was asked for: a model's are the rates of its dropouts.
  const std::set<std::string, std::less<>>& probabilities() const { return *probabilities_; }

  // A whole number in 1 … 2^63 - 1. Absent: `fallback`; null: an error, as in Transformers.
  std::int64_t count(const Key& key, std::int64_t fallback) const;
  // The same, where the field may be null, which means `fallback` as well.
  std::int64_t optional_count(const Key& key, std::int64_t fallback) const;
  std::int64_t natural(const Key& key, std::int64_t fallback) const;  // 0 … ; null: 0
  // 1 … kMostRepeats: of layers, experts, whatever is repeated.
  std::int64_t repeats(const Key& key, std::int64_t fallback) const;
  double real(const Key& key, double fallback) const;  // finite; null: an error
  double probability(const Key& key, double fallback) const;  // 0 … 1; null: 0
  bool flag(const Key& key, bool fallback) const;  // null: false
  std::string text(const Key& key, std::string_view fallback) const;  // null: fallback
  // A list of strings; absent or null: empty. At most `most` of them.
  std::vector<std::string> texts(const Key& key, std::int64_t most) const;
  std::vector<std::int64_t> naturals(const Key& key, std::int64_t most) const;
  std::optional<Config> section(const Key& key) const;  // an object; absent or null: nothing
  std::vector<Config> sections(const Key& key) const;  // a list of objects
  std::int64_t entries(const Key& key) const;  // of a list or an object; absent or null: 0
  std::vector<std::string> keys() const;  // of this object
  std::string dump() const;  // this object as JSON

  // Throws Error{bad_input}: "<source>: <key> is <value>, but <needed> is needed".
  [[noreturn]] void refuse(const Key& key, std::string_view needed) const;
  // Throws unless `whole` is a multiple of `part`, naming both fields.
  void check_divides(const Key& part_key, std::int64_t part, const Key& whole_key,
                     std::int64_t whole) const;

 private:
  using Json = nlohmann::json;

  Config(std::shared_ptr<const Json> root, const Json* node, std::string source);
  const Json* find(const Key& key) const;  // nullptr: absent
  const Json* find_value(const Key& key) const;  // nullptr: absent or null
  std::string_view named(const Key& key) const;  // the name that is there, or the first
  std::int64_t whole(const Key& key, const Json& value, std::int64_t least) const;

  std::shared_ptr<const Json> root_;
  const Json* node_;  // inside *root_
  std::shared_ptr<std::set<std::string, std::less<>>> read_, missed_,
      probabilities_;  // shared by copies
  std::string source_;
};

}  // namespace plimsoll::models

#include "models/trainable.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/base/utf8.h"
#include "models/lora.h"

namespace plimsoll::models {

namespace {
// Names that patterns are tried on one by one, at most; DeepSeek-V3 has 45 000.
constexpr std::int64_t kMostInstances = 4'000'000;

// Is `c` in the set that `pattern` opens with "["? Moves `at` behind the set. A set that never
// closes is a plain "[".
bool in_set(std::string_view pattern, std::size_t& at, char c) {
  std::size_t i = at + 1;
  const bool negated = i < pattern.size() && (pattern[i] == '!' || pattern[i] == '^');
  if (negated) ++i;
  bool found = false;
  for (const std::size_t first = i; i < pattern.size(); ++i) {
    if (pattern[i] == ']' && i > first) {
      at = i + 1;
      return found != negated;
    }
    const bool range = i + 2 < pattern.size() && pattern[i + 1] == '-' && pattern[i + 2] != ']';
    found |= range ? pattern[i] <= c && c <= pattern[i + 2] : pattern[i] == c;
    if (range) i += 2;
  }
  return pattern[at++] == c;
}

struct Patterns {
  const std::vector<std::string>& patterns;
  std::vector<bool> used;

  explicit Patterns(const std::vector<std::string>& all) : patterns(all), used(all.size(), false) {}

  bool match(const std::string& name) {
    bool any = false;
    for (std::size_t i = 0; i < patterns.size(); ++i) {
      if (!wildcard_match(patterns[i], name)) continue;
      used[i] = any = true;
    }
    return any;
  }
  // Digits, "?" and "[" can tell one instance from another; "*" alone cannot.
  bool tell_instances_apart() const {
    return std::ranges::any_of(patterns, [](const std::string& pattern) {
      return pattern.find_first_of("0123456789?[") != std::string::npos;
    });
  }
};

class Splitter {
 public:
  Splitter(const ModelSpec& model, const std::vector<std::string>& freeze,
           const std::vector<std::string>& train)
      : model_(model), freeze_(freeze), train_(train), only_train_(freeze.empty()) {
    apart_ = freeze_.tell_instances_apart() || train_.tell_instances_apart();
  }

  std::vector<TrainableRow> split() {
    for (const ParameterRow& row : model_.parameters) {
      std::vector<std::int64_t> indices;
      ParameterRow part = row;
      if (row.tied)
        rows_.push_back({row, true});
      else if (apart_)
        add(row, part, 0, indices);
      else
        rows_.push_back({row, fate(row, first_of(row))});
    }
    check_used(freeze_, "--freeze");
    check_used(train_, "--train");
    for (TrainableRow& row : rows_)
      if (row.row.tied) row.trainable = fate_of_owner(row.row);
    return std::move(rows_);
  }

 private:
  static std::vector<std::int64_t> first_of(const ParameterRow& row) {
    std::vector<std::int64_t> indices;
    indices.reserve(row.ranges.size());
    for (const IndexRange& range : row.ranges) indices.push_back(range.first);
    return indices;
  }

  bool fate(const ParameterRow& row, const std::vector<std::int64_t>& indices) {
    const std::string name = expand(row.name, indices);
    const bool frozen = freeze_.match(name), trained = train_.match(name);
    if (row.no_gradient) return false;
    if (train_.patterns.empty()) return !frozen;
    return trained || (!only_train_ && !frozen);
  }

  // Appends the fates of all instances below `depth`, and what they have in common.
  void add(const ParameterRow& row, ParameterRow& part, std::size_t depth,
           std::vector<std::int64_t>& indices) {
    if (depth == row.ranges.size()) {
      check(++instances_ <= kMostInstances, ErrorKind::bad_input,
            "--freeze, --train: the model has too many tensors to match one by one");
      append({part, fate(row, indices)}, depth);
      return;
    }
    const IndexRange range = row.ranges[depth];
    for (std::int64_t i = 0; i < range.count; ++i) {
      const std::int64_t index = range.first + i * range.step;
      part.ranges[depth] = {.first = index, .count = 1, .step = range.step};
      indices.push_back(index);
      add(row, part, depth + 1, indices);
      indices.pop_back();
    }
    part.ranges[depth] = range;
  }

  // Merges the new row into the rows before it as long as two neighbours differ only in one
  // range, and there by one step.
  void append(TrainableRow row, std::size_t depth) {
    rows_.push_back(std::move(row));
    for (std::size_t axis = depth; axis-- > 0;)
      while (rows_.size() >= 2 && merge(rows_[rows_.size() - 2], rows_.back(), axis))
        rows_.pop_back();
  }

  static bool merge(TrainableRow& left, const TrainableRow& right, std::size_t axis) {
    if (left.trainable != right.trainable || left.row.name != right.row.name) return false;
    for (std::size_t i = 0; i < left.row.ranges.size(); ++i)
      if (i != axis && left.row.ranges[i] != right.row.ranges[i]) return false;
    IndexRange& range = left.row.ranges[axis];
    const IndexRange& next = right.row.ranges[axis];
    if (range.step != next.step || range.first + range.count * range.step != next.first)
      return false;
    range.count += next.count;
    return true;
  }

  void check_used(const Patterns& patterns, const char* option) const {
    for (std::size_t i = 0; i < patterns.used.size(); ++i)
      if (!patterns.used[i]) refuse(patterns.patterns[i], option);
  }

  [[noreturn]] void refuse(const std::string& pattern, const char* option) const {
    for (const ParameterRow& row : model_.parameters)
      if (row.tied && wildcard_match(pattern, row.name))
        fail(ErrorKind::bad_input,
             fmt::format("{} {}: {} shares its storage with the embedding; name that instead",
                         option, pattern, row.name));
    fail(ErrorKind::bad_input,
         fmt::format("{} {}: matches no parameter of {} (names are like {})", option,
                     shortened(pattern, 100), model_.name,
                     model_.parameters.empty() ? "" : model_.parameters.front().name));
  }

  // A tied row has the shape of its owner, the first embedding of that shape.
  bool fate_of_owner(const ParameterRow& tied) const {
    for (const TrainableRow& row : rows_)
      if (!row.row.tied && row.row.shape == tied.shape && row.row.module == ModuleKind::embedding)
        return row.trainable;
    return true;
  }

  const ModelSpec& model_;
  Patterns freeze_, train_;
  bool only_train_;
  bool apart_ = false;
  std::int64_t instances_ = 0;
  std::vector<TrainableRow> rows_;
};
}  // namespace

bool wildcard_match(std::string_view pattern, std::string_view name) {
  // Greedy with one point to return to: the last "*" and how much it has swallowed.
  std::size_t p = 0, n = 0, star = std::string_view::npos, swallowed = 0;
  while (n < name.size()) {
    std::size_t next = p;
    bool ok = false;
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      swallowed = n;
      continue;
    }
    if (p < pattern.size() && pattern[p] == '[') {
      ok = in_set(pattern, next, name[n]);
    } else if (p < pattern.size()) {
      ok = pattern[p] == '?' || pattern[p] == name[n];
      next = p + 1;
    }
    if (ok) {
      p = next;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++swallowed;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

std::vector<TrainableRow> trainable_rows(const ModelSpec& model,
                                         const std::vector<std::string>& freeze,
                                         const std::vector<std::string>& train) {
  return Splitter(model, freeze, train).split();
}

std::vector<TrainableRow> trainable_rows(const ModelSpec& model, const Strategy& strategy) {
  std::vector<TrainableRow> rows = trainable_rows(model, strategy.freeze, strategy.train);
  if (strategy.lora && strategy.train.empty())
    for (TrainableRow& entry : rows) entry.trainable = false;
  if (strategy.lora)
    for (TrainableRow& entry : rows)
      entry.trainable = entry.trainable || is_saved(*strategy.lora, entry.row);
  return rows;
}

Count trainable_parameter_count(const std::vector<TrainableRow>& rows) {
  Count total;
  for (const TrainableRow& row : rows)
    if (row.trainable) total += row.row.elements();
  return total;
}

}  // namespace plimsoll::models

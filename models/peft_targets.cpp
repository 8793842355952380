#include "models/peft_targets.h"

#include <fmt/format.h>

#include <algorithm>
#include <regex>
#include <set>

#include "models/lora.h"

namespace plimsoll::models {

namespace {

constexpr std::int64_t kMostNames = 1000, kMostModules = 1'000'000;
constexpr std::size_t kLongestPattern = 1000;

// Python's expressions as far as they are ECMAScript's too.
class Pattern {
 public:
  Pattern(const Config& file, const char* key) {
    const std::string text = file.text(key, "");
    if (text.size() > kLongestPattern)
      file.refuse(key, fmt::format("an expression of at most {} characters", kLongestPattern));
    auto flags = std::regex::ECMAScript;
#ifdef __GLIBCXX__
    flags |= std::regex_constants::__polynomial;  // no exponential time, and no back references
#endif
    try {
      expression_.assign(text, flags);
    } catch (const std::regex_error&) {
      file.refuse(key, "a regular expression (of ECMAScript's syntax, as far as that is Python's)");
    }
  }
  bool matches_all_of(const std::string& name) const {  // re.fullmatch
    return std::regex_match(name, expression_);
  }

 private:
  std::regex expression_;
};

bool is_named_by(std::string_view module, const std::vector<std::string>& names) {
  return std::ranges::any_of(names, [&](const std::string& name) {
    return module == name || (module.ends_with(name) && module.size() > name.size() &&
                              module[module.size() - name.size() - 1] == '.');
  });
}

std::vector<std::string> names_at(const Config& file, const char* key) {
  if (file.is_string(key)) return {file.text(key, "")};
  return file.texts(key, kMostNames);
}

// tuners_utils.py, check_target_module_exists: the number behind the first name that has one, or
// behind one of `patterns`.
std::optional<std::int64_t> layer_of(std::string_view module,
                                     const std::vector<std::string>& patterns) {
  std::string_view before, rest = module;
  while (!rest.empty()) {
    const std::size_t dot = std::min(rest.find('.'), rest.size());
    const std::string_view part = rest.substr(0, dot);
    rest.remove_prefix(std::min(dot + 1, rest.size()));
    const bool number =
        !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
    const bool named = patterns.empty() || std::ranges::find(patterns, before) != patterns.end();
    if (number && part.size() < 10 && named && !rest.empty()) return std::stoll(std::string(part));
    before = part;
  }
  return std::nullopt;
}

class Choice {
 public:
  explicit Choice(const Config& file) : file_(file) {
    const bool text = file.is_string("target_modules");
    all_linear_ = text && is_all_linear(file.text("target_modules", ""));
    if (text && !all_linear_) pattern_.emplace(file, "target_modules");
    if (!text) names_ = file.texts("target_modules", kMostNames);
    if (file.is_string("exclude_modules")) exclude_.emplace(file, "exclude_modules");
    if (!file.is_string("exclude_modules")) excluded_ = file.texts("exclude_modules", kMostNames);
    if (!file.has("layers_to_transform")) return;
    layers_ = file.is_list("layers_to_transform")
                  ? file.naturals("layers_to_transform", kMaxLayers)
                  : std::vector<std::int64_t>{file.natural("layers_to_transform", 0)};
    if (layers_.empty()) return;
    layer_names_ = names_at(file, "layers_pattern");
    if (names_.empty())
      file.refuse("layers_to_transform", "target_modules as a list beside it, as PEFT says,");
  }

  void use_default(std::vector<std::string> names) { names_ = std::move(names); }
  bool has_none() const { return !all_linear_ && !pattern_ && names_.empty(); }

  bool takes(const LoraCandidate& candidate, const std::string& module) const {
    if (exclude_ ? exclude_->matches_all_of(module) : is_named_by(module, excluded_)) return false;
    if (all_linear_) return candidate.linear;
    if (pattern_) return pattern_->matches_all_of(module);
    if (!is_named_by(module, names_)) return false;
    if (layers_.empty()) return true;
    const auto layer = layer_of(module, layer_names_);
    return layer && std::ranges::find(layers_, *layer) != layers_.end();
  }
  // Modules without a weight of their own: blocks, and what they hold.
  bool takes_parent(const std::string& module) const {
    return pattern_ && pattern_->matches_all_of(module) &&
           !(exclude_ ? exclude_->matches_all_of(module) : is_named_by(module, excluded_));
  }

 private:
  static constexpr std::int64_t kMaxLayers = kMostRepeats;
  static bool is_all_linear(std::string text) {
    std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
    return text == "all-linear";
  }

  const Config& file_;
  bool all_linear_ = false;
  std::optional<Pattern> pattern_, exclude_;
  std::vector<std::string> names_, excluded_, layer_names_;
  std::vector<std::int64_t> layers_;
};

// One row, with what was chosen of it.
struct Row {
  std::string module;
  std::vector<std::string> chosen;
  std::size_t all = 0;
  bool is_whole() const { return chosen.size() == all; }
};

std::string end_of(const std::string& module, int parts) {
  std::size_t at = module.size();
  for (int i = 0; i < parts && at != std::string::npos; ++i)
    at = at == 0 ? std::string::npos : module.rfind('.', at - 1);
  return at == std::string::npos ? module : module.substr(at + 1);
}

// The shortest ending that no row has which is not chosen whole; "": each has one.
std::string common_name(const Row& row, const std::vector<Row>& rows) {
  for (int parts = 1; parts <= 4; ++parts) {
    const std::string end = end_of(row.module, parts);
    if (end.find("{}") != std::string::npos) return "";
    const bool safe = std::ranges::all_of(rows, [&](const Row& other) {
      return !is_named_by(other.module, {end}) || other.is_whole();
    });
    if (safe) return end;
  }
  return "";
}

[[noreturn]] void refuse_module(const Config& file, const std::string& module) {
  fail(ErrorKind::bad_input, fmt::format("{}: target_modules {} fits {} too, which PEFT adapts not",
                                         file.source(), file.shown("target_modules"), module));
}

void check_parents(const Config& file, const Choice& choice, const std::string& module,
                   std::set<std::string>& seen) {
  for (std::size_t dot = module.rfind('.'); dot != std::string::npos && dot > 0;
       dot = module.rfind('.', dot - 1)) {
    const std::string parent = module.substr(0, dot);
    if (!seen.insert(parent).second) return;
    if (choice.takes_parent(parent)) refuse_module(file, parent);
  }
}

}  // namespace

std::vector<std::string> peft_targets(const Config& file, const ModelSpec& model) {
  Choice choice(file);
  if (choice.has_none()) choice.use_default(default_lora_targets(model));
  std::vector<Row> rows;
  std::set<std::string> parents;
  std::int64_t modules = 0;
  for (const LoraCandidate& candidate : lora_candidates(model)) {
    ParameterRow row;
    row.name = candidate.module;
    row.ranges = candidate.ranges;
    modules += row.instances();
    check(modules <= kMostModules, ErrorKind::unsupported, [&] {
      return fmt::format("{}: a pattern over more than {} modules", file.source(), kMostModules);
    });
    Row found{candidate.module, {}, 0};
    for (const std::string& module : tensor_names(row)) {
      ++found.all;
      check_parents(file, choice, module, parents);
      if (!choice.takes(candidate, module)) continue;
      if (!candidate.adaptable) refuse_module(file, module);
      found.chosen.push_back(module);
    }
    rows.push_back(std::move(found));
  }
  std::vector<std::string> out;
  const auto add = [&](const std::string& name) {
    if (std::ranges::find(out, name) == out.end()) out.push_back(name);
  };
  for (const Row& row : rows) {
    if (row.chosen.empty()) continue;
    const std::string name = row.is_whole() ? common_name(row, rows) : "";
    if (!name.empty()) add(name);
    for (const std::string& module : row.chosen)
      if (name.empty()) add(module);
  }
  check(!out.empty(), ErrorKind::bad_input, [&] {
    return fmt::format("{}: target_modules {} fits no module of {}", file.source(),
                       file.shown("target_modules"), model.name);
  });
  return out;
}

}  // namespace plimsoll::models

// The walk over all axes, and the batches of a family.
#include <algorithm>
#include <set>

#include "models/decisions/mesh.h"
#include "planner/search/axes.h"

namespace plimsoll::planner::search {

bool allowed(const Scope& scope, std::string_view axis, const std::string& value) {
  const auto matches = [&](const std::set<std::string>& names) {
    return names.contains(value) || names.contains(value.substr(0, value.find(':')));
  };
  const auto only = scope.only.find(axis);
  if (only != scope.only.end() && !matches(only->second)) return false;
  const auto without = scope.without.find(axis);
  return without == scope.without.end() || !matches(without->second);
}

namespace {

class Walk {
 public:
  Walk(const Scope& scope, const Stage& stage)
      : scope_(scope), stage_(stage), seen_(axes().size()) {}

  void from(std::size_t axis, const Setting& so_far, std::vector<Setting>& out) {
    if (axis == axes().size()) {
      if (stage_.concession < 0 || so_far.concession == stage_.concession) out.push_back(so_far);
      return;
    }
    std::vector<Setting> choices;
    axes()[axis].choices(scope_, so_far, choices);
    for (const Setting& choice : choices) {
      const std::string value = filtered_ ? axes()[axis].value(choice) : "";
      if (filtered_) seen_[axis].insert(value);
      if (leaves_stage(axis, choice)) continue;
      if (filtered_ && !allowed(scope_, axes()[axis].name, value)) continue;
      from(axis + 1, choice, out);
    }
  }

  // Every value that was asked for or excluded must be one.
  void check_filters() const {
    for (const auto& [option, filters] :
         {std::pair("--only", &scope_.only), std::pair("--without", &scope_.without)})
      for (const auto& [name, values] : *filters) {
        const auto axis = std::ranges::find(axes(), name, &Axis::name);
        check(axis != axes().end(), ErrorKind::bad_input, [&, option = option, &name = name] {
          return std::string(option) + " " + name + "=…: the axes are " + axis_names();
        });
        for (const std::string& value : values)
          if (!scope_.fixed.contains(name))
            check_value(option, *axis, seen_[static_cast<std::size_t>(axis - axes().begin())],
                        value);
      }
  }

 private:
  // Concessions only add up.
  bool leaves_stage(std::size_t axis, const Setting& choice) const {
    if (choice.concession > scope_.most_concession) return true;
    if (stage_.concession >= 0 && choice.concession > stage_.concession) return true;
    return stage_.gpus > 0 && axes()[axis].name == "gpus" && choice.strategy.gpus != stage_.gpus;
  }
  static void check_value(const char* option, const Axis& axis, const std::set<std::string>& seen,
                          const std::string& value) {
    const bool known = std::ranges::any_of(seen, [&](const std::string& s) {
      return s == value || s.substr(0, s.find(':')) == value;
    });
    check(known || seen.empty(), ErrorKind::bad_input, [&] {
      std::string values;
      for (const std::string& one : seen) values += (values.empty() ? "" : ", ") + one;
      return std::string(option) + " " + std::string(axis.name) + "=" + value +
             ": the values here are " + values;
    });
  }
  static std::string axis_names() {
    std::string names;
    for (const Axis& axis : axes()) names += (names.empty() ? "" : ", ") + std::string(axis.name);
    return names;
  }

  const Scope& scope_;
  const Stage& stage_;
  bool filtered_ = !scope_.only.empty() || !scope_.without.empty();
  std::vector<std::set<std::string>> seen_;
};

}  // namespace

std::vector<Setting> families(const Scope& scope, const Stage& stage) {
  std::vector<Setting> out;
  Walk walk(scope, stage);
  walk.from(0, {.strategy = scope.base.strategy, .batch = scope.base.batch}, out);
  return out;
}

void check_filters(const Scope& scope) {
  if (scope.only.empty() && scope.without.empty()) return;
  std::vector<Setting> unread;
  const Stage all;
  Walk walk(scope, all);
  walk.from(0, {.strategy = scope.base.strategy, .batch = scope.base.batch}, unread);
  walk.check_filters();
}

std::vector<models::Batch> batches(const Scope& scope, const Setting& family) {
  constexpr std::int64_t kMostSequences = 1 << 13, kMostTokens = std::int64_t{1} << 26;
  std::vector<models::Batch> out;
  models::Batch batch = family.batch;
  if (scope.global_batch) {
    const std::int64_t ranks = models::decisions::mesh_of(family.strategy).data().ranks;
    if (*scope.global_batch % ranks != 0) return out;
    const std::int64_t each = *scope.global_batch / ranks;
    for (const std::int64_t b : divisors(each)) {
      if (scope.fixed.contains("micro-batch") && b != family.batch.micro_batch) continue;
      if (scope.fixed.contains("grad-accum") && each / b != family.batch.grad_accum) continue;
      batch.micro_batch = b;
      batch.grad_accum = each / b;
      out.push_back(batch);
    }
    return out;
  }
  if (scope.fixed.contains("micro-batch")) return {batch};
  for (std::int64_t b = 1, step = 1; b <= kMostSequences; b += step) {
    if (b > 1 && b * batch.seq_len > kMostTokens) break;
    batch.micro_batch = b;
    out.push_back(batch);
    if (b >= 8 * step) step *= 2;
  }
  return out;
}

}  // namespace plimsoll::planner::search

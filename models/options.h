// Every option of a question, a row each: its name, what it takes, what is not modelled of it,
// which axes of a search it holds, where it stands in a plan document and so in its fingerprint.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

namespace plimsoll::models {

// All of an option, but for what its value does (tools/cli/request.cpp).
struct Option {
  std::string_view name;  // without the dashes
  std::string_view value;  // what stands for its value in --help; "": a flag
  std::string_view group;
  std::string_view help;
  bool repeatable = false;

  // What is not modelled: any value of it; another count of ranks than 1 (what they would be); all
  // names after the first `modelled` ones.
  std::string_view unmodelled = {}, only_one_of = {};
  std::span<const std::string_view> names = {};
  std::size_t modelled = 0;
  std::string_view unmodelled_name = {};
  // Axes of the search that stay as they are where it is given ("": none).
  std::array<std::string_view, 3> axes = {};
  bool is_written_anew = false;  // for each plan that a search finds
  // Its member of a document's "workload", which fingerprints are made of ("stack/kernels"); "": it
  // asks about another cluster, or about how to answer.
  std::string_view member = {};
  std::string_view document = {};  // of one that is not modelled: the value that stands there
  bool says_of_step = false;  // nothing of a bare parameter count
  std::string_view alone = "all";  // what it means without the value that it may have ("[…]")

  constexpr Option never(std::string_view why) const {
    Option out = *this;
    out.unmodelled = why;
    return out;
  }
  constexpr Option at(std::string_view where) const {
    Option out = *this;
    out.member = where;
    return out;
  }
  constexpr Option at(std::string_view where, std::string_view json) const {
    Option out = at(where);
    out.document = json;
    return out;
  }
  constexpr Option only_one(std::string_view what) const {
    Option out = *this;
    out.only_one_of = what;
    return out;
  }
  constexpr Option one_of(std::span<const std::string_view> all, std::size_t first,
                          std::string_view why) const {
    Option out = *this;
    out.names = all;
    out.modelled = first;
    out.unmodelled_name = why;
    return out;
  }
  constexpr Option one_of(std::span<const std::string_view> all) const {
    return one_of(all, all.size(), {});
  }
  constexpr Option fixing(std::string_view a, std::string_view b = {},
                          std::string_view c = {}) const {
    Option out = *this;
    out.axes = {a, b, c};
    return out;
  }
  constexpr Option written_anew() const {
    Option out = *this;
    out.is_written_anew = true;
    return out;
  }
  constexpr Option alone_means(std::string_view value_then) const {
    Option out = *this;
    out.alone = value_then;
    return out;
  }
  constexpr Option of_a_step() const {
    Option out = *this;
    out.says_of_step = true;
    return out;
  }
  constexpr Option of_step_at(std::string_view where) const { return at(where).of_a_step(); }
  // Whether no value of it is predicted yet.
  constexpr bool is_never_modelled() const { return !unmodelled.empty() || !only_one_of.empty(); }
};

std::span<const Option> plan_options();  // of fit, and the keys of a batch query
const Option* find_plan_option(std::string_view name);  // nullptr: there is none

}  // namespace plimsoll::models

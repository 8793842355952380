// The options of the commands (those of a question: models/options.h), and what a user gave, as
// text under those names.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/options.h"

namespace plimsoll::tools {

using models::find_plan_option;
using models::Option;
using models::plan_options;

std::span<const Option> output_options();  // of every command

const Option* find_option(std::string_view name);  // of all; nullptr: there is none

class Options {
 public:
  // `origin`: what of which file says so; "": the user.
  void add(std::string_view name, std::string value, const std::string& origin = "") {
    given_.emplace_back(name, std::move(value));
    if (!origin.empty()) origins_[given_.back().first] = origin;
  }

  bool has(std::string_view name) const { return find(name) != nullptr; }
  const std::string* find(std::string_view name) const;  // nullptr: not given
  std::vector<std::string> all(std::string_view name) const;
  std::span<const std::pair<std::string, std::string>> given() const { return given_; }
  // For the answer: what of the user's words was not looked at.
  void add_note(std::string note) { notes_.push_back(std::move(note)); }
  std::span<const std::string> notes() const { return notes_; }
  std::string origin(std::string_view name) const;
  // "--zero 3", or "c.yaml: fsdp_config.fsdp_version says --fsdp-version 2".
  std::string said(std::string_view name) const;

 private:
  std::vector<std::pair<std::string, std::string>> given_;
  std::map<std::string, std::string, std::less<>> origins_;
  std::vector<std::string> notes_;
};

}  // namespace plimsoll::tools

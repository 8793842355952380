// From the options of `recommend` to what is searched, and from a plan that was found back to the
// options of `fit`.
#pragma once

#include <string>

#include "planner/search/scope.h"
#include "planner/search/setting.h"
#include "tools/cli/request.h"

namespace plimsoll::tools {

struct SearchRequest {
  Request request;  // the base: options as given, the searched ones at their defaults
  planner::search::Scope scope;
  std::string model;  // MODEL, or what a file names
  Options kept;  // given options that every plan has, whatever was found
};

// Error{bad_input}, Error{unsupported} as request_from.
SearchRequest search_request(const std::string& model, const Options& options, Sources& sources);

// Options of `fit` that plan `setting`: what was kept, and the setting's own.
Options fit_options(const SearchRequest& search, const planner::search::Setting& setting);

// "plimsoll fit MODEL --gpu …".
std::string command_text(const std::string& model, const Options& options);

}  // namespace plimsoll::tools

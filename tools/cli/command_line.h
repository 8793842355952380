// The words of a command line, sorted into command, arguments and options.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tools/cli/options.h"

namespace plimsoll::tools {

struct Command {
  std::string_view name;
  std::string_view argument;  // "MODEL", "QUERIES.jsonl", "" for none
  std::string_view help;
  std::string_view example;
  bool takes_plan_options = false;
  bool takes_more_arguments = false;
  bool is_program = false;  // one of its own, and no command of plimsoll
  std::span<const Option> own_options = {};  // beside those
  std::string_view unavailable = {};  // why this version does not have it; "": it has
};

std::span<const Command> commands();

// Those of a question (models/options.h) that it takes: but what it means something else by (run's
// --data is the tokens, fit's the samples' lengths).
std::vector<Option> question_options(const Command& command);
std::vector<Option> options_of(const Command& command);  // all that it takes

struct CommandLine {
  const Command* command = nullptr;
  std::string argument;  // "": not given
  std::vector<std::string> arguments;  // all of them
  Options options;
  std::vector<std::string> launch;  // what stands behind "--"
  bool has_launch = false;
  std::string text;  // not empty: --help or --version was asked for; print it, done
};

// `words` without the program's name. Error{bad_input} or, for a command that this version does not
// have, Error{unsupported}.
CommandLine parse_command_line(std::vector<std::string> words, std::string_view version);

// The same for one command, its name already taken off.
CommandLine parse_arguments(const Command& command, std::vector<std::string> words);

}  // namespace plimsoll::tools

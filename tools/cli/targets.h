// The files that a command is about to write.
#pragma once

#include "tools/cli/command_line.h"

namespace plimsoll::tools {

// Error{bad_input}: an output (--json, --html, …) that is one of the command's inputs, under
// whatever name, a link or standard input too; or two outputs that are one file.
void check_targets(const CommandLine& line);

// Error{bad_input}: the --json of a command that answers late cannot be written anyway.
void check_writable(const Options& options);

}  // namespace plimsoll::tools

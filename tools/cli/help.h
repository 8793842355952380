// What --help prints: the table of options at 80 columns.
#pragma once

#include <string>

#include "tools/cli/command_line.h"

namespace plimsoll::tools {

std::string overview(std::string_view version);  // plimsoll --help
std::string help_text(const Command& command);  // plimsoll COMMAND --help

}  // namespace plimsoll::tools

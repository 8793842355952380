// Files that show a step in other programs' viewers: --trace, --memory-viz.
#pragma once

#include <string>

#include "reports/traces/step_history.h"
#include "tools/cli/options.h"

namespace plimsoll::tools {

bool wants_step(const Options& options);

// Error{bad_input}: "-" for one of them, or for --svg; they need the name of a file.
void check_step_files(const Options& options);

void write_step(const Options& options, const reports::StepHistory& step);

// A whole file, under the option of that name.
void write_file(const Options& options, const char* name, const std::string& text);

}  // namespace plimsoll::tools

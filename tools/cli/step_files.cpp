#include "tools/cli/step_files.h"

#include <fmt/format.h>

#include "models/base/error.h"
#include "reports/traces/chrome_trace.h"
#include "reports/traces/memory_viz.h"
#include "tools/cli/doors.h"
#include "tools/cli/output.h"

namespace plimsoll::tools {

bool wants_step(const Options& options) {
  return options.has("trace") || options.has("memory-viz");
}

void check_step_files(const Options& options) {
  for (const char* name : {"svg", "trace", "memory-viz"})
    if (const std::string* path = options.find(name))
      check(*path != "-", ErrorKind::bad_input,
            [&] { return fmt::format("--{} -: needs the name of a file", name); });
}

void write_file(const Options& options, const char* name, const std::string& text) {
  AtomicFile file(*options.find(name), std::string("--") + name);
  file.write(text);
  file.commit();
}

void write_step(const Options& options, const reports::StepHistory& step) {
  if (options.has("trace")) write_file(options, "trace", reports::chrome_trace(step, this_tool()));
  if (options.has("memory-viz")) write_file(options, "memory-viz", reports::memory_snapshot(step));
}

}  // namespace plimsoll::tools

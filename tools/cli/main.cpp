#include <fmt/format.h>

#include <new>

#include "models/base/error.h"
#include "tools/cli/doors.h"
#include "tools/cli/launch_line.h"
#include "tools/cli/output.h"
#include "tools/cli/process.h"
#include "tools/cli/targets.h"

namespace plimsoll::tools {

namespace {
int dispatch(const CommandLine& line) {
  const std::string_view name = line.command->name;
  if (name == "fit") return fit(line);
  if (name == "recommend") return recommend(line);
  if (name == "batch") return batch(line);
  if (name == "models") return list_models(line);
  if (name == "gpus") return list_gpus(line);
  if (name == "trainers") return list_trainers(line);
  if (name == "run") return run_model(line);
  if (name == "compare") return compare(line);
  if (name == "export") return export_plan(line);
  if (name == "report") return report(line);
  if (name == "oom") return oom(line);
  if (name == "check") return check_plans(line);
  fail(ErrorKind::internal, fmt::format("no door leads to '{}'", name));
}

int exit_status(ErrorKind kind) {
  return kind == ErrorKind::bad_input || kind == ErrorKind::unsupported ? 2 : 3;
}
}  // namespace

int run(std::vector<std::string> words) {
  try {
    const reports::Tool tool = this_tool();
    CommandLine line =
        parse_command_line(std::move(words), fmt::format("{} ({})", tool.version, tool.commit));
    if (!line.text.empty()) {
      print(line.text);
      return 0;
    }
    if (line.has_launch) add_launch_line(line.launch, line.options);
    check_targets(line);
    return dispatch(line);
  } catch (const Error& error) {
    say(error.message());
    return exit_status(error.kind());
  } catch (const std::bad_alloc&) {
    say("out of host memory");
  } catch (const std::exception& error) {
    say(error.what());
  }
  return 3;
}

}  // namespace plimsoll::tools

int main(int count, char** words) {
  using namespace plimsoll::tools;
  return run_process([&] { return run({words + (count > 0 ? 1 : 0), words + count}); });
}

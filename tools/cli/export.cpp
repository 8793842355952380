#include <fmt/format.h>

#include <array>

#include "models/base/error.h"
#include "models/base/nearest.h"
#include "reports/export.h"
#include "reports/json_writer.h"
#include "tools/cli/doors.h"
#include "tools/cli/output.h"
#include "tools/cli/plan_document_json.h"
#include "tools/cli/values.h"

namespace plimsoll::tools {

namespace {
constexpr std::array<std::string_view, 5> kTargets{"deepspeed", "accelerate", "transformers",
                                                   "slurm", "plimsoll"};
constexpr std::array<std::string_view, 3> kLater{"torchtitan", "megatron", "kubernetes"};

void check_target(const std::string* target) {
  check(target != nullptr, ErrorKind::bad_input,
        "--to is missing: deepspeed, accelerate, transformers, slurm or plimsoll");
  for (const std::string_view later : kLater)
    if (*target == later)
      fail(ErrorKind::unsupported, fmt::format("--to {}: this version does not write it", later));
  (void)name_index("to", *target, kTargets);
}

reports::Exported exported(const std::string& target, const std::string& plan,
                           const std::string& source) {
  if (target == "plimsoll") return {plan, {}};
  const models::Workload workload = models::read_workload(plan, source);
  if (target == "deepspeed") return reports::export_deepspeed(workload);
  if (target == "slurm") return reports::export_slurm(workload);
  if (target == "accelerate") return reports::export_accelerate(workload);
  return reports::export_transformers(workload);
}

std::string as_document(const std::string& target, const reports::Exported& exported) {
  std::string text;
  reports::JsonWriter json(text, reports::JsonWriter::Style::pretty);
  json.begin_object();
  json.member("schema", "plimsoll.export/1");
  json.member("to", target);
  json.member("text", exported.text);
  json.key("notes");
  json.begin_array();
  for (const std::string& note : exported.notes) json.value(note);
  json.end_array();
  json.end_object();
  return text + "\n";
}
}  // namespace

int export_plan(const CommandLine& line) {
  const std::string* target = line.options.find("to");
  check_target(target);
  check(!line.argument.empty(), ErrorKind::bad_input,
        "PLAN.json is missing: what `plimsoll fit … --json FILE` wrote, or - for standard input");
  const std::string source = line.argument == "-" ? "standard input" : line.argument;
  const std::string plan = checked_plan(read_document(line.argument), source);
  const reports::Exported result = exported(*target, plan, source);
  // JSON takes no comments; the others hold theirs.
  if (*target == "deepspeed" && !line.options.has("quiet"))
    for (const std::string& note : result.notes) say(note);
  const std::string* json = line.options.find("json");
  const std::string document = json != nullptr ? as_document(*target, result) : "";
  // The file is the answer, so --quiet takes the notes away and not the file.
  if (json == nullptr || *json != "-") print(result.text);
  deliver(line.options, document, "");
  return 0;
}

}  // namespace plimsoll::tools

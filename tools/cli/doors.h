// One function for each command; each returns the exit status.
#pragma once

#include <string>

#include "reports/plan_json.h"
#include "tools/cli/command_line.h"

namespace plimsoll::tools {

reports::Tool this_tool();  // version and commit of this build

int fit(const CommandLine& line);
int recommend(const CommandLine& line);
int batch(const CommandLine& line);
int plan_fleet(const CommandLine& line);  // batch --fleet
int list_models(const CommandLine& line);
int list_gpus(const CommandLine& line);
int list_trainers(const CommandLine& line);
int run_model(const CommandLine& line);
int compare(const CommandLine& line);
int compare_published(const CommandLine& line);  // compare --published
int export_plan(const CommandLine& line);
int report(const CommandLine& line);
int oom(const CommandLine& line);
int check_plans(const CommandLine& line);

// The documents of the same commands, for other faces than the terminal: nothing is printed.
std::string fit_document(const CommandLine& line);
std::string recommend_document(const CommandLine& line);
// `measurements`: documents, or snapshots (pickles).
std::string compare_document(const std::string& prediction,
                             const std::vector<std::string>& measurements, double percent);
std::string models_document(const Options& options);
std::string gpus_document(const Options& options);

// Whether the answer is wanted as a document (--json), or as a page that is made of it (--html).
bool wants_document(const Options& options);

// Where a command's answer goes: `document` to the --json target, as a page to the --html target,
// and to standard output `table`, unless --quiet or unless a document or page went there. A file
// that cannot be written is an error only after the table has been printed: an answer is never
// lost.
void deliver(const Options& options, const std::string& document, const std::string& table);

}  // namespace plimsoll::tools

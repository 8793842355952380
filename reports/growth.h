// Whether plans need more memory than they did: for reviews of a change.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reports/json_writer.h"
#include "reports/plan_json.h"
#include "reports/text.h"

namespace plimsoll::reports {

// What of a plan is held against what it was.
struct PlanFigures {
  std::string name;  // of its file, without folder and ".json"
  std::string file, fingerprint;
  std::optional<bool> fits;
  Bytes peak, reserved, device;
};

struct GrowthRow {
  enum class Verdict { within, grew, no_longer_fits, is_new, is_gone };
  std::string name, file;
  Verdict verdict = Verdict::within;
  std::optional<PlanFigures> before, now;
  double growth = 0;  // the largest of the three figures', 0.02 for 2 %
  std::string text;  // for people: which figure, from what to what
  bool failed() const { return verdict == Verdict::grew || verdict == Verdict::no_longer_fits; }
};
const char* name_of(GrowthRow::Verdict verdict);

struct Growth {
  double most = 0;  // what was allowed
  bool has_baseline = false;
  std::vector<GrowthRow> rows;  // in the order of the plans, then what the baseline alone has
  bool ok() const;
};

// Of a plan's document. Error{bad_input} naming `source`: none, altered, or of model states alone.
PlanFigures figures_of(std::string_view document, const std::string& source);

// Of an earlier `plimsoll.check/1`, or of one plan. Error{bad_input} naming `source`: neither.
std::vector<PlanFigures> read_baseline(std::string_view document, const std::string& source);

// Plans join by their names. Error{bad_input}: a name twice.
Growth growth(const std::vector<PlanFigures>& plans,
              const std::optional<std::vector<PlanFigures>>& baseline, double most);

std::string growth_table(const Growth& growth, const Terminal& terminal);
void write_growth(JsonWriter& json, const Growth& growth, const Tool& tool);  // plimsoll.check/1
// A test report, a case for each plan (the JUnit schema that Jenkins and GitLab read).
std::string growth_junit(const Growth& growth);
// Workflow commands of GitHub, which mark the plans' files: an error for each that failed, a notice
// for each that is new.
std::string growth_annotations(const Growth& growth);

}  // namespace plimsoll::reports

// The document `plimsoll.plan/1` (reports/schema/plan.schema.json).
#pragma once

#include <string>
#include <vector>

#include "reports/json_writer.h"
#include "reports/record.h"

namespace plimsoll::reports {

// The program that made a document, and how it was asked.
struct Tool {
  std::string version, commit;
  std::string command = {};  // that asks the same again; "": there is none
};

// Keys in the order of the schema, bytes as integers, what is not known null.
void write_plan(JsonWriter& json, const Plan& plan, const Tool& tool);

// Objects that stand in several documents.
void write_by_category(JsonWriter& json, const ByCategory& parts);
void write_states(JsonWriter& json, const States& states);
void write_ranks(JsonWriter& json, const Plan& plan);
void write_remedies(JsonWriter& json, const std::vector<Remedy>& remedies);

// "fits", "borderline", "does not fit"; nothing where only a part of the need is known and fits.
std::optional<std::string_view> verdict_text(const Plan& plan);

}  // namespace plimsoll::reports

// The kinds of ranks of a plan's document.
#include "reports/plan_json.h"

namespace plimsoll::reports {

using Layout = JsonWriter::Layout;

void write_ranks(JsonWriter& json, const Plan& plan) {
  json.key("ranks");
  json.begin_array();
  for (const RankKind& kind : plan.ranks) {
    json.begin_object();
    json.member("rank", kind.rank);
    json.member("count", kind.count);
    json.member("pipeline_stage", kind.pipeline_stage);
    json.member("peak_bytes", kind.peak);
    json.key("at_peak");
    write_by_category(json, kind.at_peak);
    json.key("states");
    write_states(json, kind.states);
    if (!plan.states_only) json.member("reserved_bytes", kind.reserved);
    json.key("spans");
    json.begin_array(Layout::line);
    for (const RankSpan& span : kind.spans) {
      json.begin_object(Layout::line);
      json.member("first", span.first);
      json.member("last", span.last);
      json.end_object();
    }
    json.end_array();
    json.end_object();
  }
  json.end_array();
}

}  // namespace plimsoll::reports

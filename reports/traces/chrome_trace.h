// A step in the Trace Event Format, which Perfetto (ui.perfetto.dev) and Chrome's tracing read:
// "Trace Event Format", Google,
// docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
#pragma once

#include <string>

#include "reports/plan_json.h"
#include "reports/traces/step_history.h"

namespace plimsoll::reports {

// Memory by category as a counter, phases, ops and communication as tracks. There is no time of
// a single op: each takes one microsecond, and the trace says so.
std::string chrome_trace(const StepHistory& step, const Tool& tool);

}  // namespace plimsoll::reports

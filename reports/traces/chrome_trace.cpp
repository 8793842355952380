#include "reports/traces/chrome_trace.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "models/category.h"
#include "reports/json_writer.h"

namespace plimsoll::reports {

namespace {
using Layout = JsonWriter::Layout;

constexpr std::string_view kNotToScale =
    "one op is one microsecond: order, not seconds (no op's own time is known)";

enum Track : int { phases = 1, ops = 2, communication = 3 };

// By the last word of the name that its stack gives it (planner/stacks).
bool communicates(std::string_view op) {
  constexpr std::array<std::string_view, 7> kWords{
      "all_gather", "reduce_scatter", "all_reduce", "broadcast", "gather", "reduce", "prefetch"};
  return std::ranges::find(kWords, op.substr(op.rfind('.') + 1)) != kWords.end();
}

class Trace {
 public:
  Trace(const StepHistory& step, std::string& out)
      : step_(step), json_(out, JsonWriter::Style::pretty) {}

  void write(const Tool& tool) {
    json_.begin_object();
    json_.member("displayTimeUnit", "ms");
    json_.key("otherData");
    about(tool);
    json_.key("traceEvents");
    json_.begin_array();
    names();
    for (std::size_t i = 0; i < step_.ops.size(); ++i) counter(i);
    phase_events();
    for (std::size_t i = 0; i < step_.ops.size(); ++i) op_event(i);
    for (const Collective& collective : step_.collectives) collective_event(collective);
    json_.end_array();
    json_.end_object();
  }

 private:
  void about(const Tool& tool) {
    json_.begin_object();
    json_.member("program", "plimsoll " + tool.version);
    json_.member("commit", tool.commit);
    json_.member("model", step_.model);
    json_.member("fingerprint", step_.fingerprint);
    json_.member("rank", step_.rank);
    json_.member("origin", step_.origin);
    json_.member("time", kNotToScale);
    json_.member("step_seconds", step_.step_seconds);
    json_.member("peak_bytes", step_.peak);
    json_.end_object();
  }

  void begin(std::string_view phase, std::string_view name) {
    json_.begin_object(Layout::line);
    json_.member("ph", phase);
    json_.member("pid", step_.rank);
    json_.member("name", name);
  }

  void name(std::string_view kind, int track, std::string_view text) {
    begin("M", kind);
    json_.member("tid", track);
    json_.key("args");
    json_.begin_object(Layout::line);
    json_.member("name", text);
    json_.end_object();
    json_.end_object();
  }

  void names() {
    name("process_name", 0,
         (step_.model.empty() ? "a model" : step_.model) + ", rank " + std::to_string(step_.rank) +
             ", " + step_.origin + "; one op is 1 us, not to scale");
    name("thread_name", Track::phases, "phases");
    name("thread_name", Track::ops, "ops");
    name("thread_name", Track::communication, "communication");
    for (const Track track : {Track::phases, Track::ops, Track::communication}) {
      begin("M", "thread_sort_index");
      json_.member("tid", static_cast<int>(track));
      json_.key("args");
      json_.begin_object(Layout::line);
      json_.member("sort_index", static_cast<int>(track));
      json_.end_object();
      json_.end_object();
    }
  }

  void counter(std::size_t op) {
    begin("C", "memory");
    json_.member("ts", op);
    json_.key("args");
    json_.begin_object(Layout::line);
    for (std::size_t c = 0; c < models::kCategories; ++c)
      json_.member(name_of(static_cast<models::Category>(c)), step_.ops[op].by_category[c]);
    json_.end_object();
    json_.end_object();
  }

  void begin_span(std::string_view name, Track track, std::size_t from, std::size_t to) {
    begin("X", name);
    json_.member("tid", static_cast<int>(track));
    json_.member("ts", from);
    json_.member("dur", to - from);
  }

  void phase_events() {
    for (std::size_t from = 0, to = 0; from < step_.ops.size(); from = to) {
      while (to < step_.ops.size() && step_.ops[to].phase == step_.ops[from].phase) ++to;
      begin_span(step_.ops[from].phase, Track::phases, from, to);
      json_.end_object();
    }
  }

  void op_event(std::size_t i) {
    const TimelinePoint& op = step_.ops[i];
    begin_span(op.op, communicates(op.op) ? Track::communication : Track::ops, i, i + 1);
    json_.member("cat", op.phase);
    json_.key("args");
    json_.begin_object(Layout::line);
    json_.member("high_water_bytes", op.high_water);
    json_.member("allocated_bytes", op.allocated);
    json_.end_object();
    json_.end_object();
  }

  // Which op starts it is not always known (DDP's hooks run beside the backward pass).
  void collective_event(const Collective& collective) {
    begin("i", collective.kind + " of the step");
    json_.member("tid", static_cast<int>(Track::communication));
    json_.member("ts", 0);
    json_.member("s", "t");
    json_.key("args");
    json_.begin_object(Layout::line);
    json_.member("count", collective.count);
    json_.member("array_bytes", collective.array);
    json_.member("group", collective.group);
    json_.end_object();
    json_.end_object();
  }

  const StepHistory& step_;
  JsonWriter json_;
};
}  // namespace

std::string chrome_trace(const StepHistory& step, const Tool& tool) {
  std::string out;
  Trace(step, out).write(tool);
  out += '\n';
  return out;
}

}  // namespace plimsoll::reports

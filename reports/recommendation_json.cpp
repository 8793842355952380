#include "reports/recommendation.h"
#include "reports/workload_json.h"

namespace plimsoll::reports {

namespace {
using Layout = JsonWriter::Layout;

void write_texts(JsonWriter& json, std::string_view key, const std::vector<std::string>& texts) {
  json.key(key);
  json.begin_array();
  for (const std::string& text : texts) json.value(text);
  json.end_array();
}

void write_ranked(JsonWriter& json, const RankedPlan& ranked, const Tool& tool) {
  json.begin_object();
  json.key("plan");
  write_plan(json, ranked.plan, tool);
  json.member("score", ranked.score);
  write_texts(json, "why", ranked.why);
  json.member("command", ranked.command);
  json.member("tokens_per_second", ranked.tokens_per_second);
  json.member("gpu_days", ranked.gpu_days);
  json.end_object();
}

void write_front(JsonWriter& json, const std::vector<FrontPoint>& front) {
  json.key("pareto");
  json.begin_array();
  for (const FrontPoint& point : front) {
    json.begin_object();
    json.member("peak_bytes", point.peak);
    json.member("least_device_bytes", point.device);
    json.member("tokens_per_second", point.tokens_per_second);
    json.member("options", point.options);
    json.key("strategy");
    write_strategy(json, point.strategy);
    json.key("batch");
    write_batch(json, point.batch);
    json.end_object();
  }
  json.end_array();
}

void write_nothing_fits(JsonWriter& json, const std::optional<NothingFits>& nothing,
                        const Tool& tool) {
  json.key("nothing_fits");
  if (!nothing) return json.value(nullptr);
  json.begin_object();
  json.key("closest");
  if (nothing->closest)
    write_plan(json, nothing->closest->plan, tool);
  else
    json.value(nullptr);
  json.member("shortfall_bytes", nothing->shortfall);
  json.key("would_fit");
  json.begin_array();
  for (const Change& change : nothing->would_fit) json.value(change.change);
  json.end_array();
  json.key("commands");
  json.begin_array();
  for (const Change& change : nothing->would_fit) json.value(change.command);
  json.end_array();
  json.end_object();
}

}  // namespace

void write_recommendation(JsonWriter& json, const Recommendation& answer, const Tool& tool) {
  json.begin_object();
  json.member("schema", "plimsoll.recommendation/1");
  json.key("tool");
  json.begin_object(Layout::line);
  json.member("version", tool.version);
  json.member("commit", tool.commit);
  json.end_object();
  json.member("model", answer.model_name);
  json.member("objective", answer.objective);
  json.member("gpus", answer.gpus);
  json.member("budget_tokens", answer.budget_tokens);
  json.key("headroom");
  json.begin_object(Layout::line);
  json.member("overheads", answer.high_end ? "high end" : "typical");
  json.member("min_headroom_bytes", answer.min_headroom);
  json.end_object();
  json.key("ties");
  json.begin_object(Layout::line);
  json.member("margin", answer.tie_margin);
  json.member("same_kind_margin", answer.same_kind_margin);
  json.member("fastest_tokens_per_second", answer.fastest);
  json.end_object();
  json.member("evaluated", answer.evaluated);
  json.member("points", answer.points);
  json.member("elapsed_seconds", answer.elapsed_seconds);
  json.member("stopped", answer.stopped);
  json.key("ranked");
  json.begin_array();
  for (const RankedPlan& ranked : answer.ranked) write_ranked(json, ranked, tool);
  json.end_array();
  write_front(json, answer.front);
  write_nothing_fits(json, answer.nothing_fits, tool);
  write_texts(json, "not_considered", answer.not_considered);
  write_texts(json, "notes", answer.notes);
  json.end_object();
}

}  // namespace plimsoll::reports

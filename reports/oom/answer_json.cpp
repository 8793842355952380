#include "reports/oom/answer.h"

namespace plimsoll::reports {

namespace {
using Layout = JsonWriter::Layout;

std::optional<std::string> text_or_null(const std::string& text) {
  return text.empty() ? std::nullopt : std::optional<std::string>(text);
}

std::optional<Bytes> bytes_of(const std::optional<PrintedSize>& size) {
  return size ? std::optional(size->bytes) : std::nullopt;
}

std::optional<Bytes> margin_of(const std::optional<PrintedSize>& size) {
  return size ? std::optional(size->margin) : std::nullopt;
}

template <class Value>
void write_list(JsonWriter& json, const char* key, const std::vector<Value>& values) {
  json.key(key);
  json.begin_array(Layout::line);
  for (const Value& value : values) json.value(value);
  json.end_array();
}

void write_message(JsonWriter& json, const OomMessage& m) {
  json.key("message");
  json.begin_object();
  json.member("kind", name_of(m.kind));
  json.member("device", text_or_null(m.device));
  json.member("library", text_or_null(m.library));
  json.member("line", m.line);
  json.member("time", text_or_null(m.time));
  json.member("rank", m.rank);
  json.member("gpu", m.gpu);
  json.member("tried_bytes", bytes_of(m.tried));
  json.member("tried_margin_bytes", margin_of(m.tried));
  json.member("capacity_bytes", bytes_of(m.capacity));
  json.member("free_bytes", bytes_of(m.free));
  json.member("allocated_bytes", bytes_of(m.allocated));
  json.member("allocated_margin_bytes", margin_of(m.allocated));
  json.member("reserved_bytes", bytes_of(m.reserved));
  json.member("reserved_unallocated_bytes", bytes_of(m.unallocated));
  json.member("in_use_bytes", bytes_of(m.in_use));
  json.member("allowed_bytes", bytes_of(m.allowed));
  json.member("private_pools_bytes", bytes_of(m.private_pools));
  json.key("processes");
  json.begin_array();
  for (const OomProcess& process : m.processes) {
    json.begin_object(Layout::line);
    json.member("pid", process.pid);
    json.member("in_use_bytes", process.in_use.bytes);
    json.end_object();
  }
  json.end_array();
  json.end_object();
}

void write_reading(JsonWriter& json, const OomReading& r) {
  json.member("cause", name_of(r.cause));
  json.member("why", r.why);
  json.key("accounts");
  json.begin_object();
  json.member("reserved_bytes", r.reserved);
  json.member("reserved_unallocated_bytes", r.unallocated);
  json.member("in_use_bytes", r.in_use);
  json.member("in_use_inferred", r.in_use_inferred);
  json.member("outside_allocator_bytes", r.own_outside);
  json.member("other_processes_bytes", r.others);
  json.member("elsewhere_bytes", r.elsewhere);
  json.member("missing_bytes", r.missing);
  json.end_object();
  write_list(json, "doubts", r.doubts);
  json.key("ways");
  json.begin_array();
  for (const OomWay& way : r.ways) {
    json.begin_object(Layout::line);
    json.member("change", way.change);
    json.member("why", way.why);
    json.member("frees_bytes", way.frees);
    json.member("enough", way.enough);
    json.end_object();
  }
  json.end_array();
}

void write_log(JsonWriter& json, const OomLog& log) {
  json.member("messages", log.messages);
  json.key("groups");
  json.begin_array();
  for (const OomGroup& group : log.groups) {
    json.begin_object(Layout::line);
    json.member("kind", name_of(group.kind));
    json.member("library", text_or_null(group.library));
    json.member("tried_bytes", bytes_of(group.tried));
    json.member("count", group.times);
    write_list(json, "ranks", group.ranks);
    write_list(json, "gpus", group.gpus);
    json.end_object();
  }
  json.end_array();
  json.member("ungrouped", log.ungrouped);
  json.member("cache_flush_warnings", log.flushes);
}

void write_plan_in_short(JsonWriter& json, const Plan& plan) {
  json.begin_object();
  json.member("fingerprint", plan.fingerprint);
  json.member("model", plan.model_name);
  json.member("verdict", verdict_text(plan));
  json.member("capacity_bytes", plan.capacity);
  json.member("usable_bytes", plan.usable);
  json.member("device_bytes", plan.device);
  json.member("peak_bytes", plan.peak);
  json.member("reserved_bytes", plan.reserved);
  json.key("peak");
  json.begin_object(Layout::line);
  json.member("rank", plan.peak_place.rank);
  json.member("phase", plan.peak_place.phase);
  json.member("where", plan.peak_place.where);
  json.end_object();
  json.end_object();
}

void write_candidate(JsonWriter& json, const OomCandidate& c) {
  json.begin_object(Layout::line);
  json.member("tensor", c.tensor.name);
  json.member("category", c.tensor.category);
  json.member("bytes", c.tensor.bytes);
  json.member("printed_bytes", c.printed);
  json.member("requests", c.tensor.repeat);
  json.member("phase", text_or_null(c.at.phase));
  json.member("op", text_or_null(c.at.op));
  json.member("first_step", c.first_step);
  json.member("allocated_bytes", c.at.allocated);
  json.member("difference_bytes", c.difference);
  json.member("agrees", c.difference ? std::optional(c.agrees) : std::nullopt);
  json.end_object();
}

void write_largest(JsonWriter& json, const std::vector<TensorLine>& tensors) {
  json.key("largest");
  json.begin_array();
  for (const TensorLine& tensor : tensors) {
    json.begin_object(Layout::line);
    json.member("name", tensor.name);
    json.member("category", tensor.category);
    json.member("bytes", tensor.bytes);
    json.member("count", tensor.repeat);
    json.end_object();
  }
  json.end_array();
}

void write_match(JsonWriter& json, const OomMatch& match) {
  json.begin_object();
  json.member("searched", match.searched);
  json.key("candidates");
  json.begin_array();
  for (const OomCandidate& candidate : match.candidates) write_candidate(json, candidate);
  json.end_array();
  json.member("further_candidates", match.further);
  json.member("room_bytes", match.room);
  json.key("refused");
  if (match.refused)
    write_candidate(json, *match.refused);
  else
    json.value(nullptr);
  json.key("lived");
  write_by_category(json, match.lived);
  write_largest(json, match.largest);
  json.key("logits_guesses");
  json.begin_array();
  for (const LogitsGuess& guess : match.guesses) {
    json.begin_object(Layout::line);
    json.member("bytes_per_logit", guess.bytes_per_logit);
    json.member("fewest_tokens", guess.fewest_tokens);
    json.member("most_tokens", guess.most_tokens);
    json.end_object();
  }
  json.end_array();
  json.end_object();
}
}  // namespace

void write_oom(JsonWriter& json, const OomAnswer& answer, const Tool& tool) {
  json.begin_object();
  json.member("schema", "plimsoll.oom/1");
  json.key("tool");
  json.begin_object(Layout::line);
  json.member("version", tool.version);
  json.member("commit", tool.commit);
  json.end_object();
  write_reading(json, answer.reading);
  write_message(json, *answer.log.first);
  write_log(json, answer.log);
  json.key("plan");
  if (answer.match)
    write_plan_in_short(json, answer.match->plan);
  else
    json.value(nullptr);
  json.key("match");
  if (answer.match)
    write_match(json, *answer.match);
  else
    json.value(nullptr);
  json.key("remedies");
  write_remedies(json, answer.match ? answer.match->plan.remedies : std::vector<Remedy>());
  json.end_object();
}

}  // namespace plimsoll::reports

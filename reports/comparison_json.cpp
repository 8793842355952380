#include "reports/comparison_json.h"

#include <algorithm>

namespace plimsoll::reports {

namespace {
using Layout = JsonWriter::Layout;
constexpr std::size_t kMostDifferences = 1000;

void write_sizes(JsonWriter& json, const Row& row) {
  json.member("predicted_bytes", row.predicted);
  json.member("measured_bytes", row.measured);
  json.member("difference_bytes", row.difference());
}

void write_row(JsonWriter& json, const char* key, const Row& row) {
  json.key(key);
  json.begin_object(Layout::line);
  write_sizes(json, row);
  json.end_object();
}

void write_level(JsonWriter& json, const char* key, const Level& level) {
  json.key(key);
  json.begin_object(Layout::line);
  json.member("verdict", name_of(level.verdict));
  json.member("text", level.text);
  json.end_object();
}

void write_categories(JsonWriter& json, const RankComparison& rank) {
  json.key("categories");
  json.begin_array();
  for (const Row& row : rank.categories) {
    json.begin_object(Layout::line);
    json.member("category", row.name);
    write_sizes(json, row);
    json.end_object();
  }
  json.end_array();
}

void write_rank(JsonWriter& json, const RankComparison& rank) {
  json.member("rank", rank.rank);
  write_row(json, "peak", rank.peak);
  write_row(json, "resident", rank.resident);
  write_row(json, "reserved", rank.reserved);
  write_row(json, "device", rank.device);
  json.member("unaccounted_bytes", rank.unaccounted);
  write_categories(json, rank);
}

void write_difference(JsonWriter& json, const Difference& d) {
  json.begin_object(Layout::line);
  json.member("kind", name_of(d.kind));
  json.member("rank", d.rank);
  json.member("op_index", d.at);
  json.member("where", d.where);
  json.member("tensor", d.tensor.empty() ? std::optional<std::string>() : d.tensor);
  json.member("predicted", d.predicted);
  json.member("measured", d.measured);
  write_sizes(json, {"", d.predicted_bytes, d.measured_bytes});
  json.member("text", d.text());
  json.end_object();
}

void write_tensors(JsonWriter& json, const Comparison& comparison) {
  json.key("tensors");
  json.begin_array();
  for (const TensorRow& row : comparison.tensors) {
    json.begin_object(Layout::line);
    json.member("name", row.bytes.name);
    json.member("category", row.category);
    json.member("predicted_count", row.predicted);
    json.member("measured_count", row.measured);
    write_sizes(json, row.bytes);
    json.end_object();
  }
  json.end_array();
}

void write_head(JsonWriter& json, const Tool& tool) {
  json.begin_object();
  json.member("schema", "plimsoll.comparison/1");
  json.key("tool");
  json.begin_object(Layout::line);
  json.member("version", tool.version);
  json.member("commit", tool.commit);
  json.end_object();
}
}  // namespace

void write_comparison_members(JsonWriter& json, const Comparison& comparison) {
  json.member("agrees", comparison.agrees);
  json.member("outcome", comparison.outcome);
  json.member("prediction", comparison.prediction);
  json.member("measurement", comparison.measurement);
  json.key("workload");
  json.begin_object(Layout::line);
  json.member("fingerprint", comparison.fingerprint);
  json.member("model", comparison.model.empty() ? std::optional<std::string>() : comparison.model);
  json.member("stack", comparison.stack);
  json.end_object();
  json.member("tensor_by_tensor", comparison.detailed);
  json.member("sample", comparison.sample);
  json.key("levels");
  json.begin_object();
  write_level(json, "requested", comparison.memory);
  write_level(json, "reserved", comparison.reserved);
  write_level(json, "device", comparison.device);
  write_level(json, "time", comparison.time);
  json.end_object();
  const bool any = !comparison.ranks.empty();
  const RankComparison none;
  const RankComparison& shown = any ? comparison.ranks[comparison.shown] : none;
  json.member("rank", any ? std::optional(shown.rank) : std::nullopt);
  json.member("unaccounted_bytes", shown.unaccounted);
  write_categories(json, shown);
  const std::string first = comparison.first_difference();
  json.member("first_difference", first.empty() ? std::optional<std::string>() : first);
  json.member("differences_found", comparison.differences.size());
  json.key("differences");
  json.begin_array();
  for (std::size_t i = 0; i < std::min(kMostDifferences, comparison.differences.size()); ++i)
    write_difference(json, comparison.differences[i]);
  json.end_array();
  json.key("ranks");
  json.begin_array();
  for (const RankComparison& rank : comparison.ranks) {
    json.begin_object();
    write_rank(json, rank);
    json.end_object();
  }
  json.end_array();
  write_tensors(json, comparison);
  json.key("notes");
  json.begin_array();
  for (const std::string& note : comparison.notes) json.value(note);
  json.end_array();
}

void write_comparisons(JsonWriter& json, std::span<const Comparison> comparisons,
                       const Tool& tool) {
  write_head(json, tool);
  if (comparisons.size() == 1) {
    write_comparison_members(json, comparisons[0]);
    json.end_object();
    return;
  }
  json.member("agrees", std::ranges::all_of(comparisons, &Comparison::agrees));
  json.key("comparisons");
  json.begin_array();
  for (const Comparison& comparison : comparisons) {
    json.begin_object();
    write_comparison_members(json, comparison);
    json.end_object();
  }
  json.end_array();
  json.end_object();
}

}  // namespace plimsoll::reports

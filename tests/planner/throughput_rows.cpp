#include "tests/planner/throughput_rows.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "models/gpu_catalog.h"
#include "planner/plan.h"
#include "tests/planner/published_run.h"

namespace plimsoll::tests {

using nlohmann::json;

namespace {

reports::Plan plan_of(const ThroughputRow& row, const models::ClusterSpec& cluster) {
  planner::Question question;
  question.model = &row.spec;
  question.strategy = row.strategy;
  question.strategy.kernels = models::Kernels::eager;
  question.strategy.compile = false;
  question.batch = row.batch;
  question.cluster = cluster;
  question.detail = planner::Detail::none;
  question.remedies = false;
  return planner::plan(question);
}

// What the step's allocator spends at the capacity, where the program is one whose memory is
// planned (Transformers' own models); eager kernels stand for others.
double flushing_seconds(const ThroughputRow& row, const models::ClusterSpec& cluster) {
  const reports::Plan plan = plan_of(row, cluster);
  return plan.flushing ? plan.flushing->seconds.value_or(0) : 0;
}

// Seconds of a step whose memory is not planned: the estimate of time alone.
double seconds_alone(const ThroughputRow& row, const models::ClusterSpec& cluster,
                     bool transformers) {
  const planner::TimeModel model(planner::model_parts(row.spec, row.strategy), cluster);
  return model(row.strategy, row.batch).step + (transformers ? flushing_seconds(row, cluster) : 0);
}

ThroughputRow read_row(const json& row, const json& sources) {
  ThroughputRow r;
  r.id = row["id"];
  r.model = row["model"];
  r.gpu = row["gpu"];
  r.source = row["source"];
  r.spec = published_model(row);
  r.strategy = published_strategy(row);
  r.batch = published_batch(row);
  r.in_sample = row.value("in_sample", false);
  r.published = row["tokens_per_second_per_gpu"];
  models::ClusterSpec cluster;
  cluster.gpu = models::find_gpu(r.gpu);
  // Fused kernels and compiled code are known to the estimate of time alone: `fit` refuses them.
  if (r.strategy.kernels == models::Kernels::eager && !r.strategy.compile)
    r.command = published_command(row);
  if (!r.command.empty()) {
    r.estimated = *plan_of(r, cluster).time.tokens_per_second_per_gpu;
    return r;
  }
  const bool transformers =
      sources[r.source].get<std::string>().find("Transformers") != std::string::npos;
  r.estimated = static_cast<double>(r.batch.tokens()) * static_cast<double>(r.batch.grad_accum) /
                seconds_alone(r, cluster, transformers);
  return r;
}

// An id of the rows, or a row of its own.
ThroughputRow row_of(const json& end, const json& sources, const std::vector<ThroughputRow>& rows) {
  if (end.is_object()) return read_row(end, sources);
  for (const ThroughputRow& row : rows)
    if (row.id == end.get<std::string>()) return row;
  throw std::runtime_error("throughput.json: no row " + end.get<std::string>());
}

}  // namespace

ThroughputRows throughput_rows() {
  std::ifstream file(PLIMSOLL_GOLDEN "/throughput.json");
  const json document = json::parse(file);
  ThroughputRows rows;
  rows.sources = document["sources"];
  rows.left_out = document["left_out"];
  for (const json& row : document["rows"]) rows.rows.push_back(read_row(row, document["sources"]));
  for (const json& pair : document["scaling"])
    rows.scaling.push_back({pair["what"], row_of(pair["from"], document["sources"], rows.rows),
                            row_of(pair["to"], document["sources"], rows.rows)});
  return rows;
}

double median_error(const std::vector<const ThroughputRow*>& rows) {
  std::vector<double> errors;
  for (const ThroughputRow* row : rows) errors.push_back(std::abs(row->error()));
  std::sort(errors.begin(), errors.end());
  const std::size_t n = errors.size();
  return n == 0 ? 0 : (errors[(n - 1) / 2] + errors[n / 2]) / 2;
}

}  // namespace plimsoll::tests

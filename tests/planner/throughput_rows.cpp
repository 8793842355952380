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

// What the step's allocator spends at the capacity, where the program is one whose memory is
// planned (Transformers' own models); eager kernels stand for others.
double flushing_seconds(const ThroughputRow& row, const models::ClusterSpec& cluster) {
  planner::Question question;
  question.model = &row.spec;
  question.strategy = row.strategy;
  question.strategy.kernels = models::Kernels::eager;
  question.strategy.compile = false;
  question.batch = row.batch;
  question.cluster = cluster;
  question.detail = planner::Detail::none;
  question.remedies = false;
  try {
    const reports::Plan plan = planner::plan(question);
    return plan.flushing ? plan.flushing->seconds.value_or(0) : 0;
  } catch (const Error&) {
    return 0;  // not planned
  }
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
  const planner::Software software{.first_attention = row.value("first_attention", false),
                                   .reentrant_checkpoints = row.value("reentrant", false)};
  const planner::TimeModel model(planner::model_parts(r.spec, r.strategy), cluster, software);
  r.time = model(r.strategy, r.batch);
  if (sources[r.source].get<std::string>().find("Transformers") != std::string::npos)
    r.time.step += flushing_seconds(r, cluster);
  r.estimated =
      static_cast<double>(r.batch.tokens()) * static_cast<double>(r.batch.grad_accum) / r.time.step;
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

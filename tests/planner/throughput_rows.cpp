#include "tests/planner/throughput_rows.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "models/gpu_catalog.h"
#include "models/model_catalog.h"
#include "models/model_reader.h"
#include "models/run_names.h"

namespace plimsoll::tests {

using nlohmann::json;

namespace {

template <class Choice>
Choice choice(const json& row, const char* key, Choice fallback) {
  return row.contains(key) ? models::choice_from<Choice>(row[key].get<std::string>()).value()
                           : fallback;
}

models::Strategy strategy_of(const json& row) {
  models::Strategy s;
  s.gpus = row["gpus"];
  s.data.zero = row["zero"];
  s.data.fsdp_version = row.value("fsdp_version", 2);
  s.data.shard_group = row.value("shard_group", 0);
  s.stack = choice(row, "stack", s.stack);
  s.attention = choice(row, "attention", s.attention);
  if (row.contains("optimizer_impl"))
    s.optimizer_impl = choice(row, "optimizer_impl", models::OptimizerImpl::fused);
  s.precision = choice(row, "precision", s.precision);
  if (row.contains("param_dtype"))
    s.param_dtype = dtype_from(row["param_dtype"].get<std::string>());
  s.loss = choice(row, "loss", s.loss);
  s.kernels = choice(row, "kernels", s.kernels);
  s.compile = row.value("compile", false);
  s.recompute.kind = choice(row, "recompute", s.recompute.kind);
  if (row.contains("lora_rank"))
    s.lora = models::Lora{.rank = row["lora_rank"], .dropout = 0.1, .targets = {"attention"}};
  return s;
}

ThroughputRow read_row(const json& row) {
  ThroughputRow r;
  r.id = row["id"];
  r.model = row["model"];
  r.gpu = row["gpu"];
  r.source = row["source"];
  r.spec = row.contains("config") ? models::read_model(row["config"].dump(), r.model, "golden")
                                  : models::catalog_model(r.model);
  r.strategy = strategy_of(row);
  if (row.contains("reduce_dtype"))
    r.strategy.data.reduce_dtype = dtype_from(row["reduce_dtype"].get<std::string>());
  r.batch = {row["seq_len"], row["micro_batch"], row["grad_accum"]};
  r.in_sample = row.value("in_sample", false);
  r.published = row["tokens_per_second_per_gpu"];
  models::ClusterSpec cluster;
  cluster.gpu = models::find_gpu(r.gpu);
  const planner::Software software{.first_attention = row.value("first_attention", false),
                                   .reentrant_checkpoints = row.value("reentrant", false)};
  const planner::TimeModel model(planner::model_parts(r.spec, r.strategy), cluster, software);
  r.time = model(r.strategy, r.batch);
  r.estimated =
      static_cast<double>(r.batch.tokens()) * static_cast<double>(r.batch.grad_accum) / r.time.step;
  return r;
}

}  // namespace

ThroughputRows throughput_rows() {
  std::ifstream file(PLIMSOLL_GOLDEN "/throughput.json");
  const json document = json::parse(file);
  ThroughputRows rows;
  rows.sources = document["sources"];
  rows.left_out = document["left_out"];
  for (const json& row : document["rows"]) rows.rows.push_back(read_row(row));
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

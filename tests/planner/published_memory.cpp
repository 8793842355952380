#include "tests/planner/published_memory.h"

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "models/gpu_catalog.h"
#include "planner/plan.h"
#include "tests/planner/published_run.h"

namespace plimsoll::tests {

using nlohmann::json;

namespace {

double ratio(Bytes planned, Bytes published) {
  return planned.real() / published.real() - 1;
}

MemoryRow read_row(const json& row) {
  MemoryRow r;
  r.id = row["id"];
  r.model = row["model"];
  r.gpu = row["gpu"];
  r.ran_kernels = row["ran_kernels"];
  r.source = row["source"];
  r.command = published_command(row);
  r.transformers = row.value("transformers", "");
  r.out_of_memory = row.value("out_of_memory", false);
  if (row.contains("peak_bytes")) r.peak = Bytes(row["peak_bytes"].get<std::int64_t>());
  if (row.contains("device_MiB"))
    r.device = Bytes(std::llround(row["device_MiB"].get<double>() * (1 << 20)));
  const models::ModelSpec model = published_model(row);
  planner::Question question;
  question.model = &model;
  question.strategy = published_strategy(row);
  question.batch = published_batch(row);
  question.cluster.gpu = models::find_gpu(r.gpu);
  question.remedies = false;
  r.plan = planner::plan(question);
  return r;
}

}  // namespace

std::optional<double> MemoryRow::peak_error() const {
  if (!peak) return std::nullopt;
  return ratio(plan.peak, *peak);
}

Bytes MemoryRow::planned_device() const {
  return plan.flushing ? plan.flushing->reserved + plan.overhead.total() : plan.device;
}

std::optional<double> MemoryRow::device_error() const {
  if (!device) return std::nullopt;
  return ratio(planned_device(), *device);
}

MemoryRows memory_rows() {
  std::ifstream file(PLIMSOLL_GOLDEN "/published_memory.json");
  const json document = json::parse(file);
  MemoryRows rows;
  rows.sources = document["sources"];
  rows.left_out = document["left_out"];
  for (const json& row : document["rows"]) rows.rows.push_back(read_row(row));
  return rows;
}

}  // namespace plimsoll::tests

// A recommendation as data (`plimsoll.recommendation/1`): the plans that were found, best first.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reports/json_writer.h"
#include "reports/plan_json.h"
#include "reports/record.h"
#include "reports/text.h"

namespace plimsoll::reports {

struct RankedPlan {
  Plan plan;
  std::optional<double> score;  // what the objective counts; nothing where it is not known
  std::vector<std::string> why;
  std::string command;  // `plimsoll fit …` that plans the same
  std::optional<double> tokens_per_second;  // of all GPUs
  std::optional<double> gpu_days;  // of the compute budget
};

struct FrontPoint {
  Bytes peak, device;  // device: peak and what stands outside the allocator
  std::optional<double> tokens_per_second;
  models::Strategy strategy;
  models::Batch batch;
  std::string options;
};

struct Change {
  std::string change;  // "--gpus 16"
  std::string command;
  Bytes device;
};

struct NothingFits {
  std::optional<RankedPlan> closest;
  Bytes shortfall;  // on each GPU, of what has to be counted (Recommendation::high_end)
  std::vector<Change> would_fit;
};

struct Recommendation {
  std::string model_name, objective;
  std::int64_t evaluated = 0, points = 0;
  double elapsed_seconds = 0;
  bool stopped = false;  // interrupted: the best so far
  std::int64_t gpus = 1;  // the most that may be used
  bool gpus_there = true;  // somebody has them: those that a plan leaves idle are said
  // Plans must fit with what is assumed at its high end; otherwise as `fit` says, with
  // `min_headroom` kept free.
  bool high_end = true;
  Bytes min_headroom;
  // Plans whose speeds are so near to each other count as equal: of two kinds (stack, sharding), of
  // one.
  double tie_margin = 0, same_kind_margin = 0;
  std::optional<double> fastest;  // tokens/s
  std::optional<double> budget_tokens;  // --tokens
  std::vector<RankedPlan> ranked;
  std::vector<FrontPoint> front;  // least memory first
  std::optional<NothingFits> nothing_fits;
  std::vector<std::string> not_considered, notes;
};

void write_recommendation(JsonWriter& json, const Recommendation& answer, const Tool& tool);

// For reading in a terminal: the winner and its command first.
std::string recommendation_table(const Recommendation& answer, const Terminal& terminal);

// "FSDP2 full shard in groups of 8", "DDP", "ZeRO-2": what the ranks do, in the stack's own words.
std::string data_parallel_text(const models::Strategy& strategy);

}  // namespace plimsoll::reports

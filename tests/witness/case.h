// One workload, planned by the planner and run by the runtime.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "models/model_spec.h"
#include "models/run_spec.h"
#include "planner/program/timeline.h"
#include "runtime/trainer.h"

namespace plimsoll::witness {

struct Case {
  std::string model = "llama";  // gpt2, llama, qwen3: tiny ones
  std::string config;  // of another one: its config.json
  models::Strategy strategy;
  models::Batch batch;
  bool deterministic = false;
  bool poison = true;
  double loss_scale = 1024;  // at first, with fp16
  float max_norm = 1;  // 0: nothing is clipped
  int steps = 1;
};
std::string text(const Case& c);  // one line, to say which case failed

std::string tiny_config(const std::string& model);
// Layers of two kinds are no checkpoint together: --recompute full in the place of every:K and
// sqrt.
void make_again_one_by_one(const std::string& model, models::Recompute& recompute);

// GaLore to `rank` where it is asked for and its matrices are whole; AdamW in its place elsewhere,
// and in a build that finds no eigenvectors.
void project_where_whole(models::Strategy& strategy, std::int64_t rank);

// Where workloads are planned for and run: the host, or `device`, which must outlive all of them.
void run_on(runtime::Device& device);

// What every rank measured, and what the ranks' parameters are after the last step (rank 0's).
struct Measured {
  std::vector<std::vector<runtime::StepResult>> ranks;  // [rank][step]
  std::vector<std::vector<float>> parameters;
  std::vector<Bytes> reserved;  // of each rank
  std::vector<Bytes> host_reserved;  // of its memory on the host, where it has one
};
// `done`: on each rank's thread when its steps are over, and the trainer still there.
Measured measured(const Case& c, const std::function<void()>& done = {});

// The same of one rank of `world`.
struct RankMeasured {
  std::vector<runtime::StepResult> steps;
  std::vector<std::vector<float>> parameters;
  Bytes reserved, host_reserved;
};
RankMeasured measured(const Case& c, runtime::comm::Communicator& world,
                      const std::function<void()>& done = {});

struct Predicted {
  models::StepProgram program;
  planner::Timeline timeline;
  reports::States states;  // at the end of backward
  std::vector<reports::Collective> collectives;
};
// `granularity`: 1, or the arena's block, to which every tensor is rounded up.
Predicted predicted(const Case& c, std::int64_t granularity = 1);
// The same of a rank's memory on the host (--offload optimizer): its program and timeline alone.
Predicted predicted_on_host(const Case& c);

// Op by op, tensor by tensor; "" where they agree.
std::string first_difference(const Predicted& predicted, const runtime::StepRecord& measured);

// The first difference of any rank and step, requested (L1) or reserved bytes (L2); what failed.
std::string difference_of(const Case& c);

}  // namespace plimsoll::witness

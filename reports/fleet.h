// Which jobs fit on which GPUs of a fleet, where each is put, and what would have to be bought.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reports/json_writer.h"
#include "reports/plan_json.h"
#include "reports/text.h"

namespace plimsoll::reports {

// GPUs of one kind in nodes of one size; more are bought in whole nodes.
struct FleetPool {
  std::string name, gpu;
  std::int64_t gpus = 0, gpus_per_node = 8;
  std::optional<double> price;  // of one GPU more; nothing: none can be had
  std::optional<std::int64_t> most_gpus;  // that the pool may ever have; nothing: any number

  std::int64_t full_nodes() const { return gpus / gpus_per_node; }
  std::int64_t gpus_of_last_node() const { return gpus % gpus_per_node; }
};

// A job on so many GPUs of a pool, as `fit` answers it.
struct FleetOption {
  std::size_t pool = 0;
  std::int64_t gpus = 1;
  bool possible = false;  // it fits, and is fast enough
  bool fits = false;
  std::optional<Bytes> device, usable;
  std::optional<double> tokens_per_second;
  std::string why;  // where it is not possible
};

// `count` equal jobs, each with GPUs of its own, all at the same time.
struct FleetJob {
  std::string name;
  std::int64_t count = 1;
  double priority = 1;
  std::optional<double> min_tokens_per_second;
  std::vector<FleetOption> options;
};

struct FleetPlacement {
  std::size_t job = 0, option = 0;
  std::int64_t count = 0;
};

// What is best: first the sum of priorities that run, then the price, then the GPUs in use.
struct FleetSolution {
  std::vector<FleetPlacement> placements;
  std::vector<std::int64_t> bought_nodes;  // of each pool
  double priority = 0, priority_bound = 0;  // no assignment reaches more than the bound
  double cost = 0, cost_bound = 0;  // nor costs less
  bool optimal = false;
};

struct Fleet {
  std::vector<FleetPool> pools;
  std::vector<FleetJob> jobs;
  std::string currency, solver;  // currency "": not said
  FleetSolution owned;  // with what is there
  std::optional<FleetSolution> purchase;  // where that is not enough and buying brings more
  double seconds = 0;  // that the solver had for each answer

  std::int64_t jobs_in_all() const;
  bool fits() const;  // all jobs run on what is there
};

std::int64_t placed_jobs(const FleetSolution& solution);
// GPUs of a pool that a solution uses.
std::int64_t used_gpus(const Fleet& fleet, const FleetSolution& solution, std::size_t pool);
// Of each job, how many have no place.
std::vector<std::int64_t> left_over(const Fleet& fleet, const FleetSolution& solution);
// "lacks 5.20 GiB on 8 GPUs": what stands in a job's way in a pool, by the nearest of its options.
std::string obstacle_text(const FleetJob& job, std::size_t pool);
// The answer in one line: "ALL FIT: …", "BUY: …", "NOT ENOUGH: …".
std::string fleet_verdict(const Fleet& fleet);
// "480,000 USD".
std::string price_text(const Fleet& fleet, double price);
// How sure a solution is: "nothing better exists", "at most 3.2 % above the cheapest".
std::string bound_text(const FleetSolution& solution);

std::string fleet_table(const Fleet& fleet, const Terminal& terminal);
void write_fleet(JsonWriter& json, const Fleet& fleet, const Tool& tool);  // plimsoll.fleet/1

}  // namespace plimsoll::reports

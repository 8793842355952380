// Published memory of training steps on GPUs (tests/golden/published_memory.json), and the plan of
// the same run. Judged by nobody of this project: other people's runs, other versions of torch.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "reports/record.h"

namespace plimsoll::tests {

struct MemoryRow {
  std::string id, model, gpu;
  std::string ran_kernels;  // "eager", as the plan has; else what the run used instead
  std::size_t source = 0;  // of MemoryRows::sources
  std::optional<Bytes> peak;  // torch.cuda.max_memory_allocated
  std::optional<Bytes> device;  // as nvidia-smi counts
  bool out_of_memory = false;  // the run failed
  std::string command;  // that asks for the plan
  std::string transformers;  // version of the run; "" where not stated
  reports::Plan plan;

  // As the allocator would have it within the card, cached segments given back.
  Bytes planned_device() const;
  bool at_optimizer() const { return plan.peak_place.phase == "optimizer"; }
  bool same_kernels() const { return ran_kernels == "eager"; }
  // Planned / published − 1.
  std::optional<double> peak_error() const;
  std::optional<double> device_error() const;
};

struct MemoryRows {
  std::vector<std::string> sources;
  std::map<std::string, int> left_out;  // why, and how many figures
  std::vector<MemoryRow> rows;
};

MemoryRows memory_rows();

// reports/memory_accuracy.md.
std::string memory_accuracy_page(const MemoryRows& rows);

}  // namespace plimsoll::tests

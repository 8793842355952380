// The axes of the space: how each can be chosen, in order of simplicity, and how a choice is
// written on a command line. A new axis (quantized bases, offload, tensor parallelism) is one more
// entry of the table in axes.cpp.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "planner/search/scope.h"
#include "planner/search/setting.h"

namespace plimsoll::planner::search {

struct Axis {
  std::string_view name;  // for --keep, --only, --without
  // Appends what can follow the earlier axes' choices, the base's own value alone where the axis is
  // fixed.
  void (*choices)(const Scope& scope, const Setting& so_far, std::vector<Setting>& out);
  std::string (*value)(const Setting& setting);  // "3", "every:4"
  // The options that make `fit` plan this value, "" where it is what fit takes without any.
  std::string (*option)(const Setting& setting);
};

std::span<const Axis> axes();

// A part of the space.
struct Stage {
  int concession = -1;  // only families of this one; negative: all
  std::int64_t gpus = 0;  // only families of so many; 0: all
};

// So many GPUs, and how many of them one node has.
struct GpuCount {
  std::int64_t gpus, per_node;
};

// The numbers of GPUs that can be rented and launched, most first: any number inside a node;
// beyond, nodes with equally many each (torchrun and mpirun start equally many ranks everywhere),
// whole ones where that divides the work. With a global batch all numbers that divide it. Without
// one all whole nodes, beyond 128 of them in steps below 1 %; the most and its halves where more
// GPUs always leave more room to each (memory, context, batch).
std::vector<GpuCount> gpu_counts(const Scope& scope);

// Smallest first.
std::vector<std::int64_t> divisors(std::int64_t n);

// Whether --only and --without leave this value.
bool allowed(const Scope& scope, std::string_view axis, const std::string& value);

// What a setting asks of whoever sets it up, less first: DDP before ZeRO before DeepSpeed, then the
// fewest knobs, of which code counts twice (reports/export_code.h writes it). Plans that the
// estimate cannot tell apart are in this order.
struct Effort {
  std::uint32_t kind = 0, knobs = 0;
  bool code = false;  // some of the knobs are code
  auto operator<=>(const Effort&) const = default;
};
Effort effort(const Setting& setting);

// Every combination of choices but the micro-batch, in the order of the axes.
std::vector<Setting> families(const Scope& scope, const Stage& stage = {});

// Error{bad_input}: a value of --only or --without that no axis has.
void check_filters(const Scope& scope);

// Micro-batch and accumulation of a family. Given a global batch: all ways to divide it. Else all
// micro-batches with three significant bits (1 … 8, 10, 12, 14, 16, 20 …) without accumulation.
std::vector<models::Batch> batches(const Scope& scope, const Setting& family);

// What the search does not consider yet, for the answer.
std::span<const std::string_view> not_considered();

// "--stack plimsoll --gpus 8 --zero 3 --micro-batch 4".
std::string options_of(const Setting& setting);

}  // namespace plimsoll::planner::search

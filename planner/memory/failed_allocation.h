// From the figures of an out-of-memory message to the request that failed: by its size after the
// allocator's rounding, and by what was allocated when it was made.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "planner/plan.h"
#include "reports/record.h"

namespace plimsoll::planner {

struct FailedRequest {
  Bytes printed, margin;  // within which the size lies
  bool rounded = true;  // up to a segment, as the caching allocator prints it; else as asked
  std::optional<Bytes> allocated;
  std::optional<Bytes> room;  // for PyTorch's segments
  std::optional<std::int64_t> rank;  // the one that failed
};

// Requests for one tensor (of all layers), or of one op for blocks of its own.
struct FailedCandidate {
  // Name ("layers.*.mlp.act", "layers.*.attn (scratch)"), category, bytes as the step asks for
  // them, and `repeat`: requests in a start and three steps.
  reports::TensorLine tensor;
  // That one of them at which `allocated`, what is allocated right before it, comes nearest to the
  // message: op and phase, "" while the model is loaded.
  reports::TimelinePoint at;
  Bytes printed;  // as the driver is asked, which is what a message says
  bool first_step = false;  // or before it
};

struct FailedAllocation {
  std::vector<FailedCandidate> candidates;  // best first
  std::int64_t further = 0;  // beyond those
  std::optional<FailedCandidate> refused;  // the plan's first that finds no room in `room`
  reports::ByCategory lived{};  // beside the best candidate
  std::vector<reports::TensorLine> largest;  // of that: bytes of `repeat` tensors together
};

// Whether the plan's bytes are nearer to the message's than a plan has been off.
bool agrees(Bytes planned, Bytes printed);

// Throws as plan() does; Error{unsupported} also where the stack's allocator prints no such
// message, or the model's step is not modelled.
FailedAllocation find_failed_allocation(const Question& question, const FailedRequest& request);

}  // namespace plimsoll::planner

// ZeRO-3's all-gathers of parameters in one micro-batch, by the coordinator's own rules.
#pragma once

#include <array>

#include "planner/memory/start.h"
#include "planner/program/messages.h"
#include "planner/stacks/deepspeed/layout.h"

namespace plimsoll::planner::deepspeed {

void add_fetches(const ModelParts& parts, const FlatLayout& layout, const Engine& engine,
                 const models::Strategy& strategy, Messages& out);

// Blocks that are there at a time.
struct GatheredBlocks {
  Bytes bytes;
  std::vector<Bytes> blocks;
  std::size_t step = 0;  // of the trace
};
// What is gathered in a micro-batch beside the parameters that stay and the packed weights that
// others have (PackedCopy), at most: where the graph has them none counts before the layers' end.
struct Gathered {
  GatheredBlocks forward, head,
      head_backward;  // until the layers' end; from there to their backward
  GatheredBlocks end;  // behind that
  std::vector<GatheredBlocks> backward;  // of each layer, counted from the front of the model
};
Gathered gathered_along(const ModelParts& parts, const FlatLayout& layout, const Engine& engine,
                        const models::Strategy& strategy, bool blocks = false);

// The same as requests to the allocator, of the first step and of each that follows.
// `accumulates`: several micro-batches.
std::array<Gathers, 2> gather_requests(const ModelParts& parts, const FlatLayout& layout,
                                       const Engine& engine, const models::Strategy& strategy,
                                       bool accumulates);

// Layers, as the backward comes to them, that can be planned with the same.
struct Stretch {
  std::int64_t from_end = 0;  // the first of them, counted from the model's end
  GatheredBlocks gathered;
};
std::vector<Stretch> stretches_of(const Gathered& gathered);

// Throws Error{bad_input} where parameters that are read from files find no buffer.
void refuse_few_buffers(const ModelParts& parts, const FlatLayout& layout, const Engine& engine,
                        const models::Strategy& strategy);

}  // namespace plimsoll::planner::deepspeed

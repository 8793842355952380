// What ZeRO-3 gathers, as requests to the allocator, along the trace of modules (coordinator.h).
#include <algorithm>

#include "planner/stacks/deepspeed/coordinator.h"

namespace plimsoll::planner::deepspeed {

std::int32_t Coordinator::take_block(Bytes bytes) {
  if (requests_ == nullptr) return -1;
  requests_->push_back({.block = blocks_, .bytes = bytes});
  return blocks_++;
}

// _all_gather_coalesced: a buffer for each dtype, the parameters in the model's order.
void Coordinator::take_flat(Flat& flat) {
  if (requests_ == nullptr) return;
  for (std::size_t i = 0; i < flat.parts.size(); ++i) {
    std::ranges::sort(flat.parts[i]);
    Bytes bytes;
    for (const std::size_t parameter : flat.parts[i]) bytes += t_.parameters[parameter].padded;
    if (bytes > Bytes(0)) flat.blocks[i] = take_block(bytes);
  }
}

void Coordinator::take_parts(const Flat& flat) {
  for (const std::vector<std::size_t>& parts : flat.parts)
    for (const std::size_t parameter : parts) {
      Held& held = t_.parameters[parameter];
      held.block = take_block(held.padded);
    }
}

void Coordinator::drop_block(std::int32_t& block) {
  if (block >= 0) requests_->push_back({.block = block, .goes = true});
  block = -1;
}

void Coordinator::drop_all() {
  drop_graph();
  for (std::int32_t& block : left_) drop_block(block);
  left_.clear();
  for (Held& held : t_.parameters) drop_block(held.block);
  for (Flat& flat : flats_)
    for (std::int32_t& block : flat.blocks) drop_block(block);
}

// The step that records the trace gathers as each module asks. Its optimizer has the small
// parameters stay; where micro-batches accumulate, the second one gathers them with others.
std::array<Gathers, 2> Coordinator::requests(bool accumulates) {
  std::array<Gathers, 2> out;
  Messages ignored;
  const auto record = [&](Gathers& into, bool persistent_there) {
    begin(persistent_there);
    requests_ = &into;
    pass();
    drop_all();
    requests_ = nullptr;
  };
  records_ = true;
  record(out[0], false);
  records_ = false;
  begin(false);
  if (accumulates)
    record(out[0], false);
  else
    pass();
  blocks_ = 0;
  out_ = &ignored;
  record(out[1], true);
  return out;
}

std::array<Gathers, 2> gather_requests(const ModelParts& parts, const FlatLayout& layout,
                                       const Engine& engine, const models::Strategy& strategy,
                                       bool accumulates) {
  return Coordinator(trace_of(parts, layout, engine, strategy), engine, strategy)
      .requests(accumulates);
}

}  // namespace plimsoll::planner::deepspeed

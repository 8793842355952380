// What the allocator sees that a step's program does not say: what a stack allocates while it
// starts, what comes later in the first step or with the second, and single blocks of scratch.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "models/step_program.h"
#include "planner/memory/scratch_blocks.h"

namespace plimsoll::planner {

struct StartEvent {
  enum class Kind : std::uint8_t {
    take,  // persistent tensors `first` to `last` of the program, which stay
    hold,  // `bytes` that will go again
    drop,  // what was held, `first` to `last` in the order of holding
    keep,  // `bytes` that stay, of tensors whose parts say nothing (ScratchBlocks::add_parts)
    model,  // persistent tensors but the optimizer's
    flush,  // torch.cuda.empty_cache()
  };
  Kind kind = Kind::take;
  std::int32_t first = 0, last = 0;
  Bytes bytes;
  std::int64_t instance = -1;  // taken: of tensors of a group; -1: all
};

// A block of Stream::gather that is taken, or that goes. Numbers begin anew with each step.
struct GatherEvent {
  std::int32_t block = 0;
  Bytes bytes;
  bool goes = false;
};
using Gathers = std::vector<GatherEvent>;

class Start {
 public:
  void take(models::TensorId tensor) { take(tensor, tensor); }
  void take(models::TensorId first, models::TensorId last) {
    add({StartEvent::Kind::take, first, last, {}});
  }
  void take_instance(models::TensorId tensor, std::int64_t instance) {
    add({StartEvent::Kind::take, tensor, tensor, {}, instance});
  }
  void flush() { add({StartEvent::Kind::flush, 0, 0, {}}); }
  void take_model() { add({StartEvent::Kind::model, 0, 0, {}}); }
  // Its number, for drop().
  std::int32_t hold(Bytes bytes) {
    add({StartEvent::Kind::hold, 0, 0, bytes});
    return held_++;
  }
  void drop(std::int32_t first, std::int32_t last) {
    add({StartEvent::Kind::drop, first, last, {}});
  }
  void drop(std::int32_t held) { drop(held, held); }
  std::int32_t held() const { return held_; }
  // Where there is no room for what is taken beside what is held, the latter goes first. Else the
  // start fails.
  void let_go_where_short() { lets_go_ = true; }
  bool lets_go_where_short() const { return lets_go_; }
  void keep(Bytes bytes) { add({StartEvent::Kind::keep, 0, 0, bytes}); }
  const std::vector<StartEvent>& events() const { return events_; }

  // What is added from now on happens between the first step and the second. Persistent tensors
  // that are taken there are not allocated before.
  void before_second_step() { later_ = true; }
  const std::vector<StartEvent>& later_events() const { return later_events_; }

  // A persistent tensor that is allocated by the first op that reads it, not before the step.
  void take_at_first_use(models::TensorId tensor) {
    if (tensor != models::kNoTensor) at_first_use_.push_back(tensor);
  }
  const std::vector<models::TensorId>& at_first_use() const { return at_first_use_; }

  // Where a step's blocks of Stream::gather are known one by one, and its program has levels of
  // them: of the first step, and of each that follows. Segments are made for these, and the
  // program's tensors of that stream are counted.
  void set_gathers(std::array<Gathers, 2> gathers) { gathers_ = std::move(gathers); }
  bool knows_gathers() const { return !gathers_.back().empty(); }
  const Gathers& gathers(bool first_step) const { return gathers_[first_step ? 0 : 1]; }

  void set_scratch(ScratchBlocks scratch) { scratch_ = std::move(scratch); }
  const ScratchBlocks& scratch() const { return scratch_; }

 private:
  void add(const StartEvent& event) { (later_ ? later_events_ : events_).push_back(event); }

  std::vector<StartEvent> events_, later_events_;
  std::vector<models::TensorId> at_first_use_;
  ScratchBlocks scratch_;
  std::array<Gathers, 2> gathers_;
  std::int32_t held_ = 0;
  bool later_ = false, lets_go_ = false;
};

}  // namespace plimsoll::planner

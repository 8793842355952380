// What a stack allocates while it starts, before the first step: the allocator's cache remembers
// it.
#pragma once

#include <cstdint>
#include <vector>

#include "models/step_program.h"

namespace plimsoll::planner {

struct StartEvent {
  enum class Kind : std::uint8_t {
    take,  // persistent tensors `first` to `last` of the program, which stay
    hold,  // `bytes` that will go again
    drop,  // what was held, `first` to `last` in the order of holding
  };
  Kind kind = Kind::take;
  std::int32_t first = 0, last = 0;
  Bytes bytes;
  std::int64_t instance = -1;  // taken: of tensors of a group; -1: all
};

class Start {
 public:
  void take(models::TensorId tensor) { take(tensor, tensor); }
  void take(models::TensorId first, models::TensorId last) {
    events_.push_back({StartEvent::Kind::take, first, last, {}});
  }
  void take_instance(models::TensorId tensor, std::int64_t instance) {
    events_.push_back({StartEvent::Kind::take, tensor, tensor, {}, instance});
  }
  // Its number, for drop().
  std::int32_t hold(Bytes bytes) {
    events_.push_back({StartEvent::Kind::hold, 0, 0, bytes});
    return held_++;
  }
  void drop(std::int32_t first, std::int32_t last) {
    events_.push_back({StartEvent::Kind::drop, first, last, {}});
  }
  void drop(std::int32_t held) { drop(held, held); }
  std::int32_t held() const { return held_; }
  const std::vector<StartEvent>& events() const { return events_; }

 private:
  std::vector<StartEvent> events_;
  std::int32_t held_ = 0;
};

}  // namespace plimsoll::planner

// What a step asks of a caching allocator, one request after another: it follows from the program
// alone, is written down once and is asked again in every step.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "models/step_program.h"
#include "planner/memory/start.h"
#include "planner/program/lifetime_rows.h"
#include "planner/program/timeline.h"

namespace plimsoll::planner {

// Blocks have numbers: those of the timeline's lifetimes, then the parts of tensors that are
// several blocks, then an op's own.
struct Request {
  enum class Kind : std::uint8_t {
    take,
    take_missing,  // where it is not there yet
    take_first,  // the same, in the first step alone
    free,  // where it is there
    take_and_free,
    adopt,  // becomes the block of `from`, where that is there
    flush,  // torch.cuda.empty_cache()
    count,  // bytes of what Start::gathers has; from here on they are there
    discount,
  };
  Kind kind = Kind::take;
  models::Stream stream = models::Stream::compute;
  std::int32_t block = 0;
  std::int32_t from = -1;
  std::int32_t step = -1;  // of the timeline; -1: before its first
  std::int32_t lifetime = -1;  // that the block is of; -1: of the op's own
  Bytes bytes;
};

class StepRequests {
 public:
  StepRequests(const models::StepProgram& program, const Timeline& timeline, const Start& start);
  ~StepRequests();
  StepRequests(const StepRequests&) = delete;
  StepRequests& operator=(const StepRequests&) = delete;

  // Of a step after another one; of the first too, where nothing is there yet to be freed.
  const std::vector<Request>& of_step() const { return requests_; }
  std::size_t blocks() const { return blocks_; }  // that have a number

  // Lifetimes of persistent tensors in the order of the model, but for those that are allocated
  // later than the start; and these.
  const std::vector<std::int32_t>& staying() const { return staying_; }
  const std::vector<std::int32_t>& later() const { return later_; }
  // What takes a lifetime's block, or its parts.
  template <class What>
  void each_part(std::int32_t lifetime, What what) const;

 private:
  const models::TensorDecl& decl(std::int32_t lifetime) const {
    return program_.tensors[static_cast<std::size_t>(tensor_of(lifetime))];
  }
  models::TensorId tensor_of(std::int32_t lifetime) const {
    return timeline_.lifetimes[static_cast<std::size_t>(lifetime)].tensor;
  }
  std::vector<std::int32_t> in_model_order() const;
  void sort_lifetimes();
  bool comes_later(models::TensorId tensor) const;
  void find_first_uses();
  void number_parts();
  void write_step();
  void write_op(std::size_t s, std::size_t op);
  void write_blocks(std::size_t s, std::size_t op, const std::vector<BlockEvent>& blocks);
  void write_event(const BlockEvent& event, std::size_t s);
  std::int32_t lifetime_at(const LifetimeRows& rows, std::size_t s, models::TensorId tensor) const;
  void take(std::int32_t lifetime, Request::Kind kind = Request::Kind::take);
  bool is_counted(std::int32_t lifetime) const;
  void take_at_first_use(std::size_t op);
  void take_states_of(const Position&at), take_states(), find_first_states();
  bool is_state(models::TensorId tensor) const;
  void take_next_state(models::TensorId tensor);
  void drop(std::int32_t lifetime);
  void drop_own(std::size_t number);
  void add(const Request& request);

  const models::StepProgram& program_;
  const Timeline& timeline_;
  const Start& start_;
  LifetimeRows births_, deaths_;
  std::vector<std::int32_t> staying_, later_, carried_;
  std::vector<std::pair<std::size_t, std::int32_t>> first_uses_;  // op and lifetime
  std::vector<std::int32_t> first_state_;  // of each optimizer's tensor: its first lifetime
  std::vector<std::int32_t> states_taken_;  // of each such tensor, by the op that is written
  std::vector<std::int32_t> first_part_;  // number of each lifetime's; -1: is one block
  std::int32_t first_own_ = 0;  // number of an op's
  std::vector<bool> own_;  // of the op that is written: which are there
  bool in_turn_ = false;  // it makes states, each in its turn
  std::int32_t now_ = -1;
  std::size_t blocks_ = 0;
  std::vector<Request> requests_;
};

template <class What>
void StepRequests::each_part(std::int32_t lifetime, What what) const {
  const models::TensorDecl& tensor = decl(lifetime);
  Request request{.stream = tensor.stream, .block = lifetime, .lifetime = lifetime};
  const auto i = static_cast<std::size_t>(lifetime);
  if (first_part_.empty() || first_part_[i] < 0) {
    request.bytes = tensor.bytes;
    what(request);
    return;
  }
  request.block = first_part_[i];
  for (const Bytes part : *start_.scratch().parts_of(tensor_of(lifetime))) {
    request.bytes = part;
    what(request);
    ++request.block;
  }
}

}  // namespace plimsoll::planner

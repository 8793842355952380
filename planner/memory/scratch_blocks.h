// The blocks that an op takes and gives back while it runs, in their order: `Op::scratch` is only
// their highest sum, but an allocator that splits and keeps blocks remembers each.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "models/step_program.h"
#include "planner/program/symbolic_bytes.h"

namespace plimsoll::planner {

struct BlockEvent {
  enum class Kind : std::uint8_t {
    take,  // a block of `bytes`
    drop,  // the `number`-th block that was taken, from 0
    birth,  // of `tensor`, which the op writes
    death,  // of `tensor`, where nobody needs it after the op
    adopt,  // `tensor` is born in the block of `from`, which dies: a sum made in place
    workspace,  // what the op is the first to use is taken: else behind its first birth
    flush,  // segments of which nothing is taken go back (torch.cuda.empty_cache())
    take_beside,  // as `take`, on the next stream of torch's pool
  };
  Kind kind = Kind::take;
  Bytes bytes;
  std::int32_t number = 0;
  models::TensorId tensor = models::kNoTensor;
  models::TensorId from = models::kNoTensor;
};

// Written in the order in which they happen.
class BlockEvents {
 public:
  // Its number.
  std::int32_t take(SymBytes bytes) {
    all_.push_back({BlockEvent::Kind::take, bytes.now()});
    return taken_++;
  }
  std::int32_t take_beside(SymBytes bytes) {
    all_.push_back({BlockEvent::Kind::take_beside, bytes.now()});
    return taken_++;
  }
  void drop(std::int32_t number) { all_.push_back({BlockEvent::Kind::drop, {}, number}); }
  void birth(models::TensorId tensor) { touch(BlockEvent::Kind::birth, tensor); }
  void death(models::TensorId tensor) { touch(BlockEvent::Kind::death, tensor); }
  void adopt(models::TensorId tensor, models::TensorId from) {
    if (tensor != models::kNoTensor) all_.push_back({BlockEvent::Kind::adopt, {}, 0, tensor, from});
  }
  void workspace() { all_.push_back({BlockEvent::Kind::workspace}); }
  void flush() { all_.push_back({BlockEvent::Kind::flush}); }
  const std::vector<BlockEvent>& all() const { return all_; }

 private:
  void touch(BlockEvent::Kind kind, models::TensorId tensor) {
    if (tensor != models::kNoTensor) all_.push_back({kind, {}, 0, tensor});
  }
  std::vector<BlockEvent> all_;
  std::int32_t taken_ = 0;
};

// By op of a program. Births that are not among an op's events come before them, deaths after them;
// what was taken and not dropped goes at the end, in the order of taking.
class ScratchBlocks {
 public:
  void add(std::size_t op, BlockEvents events) { by_op_[op] = std::move(events); }
  const std::vector<BlockEvent>* find(std::size_t op) const {
    const auto found = by_op_.find(op);
    return found == by_op_.end() ? nullptr : &found->second.all();
  }

  // A tensor that is several blocks, which come and go together.
  void add_parts(models::TensorId tensor, std::vector<Bytes> parts) {
    parts_[tensor] = std::move(parts);
  }
  bool has_parts() const { return !parts_.empty(); }
  const std::vector<Bytes>* parts_of(models::TensorId tensor) const {
    const auto found = parts_.find(tensor);
    return found == parts_.end() ? nullptr : &found->second;
  }

 private:
  std::unordered_map<models::TensorId, std::vector<Bytes>> parts_;
  std::unordered_map<std::size_t, BlockEvents> by_op_;
};

}  // namespace plimsoll::planner

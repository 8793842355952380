// Where the trained parameters lie in ZeRO-1's and ZeRO-2's flat buffer, and which rank owns what.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "planner/model_parts.h"
#include "planner/ranks.h"
#include "planner/stacks/deepspeed/engine.h"

namespace plimsoll::planner::deepspeed {

// The trained parameters in the order in which the modules registered them, or, with
// round_robin_gradients, dealt to the ranks in turn: first every n-th one of n ranks from the first
// on, then from the second on (stage_1_and_2.py, _round_robin_reorder). The layers of a run stand
// once. Counts are elements.
class FlatLayout {
 public:
  FlatLayout(const ModelParts& parts, const Engine& engine);

  std::int64_t total() const { return total_; }
  // Stage 3: each parameter is padded to a multiple of the ranks; a rank's part of all of them, of
  // the trained ones, of the largest sub-group of the step, and of the largest trained one.
  struct Part {  // of one parameter, on `count` layers
    std::int64_t elements = 0, count = 1;
    bool adapter = false;
    DType dtype = DType::bf16;
  };
  struct Shards {
    std::int64_t all = 0, trained = 0, sub_group = 0, largest = 0;
    // `all` and persistent(), as they are stored: LoRA's may keep the dtype that PEFT gave them.
    Bytes stored, stored_persistent;
    std::vector<std::int64_t> sub_groups;  // of the step
    Bytes sub_group_uncut;  // of the largest, all ranks', each parameter as in a file
    std::vector<Part> parts;
  };
  const Shards& shards() const { return shards_; }
  // Elements of parameters that stay gathered, being small (param_persistence_threshold).
  std::int64_t persistent() const { return persistent_; }

  DType stored(const Parameter& p) const {
    return p.packed != nullptr ? packed_ : p.adapter ? adapters_ : model_;
  }

  // Padded to a multiple of 2 x ranks (nccl_start_alignment_factor x world size).
  std::int64_t aligned() const { return aligned_; }
  std::int64_t partition() const { return aligned_ / ranks_; }
  std::int64_t largest() const { return largest_; }

  // What a rank's partition meets: the parameters that lie in it, in whole or in part.
  struct Share {
    std::int64_t whole = 0;  // elements of those parameters, uncut: grads_in_partition
    std::int64_t largest = 0;  // of the parts that are inside
    std::int64_t pieces = 0;  // parts, and the padding where there is some
    std::int64_t last = -1;  // the last of them, counted from the front of the model
  };
  Share share(std::int64_t rank) const;
  // Elements of the parameters that lie in it.
  std::vector<std::int64_t> parameters_of(std::int64_t rank) const;
  // All ranks, by what their steps depend on: their share, and when its gradients come. Stage 3 and
  // stage 0 leave the same to all.
  std::vector<EqualRanks> ranks(int stage) const;

  // Where the parameter of that number, counted from the front of the model, begins; `in_order`:
  // where it would in their own order.
  std::int64_t begin_of(std::int64_t index, std::int64_t in_order) const {
    return dealt_.empty() ? in_order : dealt_[static_cast<std::size_t>(index)];
  }
  bool deals() const { return !dealt_.empty(); }

  // Equal stretches that follow one another: a run's layers, or one end of the model.
  struct Block {
    std::int64_t begin = 0;  // of the first of them, in their own order
    std::int64_t first = 0;  // its first parameter, counted from the front of the model
    std::int64_t elements = 0;  // of one
    std::int64_t count = 1;
    std::int64_t layers = 1;  // of a run: that one stretch covers
    std::vector<std::int64_t> parameters;
    // Stage 3: frozen ones too; and which of them stay gathered, and are not in `gathered`.
    std::vector<Parameter> all;
    std::vector<bool> persistent;
    std::vector<std::int64_t> gathered;
    std::int64_t end() const { return begin + elements * count; }
    // Takes one of so many elements out of what is gathered: these, or 0 where none is.
    std::int64_t take_gathered(std::int64_t of);
  };
  const std::vector<Block>& blocks() const { return blocks_; }

 private:
  template <typename Visit>  // visit(elements, of them inside, number from the front of the model)
  void visit_share(std::int64_t rank, Visit visit) const;
  void add(const std::vector<Parameter>& parameters, std::int64_t count);

  void deal();

  std::vector<Block> blocks_;  // embedding, runs in order, tail
  std::vector<std::int64_t> dealt_;  // begins
  void add_shard(const Parameter& p, std::int64_t count, Block& block);

  models::DeepSpeedOptions options_;
  Shards shards_;
  bool stage3_, starts_sub_group_ = false;
  std::int64_t ranks_, total_ = 0, aligned_ = 0, largest_ = 0, persistent_ = 0, sub_group_ = 0;
  std::int64_t count_ = 0;  // of parameters
  DType model_, adapters_, packed_;
  Bytes sub_group_uncut_;
};

// Parameters that are reduced together, for one rank.
class Together {
 public:
  Together(const FlatLayout& layout, std::int64_t rank)
      : partition_(layout.partition()), rank_begin_(partition_ * rank) {}

  void add(std::int64_t begin, std::int64_t elements) {
    first_ = std::min(first_, begin / partition_);
    last_ = std::max(last_, (begin + elements - 1) / partition_);
    owns_some_ = owns_some_ || inside(begin, elements) > 0;
  }
  // Of a parameter: what the rank owns of it; at most 0 where that is nothing.
  std::int64_t inside(std::int64_t begin, std::int64_t elements) const {
    return std::min(rank_begin_ + partition_, begin + elements) - std::max(rank_begin_, begin);
  }
  bool one_owner() const { return first_ >= last_; }
  bool owns_some() const { return owns_some_; }
  void clear() {
    first_ = kNone;
    last_ = -1;
    owns_some_ = false;
  }

 private:
  static constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  std::int64_t partition_, rank_begin_;
  std::int64_t first_ = kNone, last_ = -1;  // owners
  bool owns_some_ = false;
};

}  // namespace plimsoll::planner::deepspeed

// Where the trained parameters lie in ZeRO-1's and ZeRO-2's flat buffer, and which rank owns what.
#pragma once

#include <utility>
#include <vector>

#include "planner/model_parts.h"
#include "planner/ranks.h"
#include "planner/stacks/deepspeed/engine.h"

namespace plimsoll::planner::deepspeed {

// The trained parameters in the order in which the modules registered them. The layers of a run
// stand once. Counts are elements.
class FlatLayout {
 public:
  FlatLayout(const ModelParts& parts, const Engine& engine);

  std::int64_t total() const { return total_; }
  // Stage 3: each parameter is padded to a multiple of the ranks; a rank's part of all of them, of
  // the trained ones, of the largest sub-group of the step, and of the largest trained one.
  struct Part {  // of one parameter, on `count` layers
    std::int64_t elements = 0, count = 1;
    bool adapter = false;
  };
  struct Shards {
    std::int64_t all = 0, trained = 0, sub_group = 0, largest = 0;
    // Of `all` and of persistent(): LoRA's, which keep the dtype that PEFT gave them.
    std::int64_t adapters = 0, persistent_adapters = 0;
    std::vector<std::int64_t> sub_groups;  // of the step
    std::vector<Part> parts;
  };
  const Shards& shards() const { return shards_; }
  // Elements of parameters that stay gathered, being small (param_persistence_threshold).
  std::int64_t persistent() const { return persistent_; }

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

  // Is the stretch of the buffer from `begin` to `end` owned by one rank?
  bool one_owner(std::int64_t begin, std::int64_t end) const {
    return begin / partition() == (end - 1) / partition();
  }

  // Equal stretches that follow one another: a run's layers, or one end of the model.
  struct Block {
    std::int64_t begin = 0;  // of the first of them
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

  std::vector<Block> blocks_;  // embedding, runs in order, tail
  void add_shard(const Parameter& p, std::int64_t count, Block& block);

  models::DeepSpeedOptions options_;
  Shards shards_;
  bool stage3_, starts_sub_group_ = false;
  std::int64_t ranks_, total_ = 0, aligned_ = 0, largest_ = 0, persistent_ = 0, sub_group_ = 0;
};

}  // namespace plimsoll::planner::deepspeed

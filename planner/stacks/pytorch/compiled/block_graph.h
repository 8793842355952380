// The joint graph of one compiled layer, from the nodes of its block (models/block.h).
#pragma once

#include "planner/stacks/pytorch/block_plan.h"
#include "planner/stacks/pytorch/compiled/joint_graph.h"
#include "planner/stacks/pytorch/module_types.h"

namespace plimsoll::planner::compiled {

// What decides a layer's graph beside its plan.
struct RegionQuestion {
  const pytorch::BlockPlan& plan;
  const models::Decoder& decoder;
  const pytorch::Regime& regime;
  const models::Strategy& strategy;
  const models::Recompute& recompute;  // of this layer: none, where it is left without a checkpoint
  pytorch::Tokens tokens;
  DType tables = DType::fp32;  // of cos and sin
  std::int64_t statistics = 0;  // fp32 values that attention's kernel keeps of its rows
  const char* attention = "";  // that kernel
  bool repeats_groups = false;  // keys and values, in front of it
};

struct Region {
  JointGraph graph;
  NodeId input = kNoNode, cos = kNoNode, sin = kNoNode;
  // Trained and other parameters, as their modules run; `place` in the graph's inputs and
  // gradients.
  struct Weight {
    const pytorch::NodePlan* node = nullptr;
    const pytorch::ModuleNames* names = nullptr;
    NodeId input = kNoNode;
    bool trains = false;
    std::size_t place = 0;
  };
  std::vector<Weight> weights;
};

Region block_region(const RegionQuestion& question);

// SDPA's fused kernels: FlashAttention in 16 bits, the memory-efficient one in fp32.
RegionQuestion region_question(const pytorch::BlockPlan& plan, const models::Decoder& decoder,
                               const pytorch::Regime& regime, const models::Strategy& strategy,
                               const models::Recompute& recompute, const pytorch::Tokens& tokens);

// Throws Error{unsupported} naming what of a layer is not modelled in a compiled region.
void refuse_block(const models::Block& block);

}  // namespace plimsoll::planner::compiled

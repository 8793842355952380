// What the rest of the planner asks about a stack: functions, and facts that have a name. Each
// folder of stacks/ defines its own, and registry.cpp names it in one line.
#pragma once

#include <array>
#include <span>

#include "planner/program/messages.h"
#include "planner/program/work.h"
#include "planner/states_only.h"

namespace plimsoll::planner {

struct StackStep;

// Plain data: a search reads it for every strategy.
struct StackInfo {
  models::Stack kind;
  const char* title;  // in sentences
  // As a step towards more sharding, by stage of --zero.
  std::array<const char*, 4> rungs;

  void (*write_step)(const Question& question, const ModelParts& parts, StackStep& step);
  // The strategy whose program says what the GPU computes, without what is sent; and that program
  // with its work, whether or not `fit` takes the strategy.
  models::Strategy (*compute_as)(const models::Strategy& strategy);
  void (*write_compute)(const Question& question, const ModelParts& parts,
                        models::StepProgram& program, Works& works);
  // The optimizer's step of one rank, with its work, behind a step that computes nothing.
  void (*write_optimizer)(const ModelParts& parts, const models::Strategy& strategy,
                          models::StepProgram& program, Works& works);
  // What a step of the strategy sends, of any batch.
  void (*write_messages)(const ModelParts& parts, const models::Strategy& strategy, Messages& out);
  TableStates (*table_states)(const ParameterCounts& counts, const models::Strategy& strategy);
  // Whose processes the ranks are: context, NCCL, allocator. Another's where it is built around it.
  models::Stack processes;
  bool wraps_another() const { return processes != kind; }

  bool runs_transformers = false;  // its modules, with PEFT's adapters and the Trainer's options
  bool own_kernels = false;  // ours (kernels/), launched from C++
  // --zero 1 is ZeroRedundancyOptimizer, 2 and 3 are FSDP; 0 is DDP.
  bool has_fsdp = false;
  // Mixed precision is autocast, or FSDP's policy, over weights in --param-dtype. Elsewhere it is
  // 16-bit weights beside fp32 masters.
  bool mixed_is_autocast = false;
  bool hooks_modules = false;  // under its ZeRO-3, in Python, whatever has parameters
  bool foreach_by_default = false;  // the optimizer's form
  bool packs_bases = false;  // bitsandbytes' packed bases and 8-bit optimizers run under it
  int packs_to_stage = 3;  // the bases, up to this one of ZeRO
  bool offloads_optimizer = false;  // its states, without the parameters
  bool reserves_exactly = false;  // what others reserve is an estimate
  bool untried_on_gpus = false;  // timed on one H100 alone; on several GPUs nobody has run it
  int hybrid_from_stage = 4;  // --shard-group; 4: at none
};

// Error{unsupported}: one that is not modelled.
const StackInfo& stack_info(models::Stack stack);

// All, the most usual first: in that order a search looks at them.
std::span<const StackInfo* const> stacks();

}  // namespace plimsoll::planner

// The whole training step of one rank of our own runtime: DDP, ZeRO-1, 2 and 3, hybrid sharding.
//
// What is decided (saved values, order, units, names, dtypes, blocks) is read from
// models/decisions/; here follow the bytes and lifetimes. All ranks of a step are alike.
#pragma once

#include <optional>
#include <vector>

#include "models/decisions/loss.h"
#include "models/decisions/optimizer_states.h"
#include "models/decisions/sharding.h"
#include "models/decisions/step.h"
#include "models/decisions/workspace.h"
#include "models/optimizers.h"
#include "planner/stack_step.h"
#include "planner/stacks/plimsoll/layer_writer.h"
#include "planner/stacks/plimsoll/rules.h"
#include "planner/stacks/plimsoll/run.h"
#include "reports/record.h"

namespace plimsoll::planner::plimsoll_stack {

class StepWriter {
 public:
  StepWriter(models::StepProgram& program, const ModelParts& parts,
             const models::Strategy& strategy, const models::Batch& batch, const Rules& rules);

  // Throws Error{unsupported} or Error{bad_input}.
  void write();

  // Model states of this rank at the end of backward.
  const reports::States& states() const { return states_; }
  const models::decisions::Sharding& sharding() const { return sharding_; }
  const Regime& regime() const { return regime_; }
  // In the place of write():
  void write_optimizer();
  void write_messages(Messages& out);
  // After write(): the program of this rank's memory on the host (models/decisions/offload.h).
  void write_host(models::StepProgram& program);

 private:
  friend class HostWriter;

  // Units and what lives between steps (states.cpp, workspace.cpp).
  void size_unit(Unit& unit, const std::vector<Parameter>& parameters, models::GroupId group,
                 const models::decisions::UnitNames& names);
  void size_units(), add_runs(), declare_states(), declare_fixed();
  SymInt loss_chunks() const;
  void declare_unit(Unit& unit, std::int64_t copies);
  void begin_unit(Unit& unit, bool last_of_checkpoint);
  SymBytes workspace();
  Bytes workspace_of_any_batch() const;
  template <class Visit>
  void each_state(const Unit& unit, Visit visit) const {
    const models::decisions::UnitNames& names = *unit.names;
    visit(names.masters, unit.masters);
    const auto kept = models::decisions::moments_of(models::rule_of(strategy_.optimizer));
    for (const auto moment : kept.all()) visit(names.state(moment), unit.moment);
    for (const auto moment : kept.all()) visit(names.scales(moment), unit.scales);
    visit(names.projector, unit.projector);
  }
  // Every unit in forward order, with the number of its instances; the builder stands at its layer.
  template <class Visit>
  void each_unit(Visit visit) {
    visit(embedding_, std::int64_t{1});
    for (Run& run : runs_)
      for (std::size_t j = 0; j < run.stride(); ++j) {
        b_.at_layer(static_cast<std::uint16_t>(j));
        visit(run.units[j], run.count);
      }
    b_.at_layer(0);
    visit(tail_, std::int64_t{1});
  }

  // Forward and backward of one micro-batch, and the optimizer (step.cpp).
  void micro_batches();
  void micro_batch();
  void layers_forward(std::size_t run), layers_backward(std::size_t run);
  void recompute(std::size_t run, std::size_t last);
  // Recursive recomputation (recursion.cpp).
  bool recurses() const { return strategy_.recompute.kind == models::RecomputeKind::recursive; }
  std::size_t first_reversed() const;
  std::vector<Visit> visits_of_backward() const;
  void begin_visits(), layers_backward_recursively();
  Ref input_of(std::size_t run, std::size_t layer) const;
  // Whether the layer's input is on the host between its forward and its backward (host.cpp).
  bool offloads_input(const Run& run, std::size_t layer) const;
  Ref fetched_below(std::size_t run, std::size_t layer) const, stream_end() const;
  void fetch_first();
  bool below_head_trains() const;
  OpBuilder op(const char* name, Phase phase) { return b_.op(name, phase); }
  void optimizer_step(), step(const Unit&unit);

  // The ends of the model (ends.cpp).
  void embed(), embedding_backward(), final_norm();
  TensorId logits(SymInt rows);
  TensorId loss_rows(const char* name, Category category);
  void gather_last_layer(), full_loss();
  void head_gradients(TensorId logits), chunk_gradients(TensorId chunk);
  void chunked_loss(), loss_work() const, final_norm_backward();
  enum class Head : std::uint8_t { logits, input, weight };
  Gemm of_head(Head which) const;

  // Moving parameters and gradients (shard.cpp).
  bool gathers() const { return sharding_.stage == 3; }
  void gather(const Unit& at, Phase phase, Ref target);
  void free_gathered(const Unit& unit, Phase phase, TensorId gathered);
  Ref next_forward(std::size_t run, std::size_t layer) const;
  TensorId first_backward(std::size_t run) const;
  Ref next_backward(std::size_t run, std::size_t layer) const;
  Ref reduced_before(TensorId Unit::*tensor, std::size_t run, std::size_t layer) const;
  Ref reduced_last(TensorId Unit::*tensor) const;
  // Whether this micro-batch's gradients are reduced; whether what is exchanged is held meanwhile.
  bool reduces_now() const, holds() const;
  TensorId Unit::*exchanged() const;
  void reduce(const Unit&unit, Ref held_before, Ref kept_before), start_reduce(const Unit&);
  void reduce_and_step(const Unit&unit), take_reduced(const char*name, Ref held, Ref kept);
  void add_gathers(const Unit& unit, Message at, Messages& out) const;
  void add_reductions(const Unit& unit, Message at, Messages& out) const;
  void add_messages(const Unit& unit, Message at, std::int64_t again, Messages& out) const;

  ProgramBuilder b_;
  const ModelParts& parts_;
  const models::Decoder& d_;
  models::Strategy strategy_;
  models::Batch batch_;
  bool stages_sums_;  // the communicator receives into a block of its own
  Tokens tokens_;
  Regime regime_;
  models::decisions::Sharding sharding_;
  bool reduces_each_ = false;
  LayerWriter layer_;
  std::vector<std::vector<OwnLayer>> own_layers_;  // of parts_.runs
  std::vector<Run> runs_;
  std::vector<Visit> visits_;  // of the backward, where it recurses
  Unit embedding_, tail_;
  models::GroupId chunks_ = models::kNoGroup;
  std::int64_t micro_ = 0, micros_ = 1;  // which micro-batch is written, of how many distinct ones
  SymInt times_ = 1;

  TensorId embedded_ = kNoTensor, normalized_ = kNoTensor, statistics_ = kNoTensor;
  TensorId stream_grad_ = kNoTensor;  // one tensor from the final norm down to the embedding
  bool wants_normalized_ = true;
  reports::States states_;
  Bytes largest_message_;
  std::optional<Bytes> workspace_of_any_batch_;
};

}  // namespace plimsoll::planner::plimsoll_stack

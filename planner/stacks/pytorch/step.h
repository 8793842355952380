// The training step of one rank under eager PyTorch: DDP, ZeroRedundancyOptimizer, FSDP.
#pragma once

#include <functional>
#include <vector>

#include "planner/stack_step.h"
#include "planner/stacks/pytorch/block_writer.h"
#include "planner/stacks/pytorch/optimizer_states.h"
#include "planner/stacks/pytorch/unit.h"

namespace plimsoll::planner::pytorch {

// Virtual: what FSDP1 and DeepSpeed, which train the same modules, do in another way.
class StepWriter : public StepSizer, public GradientSink, private Recomputation {
 public:
  StepWriter(models::StepProgram& program, const ModelParts& parts,
             const models::Strategy& strategy, const models::Batch& batch, const Rules& rules);

  void write();  // the steady-state step (optimizer states exist). Throws Error{unsupported}
  bool resize(const models::Batch& batch) override;  // in the program that stands (StepSizer)
  const Alike& alike() const override { return b_.alike(); }

  DataParallelism parallelism() const { return parallelism_; }
  const Regime& regime() const { return regime_; }
  const reports::States& states() const { return states_; }  // this rank's, after backward
  void write_messages(Messages& out);  // in the place of write()
  virtual void add_start(Start& start) const;  // after write()
  // After write(): all ranks, by what they hold; and the one whose step was written.
  std::vector<RanksAlike> ranks() const;
  std::int64_t rank() const { return std::max<std::int64_t>(0, rules_.rank); }
  const HostMemory& on_host() const { return host_; }  // of what is offloaded
  Bytes managed() const { return optimizer_.managed(); }  // states beside the allocator
  TensorId begin(const ModuleNames& names, std::int64_t elements, bool adapter) override;
  bool keeps() const override { return fsdp() || (micro_ == 0 && !to_bucket()); }
  void end(const ModuleNames& names, TensorId written) override;

 protected:
  // States and units (states.cpp).
  virtual void size_unit(Unit& unit, const std::vector<Parameter>&, models::GroupId group);
  virtual void declare_states();
  void add_runs(), declare_inputs(), declare_buckets(), declare_workspaces(), choose_partition();
  virtual void declare_unit_tensors(Unit&unit), declare_unit(Unit&unit, std::int64_t copies);
  virtual void declare_on_host(const Unit& unit, std::int64_t copies);
  Bytes declare_scales(const Unit& unit, const Parameter& p);
  void declare_scales(const Unit& unit, std::int64_t copies);
  virtual DType buffer_dtype() const { return DType::fp32; }
  Bytes local(const Parameter&p, DType dtype) const, id_buffers() const, copied_type_ids() const;
  models::SteppedTensor own_part(const Parameter& p) const;
  std::int64_t own_rows(const Parameter& p, std::int64_t rank) const;
  DType stored(const Parameter&) const, seen(const Parameter&) const, loss_dtype() const,
      head_input() const;
  std::vector<Bytes> full_parts(const Unit&) const, partition_blocks() const;
  std::vector<Bucket> ddp_buckets() const;
  virtual void add_messages(const Unit& unit, Messages& out) const;
  Message message(const Unit&, Message::Kind, Message::When, Bytes array) const;
  void ddp_start(Start&start) const, add_bucket_messages(Messages&out) const,
      in_model_order(const std::function<void(const Parameter&)>&what) const;

  // Forward and backward of one micro-batch (step.cpp, gradients.cpp).
  void plan_end_units(), micro_batches(), micro_batch(std::int64_t index, std::int64_t times);
  virtual bool resizable() const { return true; }
  virtual void before_micro_batch() {}
  virtual void before_loss() {}
  virtual void before_layers_backward() {}
  virtual void after_backward() {}
  void layers_forward(std::size_t run), layers_backward(std::size_t run),
      drop_returned(OpBuilder&op, std::size_t run, int delta) const;
  // The checkpoint whose backward is being written; frames of reentrant ones.
  void recompute() override, leave_checkpoint(), leave_checkpoints();
  void enter_backward(std::size_t run, std::size_t last), declare_recomputed(Run&run);
  NormInput final_norm_input() const;
  Ref input_of(std::size_t run, std::size_t layer) const, head_into() const,
      input_gradient_of(std::size_t run, std::size_t layer) const;
  bool recomputes() const { return repeats_layers(strategy_.recompute); }
  bool to_bucket() const, holds_in_buckets() const, reentrant() const, is_last(const ModuleNames&),
      keeps_last_layer() const, repeats_to_the_end() const;
  int model_order(const ModuleNames&) const;
  void note_gradient(const ModuleNames&, TensorId grad), tied_gradient(TensorId d), alibi_biases();
  // The ends of the model (ends.cpp).
  void leave_root(), embed(), finish_forward(), cache_projections(), leave_model(), loss_forward(),
      loss_targets(), flat_targets(), fused_work(), fused_chunks(std::int64_t rows, DType),
      overwriting_cross_entropy(TensorId), full_loss_forward(), chunked_loss_forward(),
      fused_loss_forward();
  bool shifts_logits() const, widens_logits() const, final_grad() const, leaf_input() const,
      embedding_grad() const, head_grad_is_view() const, overwrites_logits() const;
  std::int64_t scored_tokens() const, fused_rows() const;
  TapePart logits_part() const, entropy_part() const;
  TapeCounts logits_counts() const, entropy_counts() const;
  TensorId overwriting_cross_entropy_backward(), full_loss_backward(), chunked_loss_backward(),
      fused_loss_backward(), transform_head(), never_taken(const Run&, std::size_t) const;
  void gather_token_types(), embed_token_types(), leave_embeddings(), transform_back(TensorId d);
  static void release_casts(OpBuilder exit, const LayerPart& layer, const LayerSaved& saved);
  void release_cached_casts(), loss_backward(), embedding_backward(), rotary_tables(), project_in(),
      project_out(), model_masks(), embed_positions(), count_positions(), normalize_embedding();
  TensorId model_mask(bool sliding), dropout_embedding(std::int64_t, DType),
      project_in_back(TensorId), embedding_gradients(TensorId d);
  std::pair<TensorId, TensorId> rotary_table();  // cos, sin
  bool fsdp() const { return parallelism_ == DataParallelism::fsdp; }  // FSDP2 (fsdp2.cpp):
  TensorId before_layers(TensorId Unit::*tensor) const, after_layers(TensorId Unit::*tensor) const;
  virtual void prefetch_last_layer(), prefetch_before(std::size_t, std::size_t), optimizer_step();
  void convert_gradients(Unit&unit), reshard_after_forward(Unit&unit), prefetch(Ref, Ref cast);
  virtual void deferred_post_backward(), post_backward(Unit&unit, Ref previous_reduce);
  Ref unit_tensor(TensorId Unit::*tensor, std::size_t run, std::size_t layer, int step) const;
  virtual void gather_forward(Unit&unit, Ref previous), copy_out_backward(Unit&unit);
  virtual std::vector<TensorId> lists();  // foreach's
  virtual std::vector<models::SteppedTensor> stepped(std::int64_t most_layers) const;
  virtual std::vector<std::int64_t> held_by(std::int64_t rank) const;  // equal: with equal steps

  ProgramBuilder b_;
  const ModelParts& parts_;
  const models::Decoder& d_;
  models::Strategy strategy_;
  models::Batch batch_;
  Rules rules_;
  Tokens tokens_;
  DataParallelism parallelism_;
  Regime regime_;
  std::int64_t shards_ = 1;  // ranks that a parameter is split over
  OptimizerStates optimizer_;
  BlockWriter layer_;
  std::vector<Run> runs_;
  // Parameters outside the layers, gathered at the model's start, the embedding, and the final norm
  // or (`tail_is_head_`) the head; without FSDP2 all are in root_.
  Unit root_, embedding_, tail_;
  Unit *table_unit_ = &root_, *norm_unit_ = &root_, *head_unit_ = &root_;
  std::vector<Parameter> root_parameters_, embedding_parameters_, tail_parameters_;
  bool tail_is_head_ = false, loss_prefetches_ = false;  // the last layer's; else at the logits
  Run* checkpoint_ = nullptr;
  std::size_t last_of_checkpoint_ = 0;
  Unit* unit_ = nullptr;  // whose gradients are being written
  // Which micro-batch is written, of how many distinct ones; how often it is run.
  std::int64_t micro_ = 0, micros_ = 1, times_ = 1;
  FrontSaved front_;
  TensorId hidden_ = kNoTensor, d_embedded_ = kNoTensor;
  ByWindow cos_{}, sin_{}, masks_{};
  TapeSaved final_norm_;
  LinearSaved head_, head_transform_, project_in_;
  EndSaved end_;
  reports::States states_;
  HostMemory host_;
  ProgramBuilder::Place inputs_, micros_begin_, micros_end_;
  // ZeroRedundancyOptimizer's parameters: bytes of each rank's; and this rank's, one by one.
  std::vector<Bytes> shares_, partition_;
  TensorId first_bucket_ = kNoTensor, last_bucket_ = kNoTensor;
  std::array<TensorId, 4> workspaces_{};  // as ModuleWriter takes them
  ScratchBlocks blocks_;
};

}  // namespace plimsoll::planner::pytorch

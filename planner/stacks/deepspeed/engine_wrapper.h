// The training step of one rank under DeepSpeed: the modules are PyTorch's own
// (planner/stacks/pytorch), what holds and moves parameters and gradients is DeepSpeed's.
#pragma once

#include <utility>
#include <vector>

#include "models/optimizer_states.h"
#include "planner/stacks/deepspeed/hooks.h"
#include "planner/stacks/deepspeed/layout.h"
#include "planner/stacks/deepspeed/levels.h"
#include "planner/stacks/deepspeed/nvme.h"
#include "planner/stacks/pytorch/wrappers/gradients.h"
#include "planner/stacks/pytorch/wrappers/wrapper.h"

namespace plimsoll::planner::deepspeed {

using models::Category;
using models::kNoTensor;
using models::Phase;
using models::TensorId;
using pytorch::ModuleNames;
using pytorch::Run;

class EngineWrapper final : public pytorch::Wrapper {
 public:
  EngineWrapper(pytorch::Step& step, const Engine& engine);

  TensorId begin(const ModuleNames& names, std::int64_t elements, bool adapter) override;
  bool keeps(std::int64_t) const override { return whole_gradients() && s_.first_micro(); }
  void end(const ModuleNames& names, TensorId written) override;

  void declare_states() override;
  void begin_micro_batch() override;
  void after_layers() override;
  void before_layers_backward() override;
  void before_forward(pytorch::Unit& unit, pytorch::Ref previous) override;  // packed.cpp
  void before_head_backward() override;
  void before_layer_backward(std::size_t run, std::size_t layer) override;
  void after_backward(pytorch::Unit& unit, pytorch::Ref previous) override;
  void end_backward() override;
  bool ends_before_graph() const override { return true; }
  void optimizer_step() override;
  // deepspeed.initialize(), when the step is written (start.cpp).
  void add_start(Start& start) const override;
  HostMemory host() const override;  // host.cpp
  Bytes managed() const override { return managed_; }
  void write_messages(Messages& out) override;  // messages.cpp

 private:
  // Stage 3: gather.cpp, gather_by_layer.cpp.
  Levels gather_levels() const, levels_by_layer();
  Bytes in_graph(const Run& run, std::size_t j) const;
  void drop_graph();
  TensorId gather(const Level& level, Phase phase);
  void release_gathered(TensorId& gathered, Phase phase);
  void declare_shards(), sub_group_step(), check_overflow(std::int64_t elements);

  // Hooks, and what they fill (hooks.h, hooks.cpp).
  using Order = std::vector<Parameter>;
  HookRun& plan_run(const FlatLayout::Block& block, std::int64_t stretches, const Order& order);
  void plan_hooks(), declare_waiting();
  TensorId waiting_gradient(std::int64_t elements);
  // What the next hook finds: the gradient that waits, and whether the partition's gradients are
  // there before it.
  struct Found {
    Hook* hook = nullptr;
    pytorch::Ref waiting{};
    bool owned = false;
    bool stays = false;  // this one, until the step
  };
  bool stays(const HookRun& run, const Hook& hook) const;
  Found next_hook(std::int64_t elements, TensorId gradient);

  bool whole_gradients() const { return engine_.stage <= 1; }
  // Gradients go to the bucket as they come.
  bool moves() const { return moves_any() && (engine_.stage >= 2 || s_.last_micro()); }
  bool moves_any() const { return engine_.stage >= 2 || (engine_.stage == 1 && engine_.overlap); }
  Bytes bytes(std::int64_t elements, DType dtype) const {
    return b_.rounded(storage(Count(elements), dtype));
  }
  Bytes gradients(std::int64_t elements) const { return bytes(elements, engine_.model); }

  void flattened_start(Start&start) const, sharded_start(Start&start) const;
  void cut_whole_base(Start&start) const, masters_by_sub_group(Start&start) const;
  std::vector<std::int32_t> build_whole_base(Start& start) const;
  Bytes whole_of(const Parameter&p) const, part_of(const Parameter&p) const,
      parts_that_train(bool train) const;
  bool keeps_copy(const Parameter& p) const;  // beside what is cut
  void declare_frozen(), declare_optimizer(std::int64_t elements);
  bool steps_with_package() const;
  models::KeptStates package_states() const;
  void declare_transfer();
  // Offloaded to files (nvme.cpp).
  bool optimizer_in_files() const;
  bool gradient_stays(std::int64_t elements) const;  // of so many, on the device until the step
  Bytes gradients_that_stay() const;
  void keep_gradient(OpBuilder arrival, const Hook* hook, std::int64_t elements);
  void keep_last_gradients(OpBuilder reduce);
  bool has_params_in_files() const;  // in training
  void add_optimizer_files(HostMemory&host) const, add_param_files(HostMemory&host) const;
  bool comes_within_norm(const ModuleNames& names) const;  // its gradient
  void allocate_bucket(OpBuilder op) { op.write(bucket_).write(second_bucket_); }
  void hook(const ModuleNames& names, TensorId gradient, std::int64_t elements);
  std::int64_t begin_of(const HookRun& run, const Hook& hook, std::int64_t repeat) const;
  void fill_buckets();
  void add_bucket(const Bucket& bucket, Messages& out) const;
  void add_from_front(Messages& out) const;
  void add_persistent(Messages& out) const;
  std::int64_t beside_bucket(std::int64_t copy, std::int64_t part, const OnTheWay* = nullptr) const;
  SymBytes reduce_copy(SymInt content) const;
  void set_up_bucket(), size_copies(), epilogue();
  void reduce_whole();  // stage 1: the bucket takes all gradients when the backward is over
  void reduce_plain();  // stage 0
  void release_gradients(OpBuilder op);
  void partition_step(), plain_step(), fused_step(), unfused_step();
  TensorId square_root(Bytes state);
  bool fused() const;
  void step_work(std::int64_t elements), norm_work(std::int64_t elements, DType gradient);
  void copy_work(std::int64_t elements, DType from, DType to);
  std::vector<TensorId> fp32_gradients(Category category);

  // What the start makes: 16-bit parameters, frozen ones, masters.
  TensorId flat_ = kNoTensor, masters_ = kNoTensor;
  Bytes managed_;  // optimizer states beside the allocator
  std::vector<TensorId> frozen_;
  Engine engine_;
  FlatLayout layout_;
  FlatLayout::Share share_;
  pytorch::WholeGradients whole_;  // of stages 0 and 1
  std::vector<std::pair<TensorId, std::int64_t>> begun_;  // gradients before their hooks: elements
  std::vector<HookRun> hook_runs_;
  std::size_t at_run_ = 0, at_hook_ = 0;  // the next hook
  std::vector<Placement> placements_;
  std::vector<Bucket> buckets_;  // in the order of their reductions
  std::vector<TensorId> staying_;  // gradients that stay, of this micro-batch
  std::vector<TensorId> unswapped_;  // parts of them, in the masters' dtype
  bool bucket_set_up_ = false;
  std::int64_t left_in_bucket_ = 0;  // elements of its copy, and of what else is made then
  TensorId bucket_ = kNoTensor, second_bucket_ = kNoTensor;
  TensorId owned_ = kNoTensor;  // this micro-batch's gradients of the partition
  Levels levels_;
  TensorId gathered_ = kNoTensor, gathered_layers_ = kNoTensor, gathered_head_ = kNoTensor;
  std::vector<Level> backward_levels_;  // by run, where they differ
  TensorId gathered_layer_ = kNoTensor;
  std::vector<std::vector<TensorId>> in_graph_;  // by run and layer, of this micro-batch
  TensorId kept_ = kNoTensor;  // the first one's, which later ones are added to
};

}  // namespace plimsoll::planner::deepspeed

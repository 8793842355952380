// Activations on the host, as TRL's trainers keep them there (activation_offloading=True), where
// each layer is a checkpoint, or without any.
//
// trl 1.16, models/activation_offloading.py, OffloadActivations with its defaults: a hook of
// autograd's numbers each tensor that is saved, copies it to pinned memory on a stream of its own,
// and holds it on the device until five more were numbered, or until a node of the backward has
// read one (`fwd_stash`). What is saved again while it is held is not copied, and stays; so do
// parameters and what has less than 1,024 bytes. A node that reads what was copied gets a new
// tensor of that stream's, which lives until the next such node is done (`bwd_tensor_stash`), or
// as long as anything else refers to it; one that was strided is contiguous then, and was copied on
// the device first. What the head saves stays (NoOpManager). Of a checkpoint
// its input is saved, behind an empty tensor (torch/utils/checkpoint.py, _NoopSaveInputs).
#pragma once

#include <vector>

#include "planner/stacks/pytorch/saved_hooks.h"
#include "planner/stacks/pytorch/step.h"

namespace plimsoll::planner::pytorch {

// What went to the host of what a function saved.
struct Packed {
  struct Value {
    tape::ValueId storage = tape::kNone;
    Ref device;
    SymBytes bytes;
    bool again = false;  // saved twice: it stays until its second node's backward is done
    bool last = false;  // read by the function's first node, which runs last
  };
  std::vector<Value> values;
};

class Offloading : public SavedHooks, private StepPart {
 public:
  // OffloadActivations.__init__
  static constexpr std::int64_t kStash = 5;  // max_fwd_stash_size
  static constexpr Bytes kLeast{1024};  // min_offload_size
  // Its own stream; no wrapper but FSDP1's has one of this name.
  static constexpr models::Stream kCopies = models::Stream::cast;

  explicit Offloading(Step& step) : StepPart(step) {}

  bool takes_all() const { return regime_.by_node; }  // there are no checkpoints
  void begin();  // of a micro-batch
  // Forward: before a layer; behind all; of a function that was written, with what it was given.
  void before_layer(std::size_t run, std::size_t layer);
  void leave_layers();
  Packed pack(const TapePart& part, const TapeCounts& counts, std::span<const Ref> given,
              const TapeSaved& saved);

  // Backward: what is to be read in place of what was packed.
  void load(const Packed& packed, const TapePart& part, std::span<Ref> given, TapeSaved& saved);
  void declare(Run& run);
  void load_input(const Run& run, std::size_t layer);  // of the checkpoint that is run again
  void node_done(std::size_t run, std::size_t layer);  // its backward's first
  void finish();

  // Without checkpoints (offloading_layers.cpp): around a run's layer, forward and backward.
  void enter_layer(std::size_t run), leave_layer();
  void enter_layer_backward(std::size_t run), leave_layer_backward();
  void save(Ref tensor, SymBytes bytes, const char* copied) override;
  void save_held() override { ++number_; }
  std::int32_t end_node() override;
  void bring(std::int32_t node) override;
  Ref brought(std::int32_t node, Ref saved) const override;
  void attach(OpBuilder op, std::int32_t node) override;

 private:
  void empty_cache();
  struct Stashed {
    std::int64_t number;
    Ref tensor;
    Ref saved = {};  // where `tensor` is a copy
  };
  bool keeps_input(const BlockPlan& plan) const;
  void take(const TapePart& part, const TapeCounts& counts, std::span<const Ref> given,
            const TapeSaved& saved, tape::ValueId value, Packed& packed);
  void pin(SymBytes bytes, std::int64_t times = 1);
  std::array<TensorId, 2> leaf_and_gradient(models::Residency residency);

  // What a layer saved and is on the host, node by node; what of it was still held behind it.
  struct Held {
    Ref saved;
    SymBytes bytes;
    TensorId loaded = kNoTensor;
  };
  struct Layer {
    std::vector<std::vector<Held>> nodes;
    std::vector<Stashed> left;
    std::vector<TensorId> oldest;  // what its backward brings back last
  };
  // An operand for what the layer before left, once it is known, if its number is in between.
  struct Blank {
    std::size_t operand;
    std::int64_t above, upto;
  };
  void evict(std::int64_t upto, Ref alive);
  std::int64_t instances() const { return s_.runs[run_].count; }
  bool is_held(Ref tensor) const;

  std::vector<Layer> layers_;  // by run
  std::vector<Held> node_;  // that saves
  std::vector<Ref> again_;  // saved twice, and so on the device
  std::vector<Blank> blanks_;
  std::int64_t evicted_before_ = 0;  // of the layer before
  std::size_t run_ = 0;
  bool enters_ = false;  // a layer's backward
  std::vector<TensorId> beyond_;  // brought back last before the run's backward
  std::int64_t number_ = 0;  // of what was saved last, from the last layer's input on
  std::vector<Stashed> stash_;
  std::vector<Ref> evicted_;
  std::vector<TensorId> loaded_;  // held until the next node
  std::array<TensorId, 2> graph_{kNoTensor, kNoTensor};  // of the backward before
};

}  // namespace plimsoll::planner::pytorch

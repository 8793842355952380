// Activations on the host, as TRL's trainers keep them there (activation_offloading=True), where
// each layer is a checkpoint.
//
// trl 1.16, models/activation_offloading.py, OffloadActivations with its defaults: a hook of
// autograd's numbers each tensor that is saved, copies it to pinned memory on a stream of its own,
// and holds it on the device until five more were numbered, or until a node of the backward has
// read one (`fwd_stash`). What is saved again while it is held is not copied, and stays; so do
// parameters and what has less than 1,024 bytes. A node that reads what was copied gets a new
// tensor of that stream's, which lives until the next such node is done (`bwd_tensor_stash`), or
// as long as anything else refers to it. What the head saves stays (NoOpManager). Of a checkpoint
// its input is saved, behind an empty tensor (torch/utils/checkpoint.py, _NoopSaveInputs).
#pragma once

#include <vector>

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

class Offloading : private StepPart {
 public:
  explicit Offloading(Step& step) : StepPart(step) {}

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

 private:
  void empty_cache();
  struct Stashed {
    std::int64_t number;
    Ref tensor;
  };
  bool keeps_input(const BlockPlan& plan) const;
  void take(const TapePart& part, const TapeCounts& counts, std::span<const Ref> given,
            const TapeSaved& saved, tape::ValueId value, Packed& packed);
  void pin(SymBytes bytes, std::int64_t times = 1);
  std::array<TensorId, 2> leaf_and_gradient(models::Residency residency);

  std::int64_t number_ = 0;  // of what was saved last, from the last layer's input on
  std::vector<Stashed> stash_;
  std::vector<Ref> evicted_;
  std::vector<TensorId> loaded_;  // held until the next node
  std::array<TensorId, 2> graph_{kNoTensor, kNoTensor};  // of the backward before
};

}  // namespace plimsoll::planner::pytorch

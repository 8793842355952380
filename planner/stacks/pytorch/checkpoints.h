// Checkpoints around layers: what runs again, what is held for that and until when.
#pragma once

#include "planner/stacks/pytorch/step.h"

namespace plimsoll::planner::pytorch {

class Checkpoints : public Recomputation, private StepPart {
 public:
  explicit Checkpoints(Step& step) : StepPart(step) {}

  // The backward of a run begins; of its checkpoint that ends with this layer; of a layer, before
  // which the checkpoint's recomputation may have to come.
  void begin(Run& run);
  void enter(std::size_t last) { last_ = last; }
  void before_layer(std::size_t run, std::size_t layer);
  bool repeats_to_the_end() const;  // whatever of it no backward reads
  void recompute() override;
  void node_done() override;
  // Frames of reentrant ones: that checkpoint's; and what all layers were called with.
  void leave(), leave_all();
  std::size_t number() const { return static_cast<std::size_t>(run_ - s_.runs.data()); }  // its run
  std::size_t last() const { return last_; }

 private:
  void drop_graph(const Run& run, Phase phase);
  std::array<Ref, 2> never_taken(const Run& run, std::size_t layer) const;

  Run* run_ = nullptr;
  std::size_t last_ = 0;
};

}  // namespace plimsoll::planner::pytorch

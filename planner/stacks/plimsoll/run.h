// Layers that a group of the program holds.
#pragma once

#include <algorithm>
#include <vector>

#include "planner/stacks/plimsoll/own_layer.h"
#include "planner/stacks/plimsoll/unit.h"

namespace plimsoll::planner::plimsoll_stack {

// A run of equal layers, or of equal patterns of layers; `stride` of them make one instance of
// the group: a checkpoint, or a pattern, whose layers are made again one by one.
struct Run {
  const LayerRun* layers = nullptr;
  const std::vector<OwnLayer>* pattern = nullptr;
  models::GroupId group = models::kNoGroup;
  std::int64_t first_layer = 0;
  std::int64_t count = 0;  // instances
  bool recomputed = false;
  TensorId out = kNoTensor;  // the stream after an instance
  std::vector<TensorId> inner, again;  // between its layers, in forward and when made again
  std::vector<TensorId> fetched;  // its layers' inputs from the host
  std::vector<LayerTensors> saved;
  std::vector<Unit> units;
  std::size_t stride() const { return units.size(); }
  // nullptr: nothing in it is trained.
  const Unit* first_trained() const {
    const auto first = std::ranges::find_if(units, &Unit::trains);
    return first == units.end() ? nullptr : &*first;
  }
  bool trains() const { return first_trained() != nullptr; }
  bool alternates() const { return pattern->size() > 1; }
  const OwnLayer& own(std::size_t layer) const { return (*pattern)[layer % pattern->size()]; }
  bool any() const { return std::ranges::any_of(*pattern, &OwnLayer::any); }
  // Of the checkpoint that holds the layer.
  std::size_t first_made_again(std::size_t layer) const { return alternates() ? layer : 0; }
  bool ends_checkpoint(std::size_t layer) const { return alternates() || layer + 1 == stride(); }
};

// Of a backward that recurses, where each layer is a run.
struct Visit {
  std::size_t run = 0;
  bool reverses = false;  // else runs forward and keeps nothing
  TensorId gathered = kNoTensor;
};

}  // namespace plimsoll::planner::plimsoll_stack

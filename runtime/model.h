// A model on one rank: its units, its modules, and one micro-batch through them.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "models/model_spec.h"
#include "models/numerics.h"
#include "runtime/micro_batch.h"
#include "runtime/model_layout.h"
#include "runtime/modules/embedding.h"
#include "runtime/modules/head.h"
#include "runtime/modules/layer.h"
#include "runtime/modules/rotary_tables.h"
#include "runtime/shard/unit.h"

namespace plimsoll::runtime {

// Values of a parameter, by its name in the checkpoint, from element `first` of `shape` on.
using ReadParameter =
    std::function<void(const ModelParameter& parameter, std::int64_t first, std::span<float> to)>;

// Bytes of a packed one (shard/packed_bytes.h), or none: they are made of what ReadParameter gives.
using ReadPacked = std::function<std::vector<std::byte>(const ModelParameter& parameter)>;

class Model {
 public:
  // Allocates parameters and optimizer states.
  Model(Worker& worker, const models::ModelSpec& model, const models::Numerics& numerics,
        const models::Strategy& strategy, const shard::Group& group);

  void load(const ReadParameter& read, const ReadPacked& packed = {});
  // Of each parameter, whole; what has no such state is left out. All ranks call it together.
  struct Values {
    const ModelParameter* parameter = nullptr;
    std::vector<float> values;
  };
  std::vector<Values> whole(shard::State state);

  // What the ops of all modules need at most.
  Bytes workspace() const;

  // Forward and backward; `loss` fp64 [1] is added to.
  void train(const MicroBatch& batch, TensorView loss);
  // The optimizer, and the gather behind it.
  void step(shard::Unit& unit, const OptimizerStep& step);
  // Logits alone, behind each row what Head::logits says; all ranks call it together, between
  // steps.
  Tensor logits(ConstTensorView ids);

  // Where a layer's parameters are: shapes and slots, and the unit that stores them.
  std::span<const LayerLayout> layers() const { return layout_.layers; }
  shard::Unit& layer_unit(std::size_t layer) { return *layer_units_[layer]; }
  Worker& worker() { return worker_; }
  std::int64_t vocabulary() const { return settings_.decoder.vocab; }

  // All of them, in the order in which they are allocated.
  struct UnitOf {
    shard::Unit& unit;
    const std::vector<ModelParameter>& parameters;
  };
  std::vector<UnitOf> units();
  // In forward order, those with something trained.
  std::span<shard::Unit* const> trained_units() const { return trained_; }

 private:
  // Consecutive layers that are made again together; without recomputation each is alone.
  struct Checkpoint {
    std::size_t first = 0, count = 1;
    bool recomputed = false;
  };
  void make_float8_scales();
  void add_layers();
  void find_checkpoints(const models::Recompute& recompute);
  // Steps that a backward reverses: layers, and behind the last one the head. `kept`: of how many
  // layers the inputs are held (models/decisions/recursion.h).
  struct Reversal {
    std::size_t first = 0, steps = 0;
    std::int64_t kept = 0;
  };
  void find_reversals(const models::Recompute& recompute);
  // Down from the last layer: run_ahead() of some, or reverse() of one.
  struct Visitor {
    std::function<void(std::size_t first, std::size_t layers)> run_ahead;
    std::function<void(std::size_t layer)> reverse;
  };
  static void visit(const Reversal& part, const Visitor& visitor);
  void visit_reversals(const Visitor& visitor) const;
  void list_uses();

  // The use of a unit begins: what the next use reads is gathered.
  void begin_use(shard::Unit& unit, Phase phase);
  void end_use(shard::Unit& unit, Phase phase);
  void reduce(shard::Unit& unit);
  void reduce_and_step(shard::Unit& unit);
  void first_gather();
  void end_reductions();
  // Outside of a step. The units are there while `use` runs.
  template <class Use>
  void while_gathered(std::initializer_list<shard::Unit*> units, Use use);

  // --offload activations: the input that a layer has kept (models/decisions/offload.h).
  void offload_input(std::size_t layer, ConstTensorView x), end_offload(std::size_t layer);
  void begin_fetch(std::size_t layer), fetch_first();
  Tensor fetch_input(std::size_t layer);
  Tensor forward_layers(Tensor x);
  void recompute(const Checkpoint& checkpoint);
  void run_ahead(std::size_t first, std::size_t layers);
  void reverse_layers(Tensor& d);
  void backward_layer(std::size_t layer, Tensor& d);
  void backward_layers(Tensor& d);

  Worker& worker_;
  ModelSettings settings_;
  models::Strategy strategy_;
  shard::Group group_;
  ModelLayout layout_;
  std::unique_ptr<shard::Unit> embedding_unit_, tail_unit_;
  std::vector<std::unique_ptr<shard::Unit>> layer_units_;
  std::vector<shard::Unit*> trained_;
  RotaryTables rotary_tables_;
  Tensor float8_scales_;  // of all linears (models/decisions/float8.h), or none
  std::unique_ptr<Embedding> embedding_;
  std::vector<Layer> layers_;
  std::vector<char> below_;  // something below the layer is trained
  std::unique_ptr<Head> head_;
  std::vector<Checkpoint> checkpoints_;
  std::size_t reversed_from_ = 0;  // the first of the layers that are reversed recursively
  std::vector<Reversal> reversals_;  // of them, in forward order
  std::vector<char> keeps_input_;  // in the forward, of layers that are made again

  // One micro-batch.
  std::vector<shard::Unit*> uses_;  // in order, one after the other where it is the same unit
  std::size_t use_ = 0;
  const OptimizerStep* step_ = nullptr;  // in the backward
  shard::Unit* reducing_ = nullptr;  // whose gradients are held while they are reduced
  std::vector<shard::Unit*> in_place_;  // reductions to wait for
  const shard::Unit* last_reduced_ = nullptr;  // the last unit whose backward is done
  std::vector<LayerSaved> saved_;
  // Of layers, where inputs are offloaded: on the host, and what is on its way back.
  std::vector<Tensor> host_inputs_, fetched_;
  std::unique_ptr<Copying> offloading_, fetching_;  // last, so that nobody copies what is gone
};

}  // namespace plimsoll::runtime

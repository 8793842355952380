// One unit of parameters on one rank: what it stores, gathers, reduces and steps under a sharding
// (models/decisions/sharding.h).
//
// Methods that take an Op are called inside it; what dies is consumed by it. All ranks call them in
// the same order.
#pragma once

#include <optional>
#include <span>

#include "models/decisions/unit_names.h"
#include "runtime/optimizer.h"
#include "runtime/parameter.h"
#include "runtime/shard/flat_tensor.h"
#include "runtime/shard/group.h"
#include "runtime/shard/readers.h"
#include "runtime/shard/state.h"

namespace plimsoll::runtime::shard {

class Unit final : public ParameterStore {
 public:
  // `first_element`: sum of layout().trained_elements() of the units before. `prefix`: "layers.3.",
  // or nothing.
  Unit(Worker& worker, const Group& group, const models::decisions::UnitNames& names,
       std::string prefix, std::span<const UnitParameter> parameters, std::int64_t first_element);
  ~Unit() override;

  const UnitLayout& layout() const { return layout_; }
  const models::decisions::UnitNames& names() const { return names_; }
  const std::string& prefix() const { return prefix_; }
  bool trains() const { return layout_.trains(); }

  // Before the first step: parameters, masters, moments (which are set to 0).
  void allocate();
  // Weights, and masters from the unrounded values; or another state, for a training checkpoint.
  // Of one part, or of all. What `packed` does not have is packed of the values.
  // Error{unsupported}: moments in 8 bits, or of what is projected.
  void load(const Reader& read, State state = State::weights, std::optional<Part> part = {},
            const PackedReader& packed = {});
  // Whole, for each parameter; empty where it has no such state. All ranks of the sharding group
  // call it, between steps (State::gradients: before `step`). Stage 3 gathers into a temporary. Of
  // moments in 8 bits the codes; of a projected matrix those of its subspace, and its basis.
  std::vector<std::vector<float>> whole(State state, std::optional<Part> part = {});
  // The same of packed weights: their bytes.
  std::vector<std::vector<std::byte>> whole_packed();
  // What this rank stores, between steps: of a part (flat), and of a parameter the elements from
  // `first` on (none: no element of it). None where there is no such state.
  TensorView stored_part(State state, Part part);
  // Which of the sharding group's equal pieces that is: its own one, or all; the ledger's name.
  Overlap stored_pieces(State state) const;
  std::string name_of(State state) const;
  TensorView stored_piece(State state, std::size_t index, std::int64_t& first);

  // Stage 3. `value` waits for a gather that was started.
  bool gathers() const { return group_.sharding.stage == 3; }
  bool gathered() const { return static_cast<bool>(gathered_); }
  void start_gather(Op& op);
  void free_gathered(Op& op);
  ConstTensorView value(std::size_t index) const override;
  kernels::PackedWeight packed(std::size_t index) const override;

  // Before a micro-batch's forward: `index` of `count` in this step.
  void begin_micro_batch(std::int64_t index, std::int64_t count);
  TensorView gradient(std::size_t index) override;
  // Whether this micro-batch's gradients are reduced when the unit's backward is done.
  bool reduces() const;
  // Whether take_reduced makes, moves or ends a tensor (stages 2 and 3; gradients.new; compressed
  // ones): there is an op for it. Otherwise the sum is in place.
  bool holds() const;
  void start_reduce(Op&op), take_reduced(Op&op);
  bool reducing() const { return reducing_; }
  // The largest sum over ranks of start_reduce and take_reduced: what a communicator that stages
  // needs a block for. 0: nothing is reduced.
  Bytes largest_message() const;
  // Gradients that no step reads die.
  void drop_gradients(Op& op);

  // This rank's elements of a trained parameter's gradient.
  struct GradientPiece {
    std::size_t parameter = 0;
    std::int64_t first = 0, count = 0;  // in the parameter; 0: no element of it is here
    ConstTensorView piece;
  };
  std::vector<GradientPiece> gradient_pieces();  // one for each trained parameter, in order

  // The optimizer, in place; the gradients die with the op. `step`: where states are offloaded, its
  // operands are on the host.
  void step(Op& op, const OptimizerStep& step);
  Bytes step_workspace() const;
  bool gathers_stepped() const;  // stages 1 and 2
  void gather_stepped(Op& op);

 private:
  enum class Holds : std::uint8_t { whole, piece };
  FlatTensor::Sizes sizes(State state, Holds holds) const;
  FlatTensor make(const char* name, Category category, State state, Holds holds);
  bool on_host(State state) const;  // masters, moments and scales that are offloaded
  Memory& memory_of(State state) { return on_host(state) ? *worker_.host_memory : worker_.memory; }
  Device& device_of(State state) { return on_host(state) ? host_device() : worker_.device; }
  void fill_zero(FlatTensor& tensor);

  std::int64_t shard() const { return group_.shards->rank(); }
  bool shards_parameters() const { return group_.sharding.stage == 3; }
  bool shards_gradients() const { return group_.sharding.stage >= 2; }
  bool shards_states() const { return group_.sharding.stage >= 1; }
  TensorView own(FlatTensor& whole, Part part) const;  // this rank's piece of a whole part
  TensorView own_gradient(Part part), own_weight(Part part);
  template <class Take>
  void step_parts(Take take);
  void step_on_host(const OptimizerStep& step);
  void step_projected(const OptimizerStep& step);  // unit_low_rank.cpp
  void step_matrix(const OptimizerStep&, const Place&), make_basis(ConstTensorView, TensorView);
  ConstTensorView whole_place(const Place& place) const;
  FlatTensor& written();  // what this micro-batch's backward writes
  bool adds() const;  // it is gradients.new
  bool whole_ends() const { return shards_gradients() || adds(); }  // what is written goes away
  bool compresses() const { return worker_.regime.reduce.has_value(); }  // a cast is exchanged
  FlatTensor& exchanged() { return compresses() ? compressed_ : written(); }
  std::int64_t bucket(DType dtype, std::int64_t pieces) const;
  void start_all_reduce(TensorView flat);  // over the replicas
  void cast_gradients(), finish_reduce(), finish_gather() const;

  FlatTensor* stored(State state);
  bool is_piece(State state) const;
  // What is stored here of a parameter's elements first .. first + count: those from `from` on.
  TensorView part_of_parameter(State state, std::size_t index, std::int64_t first,
                               std::int64_t count, std::int64_t& from);
  void store(State state, std::size_t index, std::int64_t first, std::span<const float> values);
  void load_packed(const Reader& read, std::size_t index, const PackedReader& packed);
  // Of all ranks' pieces; none, where they are whole here.
  FlatTensor gathered_pieces(State state, std::optional<Part> part);

  Worker& worker_;
  Group group_;
  models::decisions::UnitNames names_;
  std::string prefix_;
  UnitLayout layout_;
  std::int64_t first_element_;
  std::int64_t micro_batch_ = 0, micro_batches_ = 1;

  FlatTensor parameters_, masters_, first_moment_, second_moment_, first_scales_, second_scales_,
      projector_, gathered_, gradients_, gradients_new_, gradients_shard_, compressed_;
  bool reducing_ = false;
  // Last, so that they end first: nobody reads memory that is gone.
  std::vector<comm::Pending> reductions_;
  mutable std::vector<comm::Pending> gathers_;
};

}  // namespace plimsoll::runtime::shard

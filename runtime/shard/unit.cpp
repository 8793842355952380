#include "runtime/shard/unit.h"

#include <algorithm>

namespace plimsoll::runtime::shard {

using comm::slice;
using models::decisions::ReduceMoment;

Unit::Unit(Worker& worker, const Group& group, const models::decisions::UnitNames& names,
           std::string prefix, std::span<const UnitParameter> parameters,
           std::int64_t first_element)
    : worker_(worker),
      group_(group),
      names_(names),
      prefix_(std::move(prefix)),
      layout_(layout_of(parameters, worker.regime, group.optimizer, group.sharding.shards)),
      first_element_(first_element) {
  const models::decisions::Sharding& sharding = group.sharding;
  check(group.shards != nullptr && group.replicas != nullptr &&
            group.shards->size() == sharding.shards && group.replicas->size() == sharding.replicas,
        ErrorKind::internal, "the communicators are those of the sharding");
  check(sharding.stage < 2 || group.moment == ReduceMoment::every_micro_batch, ErrorKind::internal,
        "stages 2 and 3 reduce each micro-batch");
  check(group.bucket_cap > Bytes(0), ErrorKind::bad_input, "--reduce-bucket: above 0");
}

Unit::~Unit() = default;

FlatTensor::Sizes Unit::sizes(State state, Holds holds) const {
  FlatTensor::Sizes sizes;
  for (const Part p : kAllParts) {
    if (!is_trained(p) && state != State::weights) continue;
    const FlatPart& part = layout_.part(p);
    const std::int64_t elements = holds == Holds::piece ? part.piece : part.whole;
    auto& size = sizes[static_cast<std::size_t>(p)];
    switch (state) {
      case State::weights:
        size = {elements, part.dtypes.weight};
        break;
      case State::masters:
        size = {part.dtypes.masters ? elements : 0, DType::fp32};
        break;
      case State::first_moment:
      case State::second_moment:
        size = {part.projects ? part.moments : elements, part.states.dtype};
        break;
      case State::first_scales:
      case State::second_scales:
        size = {part.states.scales(elements), models::decisions::kStateScales};
        break;
      case State::projector:
        size = {part.projects ? part.bases : 0, part.dtypes.gradient};
        break;
      case State::gradients:
        size = {elements, part.dtypes.gradient};
        break;
    }
  }
  return sizes;
}

FlatTensor Unit::make(const char* name, Category category, State state, Holds holds) {
  return FlatTensor(memory_of(state), prefix_ + name, category, sizes(state, holds));
}

bool Unit::on_host(State state) const {
  return group_.offloads_states && state != State::weights && state != State::gradients;
}

void Unit::fill_zero(FlatTensor& tensor) {
  for (const Part p : kAllParts)
    if (const TensorView part = tensor.part(p); part && part.dtype == DType::uint8)
      worker_.device.fill_bytes(part.data, 0, storage(Count(part.elements()), part.dtype));
    else if (part)
      worker_.kernels.fill(0, part);
}

void Unit::allocate() {
  const Holds weights = shards_parameters() ? Holds::piece : Holds::whole;
  const Holds states = shards_states() ? Holds::piece : Holds::whole;
  parameters_ = make(names_.parameters, Category::parameters, State::weights, weights);
  masters_ = make(names_.masters, Category::optimizer, State::masters, states);
  const models::decisions::Moments kept =
      models::decisions::moments_of(runtime_rule(group_.optimizer));
  const auto moment = [&](std::size_t i, State state) {
    return i < kept.count ? make(names_.state(kept.names[i]), Category::optimizer, state, states)
                          : FlatTensor();
  };
  const auto scales = [&](std::size_t i, State state) {
    return i < kept.count ? make(names_.scales(kept.names[i]), Category::optimizer, state, states)
                          : FlatTensor();
  };
  first_moment_ = moment(0, State::first_moment);
  second_moment_ = moment(1, State::second_moment);
  first_scales_ = scales(0, State::first_scales);
  second_scales_ = scales(1, State::second_scales);
  projector_ = make(names_.projector, Category::optimizer, State::projector, states);
  // Also the padding, which is summed, stepped and gathered like the rest.
  for (const State state :
       {State::weights, State::masters, State::first_moment, State::second_moment,
        State::first_scales, State::second_scales, State::projector}) {
    FlatTensor& tensor = *stored(state);
    if (!on_host(state)) {
      fill_zero(tensor);
      continue;
    }
    for (const Part p : kAllParts)
      if (const TensorView part = tensor.part(p))
        host_device().fill_bytes(part.data, 0, storage(Count(part.elements()), part.dtype));
  }
}

TensorView Unit::own(FlatTensor& whole, Part part) const {
  const TensorView view = whole.part(part);
  return view ? comm::piece_of(view, layout_.shards, shard()) : view;
}

void Unit::start_gather(Op&) {
  check(gathers() && !gathered_, ErrorKind::internal,
        [&] { return prefix_ + names_.gathered + " is gathered once"; });
  gathered_ = make(names_.gathered, Category::parameters, State::weights, Holds::whole);
  for (const Part p : kAllParts)
    if (parameters_.part(p))
      gathers_.push_back(group_.shards->start_all_gather(parameters_.part(p), gathered_.part(p)));
}

void Unit::finish_gather() const {
  for (comm::Pending& gather : gathers_) gather.wait();
  gathers_.clear();
}

void Unit::free_gathered(Op& op) {
  finish_gather();
  op.consume(gathered_.take());
}

ConstTensorView Unit::value(std::size_t index) const {
  const Place& place = layout_.places.at(index);
  check(place.part != Part::packed, ErrorKind::internal, "packed weights have no values");
  return whole_place(place).as(place.shape);
}

kernels::PackedWeight Unit::packed(std::size_t index) const {
  const Place& place = layout_.places.at(index);
  if (place.part != Part::packed) return {};
  return packed_view(static_cast<const std::byte*>(whole_place(place).data), place.packed);
}

ConstTensorView Unit::whole_place(const Place& place) const {
  if (shards_parameters()) finish_gather();
  const FlatTensor& from = shards_parameters() ? gathered_ : parameters_;
  check(static_cast<bool>(from), ErrorKind::internal,
        [&] { return prefix_ + names_.parameters + ": used when it is not there"; });
  return slice(from.part(place.part), place.first, place.count);
}

void Unit::begin_micro_batch(std::int64_t index, std::int64_t count) {
  check(!reducing_, ErrorKind::internal, "the reductions of a backward are taken in it");
  micro_batch_ = index;
  micro_batches_ = count;
}

// Gradients that are kept have been summed over the ranks: what comes next is summed for itself.
bool Unit::adds() const {
  return !shards_gradients() && group_.sharding.reduces() &&
         group_.moment == ReduceMoment::every_micro_batch && micro_batch_ > 0;
}

FlatTensor& Unit::written() {
  return adds() ? gradients_new_ : gradients_;
}

TensorView Unit::gradient(std::size_t index) {
  const Place& place = layout_.places.at(index);
  check(is_trained(place.part) && !reducing_, ErrorKind::internal,
        [&] { return prefix_ + names_.gradients + ": written where there is none"; });
  FlatTensor& whole = written();
  if (!whole) {
    whole = make(adds() ? names_.gradients_new : names_.gradients, Category::gradients,
                 State::gradients, Holds::whole);
    fill_zero(whole);
  }
  return slice(whole.part(place.part), place.first, place.shape.elements()).as(place.shape);
}

bool Unit::reduces() const {
  return trains() && group_.sharding.reduces() &&
         (group_.moment == ReduceMoment::every_micro_batch || micro_batch_ == micro_batches_ - 1);
}

bool Unit::holds() const {
  return reduces() && (compresses() || whole_ends());
}

std::int64_t Unit::bucket(DType dtype, std::int64_t pieces) const {
  return models::decisions::message_elements(group_.bucket_cap, dtype, pieces);
}

Bytes Unit::largest_message() const {
  Bytes largest;
  if (!group_.sharding.reduces()) return largest;
  for (const Part p : kTrainedParts) {
    const FlatPart& part = layout_.part(p);
    const DType dtype = worker_.regime.reduce.value_or(part.dtypes.gradient);
    // The replicas' all-reduce of a piece is a smaller message than the reduce-scatter's.
    const std::int64_t elements =
        std::min(part.piece, bucket(dtype, layout_.shards)) * layout_.shards;
    largest = std::max(largest, storage(Count(elements), dtype));
  }
  return largest;
}

void Unit::start_all_reduce(TensorView flat) {
  const std::int64_t most = bucket(flat.dtype, 1);
  for (std::int64_t first = 0; first < flat.elements(); first += most)
    reductions_.push_back(group_.replicas->start_all_reduce(
        slice(flat, first, std::min(most, flat.elements() - first))));
}

void Unit::cast_gradients() {
  FlatTensor::Sizes narrow = sizes(State::gradients, Holds::whole);
  for (FlatTensor::PartSize& size : narrow) size.dtype = *worker_.regime.reduce;
  compressed_ = FlatTensor(worker_.memory, prefix_ + names_.gradients_compressed,
                           Category::communication, narrow);
  for (const Part p : kTrainedParts)
    if (const TensorView from = written().part(p)) worker_.kernels.cast(from, compressed_.part(p));
}

void Unit::start_reduce(Op& op) {
  FlatTensor& whole = written();
  check(reduces() && !reducing_ && whole, ErrorKind::internal, [&] {
    return prefix_ + names_.gradients + ": reduced once, when backward has written them";
  });
  if (compresses()) {
    cast_gradients();
    if (whole_ends()) op.consume(whole.take());
  }
  for (const Part p : kTrainedParts) {
    const TensorView flat = exchanged().part(p);
    if (!flat) continue;
    if (!shards_states()) {
      start_all_reduce(flat);
      continue;
    }
    const std::int64_t piece = layout_.part(p).piece, most = bucket(flat.dtype, layout_.shards);
    for (std::int64_t first = 0; first < piece; first += most)
      reductions_.push_back(
          group_.shards->start_reduce_scatter(flat, {first, std::min(most, piece - first)}));
  }
  reducing_ = true;
}

void Unit::finish_reduce() {
  for (comm::Pending& reduction : reductions_) reduction.wait();
  reductions_.clear();
}

void Unit::take_reduced(Op& op) {
  if (!reducing_) return;
  finish_reduce();
  FlatTensor& sums = exchanged();
  if (shards_states() && group_.sharding.replicas > 1) {
    for (const Part p : kTrainedParts)
      if (sums.part(p)) start_all_reduce(own(sums, p));
    finish_reduce();
  }
  reducing_ = false;
  if (!compresses() && !whole_ends()) return;  // in place
  const bool first = shards_gradients() && !gradients_shard_;
  if (first)
    gradients_shard_ =
        make(names_.gradients_shard, Category::gradients, State::gradients, Holds::piece);
  for (const Part p : kTrainedParts) {
    if (!sums.part(p)) continue;
    const ConstTensorView sum = own(sums, p);
    const TensorView kept = shards_gradients() ? gradients_shard_.part(p) : own(gradients_, p);
    if (!first && whole_ends())
      worker_.kernels.add(sum, kept);
    else if (sum.dtype != kept.dtype)
      worker_.kernels.cast(sum, kept);
    else
      worker_.device.copy(kept.data, sum.data, storage(Count(sum.elements()), sum.dtype));
  }
  op.consume(sums.take());
}

void Unit::drop_gradients(Op& op) {
  check(!reducing_, ErrorKind::internal, "gradients that are being reduced stay");
  for (FlatTensor* gradients : {&gradients_, &gradients_new_, &gradients_shard_})
    op.consume(gradients->take());
}

}  // namespace plimsoll::runtime::shard

// A unit's states: in from a source, out to a file, and through the optimizer.
#include <algorithm>

#include "runtime/parallel.h"
#include "runtime/shard/host_copy.h"
#include "runtime/shard/unit.h"

namespace plimsoll::runtime::shard {

using comm::slice;

namespace {

// Elements that stand on the host at a time, and of those that a core makes at least.
constexpr std::int64_t kLoadBlock = 1 << 24, kOfACore = 1 << 16;

// A parameter's elements of its part's state.
Overlap kept_of(State state, const FlatPart& part, const Place& place) {
  if (state == State::projector) return {place.first_basis, place.low_rank.basis(), 0};
  const bool moment = state == State::first_moment || state == State::second_moment;
  if (!part.projects || !moment) return {place.first, place.count, 0};
  return {place.first_moment, place.low_rank.rank > 0 ? place.low_rank.stepped() : place.count, 0};
}

}  // namespace

FlatTensor* Unit::stored(State state) {
  switch (state) {
    case State::weights:
      return &parameters_;
    case State::masters:
      return &masters_;
    case State::first_moment:
      return &first_moment_;
    case State::second_moment:
      return &second_moment_;
    case State::first_scales:
      return &first_scales_;
    case State::second_scales:
      return &second_scales_;
    case State::projector:
      return &projector_;
    case State::gradients:
      return gradients_shard_ ? &gradients_shard_ : &gradients_;
  }
  return nullptr;
}

bool Unit::is_piece(State state) const {
  switch (state) {
    case State::weights:
      return shards_parameters();
    case State::gradients:
      return shards_gradients();
    default:
      return shards_states();
  }
}

TensorView Unit::part_of_parameter(State state, std::size_t index, std::int64_t first,
                                   std::int64_t count, std::int64_t& from) {
  const Place& place = layout_.places[index];
  const TensorView flat = stored(state)->part(place.part);
  check(!layout_.part(place.part).projects || state == State::weights || state == State::masters ||
            state == State::gradients,
        ErrorKind::unsupported, "states of what is projected are no values of its elements");
  from = first;
  if (!flat) return {};
  if (!is_piece(state)) return slice(flat, place.first + first, count);
  const Overlap here = layout_.in_piece(index, shard());
  const std::int64_t begin = std::max(first, here.first);
  const std::int64_t end = std::min(first + count, here.first + here.count);
  if (end <= begin) return {};
  from = begin;
  return slice(flat, here.offset + begin - here.first, end - begin);
}

void Unit::store(State state, std::size_t index, std::int64_t first,
                 std::span<const float> values) {
  std::int64_t from = 0;
  const TensorView to =
      part_of_parameter(state, index, first, static_cast<std::int64_t>(values.size()), from);
  if (to)
    write_values(device_of(state),
                 values.subspan(static_cast<std::size_t>(from - first),
                                static_cast<std::size_t>(to.elements())),
                 to);
}

Overlap Unit::stored_pieces(State state) const {
  return is_piece(state) ? Overlap{shard(), 1, 0} : Overlap{0, layout_.shards, 0};
}

std::string Unit::name_of(State state) const {
  const models::decisions::Moments moments =
      models::decisions::moments_of(runtime_rule(group_.optimizer));
  const auto kept = [&](std::size_t i) {
    check(i < moments.count, ErrorKind::internal, "the optimizer has no such state");
    return moments.names[i];
  };
  switch (state) {
    case State::weights:
      return prefix_ + names_.parameters;
    case State::masters:
      return prefix_ + names_.masters;
    case State::first_moment:
      return prefix_ + names_.state(kept(0));
    case State::second_moment:
      return prefix_ + names_.state(kept(1));
    case State::first_scales:
      return prefix_ + names_.scales(kept(0));
    case State::second_scales:
      return prefix_ + names_.scales(kept(1));
    case State::projector:
      return prefix_ + names_.projector;
    case State::gradients:
      return prefix_ + names_.gradients;
  }
  return {};
}

TensorView Unit::stored_part(State state, Part part) {
  return stored(state)->part(part);
}

TensorView Unit::stored_piece(State state, std::size_t index, std::int64_t& first) {
  return part_of_parameter(state, index, 0, layout_.places.at(index).count, first);
}

void Unit::load(const Reader& read, State state, std::optional<Part> part,
                const PackedReader& packed) {
  check(state != State::gradients && stored(State::weights), ErrorKind::internal,
        "states are loaded when they are allocated");
  check(
      state == State::weights || state == State::masters ||
          std::ranges::none_of(layout_.parts, [](const FlatPart& p) { return p.states.block > 0; }),
      ErrorKind::unsupported, "moments in 8 bits are loaded as they are stored, not as values");
  std::vector<float> values;
  for (std::size_t i = 0; i < layout_.places.size(); ++i) {
    const Part of = layout_.places[i].part;
    if (!stored(state)->part(of) || of != part.value_or(of)) continue;
    if (of == Part::packed) {
      load_packed(read, i, packed);
      continue;
    }
    // The weights' share of a rank holds the masters' share, under every stage.
    Overlap here{0, layout_.places[i].shape.elements(), 0};
    if (is_piece(state)) here = layout_.in_piece(i, shard());
    const std::int64_t end = here.first + here.count;
    for (std::int64_t first = here.first; first < end; first += kLoadBlock) {
      values.resize(static_cast<std::size_t>(std::min(kLoadBlock, end - first)));
      in_parts(std::ssize(values), kOfACore, [&](std::int64_t at, std::int64_t count) {
        read(i, first + at,
             std::span(values).subspan(static_cast<std::size_t>(at),
                                       static_cast<std::size_t>(count)));
      });
      store(state, i, first, values);
      if (state == State::weights) store(State::masters, i, first, values);
    }
  }
}

// Whole, whatever of it is stored here: a block's scale is of all its values, and the mean of the
// scales of all blocks.
void Unit::load_packed(const Reader& read, std::size_t index, const PackedReader& packed) {
  const Place& place = layout_.places[index];
  std::int64_t from = 0;
  const TensorView to = part_of_parameter(State::weights, index, 0, place.count, from);
  if (!to) return;
  std::vector<std::byte> bytes = packed ? packed(index) : std::vector<std::byte>();
  if (bytes.empty()) {
    std::vector<float> values(static_cast<std::size_t>(place.packed.values));
    in_parts(place.packed.values, kOfACore, [&](std::int64_t at, std::int64_t count) {
      read(
          index, at,
          std::span(values).subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(count)));
    });
    bytes = packed_bytes(values, worker_.regime.compute, place.packed);
  }
  worker_.device.copy_in(to.data, bytes.data() + from, Bytes(to.elements()));
}

FlatTensor Unit::gathered_pieces(State state, std::optional<Part> part) {
  FlatTensor* source = stored(state);
  // Stage 1 sums in place: only this rank's piece of the whole gradients is the sum.
  const bool gathers = is_piece(state) || (state == State::gradients && shards_states());
  if (!gathers || !*source) return {};
  FlatTensor::Sizes wanted = sizes(state, Holds::whole);
  for (const Part p : kAllParts)
    if (p != part.value_or(p)) wanted[static_cast<std::size_t>(p)].elements = 0;
  FlatTensor gathered(worker_.memory, prefix_ + names_.gathered, Category::parameters, wanted);
  for (const Part p : kAllParts) {
    const TensorView whole = gathered.part(p);
    if (!whole) continue;
    if (on_host(state)) {  // ranks exchange what is on their devices
      const ConstTensorView piece = source->part(p);
      worker_.device.copy_in(own(gathered, p).data, piece.data,
                             storage(Count(piece.elements()), piece.dtype));
      group_.shards->all_gather(whole);
      continue;
    }
    group_.shards->all_gather(is_piece(state) ? source->part(p) : own(*source, p), whole);
  }
  return gathered;
}

std::vector<std::vector<std::byte>> Unit::whole_packed() {
  if (layout_.part(Part::packed).length == 0)
    return std::vector<std::vector<std::byte>>(layout_.places.size());
  FlatTensor gathered = gathered_pieces(State::weights, Part::packed);
  const TensorView flat = (gathered ? gathered : parameters_).part(Part::packed);
  std::vector<std::vector<std::byte>> all;
  for (const Place& place : layout_.places) {
    all.emplace_back();
    if (place.part != Part::packed) continue;
    all.back().resize(static_cast<std::size_t>(place.count));
    worker_.device.copy_out(all.back().data(), slice(flat, place.first, place.count).data,
                            Bytes(place.count));
  }
  return all;
}

std::vector<std::vector<float>> Unit::whole(State state, std::optional<Part> part) {
  FlatTensor gathered = gathered_pieces(state, part);
  FlatTensor* source = gathered ? &gathered : stored(state);
  Device& device = source == &gathered ? worker_.device : device_of(state);
  std::vector<std::vector<float>> values;
  for (const Place& place : layout_.places) {
    values.emplace_back();
    const TensorView flat = source->part(place.part);
    if (!flat || place.part != part.value_or(place.part)) continue;
    check(state != State::first_scales && state != State::second_scales, ErrorKind::internal,
          "scales are of blocks, not of parameters");
    const Overlap kept = kept_of(state, layout_.part(place.part), place);
    if (kept.count == 0) continue;
    const TensorView here = slice(flat, kept.first, kept.count);
    if (place.part == Part::packed) {
      std::vector<std::byte> bytes(static_cast<std::size_t>(place.count));
      worker_.device.copy_out(bytes.data(), here.data, Bytes(place.count));
      values.back() = unpacked(bytes, worker_.regime.compute, place.packed);
      continue;
    }
    values.back().resize(static_cast<std::size_t>(kept.count));
    read_values(device, here, values.back());
  }
  return values;
}

TensorView Unit::own_gradient(Part part) {
  return shards_gradients() ? gradients_shard_.part(part) : own(gradients_, part);
}

std::vector<Unit::GradientPiece> Unit::gradient_pieces() {
  std::vector<GradientPiece> pieces;
  for (std::size_t i = 0; i < layout_.places.size(); ++i) {
    const Part part = layout_.places[i].part;
    if (!is_trained(part)) continue;
    const TensorView flat = own_gradient(part);
    check(static_cast<bool>(flat), ErrorKind::internal,
          [&] { return prefix_ + names_.gradients + ": read before backward has made them"; });
    const Overlap here = layout_.in_piece(i, shard());
    pieces.push_back({i, here.first, here.count, {}});
    if (here.count > 0) pieces.back().piece = slice(flat, here.offset, here.count);
  }
  return pieces;
}

TensorView Unit::own_weight(Part part) {
  return shards_parameters() ? parameters_.part(part) : own(parameters_, part);
}

// take(part, operands): the states of a trained part, and its first global element.
template <class Take>
void Unit::step_parts(Take take) {
  std::int64_t first_element = first_element_;
  for (const Part p : kTrainedParts) {
    const FlatPart& part = layout_.part(p);
    if (part.length == 0) continue;
    OptimizerOperands operands;
    operands.master = masters_.part(p);
    operands.first_moment = first_moment_.part(p);
    operands.second_moment = second_moment_.part(p);
    operands.first_scales = first_scales_.part(p);
    operands.second_scales = second_scales_.part(p);
    operands.first_element = first_element + shard() * part.piece;
    take(p, operands);
    first_element += part.length;
  }
}

void Unit::step(Op& op, const OptimizerStep& step) {
  if (group_.offloads_states) {
    step_on_host(step);
  } else if (layout_.part(Part::trained).projects) {
    step_projected(step);
  } else {
    step_parts([&](Part p, OptimizerOperands& operands) {
      operands.weight = own_weight(p);
      operands.gradient = own_gradient(p);
      take_step(worker_, worker_.kernels, step, operands);
    });
  }
  op.consume(gradients_.take());
  op.consume(gradients_shard_.take());
}

void Unit::step_on_host(const OptimizerStep& step) {
  const HostOp op(worker_, names_.step);
  const Holds holds = shards_states() ? Holds::piece : Holds::whole;
  FlatTensor::Sizes of_weights = sizes(State::weights, holds);
  for (const Part p : kAllParts)
    if (!is_trained(p)) of_weights[static_cast<std::size_t>(p)] = {};
  Memory& memory = *worker_.host_memory;
  FlatTensor gradients(memory, prefix_ + names_.host_gradients, Category::gradients,
                       sizes(State::gradients, holds));
  FlatTensor weights(memory, prefix_ + names_.host_parameters, Category::parameters, of_weights);
  const auto* overflow = static_cast<const std::int32_t*>(step.overflow.data);
  if (overflow != nullptr && *overflow != 0) return;
  Device& device = worker_.device;
  const auto bytes_of = [](ConstTensorView view) {
    return storage(Count(view.elements()), view.dtype);
  };
  step_parts([&](Part p, OptimizerOperands& operands) {
    const ConstTensorView gradient = own_gradient(p);
    const TensorView weight = own_weight(p);
    operands.gradient = gradients.part(p);
    operands.weight = weights.part(p);
    device.copy_out(gradients.part(p).data, gradient.data, bytes_of(gradient));
    if (!operands.master) device.copy_out(operands.weight.data, weight.data, bytes_of(weight));
    take_step(worker_, kernels::host_kernels(), step, operands);
    device.copy_in(weight.data, operands.weight.data, bytes_of(weight));
  });
}

bool Unit::gathers_stepped() const {
  return trains() && shards_states() && !shards_parameters();
}

void Unit::gather_stepped(Op&) {
  check(gathers_stepped(), ErrorKind::internal, "stages 1 and 2 gather what they have stepped");
  for (const Part p : kTrainedParts)
    if (parameters_.part(p)) group_.shards->all_gather(parameters_.part(p));
}

}  // namespace plimsoll::runtime::shard

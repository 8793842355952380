#include "runtime/shard/unit_layout.h"

#include <algorithm>

#include "models/optimizers.h"

namespace plimsoll::runtime::shard {

namespace {

std::int64_t aligned(std::int64_t elements, std::int64_t step) {
  return checked_multiply(ceil_divide(elements, step), step);
}

Part part_of(const UnitParameter& parameter) {
  check(!parameter.adapter || parameter.trained, ErrorKind::internal,
        [&] { return parameter.name + ": adapters are trained"; });
  check(parameter.packed == nullptr || !parameter.trained, ErrorKind::internal,
        [&] { return parameter.name + ": packed weights are frozen"; });
  if (parameter.adapter) return Part::adapters;
  if (parameter.trained) return Part::trained;
  return parameter.packed != nullptr ? Part::packed : Part::frozen;
}

// Where what is kept of a trained tensor stands, if some of its part are projected.
void place_states(const UnitParameter& parameter, FlatPart& part, Place& place) {
  namespace decisions = models::decisions;
  const Extents& shape = parameter.shape;
  if (parameter.low_rank > 0) {
    check(shape.rank == 2, ErrorKind::internal, "matrices are projected");
    place.low_rank = decisions::low_rank(parameter.low_rank, shape[0], shape[1]);
    part.projects = true;
  }
  const std::int64_t stepped =
      place.low_rank.rank > 0 ? place.low_rank.stepped() : shape.elements();
  place.first_moment = part.moments;
  place.first_basis = part.bases;
  part.moments =
      checked_add(part.moments, decisions::aligned_elements(stepped, part.dtypes.weight));
  part.bases = checked_add(
      part.bases, decisions::aligned_elements(place.low_rank.basis(), part.dtypes.gradient));
}

}  // namespace

UnitLayout layout_of(std::span<const UnitParameter> parameters,
                     const models::decisions::Regime& regime, models::Optimizer optimizer,
                     std::int64_t shards) {
  check(shards >= 1, ErrorKind::internal, "a unit has at least one shard");
  UnitLayout layout;
  layout.shards = shards;
  layout.parts[static_cast<std::size_t>(Part::frozen)].dtypes.weight = regime.compute;
  layout.parts[static_cast<std::size_t>(Part::packed)].dtypes.weight = DType::uint8;
  layout.parts[static_cast<std::size_t>(Part::trained)].dtypes = regime.base;
  layout.parts[static_cast<std::size_t>(Part::adapters)].dtypes = regime.adapters;
  for (const UnitParameter& parameter : parameters) {
    const Part p = part_of(parameter);
    FlatPart& part = layout.parts[static_cast<std::size_t>(p)];
    Place place{p, part.length, parameter.shape, parameter.shape.elements()};
    if (p == Part::packed) {
      place.packed = packed_places(*parameter.packed, place.shape);
      place.count = place.packed.bytes;
    }
    if (is_trained(p)) place_states(parameter, part, place);
    layout.places.push_back(place);
    part.length = checked_add(
        part.length,
        aligned(place.count, models::decisions::alignment_elements(part.dtypes.weight)));
  }
  for (const Part p : kTrainedParts) {
    FlatPart& part = layout.parts[static_cast<std::size_t>(p)];
    part.states =
        models::decisions::state_storage(models::rule_of(optimizer), part.dtypes, part.length);
  }
  for (FlatPart& part : layout.parts) {
    const std::int64_t step = models::decisions::piece_step(part.dtypes.weight, part.states);
    part.whole = aligned(part.length, checked_multiply(shards, step));
    part.piece = part.whole / shards;
    check(!part.projects || (shards == 1 && part.states.block == 0), ErrorKind::internal,
          "matrices that are projected are whole, with moments that are no codes");
  }
  return layout;
}

Overlap UnitLayout::in_piece(std::size_t index, std::int64_t shard) const {
  const Place& place = places[index];
  const std::int64_t piece = part(place.part).piece;
  const std::int64_t begin = std::max(place.first, shard * piece);
  const std::int64_t end = std::min(place.first + place.count, (shard + 1) * piece);
  if (end <= begin) return {};
  return {begin - place.first, end - begin, begin - shard * piece};
}

}  // namespace plimsoll::runtime::shard

// FSDP1: a unit's flat parameter, and what each rank has of it.
#include <algorithm>

#include "models/optimizers.h"
#include "planner/stacks/pytorch/wrappers/fsdp1.h"

namespace plimsoll::planner::pytorch {

using models::kNoGroup;

FlatParameters::Flat FlatParameters::flat_of(std::int64_t elements, DType seen, DType stored,
                                             DType reduce) const {
  const std::int64_t shard = ceil_divide(elements, s_.shards);
  const Count whole(checked_multiply(shard, s_.shards)), part(shard);
  const auto bytes = [&](Count count, DType dtype) { return b_.rounded(storage(count, dtype)); };
  return {.full = bytes(whole, seen),
          .cast = seen == stored ? Bytes(0) : bytes(part, seen),
          .shard = bytes(part, stored),
          .reduce_input = bytes(whole, reduce),
          .reduce_output = bytes(part, reduce),
          .shard_grad_cast = reduce == stored ? Bytes(0) : bytes(part, stored)};
}

// Where each parameter lies in its unit's flat one.
FlatParameters::Ranges FlatParameters::ranges_of(const std::vector<Parameter>& parameters,
                                                 models::GroupId group) const {
  constexpr std::int64_t kAlignment = 16;  // bytes
  const std::int64_t aligned = kAlignment / storage(Count(1), regime_.weight).value();
  Ranges ranges;
  std::int64_t elements = 0;
  // A table that the head shares is the embedding's, which comes first.
  const std::int64_t table = checked_multiply(d_.vocab, d_.hidden);
  const auto comes_first = [&](const Parameter& p) {
    return group == kNoGroup && d_.tied_head && p.elements == table;
  };
  for (const bool first : {true, false})
    for (const Parameter& p : parameters) {
      if (p.adapter || comes_first(p) != first) continue;
      elements = checked_multiply(ceil_divide(elements, aligned), aligned);
      ranges.push_back({elements, elements + p.elements, p.embedding});
      elements += p.elements;
    }
  return ranges;
}

// What of each parameter lies in a rank's shard. What is padding belongs to none.
std::vector<models::SteppedTensor> FlatParameters::parts_of(const Ranges& ranges,
                                                            std::int64_t rank) const {
  std::vector<models::SteppedTensor> parts;
  if (ranges.empty()) return parts;
  const std::int64_t shard = ceil_divide(ranges.back().end, s_.shards);
  const std::int64_t from = rank % s_.shards * shard;
  for (const Range& range : ranges) {
    const std::int64_t inside = std::min(range.end, from + shard) - std::max(range.begin, from);
    if (inside > 0) parts.push_back({.elements = inside, .embedding = range.embedding});
  }
  return parts;
}

std::vector<std::int64_t> FlatParameters::held_by(std::int64_t rank) const {
  const bool blocks = models::rule_of(strategy_.optimizer).torch.blocks.block > 0;
  std::vector<std::int64_t> held;
  const auto all = [&](const Unit& unit) {
    if (unit.empty() || !unit.trains) return;
    for (const models::SteppedTensor& part :
         parts_of(ranges_of(*unit.parameters, unit.group), rank)) {
      held.push_back(part.elements);
      if (blocks && part.embedding) held.push_back(-2);  // whose states are others
    }
    held.push_back(-1);
  };
  all(s_.root);
  for (const Run& run : s_.runs)
    for (std::size_t j = 0; j < run.plans.size(); ++j) all(run.units[j]);
  return held;
}

void FlatParameters::size(Unit& unit) const {
  unit.reshards = reshards() && unit.group != kNoGroup;
  if (unit.empty()) return;
  const std::vector<Parameter>& parameters = *unit.parameters;
  const Ranges ranges = ranges_of(parameters, unit.group);
  const std::int64_t elements = ranges.empty() ? 0 : ranges.back().end;
  DType stored_as = regime_.stored;
  for (const Parameter& p : parameters) {
    if (p.adapter) continue;
    stored_as = s_.stored(p);
    unit.trains = p.trainable;
  }
  const DType reduce = strategy_.data.reduce_dtype.value_or(regime_.reduce);
  const Flat flat = flat_of(elements, regime_.weight, stored_as, reduce);
  unit.full = unit.gathered = flat.full;
  unit.cast = flat.cast;
  unit.shard = flat.shard;
  // What is not cast is gathered from as it comes from the host, and use_orig_params' parameters
  // are views of that until the unit is resharded (_flat_param.py, flat_param_to,
  // _use_sharded_views).
  const bool on_host = strategy_.offload.params && unit.cast == Bytes(0);
  unit.holds_shard = on_host && strategy_.data.use_orig_params;
  if (on_host)
    unit.cast = unit.shard;
  else if (strategy_.offload.params)
    unit.from_host = unit.shard;
  if (unit.trains && strategy_.data.use_orig_params) unit.parts = parts_of(ranges, s_.rank());
  if (unit.trains && !strategy_.data.use_orig_params)
    unit.parts = {{.elements = ceil_divide(elements, s_.shards)}};
  for (models::SteppedTensor& part : unit.parts) part.dtype = stored_as;
  if (unit.trains) {
    unit.reduce_input = flat.reduce_input;
    unit.reduce_output = flat.reduce_output;
    unit.shard_grad_cast = flat.shard_grad_cast;
  }
  size_adapters(unit);
}

}  // namespace plimsoll::planner::pytorch

// Units, what lives between steps, and the workspace.
#include <algorithm>

#include "models/decisions/float8.h"
#include "models/decisions/optimizer_states.h"
#include "models/optimizers.h"
#include "planner/stacks/plimsoll/step.h"

namespace plimsoll::planner::plimsoll_stack {

using models::kNoGroup;
using models::Residency;
using models::decisions::UnitNames;
namespace decisions = models::decisions;

std::vector<decisions::LowRank> projected(const std::vector<Parameter>& parameters,
                                          std::int64_t rank) {
  std::vector<decisions::LowRank> all;
  for (const Parameter& p : parameters)
    if (rank > 0 && p.trainable && p.columns > 0 && p.rows * p.columns == p.elements)
      all.push_back(decisions::low_rank(rank, p.rows, p.columns));
  return all;
}

namespace {

Bytes flat(std::int64_t elements, DType dtype) {
  return storage(Count(elements), dtype);
}

// Of a packed weight, each of what belongs to it aligned (models/decisions/packed_weights.h).
std::int64_t packed_bytes(const Parameter& weight) {
  const models::PackedStorage& s = *weight.packed;
  const std::int64_t blocks = ceil_divide(weight.unpacked.values(), s.block_of(weight.columns));
  const auto aligned = [](Bytes bytes) {
    const std::int64_t step = decisions::kFlatAlignment.value();
    return ceil_divide(bytes.value(), step) * step;
  };
  std::int64_t bytes = aligned(
      Bytes(ceil_divide(checked_multiply(weight.unpacked.values(), s.bits), std::int64_t{8})));
  bytes = checked_add(bytes, aligned(flat(blocks, s.scale)));
  if (s.affine) bytes = checked_add(bytes, aligned(flat(blocks, DType::uint8)));
  if (!s.doubly_quantized()) return bytes;
  bytes = checked_add(bytes, aligned(flat(ceil_divide(blocks, s.scale_block), DType::fp32)));
  return checked_add(bytes, aligned(flat(s.offsets, DType::fp32)));
}

// Of all linears of all layers (models/decisions/float8.h).
std::int64_t float8_scale_words(const ModelParts& parts) {
  std::int64_t linears = 0;
  for (const LayerRun& run : parts.runs)
    for (std::int64_t i = 0; i < run.count; ++i)
      linears += run.pattern[static_cast<std::size_t>(i) % run.pattern.size()].block->linears;
  return checked_multiply(linears, decisions::kFloat8ScaleWords);
}

// Elements that each moment has less because of what is projected; the bytes of its bases.
std::int64_t spared_moment(Unit& unit, const decisions::TrainedDtypes& dtypes) {
  std::int64_t spared = 0;
  for (const decisions::LowRank& m : unit.projected) {
    const auto aligned = [&](std::int64_t n) {
      return decisions::aligned_elements(n, dtypes.weight);
    };
    spared += aligned(checked_multiply(m.rows, m.columns)) - aligned(m.stepped());
    unit.projector +=
        flat(decisions::aligned_elements(m.basis(), dtypes.gradient), dtypes.gradient);
  }
  return spared;
}

// Of what is projected the gradient is read twice and written once, its projection written and
// read, and the update in fp32, and then rounded.
Bytes moved_by_projections(const Unit& unit, DType gradient) {
  Bytes moved;
  for (const decisions::LowRank& m : unit.projected)
    moved += flat(2 * m.rows * m.columns + 4 * m.stepped(), gradient) +
             flat(2 * m.stepped(), DType::fp32);
  return moved;
}

}  // namespace

// Elements of each flat part: tensors aligned, the part padded to a multiple of shards.
void StepWriter::size_unit(Unit& unit, const std::vector<Parameter>& parameters,
                           models::GroupId group, const UnitNames& names) {
  unit = {};
  unit.parameters = &parameters;
  unit.group = group;
  unit.names = &names;
  const models::OptimizerRule& rule = models::rule_of(strategy_.optimizer);
  const auto elements_of = [&](bool trained, bool adapter, DType dtype) {
    const std::int64_t step = decisions::alignment_elements(dtype);
    std::int64_t elements = 0;
    for (const Parameter& p : parameters)
      if (p.trainable == trained && p.adapter == adapter && p.packed == nullptr)
        elements = checked_add(elements, checked_multiply(ceil_divide(p.elements, step), step));
    return elements;
  };
  const auto padded = [&](std::int64_t elements, std::int64_t step) {
    const std::int64_t piece = checked_multiply(sharding_.shards, step);
    return checked_multiply(ceil_divide(elements, piece), piece);
  };
  const decisions::TrainedDtypes &base = regime_.base, &adapters = regime_.adapters;
  const std::int64_t frozen = padded(elements_of(false, false, regime_.compute),
                                     decisions::alignment_elements(regime_.compute));
  std::int64_t packed = 0;
  for (const Parameter& p : parameters)
    if (p.packed != nullptr) packed = checked_add(packed, packed_bytes(p));
  unit.packed = Bytes(padded(packed, decisions::alignment_elements(DType::uint8)));
  if (unit.names == &decisions::kLayerUnit)
    unit.projected = projected(parameters, decisions::projected_rank(strategy_));
  const std::int64_t spared = spared_moment(unit, base);
  // Padded elements of a trained part, and what it adds to a state.
  const auto trained = [&](bool adapter, const decisions::TrainedDtypes& dtypes) {
    const std::int64_t elements = elements_of(true, adapter, dtypes.weight);
    const decisions::StateStorage states = decisions::state_storage(rule, dtypes, elements);
    const std::int64_t all = padded(elements, decisions::piece_step(dtypes.weight, states));
    unit.moment += flat(all - (adapter ? 0 : spared), states.dtype);
    unit.scales += flat(states.scales(all), decisions::kStateScales);
    return all;
  };
  unit.trained = trained(false, base);
  unit.adapters = trained(true, adapters);
  unit.whole = flat(frozen, regime_.compute) + unit.packed + flat(unit.trained, base.weight) +
               flat(unit.adapters, adapters.weight);
  unit.whole_gradients = flat(unit.trained, base.gradient) + flat(unit.adapters, adapters.gradient);
  const auto piece = [&](Bytes whole, int from_stage) {
    return sharding_.stage >= from_stage ? Bytes(whole.value() / sharding_.shards) : whole;
  };
  unit.stored = piece(unit.whole, 3);
  unit.gradients = piece(unit.whole_gradients, 2);
  unit.masters = piece(flat(base.masters ? unit.trained : 0, DType::fp32) +
                           flat(adapters.masters ? unit.adapters : 0, DType::fp32),
                       1);
  unit.moment = piece(unit.moment, 1);
  unit.scales = piece(unit.scales, 1);
  // Gradients are read, masters or else weights read and written, weights of masters written, and
  // states read and written.
  const auto moved = [&](std::int64_t elements, const decisions::TrainedDtypes& dtypes) {
    const Bytes weights = flat(elements, dtypes.weight);
    return flat(elements, dtypes.gradient) + weights +
           (dtypes.masters ? flat(elements, DType::fp32) * 2 : weights);
  };
  unit.read_for_norm = piece(unit.whole_gradients, 1);
  unit.stepped = piece(moved(unit.trained, base) + moved(unit.adapters, adapters), 1) +
                 (unit.moment + unit.scales) *
                     (2 * static_cast<std::int64_t>(decisions::moments_of(rule).count)) +
                 moved_by_projections(unit, base.gradient);
  unit.stepped_weights =
      piece(flat(unit.trained, base.weight) + flat(unit.adapters, adapters.weight), 1);
  unit.stepped_gradients = piece(unit.whole_gradients, 1);
  const auto message = [&](std::int64_t elements, DType dtype) {
    const std::int64_t shards = sharding_.shards;
    const std::int64_t most = decisions::message_elements(strategy_.data.bucket_cap, dtype, shards);
    return flat(std::min(elements / shards, most) * shards, dtype);
  };
  largest_message_ =
      std::max({largest_message_, message(unit.trained, regime_.reduce.value_or(base.gradient)),
                message(unit.adapters, regime_.reduce.value_or(adapters.gradient))});
}

void StepWriter::add_runs() {
  runs_.reserve(2 * parts_.runs.size());
  for (std::size_t r = 0; r < parts_.runs.size(); ++r) {
    const LayerRun& layers = parts_.runs[r];
    const std::vector<OwnLayer>& own = own_layers_[r];
    const std::int64_t k = layers.period() > 1 ? layers.period()
                           : own.front().any()
                               ? decisions::layers_per_checkpoint(strategy_.recompute, layers.count)
                               : 1;
    const auto add = [&](std::int64_t first, std::int64_t count, std::int64_t stride) {
      if (count == 0) return;
      Run& run = runs_.emplace_back();
      run.layers = &layers;
      run.pattern = &own;
      run.group = b_.group("layers", first, count, stride);
      run.units.resize(static_cast<std::size_t>(stride));
      for (std::size_t j = 0; j < run.units.size(); ++j) {
        if (j < layers.pattern.size())
          size_unit(run.units[j], layers.pattern[j].parameters, run.group, decisions::kLayerUnit);
        else
          run.units[j] = run.units[0];
        run.units[j].repeats_unit = j >= layers.pattern.size();
      }
      run.saved.resize(run.stride());
      run.inner.resize(run.stride() - 1);
      run.again.resize(run.stride() - 1);
      run.fetched.resize(run.stride());
      run.first_layer = first;
      run.recomputed = decisions::recomputes_layer(strategy_.recompute, first);
      run.count = count;
    };
    add(layers.first, layers.count / k, k);
    add(layers.first + layers.count / k * k, layers.count % k == 0 ? 0 : 1, layers.count % k);
  }
}

// Persistent tensors of a unit and the gradients that outlive a micro-batch; `copies` of them.
void StepWriter::declare_unit(Unit& unit, std::int64_t copies) {
  const auto persistent = [&](const char* name, Bytes requested, models::Category category) {
    const Bytes bytes = b_.rounded(requested);
    b_.tensor_in(unit.group, name, bytes, category, Residency::persistent);
    return bytes * copies;
  };
  const UnitNames& names = *unit.names;
  states_.parameters += persistent(names.parameters, unit.stored, Category::parameters);
  if (!unit.trains()) return;
  unit.kept =
      b_.tensor_in(unit.group, sharding_.stage >= 2 ? names.gradients_shard : names.gradients,
                   b_.rounded(unit.gradients), Category::gradients);
  if (!strategy_.optimizer_in_backward) states_.gradients += b_.rounded(unit.gradients) * copies;
  if (strategy_.offload.optimizer) return;
  each_state(unit, [&](const char* name, Bytes bytes) {
    states_.optimizer += persistent(name, bytes, Category::optimizer);
  });
}

// What the next micro-batch allocates of a unit. A checkpoint's last layer is used twice running
// when it is made again: its parameters stay.
void StepWriter::begin_unit(Unit& unit, bool last_of_checkpoint) {
  const auto tensor = [&](const char* name, Bytes bytes, Category category, models::Stream stream) {
    return b_.tensor_in(unit.group, name, b_.rounded(bytes), category, Residency::step, stream);
  };
  const auto gathered = [&] {
    return tensor(unit.names->gathered, unit.whole, Category::parameters, models::Stream::gather);
  };
  if (gathers()) {
    unit.gathered_forward = gathered();
    unit.gathered_backward = gathered();
    unit.gathered_again = last_of_checkpoint ? unit.gathered_backward : gathered();
  }
  unit.written = unit.kept;
  unit.compressed = kNoTensor;
  if (unit.trains() && regime_.reduce && reduces_now())
    unit.compressed = tensor(unit.names->gradients_compressed,
                             flat(unit.trained + unit.adapters, *regime_.reduce),
                             Category::communication, models::Stream::compute);
  if (!unit.trains() || !reduces_each_) return;
  if (sharding_.stage < 2 && micro_ == 0) return;
  unit.written = tensor(sharding_.stage >= 2 ? unit.names->gradients : unit.names->gradients_new,
                        unit.whole_gradients, Category::gradients, models::Stream::compute);
}

void StepWriter::declare_states() {
  states_ = {};
  ProgramBuilder::Place before;
  each_unit([&](Unit& unit, std::int64_t copies) {
    const ProgramBuilder::Place begin = b_.place();
    declare_unit(unit, copies);
    // The layers of a checkpoint: they are equal.
    if (unit.repeats_unit) b_.note_repeat(before, begin);
    before = begin;
  });
  declare_fixed();
}

// What stays beside the model's states.
void StepWriter::declare_fixed() {
  const auto fixed = [&](const char* name, SymBytes bytes, Category category) {
    b_.tensor_in(kNoGroup, name, b_.rounded(bytes), category, Residency::persistent);
  };
  const SymBytes ids = layer_.bytes(1, decisions::kTokenIds);
  fixed(decisions::kIds, ids, Category::activations);
  fixed(decisions::kTargets, ids, Category::activations);
  const Bytes table =
      flat(checked_multiply(tokens_.length, d_.rotated() / 2) * 2, decisions::kStatistics);
  if (d_.position == models::PositionKind::rope)
    fixed(decisions::kRotaryTable, table, Category::workspace);
  if (d_.has_both_rotaries()) fixed(decisions::kLocalRotaryTable, table, Category::workspace);
  if (regime_.float8)
    fixed(decisions::kFloat8Scales, flat(float8_scale_words(parts_), DType::fp32),
          Category::workspace);
  fixed(decisions::kWorkspace, workspace(), Category::workspace);
  fixed(decisions::kScalarBlock, decisions::kScalars, Category::workspace);
  if (stages_sums_ && sharding_.reduces())
    fixed(decisions::kStaging, largest_message_, Category::communication);
}

}  // namespace plimsoll::planner::plimsoll_stack

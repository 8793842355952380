#include "planner/stacks/plimsoll/step.h"

#include <set>
#include <utility>

#include "models/decisions/exchange.h"
#include "models/decisions/offload.h"

namespace plimsoll::planner::plimsoll_stack {

using models::kNoGroup;
namespace decisions = models::decisions;

StepWriter::StepWriter(models::StepProgram& program, const ModelParts& parts,
                       const models::Strategy& strategy, const models::Batch& batch,
                       const Rules& rules)
    : b_(program, rules.granularity),
      parts_(parts),
      d_(parts.decoder),
      strategy_(strategy),
      batch_(batch),
      stages_sums_(decisions::stages_sums(decisions::exchange_of(strategy), rules.deterministic)),
      tokens_{value_of(batch, StepVariable::micro_batch), batch.seq_len},
      regime_(decisions::regime_of(strategy)),
      sharding_(decisions::sharding_of(strategy)),
      layer_(b_, d_, regime_, strategy_, tokens_) {
  b_.keep_work(rules.works);
  decisions::check_decoder(d_, strategy_.recompute);
  for (const LayerRun& run : parts_.runs) own_layers_.push_back(own_layers(run, strategy_));
  std::set<const models::Block*> kinds;
  for (const LayerRun& run : parts_.runs)
    for (const LayerPart& layer : run.pattern) kinds.insert(layer.block);
  decisions::check_kinds(kinds.size(), strategy_.recompute);
  const auto moment = decisions::reduce_moment(sharding_.stage, rules.deterministic);
  reduces_each_ = sharding_.reduces() && moment == decisions::ReduceMoment::every_micro_batch;
}

void StepWriter::size_units() {
  size_unit(embedding_, parts_.embedding, kNoGroup, decisions::kEmbeddingUnit);
  add_runs();
  size_unit(tail_, parts_.tail, kNoGroup, decisions::kTailUnit);
}

void StepWriter::write() {
  size_units();
  if (strategy_.loss != models::Loss::full)
    chunks_ = b_.group(decisions::kLossChunks, 0, loss_chunks());
  declare_states();
  micros_ = smaller(value_of(batch_, StepVariable::grad_accum), kDistinctMicroBatches);
  micro_batches();
  b_.begin(models::Section::optimizer);
  if (!strategy_.optimizer_in_backward) optimizer_step();
}

SymInt StepWriter::loss_chunks() const {
  return ceil_divide(tokens_.total(), decisions::loss_chunk_rows(d_.vocab, regime_.compute));
}

// Equal micro-batches between the first and the last are written once.
void StepWriter::micro_batches() {
  for (micro_ = 0; micro_ < micros_; ++micro_) {
    const bool middle = micros_ == 3 && micro_ == 1;
    times_ = middle ? value_of(batch_, StepVariable::grad_accum) - 2 : SymInt(1);
    micro_batch();
  }
}

void StepWriter::write_optimizer() {
  size_units();
  declare_states();
  optimizer_step();
}

void StepWriter::micro_batch() {
  begin_unit(embedding_, true);
  for (Run& run : runs_) {
    ProgramBuilder::Place layer = b_.place();
    for (std::size_t j = 0; j < run.stride(); ++j) {
      const ProgramBuilder::Place before = std::exchange(layer, b_.place());
      b_.at_layer(static_cast<std::uint16_t>(j));
      const bool last = j + 1 == run.stride();
      begin_unit(run.units[j], run.ends_checkpoint(j));
      (last ? run.out : run.inner[j]) =
          b_.tensor_in(run.group, decisions::kLayerOut,
                       b_.rounded(layer_.bytes(d_.hidden, regime_.compute)), Category::activations);
      if (offloads_input(run, j))
        run.fetched[j] = b_.tensor_in(run.group, decisions::kFetchedInput,
                                      b_.rounded(layer_.bytes(d_.hidden, regime_.compute)),
                                      Category::activations);
      if (!run.alternates() && j > 0 && !last) b_.note_repeat(before, layer);
    }
    b_.at_layer(0);
  }
  begin_unit(tail_, true);
  if (recurses()) begin_visits();
  embed();
  for (std::size_t r = 0; r < runs_.size(); ++r) layers_forward(r);
  final_norm();
  b_.begin(models::Section::loss);
  if (strategy_.loss == models::Loss::full)
    full_loss();
  else
    chunked_loss();
  b_.begin(models::Section::layers);
  final_norm_backward();
  fetch_first();
  if (recurses())
    layers_backward_recursively();
  else
    for (std::size_t r = runs_.size(); r-- > 0;) layers_backward(r);
  embedding_backward();
}

// Layers ------------------------------------------------------------------------------------------

// The stream before layer `layer` of an instance: the layer before it, the instance before, the run
// before, or the embedding.
Ref StepWriter::input_of(std::size_t r, std::size_t layer) const {
  const Run& run = runs_[r];
  if (layer > 0) return {run.inner[layer - 1]};
  return {run.out, -1, r == 0 ? embedded_ : runs_[r - 1].out};
}

Ref StepWriter::stream_end() const {
  return runs_.empty() ? Ref{embedded_} : Ref{runs_.back().out, -1};
}

bool StepWriter::below_head_trains() const {
  return runs_.empty() ? parts_.train_embedding || parts_.train_positions_any()
                       : runs_.back().any();
}

void StepWriter::layers_forward(std::size_t r) {
  Run& run = runs_[r];
  b_.open(run.group, false, times_);
  ProgramBuilder::Place layer = b_.place();
  for (std::size_t j = 0; j < run.stride(); ++j) {
    const ProgramBuilder::Place before = std::exchange(layer, b_.place());
    b_.at_layer(static_cast<std::uint16_t>(j));
    gather(run.units[j], Phase::forward, next_forward(r, j));
    const Ref in = input_of(r, j);
    // A copy is no kernel.
    const auto copying = [&](const char* name) {
      op(name, Phase::forward).touch(in.tensor, in.delta, in.beyond);
      b_.work().moves(0, 0);
    };
    if (offloads_input(run, j)) copying(decisions::kOffloadInput);
    layer_.forward(Phase::forward, run.own(j),
                   run.recomputed ? RequiresGrad{} : run.own(j).gradients, in,
                   j + 1 < run.stride() ? run.inner[j] : run.out, false, run.saved[j]);
    if (offloads_input(run, j)) copying(decisions::kOffloaded);
    free_gathered(run.units[j], Phase::forward, run.units[j].gathered_forward);
    if (!run.alternates() && j > 0) b_.note_repeat(before, layer);
  }
  b_.close();
}

// The layers of the checkpoint that ends with layer `end` of an instance, from its input, up to the
// last value that backward reads.
void StepWriter::recompute(std::size_t r, std::size_t end) {
  Run& run = runs_[r];
  const std::size_t first = run.first_made_again(end);
  Ref input = input_of(r, first);
  ProgramBuilder::Place layer = b_.place();
  for (std::size_t j = first; j <= end; ++j) {
    const ProgramBuilder::Place before = std::exchange(layer, b_.place());
    b_.at_layer(static_cast<std::uint16_t>(j));
    const bool last = j == end;
    gather(run.units[j], Phase::recompute,
           last ? next_backward(r, j) : Ref{run.units[j + 1].gathered_again});
    if (offloads_input(run, j)) {
      const Ref below = fetched_below(r, j);
      op(decisions::kFetchInput, Phase::recompute)
          .touch(run.fetched[j], 0, kNoTensor)
          .touch(below.tensor, below.delta, below.beyond, models::Access::write);
      b_.work().moves(0, 0);
      input = {run.fetched[j]};
    }
    if (!last) run.again[j] = layer_.make(decisions::kLayerOut, d_.hidden);
    layer_.forward(Phase::recompute, run.own(j), run.own(j).gradients, input,
                   last ? kNoTensor : run.again[j], last, run.saved[j]);
    if (last) break;
    free_gathered(run.units[j], Phase::recompute, run.units[j].gathered_again);
    if (j > first) b_.note_repeat(before, layer);
    input = {run.again[j]};
  }
}

void StepWriter::layers_backward(std::size_t r) {
  Run& run = runs_[r];
  if (!run.any()) return;  // no gradient comes here
  b_.open(run.group, true, times_);
  ProgramBuilder::Place layer = b_.place();
  for (std::size_t j = run.stride(); j-- > 0;) {
    if (run.recomputed && run.ends_checkpoint(j)) recompute(r, j);
    const ProgramBuilder::Place before = std::exchange(layer, b_.place());
    b_.at_layer(static_cast<std::uint16_t>(j));
    Unit& unit = run.units[j];
    if (!run.recomputed || !run.ends_checkpoint(j))
      gather(unit, Phase::backward, next_backward(r, j));
    const bool made_again = run.recomputed && j > run.first_made_again(j);
    const Ref input = offloads_input(run, j) ? Ref{run.fetched[j]}
                      : made_again           ? Ref{run.again[j - 1]}
                                             : input_of(r, j);
    layer_.backward(run.own(j), input, stream_grad_, unit.written, run.saved[j]);
    free_gathered(unit, Phase::backward, unit.gathered_backward);
    reduce(unit, reduced_before(exchanged(), r, j), reduced_before(&Unit::kept, r, j));
    if (!run.alternates() && j + 2 < run.stride()) b_.note_repeat(before, layer);
  }
  b_.close();
}

// Optimizer ---------------------------------------------------------------------------------------

// Clipping's factor and the loss scale are applied while the optimizer reads a gradient; it works
// in place and makes nothing. A unit's gradients die with its step.
void StepWriter::step(const Unit& unit) {
  if (!unit.trains()) return;
  op(unit.names->step, Phase::optimizer).read(unit.kept);
  b_.work().moves(unit.stepped.real());
  // To the subspace and back.
  for (const decisions::LowRank& m : unit.projected)
    b_.work().gemm({.dtype = regime_.base.gradient,
                    .m = static_cast<double>(m.rows),
                    .n = static_cast<double>(m.rank),
                    .k = static_cast<double>(m.columns),
                    .count = 2});
  if (sharding_.stage == 1 || sharding_.stage == 2)
    op(unit.names->gather_stepped, Phase::optimizer);
}

void StepWriter::optimizer_step() {
  b_.open(kNoGroup);
  if (!strategy_.optimizer_in_backward) {
    auto norm = op(decisions::kGradientNorm, Phase::optimizer);
    Bytes gradients;
    each_unit([&](const Unit& unit, std::int64_t copies) {
      norm.read(unit.kept);
      gradients += unit.read_for_norm * copies;
    });
    b_.work().moves(gradients.real());
  }
  step(embedding_);
  b_.close();
  for (const Run& run : runs_) {
    if (!run.trains()) continue;
    b_.open(run.group);
    for (std::size_t j = 0; j < run.stride(); ++j) {
      b_.at_layer(static_cast<std::uint16_t>(j));
      step(run.units[j]);
    }
    b_.close();
  }
  b_.open(kNoGroup);
  step(tail_);
  b_.close();
}

}  // namespace plimsoll::planner::plimsoll_stack

#include "planner/stacks/pytorch/step.h"

#include "models/decisions/layer.h"
#include "models/decisions/mesh.h"

namespace plimsoll::planner::pytorch {

using models::Access;
using models::kNoGroup;
using models::RecomputeKind;

namespace {

DataParallelism parallelism_of(const models::Strategy& s) {
  if (s.data.zero >= 2) return DataParallelism::fsdp;
  if (s.gpus == 1) return DataParallelism::single;
  return s.data.zero == 1 ? DataParallelism::zero_redundancy : DataParallelism::ddp;
}

}  // namespace

StepWriter::StepWriter(models::StepProgram& program, const ModelParts& parts,
                       const models::Strategy& strategy, const models::Batch& batch,
                       const Rules& rules)
    : b_(program, rules.granularity),
      parts_(parts),
      d_(parts.decoder),
      strategy_(strategy),
      batch_(batch),
      rules_(rules),
      tokens_{batch.micro_batch, batch.seq_len},
      parallelism_(parallelism_of(strategy)),
      regime_(regime_of(strategy, parallelism_ == DataParallelism::fsdp, rules.fsdp_autocast,
                        parts.decoder.embedding_norm)),
      optimizer_(b_, strategy_),
      layer_(b_, d_, regime_, rules_, strategy_, tokens_) {
  regime_.patch = kernel_patch(parts.model_type, strategy);
  if (parallelism_ == DataParallelism::fsdp)
    shards_ = models::decisions::mesh_of(strategy)[models::decisions::Axis::shard].ranks;
}

// Structure ---------------------------------------------------------------------------------------

void StepWriter::add_runs() {
  for (const LayerRun& layers : parts_.runs) {
    const bool alternates = layers.period() > 1;
    const std::int64_t k =
        alternates ? layers.period()
                   : models::decisions::layers_per_checkpoint(strategy_.recompute, layers.count);
    check(!alternates || !recomputes() ||
              models::decisions::layers_per_checkpoint(strategy_.recompute, layers.count) == 1,
          ErrorKind::unsupported,
          "--recompute: checkpoints of several layers are not modelled where layers alternate");
    const auto add = [&](std::int64_t first, std::int64_t count, std::int64_t stride) {
      if (count == 0) return;
      Run run;
      run.layers = &layers;
      run.group = b_.group("layers", first, count, stride);
      run.units.resize(static_cast<std::size_t>(stride));
      for (std::size_t j = 0; j < run.stride(); ++j)
        size_unit(run.units[j], run.layer(j).parameters, run.group);
      run.saved.resize(run.stride());
      run.kept.resize(run.stride());
      for (const LayerPart& layer : layers.pattern)
        run.plans.emplace_back(layer, regime_, layers.input_grad);
      if (strategy_.recompute.kind == RecomputeKind::ops)
        for (BlockPlan& plan : run.plans) plan.store_by_op();
      // A backward holds places in it while the recomputation fills them.
      for (std::size_t j = 0; j < run.stride(); ++j) run.saved[j].begin(run.plan(j));
      run.count = count;
      runs_.push_back(std::move(run));
    };
    if (keeps_last_layer() && &layers == &parts_.runs.back()) {
      add(layers.first, layers.count - 1, 1);
      add(layers.first + layers.count - 1, 1, 1);
      runs_.back().units.front().reshards = false;
      continue;
    }
    add(layers.first, layers.count / k, k);
    add(layers.first + layers.count / k * k, layers.count % k == 0 ? 0 : 1, layers.count % k);
  }
}

void StepWriter::declare_unit_tensors(Unit& unit) {
  unit.begin_micro_batch();
  if (!fsdp() || unit.empty()) return;
  const auto tensor = [&](const char* name, Bytes bytes, Category category, models::Stream stream) {
    return b_.tensor_in(unit.group, name, bytes, category, models::Residency::step, stream);
  };
  using models::Stream;
  // Of what one op makes, the first to be declared is the first to be allocated.
  unit.cast_forward = kNoTensor;
  if (b_.keeps_blocks() && unit.gathered != Bytes(0))
    unit.cast_forward =
        tensor("fsdp.shards.cast", unit.cast, Category::communication, Stream::gather);
  unit.gather_forward =
      tensor("fsdp.all_gather_output", unit.gathered, Category::communication, Stream::gather);
  unit.full_forward = tensor("fsdp.parameters", unit.full, Category::parameters, Stream::compute);
  unit.gather_backward = unit.full_backward = unit.cast_backward = kNoTensor;
  if (unit.reshards) {
    if (unit.gathered != Bytes(0))
      unit.cast_backward =
          tensor("fsdp.shards.cast.backward", unit.cast, Category::communication, Stream::gather);
    unit.gather_backward = tensor("fsdp.all_gather_output.backward", unit.gathered,
                                  Category::communication, Stream::gather);
    unit.full_backward =
        tensor("fsdp.parameters.backward", unit.full, Category::parameters, Stream::compute);
  }
  if (b_.keeps_blocks()) {
    b_.parts(unit.full_forward, full_parts(unit));
    b_.parts(unit.full_backward, full_parts(unit));
  }
  unit.reduce_in = unit.shard_grad = kNoTensor;
  if (micro_ + 1 < micros_) return;
  unit.reduce_in = tensor("fsdp.reduce_scatter_input", unit.reduce_input, Category::communication,
                          Stream::compute);
  if (strategy_.offload.params) return;  // it goes to the host when it is made
  unit.shard_grad =
      tensor("fsdp.sharded_grad",
             unit.shard_grad_cast == Bytes(0) ? unit.reduce_output : unit.shard_grad_cast,
             Category::gradients, Stream::reduce);
}

void StepWriter::add_start(Start& start) const {
  for (const TensorId workspace : workspaces_) start.take_at_first_use(workspace);
  start.set_scratch(blocks_);
  ddp_start(start);
}

void StepWriter::write() {
  if (rules_.each_parameter) b_.keep_blocks(&blocks_);
  b_.keep_work(rules_.works);
  plan_end_units();
  add_runs();
  declare_states();
  micros_ = std::min<std::int64_t>(batch_.grad_accum, kDistinctMicroBatches);
  micros_begin_ = b_.place();
  micro_batches();
  micros_end_ = b_.place();
  b_.begin(models::Chapter::optimizer);
  optimizer_step();
}

// Equal micro-batches between the first and the last are written once.
void StepWriter::micro_batches() {
  for (std::int64_t i = 0; i < micros_; ++i) {
    const bool middle = micros_ == 3 && i == 1;
    micro_batch(i, middle ? batch_.grad_accum - 2 : 1);
  }
}

// States and the optimizer are the same for every batch.
bool StepWriter::resize(const models::Batch& batch) {
  if (!same_structure(batch_, batch) || !resizable()) return false;
  batch_ = batch;
  tokens_.sequences = batch.micro_batch;
  layer_.begin_step(tokens_);
  for (Run& run : runs_)
    for (Unit& unit : run.units) unit.kept.clear();
  for (Unit* unit : {&root_, &embedding_, &tail_}) unit->kept.clear();
  b_.resize_from(inputs_);
  declare_inputs();
  b_.resize_from(micros_begin_);
  micro_batches();
  return b_.resized_to(micros_end_);
}

// One micro-batch ---------------------------------------------------------------------------------

// The stream before layer `layer` of an instance: the layer before it, the instance before, the run
// before, or the embedding.
Ref StepWriter::input_of(std::size_t r, std::size_t layer) const {
  const Run& run = runs_[r];
  if (layer > 0) return {run.inner[layer - 1]};
  return {run.out, -1, r == 0 ? hidden_ : runs_[r - 1].out};
}

Ref StepWriter::input_gradient_of(std::size_t r, std::size_t layer) const {
  const Run& run = runs_[r];
  if (layer > 0) return {run.d_inner[layer - 1]};
  return {run.d_out, -1, r == 0 ? d_embedded_ : runs_[r - 1].d_out};
}

void StepWriter::micro_batch(std::int64_t index, std::int64_t times) {
  micro_ = index;
  times_ = times;
  declare_unit_tensors(root_);
  declare_unit_tensors(embedding_);
  declare_unit_tensors(tail_);
  const Bytes stream =
      storage(Count(checked_multiply(tokens_.total(), d_.hidden)), regime_.residual);
  for (Run& run : runs_) {
    run.inner.resize(run.stride() - 1);
    run.d_inner.resize(run.stride() - 1);
    const auto residual = [&](const char* name, Category category) {
      return b_.tensor_in(run.group, name, b_.rounded(stream), category);
    };
    ProgramBuilder::Place layer = b_.place();
    for (std::size_t j = 0; j < run.stride(); ++j) {
      b_.at_layer(static_cast<std::uint16_t>(j));
      if (b_.resizes() && j > 0 && !run.alternates()) {
        run.units[j].begin_micro_batch();
        layer = b_.repeat_since(layer);
        continue;
      }
      declare_unit_tensors(run.units[j]);
      const TensorId out = residual("out", Category::activations);
      const TensorId d_out = residual("out.grad", Category::temporaries);
      if (j + 1 < run.stride()) {
        run.inner[j] = out;
        run.d_inner[j] = d_out;
      } else {
        run.out = out;
        run.d_out = d_out;
      }
    }
    b_.at_layer(0);
  }
  d_embedded_ = parts_.runs.front().input_grad
                    ? b_.tensor("embeddings.out.grad", stream, Category::temporaries)
                    : kNoTensor;
  layer_.set_sink(this);
  before_micro_batch();
  embed();
  for (std::size_t r = 0; r < runs_.size(); ++r) layers_forward(r);
  before_loss();
  finish_forward();
  b_.begin(models::Chapter::loss);
  loss_forward();
  loss_backward();
  b_.begin(models::Chapter::layers);
  before_layers_backward();
  for (std::size_t r = runs_.size(); r-- > 0;) layers_backward(r);
  embedding_backward();
  if (reentrant() && !is_fsdp1(strategy_)) leave_checkpoints();
  deferred_post_backward();
  after_backward();
}

void StepWriter::layers_forward(std::size_t r) {
  Run& run = runs_[r];
  const bool saves = !recomputes();
  b_.open(run.group, false, times_);
  layer_.set(Phase::forward, saves);
  ProgramBuilder::Place layer = b_.place();
  for (std::size_t j = 0; j < run.stride(); ++j) {
    if (b_.resizes() && j > 0 && !run.alternates()) {
      layer = b_.repeat_since(layer);
      continue;
    }
    b_.at_layer(static_cast<std::uint16_t>(j));
    gather_forward(run.units[j], unit_tensor(&Unit::gather_forward, r, j, -1));
    const Ref out{j + 1 < run.stride() ? run.inner[j] : run.out};
    layer_.forward(run.plan(j), input_of(r, j), out, saves ? run.saved[j] : run.kept[j]);
    if (fsdp() && run.units[j].reshards) reshard_after_forward(run.units[j]);
  }
  if (!run.layer(0).block->returned.empty()) {
    auto next = b_.op("model.layers", Phase::forward);
    drop_returned(next, r, -1);
  }
  b_.close();
}

// The model's loop holds what a layer returned beside the stream until the next one has returned; a
// checkpoint of several layers runs them in a loop of its own, which does not.
void StepWriter::drop_returned(OpBuilder& op, std::size_t r, int delta) const {
  const auto returned = [&](std::size_t run, models::ValueId id) {
    return (recomputes() ? runs_[run].kept : runs_[run].saved).back().of(id);
  };
  if (runs_[r].stride() > 1) return;
  for (const models::ValueId id : runs_[r].layer(0).block->returned)
    op.touch(returned(r, id), delta, r == 0 ? kNoTensor : returned(r - 1, id), Access::release);
}

// Before the backward of a checkpoint (or of a layer by itself): its units' parameters, and the
// gathering ahead of the one that ran before it.
void StepWriter::enter_backward(std::size_t r, std::size_t last) {
  Run& run = runs_[r];
  const std::size_t first = last + 1 - run.checkpoint();
  for (std::size_t j = last + 1; fsdp() && j-- > first;) {
    b_.at_layer(static_cast<std::uint16_t>(j));
    // Recomputed without a prefetch.
    if (j < last) prefetch({run.units[j].gather_backward}, {run.units[j].cast_backward});
    copy_out_backward(run.units[j]);
  }
  last_of_checkpoint_ = last;
  if (fsdp() && first == last) prefetch_before(r, first);
}

void StepWriter::layers_backward(std::size_t r) {
  Run& run = runs_[r];
  if (!run.layers->input_grad && !run.layers->trains()) return;  // no gradient comes here
  b_.open(run.group, true, times_);
  if (!run.alternates()) enter_backward(r, run.stride() - 1);
  checkpoint_ = &run;
  const std::size_t layers = run.checkpoint();
  declare_recomputed(run);
  layer_.set(Phase::backward, true);
  ProgramBuilder::Place layer = b_.place();
  for (std::size_t j = run.stride(); j-- > 0;) {
    if (b_.resizes() && !run.alternates() && j + 2 < run.stride() && (j > 0 || !fsdp())) {
      layer = b_.repeat_since(layer);
      continue;
    }
    if (run.alternates()) enter_backward(r, j);
    layer = b_.place();
    b_.at_layer(static_cast<std::uint16_t>(j));
    const bool first = j % layers == 0, last = (j + 1) % layers == 0;  // of a checkpoint
    // The hook before a layer's backward prefetches the one that ran before it; recomputing has
    // gathered those of the same checkpoint.
    if (fsdp() && layers > 1 && first) prefetch_before(r, j);
    unit_ = &run.units[j];
    unit_->next = 0;
    const TensorId d_out = j + 1 < run.stride() ? run.d_inner[j] : run.d_out;
    const Ref input = !first && recomputes() ? Ref{run.recomputed[j - 1]} : input_of(r, j);
    layer_.set_checkpoint(recomputes() && last ? this : nullptr, recomputes());
    const std::size_t window = run.plan(j).sliding ? 1 : 0;
    layer_.hold({input_of(r, j / layers * layers), Ref{cos_[window]}, Ref{sin_[window]},
                 Ref{masks_[window]}, Ref{front_.position_ids}, Ref{front_.alibi},
                 Ref{never_taken(run, j)}},
                first);
    layer_.backward(run.plan(j), input, d_out, input_gradient_of(r, j), run.saved[j]);
    if (run.plan(j).input_grad())
      post_backward(run.units[j], unit_tensor(&Unit::reduce_in, r, j, +1));
    if (first && run.alternates() && reentrant() && !is_fsdp1(strategy_)) leave_checkpoint();
  }
  if (!run.alternates() && reentrant() && !is_fsdp1(strategy_)) leave_checkpoint();
  b_.close();
}

}  // namespace plimsoll::planner::pytorch

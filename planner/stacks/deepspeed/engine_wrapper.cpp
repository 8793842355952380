#include "planner/stacks/deepspeed/engine_wrapper.h"

#include <algorithm>

#include "models/optimizer_states.h"

namespace plimsoll::planner::deepspeed {

using models::Access;
using models::kNoGroup;
using models::Residency;

EngineWrapper::EngineWrapper(pytorch::Step& step, const Engine& engine)
    : Wrapper(step),
      engine_(engine),
      layout_(parts_, engine),
      share_(layout_.share(engine.rank)),
      whole_(step) {}

// States ------------------------------------------------------------------------------------------

bool EngineWrapper::keeps_copy(const Parameter& p) const {
  return engine_.stage < 3 || (p.packed != nullptr && engine_.packed_copy == PackedCopy::module);
}

// Parameters that are not trained stay as they are: in the model's dtype, or packed, with scales
// and tables beside them. Of these stage 3 shards the parameters alone; int8's modules have copies.
void EngineWrapper::declare_frozen() {
  const auto keep = [&](Bytes bytes, models::GroupId group, std::int64_t copies) {
    const Bytes one = b_.rounded(bytes);
    frozen_.push_back(
        b_.tensor_in(group, "parameters", one, Category::parameters, Residency::persistent));
    s_.states.parameters += one * copies;
  };
  const auto frozen = [&](const std::vector<Parameter>& parameters, models::GroupId group,
                          std::int64_t copies) {
    for (const Parameter& p : parameters) {
      if (p.trainable) continue;
      if (keeps_copy(p)) keep(storage(Count(p.elements), s_.stored(p)), group, copies);
      for (const models::PackedTensor& tensor : beside_packed(p, strategy_))
        keep(tensor.bytes(), group, copies);
    }
  };
  frozen(parts_.embedding, kNoGroup, 1);
  for (const Run& run : s_.runs) {
    for (std::size_t j = 0; j < run.stride(); ++j) {
      b_.at_layer(static_cast<std::uint16_t>(j));
      frozen(run.layer(j).parameters, run.group, run.count);
    }
    b_.at_layer(0);
  }
  frozen(parts_.tail, kNoGroup, 1);
  // functional.py, name2qmap: the values that packed scales stand for.
  if (strategy_.quantize && strategy_.quantize->storage->doubly_quantized())
    keep(storage(Count(strategy_.quantize->storage->scale_table), DType::fp32), kNoGroup, 1);
}

// Whether the optimizer is the script's own, and not one that DeepSpeed makes.
bool EngineWrapper::steps_with_package() const {
  return models::rule_of(strategy_.optimizer).deepspeed.type == nullptr;
}

// What such an optimizer keeps of the tensors that the engine gives it to step.
models::KeptStates EngineWrapper::package_states() const {
  const models::BlockStates& blocks = models::rule_of(strategy_.optimizer).torch.blocks;
  models::KeptStates all;
  bool in_blocks = false;
  const auto add = [&](std::int64_t elements, bool embedding, std::int64_t copies) {
    const models::SteppedTensor tensor{
        .elements = elements, .dtype = engine_.state, .embedding = embedding};
    in_blocks = in_blocks || models::in_blocks(blocks, tensor);
    for (models::KeptState state : models::kept_states(strategy_, tensor)) {
      state.bytes = (state.managed ? state.bytes : b_.rounded(state.bytes)) * copies;
      all.merge(state);
    }
  };
  if (engine_.wrapper == OptimizerWrapper::stage_1_and_2) {
    add(layout_.partition(), false, 1);
  } else if (engine_.wrapper == OptimizerWrapper::stage3) {
    for (const std::int64_t elements : layout_.shards().sub_groups) add(elements, false, 1);
  } else {
    // FP16_UnfusedOptimizer steps copies, of which bitsandbytes does not know that they are tables.
    const bool knows = engine_.wrapper == OptimizerWrapper::plain;
    const auto each = [&](const std::vector<Parameter>& parameters, std::int64_t copies) {
      for (const Parameter& p : parameters)
        if (p.trainable) add(p.elements, knows && p.embedding, copies);
    };
    each(parts_.embedding, 1);
    for (const Run& run : s_.runs)
      for (std::size_t j = 0; j < run.stride(); ++j) each(run.layer(j).parameters, run.count);
    each(parts_.tail, 1);
  }
  if (in_blocks && blocks.tables > 0) all.add({"state_maps", Bytes(blocks.tables)});
  return all;
}

// Masters, and the optimizer's states, of `elements` values; on the host in host.cpp.
void EngineWrapper::declare_optimizer(std::int64_t elements) {
  managed_ = Bytes(0);
  if (engine_.offload.optimizer) return;
  const Bytes state = bytes(elements, engine_.state);
  const auto persistent = [&](const char* name, Bytes size) {
    s_.states.optimizer += size;
    return b_.tensor_in(kNoGroup, name, size, Category::optimizer, Residency::persistent);
  };
  if (engine_.wrapper != OptimizerWrapper::plain) masters_ = persistent("fp32_partition", state);
  const bool by_sub_group = engine_.wrapper == OptimizerWrapper::stage3 && b_.keeps_blocks();
  if (by_sub_group) b_.parts(masters_, {});  // their start keeps them
  if (!steps_with_package()) {
    std::vector<Bytes> groups;
    for (const std::int64_t group : layout_.shards().sub_groups)
      groups.push_back(bytes(group, engine_.state));
    for (const models::StateTensor& kept : models::rule_of(strategy_.optimizer).states) {
      const TensorId made = persistent(name_of(kept.name), state);
      if (by_sub_group) b_.parts(made, groups);
    }
    return;
  }
  for (const models::KeptState& kept : package_states())
    if (kept.managed)
      managed_ += kept.bytes;
    else
      persistent(kept.name, kept.bytes);
}

void EngineWrapper::declare_states() {
  if (engine_.wrapper == OptimizerWrapper::stage3) return declare_shards();
  const bool partitioned = engine_.wrapper == OptimizerWrapper::stage_1_and_2;
  const Bytes flat = gradients(partitioned ? layout_.aligned() : layout_.total());
  flat_ = b_.tensor_in(kNoGroup, "bit16_groups_flat", flat, Category::parameters,
                       Residency::persistent);
  s_.states.parameters += flat;
  declare_frozen();
  declare_optimizer(partitioned ? layout_.partition() : layout_.total());
  if (engine_.offload.optimizer) declare_transfer();
  s_.states.gradients = whole_gradients()           ? gradients(layout_.total())
                        : engine_.offload.optimizer ? Bytes(0)
                        : engine_.has_fp32_partition_grads()
                            ? bytes(layout_.partition(), DType::fp32)
                            : gradients(share_.whole);
}

// Gradients as they come --------------------------------------------------------------------------

// Buckets are allocated by the first gradient of a backward and let go when all are reduced
// (setup_buckets, _release_ipg_buffers); stage 1 reduces with the last micro-batch only.
void EngineWrapper::begin_micro_batch() {
  if (s_.first_micro()) gathered_ = gathered_layers_ = gathered_head_ = kNoTensor;
  if (moves()) plan_hooks();
  declare_waiting();
  begun_.clear();
  staying_.clear();
  const bool zero = engine_.wrapper == OptimizerWrapper::stage_1_and_2;
  bucket_set_up_ = !zero;  // stage 3's stay for good
  if (zero && (engine_.stage == 2 || s_.micro == 0)) {
    const Bytes bucket = gradients(engine_.options.reduce_bucket_size);
    const auto make = [&](const char* name) {
      return b_.tensor_in(kNoGroup, name, bucket, Category::communication);
    };
    bucket_ = make("ipg_bucket");
    second_bucket_ = engine_.overlap ? make("ipg_bucket.second") : kNoTensor;
  }
  if (zero && !engine_.offload.optimizer && (engine_.stage == 2 || s_.last_micro()) &&
      !(engine_.has_fp32_partition_grads() && s_.micro > 0))
    owned_ = engine_.has_fp32_partition_grads()
                 ? b_.tensor_in(kNoGroup, "grad_partition", bytes(layout_.partition(), DType::fp32),
                                Category::gradients)
                 : b_.tensor_in(kNoGroup, "grads_in_partition", gradients(share_.whole),
                                Category::gradients);
  if (s_.micro == 0 || kept_ == kNoTensor) kept_ = owned_;
  if (engine_.stage != 3) return;
  release_gathered(gathered_, Phase::forward);
  release_gathered(gathered_layers_, Phase::forward);
  release_gathered(gathered_head_, Phase::forward);
  gathered_head_ = gather(levels_.stays, Phase::forward);
  gathered_ = gather(levels_.forward, Phase::forward);
}

TensorId EngineWrapper::begin(const ModuleNames& names, std::int64_t elements, bool adapter) {
  TensorId gradient = kNoTensor;
  const bool head = pytorch::is_head(names);
  if (gradient = waiting_gradient(elements); gradient != kNoTensor) {
    if (keeps(elements)) s_.unit->kept.push_back(gradient);
  } else if (whole_gradients() || (d_.tied_head && head)) {
    gradient = whole_.begin(names, elements, adapter);
  } else {
    gradient = b_.tensor(names.weight_grad, gradients(elements), Category::gradients);
  }
  begun_.emplace_back(gradient, elements);
  if (bucket_ != kNoTensor && !bucket_set_up_ && comes_within_norm(names)) set_up_bucket();
  return gradient;
}

// An eager RMS norm's weight has its gradient, and its hook is called, when the first of the norm's
// kernels is done; the others run after that.
bool EngineWrapper::comes_within_norm(const ModuleNames& names) const {
  constexpr auto eager = pytorch::NormKernel::eager;
  using models::NormKind;
  if (engine_.model == DType::fp32) return false;
  return names.module == pytorch::end_names().norm.module
             ? d_.norm != NormKind::layer_norm && regime_.patch.last == eager
             : d_.norm == NormKind::rms_norm && layer_.in_stream_norm() &&
                   regime_.patch.norms == eager;
}

void EngineWrapper::set_up_bucket() {
  allocate_bucket(b_.op("zero.setup_buckets", Phase::backward));
  bucket_set_up_ = true;
}

void EngineWrapper::end(const ModuleNames& names, TensorId written) {
  // The head's share of a tied table waits for the embedding's.
  if (d_.tied_head && pytorch::is_head(names)) return;
  TensorId gradient = written;
  if (whole_gradients()) {
    const std::size_t next = s_.unit->next;
    whole_.end(names, written);
    if (s_.micro > 0) gradient = s_.unit->kept[next];
  }
  const auto begun = std::find_if(begun_.begin(), begun_.end(),
                                  [&](const auto& entry) { return entry.first == written; });
  const std::int64_t elements = begun->second;
  begun_.erase(begun);
  if (moves()) return hook(names, gradient, elements);
  if (bucket_ != kNoTensor && !bucket_set_up_) set_up_bucket();
}

// reduce_independent_p_g_buckets_and_remove_grads: where the bucket has no room it is reduced
// first, in a flat copy of its own where several ranks own parts of it; then the gradient is copied
// into it and dies. One that is larger than the bucket waits as it is for the next hook.
void EngineWrapper::hook(const ModuleNames& names, TensorId gradient, std::int64_t elements) {
  const TensorId copy =
      b_.tensor("zero.reduce_copy", Bytes(1), Category::communication,
                engine_.overlap ? models::Stream::reduce : models::Stream::compute);
  // One of the norm's kernels in fp32 is alive then.
  const SymBytes between = comes_within_norm(names)
                               ? layer_.fp32(checked_multiply(tokens_.total(), d_.hidden))
                               : SymBytes();
  bucket_set_up_ = true;
  constexpr std::int64_t most_layers_away = 127;  // Operand::delta
  const Found at = next_hook(elements, gradient);
  if (at.stays) staying_.push_back(gradient);
  const auto owned = [&](bool there) { return there ? owned_ : kNoTensor; };
  auto reduce = b_.op("zero.reduce", Phase::backward);
  if (at.hook != nullptr) {
    at.hook->copy = copy;
    if (at.hook->first >= 0)
      reduce.touch(copy, static_cast<int>(std::min(at.hook->first, most_layers_away)), kNoTensor,
                   Access::write);
    // fp32 sums are added to as the copy is there; 16-bit ones are copied after it.
    reduce.write(owned(at.hook->owned && (engine_.has_fp32_partition_grads() || at.owned)));
  }
  reduce.touch(at.waiting.tensor, at.waiting.delta, at.waiting.beyond).read(gradient);
  reduce.scratch(between);
  allocate_bucket(reduce);
  auto arrival = b_.op("zero.hook", Phase::backward);
  // With offloading one that waits is cloned, and the clone waits.
  const bool cloned = engine_.offload.optimizer && engine_.stage < 3 &&
                      elements > engine_.options.reduce_bucket_size;
  arrival.write(owned(at.hook != nullptr && at.hook->owned));
  arrival.touch(at.waiting.tensor, at.waiting.delta, at.waiting.beyond).read(gradient);
  arrival.scratch(cloned ? between + gradients(elements) : between);
  keep_gradient(arrival, at.hook, elements);
  allocate_bucket(arrival);
}

// Of a bucket that several ranks own; where the partition's gradients are fp32 sums, its parts are
// cast one parameter at a time.
SymBytes EngineWrapper::reduce_copy(SymInt content) const {
  const SymBytes copy = layer_.bytes(content, engine_.model);
  if (!engine_.has_fp32_partition_grads()) return copy;
  return copy + layer_.fp32(smaller(content, share_.largest));
}

// A hook may copy in several iterations. The step holds less with every layer: at least its input.
// So the one that matters is the largest after that is taken off.
void EngineWrapper::size_copies() {
  for (HookRun& run : hook_runs_)
    for (Hook& hook : run.hooks) hook.content = 0;
  const SymInt input = tokens_.total() * d_.hidden;
  for (const Placement& p : placements_) {
    Hook& hook = hook_runs_[p.run].hooks[p.hook];
    hook.content = std::max(hook.content, p.content - input * (p.iteration - hook.first));
    b_.set_bytes(hook.copy, reduce_copy(hook.content));
  }
}

// independent_gradient_partition_epilogue: what is left in the bucket is reduced, the partition's
// gradients of later micro-batches are added to the first one's, the buckets go.
void EngineWrapper::epilogue() {
  size_copies();
  // The copy is gone before 16-bit gradients of the partition are copied out of the bucket; fp32
  // sums are added to as it is there.
  const bool fp32 = engine_.has_fp32_partition_grads();
  auto reduce = b_.op("zero.reduce", Phase::backward);
  allocate_bucket(reduce);
  if (fp32) reduce.update(owned_);
  if (left_in_bucket_ > 0) reduce.scratch(reduce_copy(left_in_bucket_), Category::communication);
  keep_last_gradients(reduce);
  auto op = b_.op("zero.epilogue", Phase::backward);
  if (!hook_runs_.empty() && !hook_runs_.back().hooks.empty() &&
      hook_runs_.back().hooks.back().elements > engine_.options.reduce_bucket_size)
    op.release(hook_runs_.back().hooks.back().gradient);
  for (const TensorId gradient : staying_) op.release(gradient);
  allocate_bucket(op);
  op.update(owned_);
  if (kept_ != owned_) op.update(kept_);
  op.release(gathered_).release(gathered_layers_).release(gathered_head_);
}

void EngineWrapper::end_backward() {
  if (!moves() && !(s_.last_micro() && (engine_.stage == 1 || engine_.ranks > 1))) return;
  if (levels_.end.bytes > Bytes(0)) gathered_head_ = gather(levels_.end, Phase::backward);
  b_.open(kNoGroup, false, s_.times);
  if (moves())
    epilogue();
  else if (engine_.stage == 1)
    reduce_whole();
  else
    reduce_plain();
  b_.close();
  drop_graph();
}

}  // namespace plimsoll::planner::deepspeed

#include "planner/stacks/deepspeed/engine_wrapper.h"

#include <algorithm>

#include "models/optimizers.h"

namespace plimsoll::planner::deepspeed {

using models::kNoGroup;
using models::Residency;

EngineWrapper::EngineWrapper(pytorch::Step& step, models::StepProgram& program,
                             const Engine& engine)
    : Wrapper(step),
      program_(program),
      engine_(engine),
      layout_(parts_, engine),
      share_(layout_.share(engine.rank)),
      whole_(step, false) {}

// States ------------------------------------------------------------------------------------------

// Parameters that are not trained stay as they are, in the model's dtype.
void EngineWrapper::declare_frozen() {
  const auto frozen = [&](const std::vector<Parameter>& parameters, models::GroupId group,
                          std::int64_t copies) {
    for (const Parameter& p : parameters) {
      if (p.trainable) continue;
      const Bytes one = gradients(p.elements);
      frozen_.push_back(
          b_.tensor_in(group, "parameters", one, Category::parameters, Residency::persistent));
      s_.states.parameters += one * copies;
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
}

// Masters, and the optimizer's states, of `elements` values; on the host in host.cpp.
void EngineWrapper::declare_optimizer(std::int64_t elements) {
  if (engine_.offload.optimizer) return;
  const Bytes state = bytes(elements, engine_.state);
  const auto persistent = [&](const char* name) {
    s_.states.optimizer += state;
    return b_.tensor_in(kNoGroup, name, state, Category::optimizer, Residency::persistent);
  };
  if (engine_.wrapper != OptimizerWrapper::plain) masters_ = persistent("fp32_partition");
  for (const models::StateTensor& kept : models::rule_of(strategy_.optimizer).states)
    persistent(name_of(kept.name));
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
  if (s_.first_micro()) gathered_ = gathered_layers_ = kNoTensor;
  if (!b_.resizes()) hook_runs_.clear();
  begun_.clear();
  bucket_set_up_ = false;
  const bool zero = engine_.wrapper == OptimizerWrapper::stage_1_and_2;  // stage 3's stay for good
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
  gathered_ = gather(levels_.forward, Phase::forward);
}

TensorId EngineWrapper::begin(const ModuleNames& names, std::int64_t elements, bool adapter) {
  TensorId gradient = kNoTensor;
  const bool head = names.module == pytorch::end_names().head.base.module;
  if (whole_gradients() || (d_.tied_head && head)) {
    gradient = whole_.begin(names, elements, adapter);
  } else {
    gradient = b_.tensor(names.weight_grad, gradients(elements), Category::gradients);
  }
  begun_.emplace_back(gradient, elements);
  return gradient;
}

void EngineWrapper::end(const ModuleNames& names, TensorId written) {
  // The head's share of a tied table waits for the embedding's.
  if (d_.tied_head && names.module == pytorch::end_names().head.base.module) return;
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
  if (bucket_ != kNoTensor && !bucket_set_up_) {
    allocate_bucket(b_.op("zero.setup_buckets", Phase::backward));
    bucket_set_up_ = true;
  }
}

EngineWrapper::HookRun& EngineWrapper::hook_run() {
  const models::Segment& segment = program_.segments.back();
  if (!hook_runs_.empty() && hook_runs_.back().group == segment.group && segment.group != kNoGroup)
    return hook_runs_.back();
  if (!hook_runs_.empty() && segment.group == kNoGroup && hook_runs_.back().group == kNoGroup &&
      hook_runs_.back().begin != layout_.blocks().front().begin)
    return hook_runs_.back();
  HookRun run;
  run.group = segment.group;
  const FlatLayout::Block* of = nullptr;
  std::int64_t stride = 1;
  const std::vector<FlatLayout::Block>& blocks = layout_.blocks();
  if (segment.group != kNoGroup) {
    const models::Group& group = program_.groups[static_cast<std::size_t>(segment.group)];
    for (std::size_t r = 0; r < parts_.runs.size(); ++r) {
      const std::int64_t into = group.first - parts_.runs[r].first;
      if (into < 0 || into >= parts_.runs[r].count) continue;
      of = &blocks[r + 1];
      stride = group.stride / of->layers;
      run.begin = of->begin + into / of->layers * of->elements;
      run.elements = of->elements * stride;
    }
    run.repeats = group.count;
  } else {
    // The embedding's gradients come after the layers', the tail's before them.
    of = hook_runs_.empty() ? &blocks.back() : &blocks.front();
    run.begin = of->begin;
    run.elements = of->elements;
  }
  for (std::int64_t at = 0; of != nullptr && stride > 0; --stride)
    for (const std::int64_t elements : of->parameters) {
      run.places.emplace_back(at, elements);
      at += elements;
    }
  hook_runs_.push_back(std::move(run));
  return hook_runs_.back();
}

// Gradients come from the end of a layer to its front: of equal parameters, the last one first.
std::int64_t EngineWrapper::HookRun::take_place(std::int64_t of_elements) {
  for (std::size_t i = places.size(); i-- > 0;) {
    if (places[i].second != of_elements) continue;
    const std::int64_t offset = places[i].first;
    places.erase(places.begin() + static_cast<std::ptrdiff_t>(i));
    return offset;
  }
  fail(ErrorKind::internal, "a gradient of " + std::to_string(of_elements) +
                                " elements belongs to no parameter of its layer");
}

// reduce_independent_p_g_buckets_and_remove_grads: where the bucket has no room it is reduced
// first, in a flat copy of its own where several ranks own parts of it; then the gradient is copied
// into it and dies. One that is larger than the bucket waits as it is for the next hook.
void EngineWrapper::hook(const ModuleNames& names, TensorId gradient, std::int64_t elements) {
  const TensorId copy =
      b_.tensor("zero.reduce_copy", Bytes(1), Category::communication,
                engine_.overlap ? models::Stream::reduce : models::Stream::compute);
  // An RMS norm's weight comes in the middle of its kernels: one of them in fp32 is alive.
  const bool norm = names.module == pytorch::end_names().norm.module ||
                    (d_.norm == models::NormKind::rms_norm && layer_.in_stream_norm());
  const Bytes between = norm && engine_.model != DType::fp32
                            ? layer_.fp32(checked_multiply(tokens_.total(), d_.hidden))
                            : Bytes(0);
  // Operands that patch_hooks fills in.
  const auto next = [&] { return static_cast<std::uint32_t>(program_.operands.size()); };
  Hook hook{.copy = copy, .gradient = gradient, .elements = elements};
  auto reduce = b_.op("zero.reduce", Phase::backward);
  hook.reduction = next();
  reduce.write(copy).write(gradient).read(gradient).read(gradient).scratch(between);
  allocate_bucket(reduce);
  auto arrival = b_.op("zero.hook", Phase::backward);
  hook.arrival = next();
  // With offloading one that waits is cloned, and the clone waits.
  const bool cloned = engine_.offload.optimizer && engine_.stage < 3 &&
                      elements > engine_.options.reduce_bucket_size;
  arrival.write(gradient).read(gradient).read(gradient);
  arrival.scratch(cloned ? between + gradients(elements) : between);
  allocate_bucket(arrival);
  if (b_.resizes()) return;
  HookRun& run = hook_run();
  hook.offset = run.take_place(elements);
  run.hooks.push_back(hook);
}

// The order of the hooks is known: where is the bucket reduced, and does one rank own all of it?
void EngineWrapper::fill_buckets() {
  const std::int64_t size = engine_.options.reduce_bucket_size;
  const std::int64_t begin = layout_.partition() * engine_.rank, end = begin + layout_.partition();
  std::int64_t content = 0;
  std::pair<std::int64_t, std::int64_t> span{layout_.aligned(), 0};
  bool owned = false;  // a parameter of this rank's partition has been reduced
  // Stage 3 copies whatever is not one parameter that divides evenly (reduce_scatter_coalesced).
  std::int64_t held = 0, part = 0;  // parameters; the largest of which this rank owns so many
  const auto copies = [&] {
    if (engine_.stage == 3) return held > 1 || content % engine_.ranks != 0;
    return !layout_.one_owner(span.first, span.second);
  };
  placements_.clear();
  for (HookRun& run : hook_runs_)
    for (std::int64_t i = 0; i < run.repeats; ++i) {
      const std::int64_t at = run.begin + (run.repeats - 1 - i) * run.elements;
      for (Hook& hook : run.hooks) {
        if (content + hook.elements > size && content > 0) {
          if (const std::int64_t copy = beside_bucket(copies() ? content : 0, part); copy > 0) {
            if (hook.first < 0) hook.first = i;
            placements_.push_back({static_cast<std::size_t>(&run - hook_runs_.data()),
                                   static_cast<std::size_t>(&hook - run.hooks.data()), i, copy});
          }
          owned = owned || (span.first < end && span.second > begin);
          content = held = part = 0;
          span = {layout_.aligned(), 0};
        }
        if (i == 0) hook.owned = owned;
        content += hook.elements;
        ++held;
        const std::int64_t begins = at + hook.offset;
        span = {std::min(span.first, begins), std::max(span.second, begins + hook.elements)};
        const std::int64_t inside =
            engine_.stage == 3 ? ceil_divide(hook.elements, engine_.ranks)
                               : std::min(end, begins + hook.elements) - std::max(begin, begins);
        part = std::max(part, inside);
      }
      // Allocated in the middle of a run: from its first layer on.
      if (owned && i > 0 && !run.hooks.front().owned)
        for (Hook& hook : run.hooks) hook.owned = true;
    }
  left_in_bucket_ = beside_bucket(content > 0 && copies() ? content : 0, part);
}

// Of a bucket that several ranks own; where the partition's gradients are fp32 sums, its parts are
// cast one parameter at a time.
Bytes EngineWrapper::reduce_copy(std::int64_t content) const {
  const Bytes copy = gradients(content);
  if (!engine_.has_fp32_partition_grads()) return copy;
  return copy + bytes(std::min(content, share_.largest), DType::fp32);
}

// A hook may copy in several iterations. The step holds less with every layer: at least its input.
// So the one that matters is the largest after that is taken off.
void EngineWrapper::size_copies() {
  for (HookRun& run : hook_runs_)
    for (Hook& hook : run.hooks) hook.content = 0;
  const std::int64_t input = checked_multiply(tokens_.total(), d_.hidden);
  for (const Placement& p : placements_) {
    Hook& hook = hook_runs_[p.run].hooks[p.hook];
    const std::int64_t less = checked_multiply(input, p.iteration - hook.first);
    hook.content = std::max(hook.content, p.content - less);
    Bytes& copy = program_.tensors[static_cast<std::size_t>(hook.copy)].bytes;
    copy = reduce_copy(hook.content);
    if (b_.resizes()) b_.apart(hook.copy);
  }
}

void EngineWrapper::patch(models::Operand& operand, TensorId tensor, int delta, TensorId beyond) {
  operand.tensor = tensor;
  operand.delta = static_cast<std::int8_t>(delta);
  operand.beyond = beyond;
}

void EngineWrapper::patch_hooks() {
  const std::int64_t size = engine_.options.reduce_bucket_size;
  constexpr std::int64_t most_layers_away = 127;  // Operand::delta
  const bool fp32 = engine_.has_fp32_partition_grads();
  TensorId before = kNoTensor;  // an oversized gradient that waits in the run before
  bool owned = false;  // the partition's gradients were there at its end
  for (HookRun& run : hook_runs_) {
    for (std::size_t k = 0; k < run.hooks.size(); ++k) {
      Hook& hook = run.hooks[k];
      models::Operand* reduction = program_.operands.data() + hook.reduction;
      models::Operand* arrival = program_.operands.data() + hook.arrival;
      if (hook.content == 0)
        patch(reduction[0], kNoTensor);
      else
        patch(reduction[0], hook.copy, static_cast<int>(std::min(hook.first, most_layers_away)));
      // fp32 sums are added to as the copy is there; 16-bit ones are copied after it.
      const bool there = k > 0 ? run.hooks[k - 1].owned : owned;
      patch(reduction[1], hook.owned && (fp32 || there) ? owned_ : kNoTensor);
      patch(arrival[0], hook.owned ? owned_ : kNoTensor);
      const Hook& last = run.hooks[k > 0 ? k - 1 : run.hooks.size() - 1];
      const bool waits = last.elements > size && (k > 0 || run.repeats > 1);
      const bool above = k == 0 && run.group != models::kNoGroup;
      const TensorId waiting = k == 0 && !above ? before : waits ? last.gradient : kNoTensor;
      for (models::Operand* operand : {reduction + 2, arrival + 1})
        patch(*operand, waiting, above ? 1 : 0, above ? before : kNoTensor);
    }
    if (run.hooks.empty()) continue;
    owned = run.hooks.back().owned;
    before = run.hooks.back().elements > size ? run.hooks.back().gradient : kNoTensor;
  }
}

// independent_gradient_partition_epilogue: what is left in the bucket is reduced, the partition's
// gradients of later micro-batches are added to the first one's, the buckets go.
void EngineWrapper::epilogue() {
  if (!b_.resizes()) fill_buckets();
  size_copies();
  if (!b_.resizes()) patch_hooks();
  // The copy is gone before 16-bit gradients of the partition are copied out of the bucket; fp32
  // sums are added to as it is there.
  const bool fp32 = engine_.has_fp32_partition_grads();
  auto reduce = b_.op("zero.reduce", Phase::backward);
  allocate_bucket(reduce);
  if (fp32) reduce.update(owned_);
  if (left_in_bucket_ > 0) reduce.scratch(reduce_copy(left_in_bucket_), Category::communication);
  auto op = b_.op("zero.epilogue", Phase::backward);
  if (!hook_runs_.empty() && !hook_runs_.back().hooks.empty() &&
      hook_runs_.back().hooks.back().elements > engine_.options.reduce_bucket_size)
    op.release(hook_runs_.back().hooks.back().gradient);
  allocate_bucket(op);
  op.update(owned_);
  if (kept_ != owned_) op.update(kept_);
  op.release(gathered_).release(gathered_layers_);
}

void EngineWrapper::end_backward() {
  if (!moves() && !(s_.last_micro() && (engine_.stage == 1 || engine_.ranks > 1))) return;
  b_.open(kNoGroup, false, s_.times);
  if (moves())
    epilogue();
  else if (engine_.stage == 1)
    reduce_whole();
  else
    reduce_plain();
  b_.close();
}

}  // namespace plimsoll::planner::deepspeed

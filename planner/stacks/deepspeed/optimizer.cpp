// Reductions after the backward, and engine.step().
#include <algorithm>

#include "models/optimizers.h"
#include "planner/stacks/deepspeed/engine_wrapper.h"

namespace plimsoll::planner::deepspeed {

using models::kNoGroup;
using models::OptimizerImpl;

void EngineWrapper::release_gradients(OpBuilder op) {
  for (const TensorId gradient : s_.root.kept) op.release(gradient);
  for (const Run& run : s_.runs)
    for (const pytorch::Unit& unit : run.units)
      for (const TensorId gradient : unit.kept) op.release(gradient);
}

// Stage 1 without overlap (reduce_gradients): parameter by parameter into the bucket, where each
// gradient frees its own memory, from the front of the model. One that is larger than the bucket
// stays as it is until it is reduced, and beyond where it is another rank's. A bucket that several
// ranks own is copied; then the partition's own gradients are copied out of it, all into one tensor
// from the first of them on.
void EngineWrapper::reduce_whole() {
  const std::int64_t size = engine_.options.reduce_bucket_size;
  Together together(layout_, engine_.rank);
  std::int64_t content = 0, from = 0, at = 0, part = 0, index = 0;
  std::int64_t most = 0, gone = 0, stuck = 0;  // elements: beyond all gradients; given back; not
  std::int64_t first = 0, first_end = 0, copy = 0, kept = 0;  // of the first reduction; the last
  const auto reduce = [&](bool last) {
    const std::int64_t moved = content <= size ? content : 0;
    copy = content == 0 || together.one_owner() ? 0 : content;
    copy = beside_bucket(copy, part);
    part = 0;
    if (from == 0) first = copy;
    if (from == 0) first_end = at;
    most = std::max(most, copy + kept - gone - moved);
    if (last) return;
    const bool owned = together.owns_some();
    if (owned && !engine_.offload.optimizer) kept = share_.whole;
    most = std::max(most, kept - gone - moved);
    gone += owned ? content : moved;
    stuck += owned || moved > 0 ? 0 : content;
    from = at;
    content = 0;
    together.clear();
  };
  for (const FlatLayout::Block& block : layout_.blocks())
    for (std::int64_t i = 0; i < block.count; ++i)
      for (const std::int64_t elements : block.parameters) {
        if (content > 0 && content + elements > size) reduce(false);
        const std::int64_t begin = layout_.begin_of(index++, at);
        together.add(begin, elements);
        part = std::max(part, together.inside(begin, elements));
        content += elements;
        at += elements;
      }
  reduce(true);
  auto whole = b_.op("zero.reduce_gradients", Phase::backward);
  allocate_bucket(whole);
  const bool at_once = kept > 0 && most >= share_.whole;  // beside all gradients
  if (at_once) whole.update(owned_);
  whole.scratch(gradients(most - (at_once ? share_.whole : 0)), Category::communication);
  for (const TensorId gradient : s_.root.kept) whole.release(gradient);
  std::int64_t released = layout_.blocks().front().elements + layout_.blocks().back().elements;
  const auto layers = [&](bool in_first, OpBuilder op) {
    for (const Run& run : s_.runs) {
      const FlatLayout::Block& block =
          layout_.blocks()[static_cast<std::size_t>(run.layers - parts_.runs.data()) + 1];
      if ((block.end() <= first_end) != in_first) continue;
      if (in_first) released += block.elements * run.count;
      for (const pytorch::Unit& unit : run.units)
        for (const TensorId gradient : unit.kept) op.release(gradient);
    }
  };
  layers(true, whole);
  // The copy of the first bucket, which finds no room in what single gradients have given back.
  b_.op("zero.reduce", Phase::backward)
      .scratch(gradients(std::min(first, released)), Category::communication);
  auto others = b_.op("zero.reduce_gradients", Phase::backward);
  if (kept > 0 && share_.whole - released <= std::max<std::int64_t>(0, most)) others.update(owned_);
  layers(false, others);
  auto rest = b_.op("zero.epilogue", Phase::backward);
  allocate_bucket(rest);
  rest.update(owned_);
  const std::int64_t beside = std::max<std::int64_t>(0, kept > 0 ? copy : copy - share_.whole);
  rest.scratch(gradients(beside + stuck), Category::communication);
}

// Stage 0: engine.py, allreduce_no_retain: a flat copy of gradients until they are more than
// kPlainBucket, from the front of the model.
void EngineWrapper::reduce_plain() {
  std::int64_t most = 0, content = 0;
  for (const FlatLayout::Block& block : layout_.blocks())
    for (std::int64_t i = 0; i < block.count; ++i)
      for (const std::int64_t elements : block.parameters) {
        content += elements;
        most = std::max(most, content);
        if (content > kPlainBucket) content = 0;
      }
  auto reduce = b_.op("engine.allreduce", Phase::backward);
  reduce.scratch(gradients(most), Category::communication);
  release_gradients(reduce);
}

// torch.optim.AdamW's foreach copy of one state (FusedAdam, DeepSpeed's own, makes none).
TensorId EngineWrapper::square_root(Bytes state) {
  const char* const list = models::rule_of(strategy_.optimizer).torch.temporary;
  const bool foreach = list != nullptr && !fused();
  return foreach ? b_.tensor_in(kNoGroup, list, state, Category::temporaries) : kNoTensor;
}

bool EngineWrapper::fused() const {
  return strategy_.optimizer_impl.value_or(OptimizerImpl::fused) == OptimizerImpl::fused;
}

// Of the op that was written last, which steps so many values: one kernel reads their gradients,
// and reads and writes them and their states, or torch.optim makes its passes; then masters are
// copied to the 16-bit weights.
void EngineWrapper::step_work(std::int64_t elements) {
  const double values = storage(Count(elements), engine_.state).real();
  const models::OptimizerRule& rule = models::rule_of(strategy_.optimizer);
  const models::StepPasses& steps = fused() ? models::StepPasses{} : rule.unfused;
  double one_kernel = (3 + 2 * static_cast<double>(rule.states.size())) * values;
  if (steps_with_package()) {
    one_kernel = 3 * values;
    for (const models::KeptState& kept : package_states()) one_kernel += 2 * kept.bytes.real();
  }
  b_.work().moves(steps.in_one_kernel() ? one_kernel : steps.values * values, steps.passes);
  if (engine_.wrapper != OptimizerWrapper::plain) copy_work(elements, engine_.state, engine_.model);
}

void EngineWrapper::copy_work(std::int64_t elements, DType from, DType to) {
  b_.work().moves((storage(Count(elements), from) + storage(Count(elements), to)).real());
}

// g.double().norm()
void EngineWrapper::norm_work(std::int64_t elements, DType gradient) {
  copy_work(elements, gradient, DType::fp64);
  b_.work().moves(storage(Count(elements), DType::fp64).real());
}

// DeepSpeedZeroOptimizer.step: the norm reads each gradient of the partition in fp64; the partition
// is flattened (a copy where it is more than one piece), then cast to the masters' dtype; the
// 16-bit gradients go, the optimizer steps, the fp32 ones go.
void EngineWrapper::partition_step() {
  if (engine_.offload.optimizer) return;
  const bool flat_already = engine_.has_fp32_partition_grads();
  b_.op("zero.grad_norm", Phase::optimizer).read(kept_).scratch(bytes(share_.largest, DType::fp64));
  const std::int64_t elements = layout_.partition();
  const DType held = flat_already ? DType::fp32 : engine_.model;
  norm_work(elements, held);
  const Bytes state = bytes(elements, engine_.state);
  TensorId flat = kept_;
  if (!flat_already && share_.pieces > 1) {
    flat = b_.tensor("zero.flat_grad", gradients(elements), Category::temporaries);
    b_.op("zero.flatten", Phase::optimizer).read(kept_).write(flat);
    copy_work(elements, held, held);
  }
  TensorId single = flat;
  if (engine_.state != held) {
    single = b_.tensor("zero.single_grad_partition", state, Category::gradients);
    b_.op("zero.to_fp32", Phase::optimizer).read(flat).write(single).release(kept_);
    copy_work(elements, held, engine_.state);
  } else if (flat != kept_) {
    b_.op("zero.free_gradients", Phase::optimizer).release(kept_);
  }
  const TensorId root = square_root(state);
  b_.op("optimizer.step", Phase::optimizer).read(single).write(root);
  step_work(elements);
}

// One fp32 tensor for each trained parameter; one for all of them where only the sum is asked for.
std::vector<TensorId> EngineWrapper::fp32_gradients(Category category) {
  std::vector<TensorId> out;
  const auto add = [&](models::GroupId group, std::int64_t elements) {
    out.push_back(b_.tensor_in(group, "fp32_gradients", bytes(elements, engine_.state), category));
  };
  if (!rules_.each_parameter) {
    add(kNoGroup, layout_.total());
    return out;
  }
  const auto all = [&](models::GroupId group, const std::vector<Parameter>& parameters) {
    for (const Parameter& p : parameters)
      if (p.trainable) add(group, p.elements);
  };
  all(kNoGroup, parts_.embedding);
  for (const Run& run : s_.runs)
    for (std::size_t j = 0; j < run.stride(); ++j) all(run.group, run.layer(j).parameters);
  all(kNoGroup, parts_.tail);
  return out;
}

// FP16_Optimizer.step: every gradient in fp32, then all of them in one flat tensor.
void EngineWrapper::fused_step() {
  const Bytes all = bytes(layout_.total(), engine_.state);
  const std::vector<TensorId> list = fp32_gradients(Category::temporaries);
  const TensorId flat = b_.tensor("grads_groups_flat", all, Category::gradients);
  auto cast = b_.op("fp16_optimizer.to_fp32", Phase::optimizer);
  for (const TensorId one : list) cast.write(one);
  copy_work(layout_.total(), engine_.model, engine_.state);
  auto flatten = b_.op("fp16_optimizer.flatten", Phase::optimizer);
  flatten.write(flat);
  for (const TensorId one : list) flatten.read(one);
  copy_work(layout_.total(), engine_.state, engine_.state);
  release_gradients(b_.op("fp16_optimizer.zero_grad", Phase::optimizer));
  b_.op("optimizer.step", Phase::optimizer).read(flat);
  step_work(layout_.total());
}

// FP16_UnfusedOptimizer.step: one fp32 gradient for each parameter.
void EngineWrapper::unfused_step() {
  const std::vector<TensorId> list = fp32_gradients(Category::gradients);
  const TensorId root = square_root(bytes(layout_.total(), engine_.state));
  auto cast = b_.op("fp16_optimizer.to_fp32", Phase::optimizer);
  for (const TensorId one : list) cast.write(one);
  copy_work(layout_.total(), engine_.model, engine_.state);
  auto step = b_.op("optimizer.step", Phase::optimizer);
  step.write(root);
  for (const TensorId one : list) step.read(one);
  step_work(layout_.total());
  release_gradients(step);
}

void EngineWrapper::plain_step() {
  const TensorId root = square_root(bytes(layout_.total(), engine_.state));
  auto step = b_.op("optimizer.step", Phase::optimizer);
  step.write(root);
  step_work(layout_.total());
  release_gradients(step);
}

void EngineWrapper::optimizer_step() {
  b_.open(kNoGroup);
  switch (engine_.wrapper) {
    case OptimizerWrapper::plain:
      plain_step();
      break;
    case OptimizerWrapper::fused:
      fused_step();
      break;
    case OptimizerWrapper::unfused:
      unfused_step();
      break;
    case OptimizerWrapper::stage_1_and_2:
      partition_step();
      break;
    case OptimizerWrapper::stage3:
      sub_group_step();
      break;
  }
  b_.op("zero_grad", Phase::optimizer).release(s_.end.loss);
  b_.close();
}

}  // namespace plimsoll::planner::deepspeed

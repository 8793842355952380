// FullyShardedDataParallel: what a unit allocates around its forward and backward.
//
// Source: torch 2.11, distributed/fsdp/_flat_param.py and _runtime_utils.py, and the traces of
// tests/golden; units as Accelerate's TRANSFORMER_BASED_WRAP makes them: every decoder layer, and
// the root with all the rest. use_orig_params, BACKWARD_PRE, no forward prefetch.
//
//   A unit is one flat parameter: each parameter begins at a multiple of 16 bytes of the dtype that
//   modules see, and the whole is padded to a multiple of the ranks (_get_aligned_numel,
//   _init_flat_param_and_metadata). A rank holds an equal part of it.
//   forward, unit u: the shard in the low dtype, and the flat parameter F(u) that it is gathered
//   into (modules' parameters are views of it; nothing is copied out), until the unit returns. The
//   root's stays, and with SHARD_GRAD_OP all do, until the last micro-batch reduces.
//   backward: F(u-1) is gathered before u's backward runs, the last layer's before the loss's. The
//   parameters' gradients are concatenated when the last of them is there (the backward of
//   torch.split), F(u) goes, the flat gradient is copied in the dtype of the reduction where that
//   differs, and its shard made, which is cast to the stored dtype.
//   Until Transformers 4.52 a layer's checkpoint is around its unit, unless it was put into the
//   wrapped model (apply_activation_checkpointing): its forward gathers F(u) for
//   itself, lets go of it, and the backward gathers it again; nothing is gathered ahead. Until 5.0
//   checkpoints are reentrant unless a script says otherwise: they make the layer's output too,
//   and hold it with the arguments and the output's gradient until the nested backward is done.
//   Earlier micro-batches (no_sync) keep the flat gradient, whole, and later ones add to it.
// Adapters: fsdp1_adapters.cpp.
// Optimizers see the part of each original parameter that lies in the rank's shard: as much on
// every rank, less padding, in other parts.
#include "planner/stacks/pytorch/wrappers/fsdp1.h"

#include <algorithm>

#include "models/optimizers.h"

namespace plimsoll::planner::pytorch {

using models::kNoGroup;
using models::Residency;

TensorId FlatParameters::begin(const ModuleNames& names, std::int64_t elements, bool adapter) {
  if (adapter) {
    adapter_elements_ = elements;
    return adapter_grad_ = b_.tensor(names.weight_grad, storage(Count(elements), regime_.adapter),
                                     Category::gradients);
  }
  const Bytes bytes = storage(Count(elements), regime_.weight);
  if (d_.tied_head && names.module == end_names().head.base.module)
    return s_.end.tied_grad = b_.tensor(names.weight_grad_new, bytes, Category::gradients);
  return s_.unit->grads.emplace_back(b_.tensor(names.weight_grad, bytes, Category::gradients));
}

// Concatenated with the unit's others.
void FlatParameters::end(const ModuleNames&, TensorId written) {
  if (written == adapter_grad_ && written != kNoTensor) reduce_adapter(written);
}

// MixedPrecision's buffer_dtype.
DType FlatParameters::buffer_dtype() const {
  return is_mixed(strategy_.precision) ? regime_.weight : DType::fp32;
}

// CPUOffload: the rank's shard, pinned, and as much for its gradient (_cpu_grad), of what is frozen
// too; states are made like the parts of it, pageable.
void FlatParameters::declare_on_host(const Unit& unit, std::int64_t copies) {
  for (std::int64_t i = 0; i < copies; ++i) {
    for (int part = 0; part < 2; ++part) {
      s_.host.pin(unit.shard);
      for (const Parameter& p : *unit.parameters)
        if (p.adapter)
          s_.host.pin(storage(Count(ceil_divide(p.elements, s_.shards)), adapter_stored()));
    }
    for (const models::SteppedTensor& part : unit.parts)
      for (const models::KeptState& state : models::kept_states(strategy_, part))
        s_.host.page(state.bytes);
  }
}

void FlatParameters::declare_states() {
  declare_units([&](Unit& unit, std::int64_t copies) { declare_unit(unit, copies); });
}

void FlatParameters::optimizer_step() {
  step_optimizer(
      lists(), [&](std::int64_t most) { return stepped(most); }, false);
}

void FlatParameters::declare_unit(Unit& unit, std::int64_t copies) {
  if (unit.empty()) return;
  if (strategy_.offload.params) {
    declare_on_host(unit, copies);
    return declare_scales(unit, copies);
  }
  const auto persistent = [&](const char* name, Bytes bytes, Category category) {
    return b_.tensor_in(unit.group, name, bytes, category, Residency::persistent);
  };
  unit.flat_shard = persistent("parameters", unit.shard, Category::parameters);
  if (unit.adapters != Bytes(0)) {
    if (rules_.each_parameter)
      for (const models::SteppedTensor& part : unit.parts)
        persistent("adapter", optimizer_.size_of(part), Category::parameters);
    else
      persistent("adapter", unit.adapters, Category::parameters);
  }
  if (ignores_adapters() && unit.adapters != Bytes(0))
    persistent("adapter.grad", unit.adapters, Category::gradients);
  KeptStates states;
  for (const models::SteppedTensor& part : unit.parts) {
    const KeptStates kept = optimizer_.kept_of(part);
    if (rules_.each_parameter) optimizer_.declare(unit.group, kept);
    for (const KeptState& state : kept) states.merge(state);
    if (optimizer_.lists(part)) unit.listed += optimizer_.size_of(part);
  }
  if (!rules_.each_parameter) optimizer_.declare(unit.group, states);
  optimizer_.count(states, copies);
  declare_scales(unit, copies);
  s_.states.parameters += (unit.shard + unit.adapters) * copies;
  s_.states.gradients += (unit.trains ? unit.shard : unit.adapters) * copies;
}

void FlatParameters::declare(Unit& unit) {
  unit.begin_micro_batch();
  if (unit.empty()) return;
  using models::Stream;
  const auto tensor = [&](const char* name, Bytes bytes, Category category, Stream stream,
                          Residency residency = Residency::step) {
    return b_.tensor_in(unit.group, name, bytes, category, residency, stream);
  };
  const auto cast = [&](const char* name) {
    return unit.cast == Bytes(0) ? kNoTensor
                                 : tensor(name, unit.cast, Category::communication, Stream::cast);
  };
  if (reshards() || s_.micro == 0) {
    unit.cast_forward = cast("fsdp.shard.cast");
    unit.full_forward =
        tensor("fsdp.flat_parameter", unit.full, Category::parameters, Stream::gather);
  }
  if (unit.reshards && checkpoints_around()) {
    unit.cast_recompute = cast("fsdp.shard.cast.recompute");
    unit.full_recompute =
        tensor("fsdp.flat_parameter.recompute", unit.full, Category::parameters, Stream::gather);
  }
  if (unit.reshards) {
    unit.cast_backward = cast("fsdp.shard.cast.backward");
    unit.full_backward =
        tensor("fsdp.flat_parameter.backward", unit.full, Category::parameters, Stream::gather);
  }
  declare_adapter_tensors(unit);
  unit.flat_grad = unit.reduce_in = unit.shard_grad = kNoTensor;
  if (!unit.trains) return;
  // Written on the stream that split the parameter.
  const bool keeps = s_.micro == 0 && s_.micros > 1;
  TensorId& grad = keeps ? unit.flat_grad_sum : unit.flat_grad;
  grad = tensor(keeps ? "fsdp.flat_grad.sum" : "fsdp.flat_grad", unit.full, Category::gradients,
                Stream::gather);
  if (s_.micro + 1 < s_.micros) return;
  if (unit.reduce_input != unit.full)
    unit.reduce_in =
        tensor("fsdp.flat_grad.cast", unit.reduce_input, Category::communication, Stream::reduce);
  if (strategy_.offload.params) return;  // it goes to the host when it is made
  unit.shard_grad =
      tensor("fsdp.sharded_grad",
             unit.shard_grad_cast == Bytes(0) ? unit.reduce_output : unit.shard_grad_cast,
             Category::gradients, Stream::reduce, kept_gradient());
}

// zero_grad takes it from what is stepped; of original parameters the flat one holds it until the
// next forward (_flat_param.py, prepare_gradient_for_optim deletes _saved_grad_shard of others).
Residency FlatParameters::kept_gradient() const {
  return strategy_.data.use_orig_params ? Residency::carried : Residency::step;
}

bool FlatParameters::checkpoints_around() const {
  return s_.recomputes() && !strategy_.data.fsdp_checkpoints &&
         strategy_.transformers < models::kLayersCheckpointThemselves;
}

void FlatParameters::before_recompute(Unit& unit) {
  if (!checkpoints_around() || !unit.reshards) return;
  b_.op("fsdp.all_gather", Phase::recompute).write(unit.cast_recompute).write(unit.full_recompute);
}

void FlatParameters::after_recompute(Unit& unit) {
  if (!checkpoints_around() || !unit.reshards) return;
  b_.op("fsdp.reshard", Phase::recompute)
      .release(unit.full_recompute)
      .release(unit.holds_shard ? unit.cast_recompute : kNoTensor);
  b_.op("fsdp.all_gather", Phase::backward).write(unit.cast_backward).write(unit.full_backward);
}

void FlatParameters::before_forward(Unit& unit, Ref) {
  if (unit.empty() || (!reshards() && s_.micro > 0)) return;
  // From the host the shard comes as it is stored, and goes when it is cast.
  if (strategy_.offload.params)
    b_.op("fsdp.copy_from_host", Phase::forward)
        .write(unit.cast_forward)
        .scratch(unit.from_host, Category::communication);
  b_.op("fsdp.all_gather", Phase::forward).write(unit.cast_forward).write(unit.full_forward);
}

void FlatParameters::prefetch_flat(Ref full, Ref cast) {
  if (full.none() || checkpoints_around()) return;
  b_.op("fsdp.prefetch", Phase::backward)
      .touch(full.tensor, full.delta, full.beyond, models::Access::write)
      .touch(cast.tensor, cast.delta, cast.beyond, models::Access::write)
      .scratch(s_.runs.front().units.front().from_host, Category::communication);
}

void FlatParameters::before_head_backward() {
  const Unit& last = s_.runs.back().units.back();
  prefetch_flat({last.full_backward, -1}, {last.cast_backward, -1});
}

void FlatParameters::prefetch_before(std::size_t run, std::size_t layer) {
  if (s_.runs[run].units[layer].adapter_count == 0) prefetch_unit_before(run, layer);
}

void FlatParameters::prefetch_unit_before(std::size_t run, std::size_t layer) {
  prefetch_flat(s_.unit_tensor(&Unit::full_backward, run, layer, -1),
                s_.unit_tensor(&Unit::cast_backward, run, layer, -1));
}

Bytes FlatParameters::largest_part(const Unit& unit) const {
  Bytes most;
  for (const models::SteppedTensor& part : unit.parts)
    most = std::max<Bytes>(most, optimizer_.size_of(part));
  return most;
}

void FlatParameters::after_backward(Unit& unit, Ref) {
  if (unit.empty()) return;
  const bool last = s_.last_micro(), first = s_.first_micro();
  const TensorId made = first && !last ? unit.flat_grad_sum : unit.flat_grad;
  if (unit.trains) {
    auto flatten = b_.op("fsdp.flatten_grads", Phase::backward);
    flatten.write(made);
    for (const TensorId grad : unit.grads) flatten.read(grad);
  }
  if (reshards() || last)
    b_.op("fsdp.reshard", Phase::backward)
        .release(unit.full_backward != kNoTensor ? unit.full_backward : unit.full_forward)
        .release(!unit.holds_shard                 ? kNoTensor
                 : unit.cast_backward != kNoTensor ? unit.cast_backward
                                                   : unit.cast_forward)
        .release(unit.adapter_backward);
  // For a moment each part of the shard has a gradient of its own (_use_unsharded_grad_views).
  if (unit.trains && first && !last && !unit.parts.empty())
    b_.op("fsdp.keep_grad", Phase::backward)
        .read(made)
        .scratch(largest_part(unit), Category::communication);
  if (unit.trains && !first)
    b_.op("fsdp.accumulate_grad", Phase::backward).read(made).update(unit.flat_grad_sum);
  if (unit.trains && last) reduce_scatter(unit);
  if (s_.reentrant()) unit.group == kNoGroup ? checkpoints_.leave_all() : checkpoints_.leave();
}

void FlatParameters::reduce_scatter(Unit& unit) {
  auto reduce = b_.op("fsdp.reduce_scatter", Phase::backward);
  reduce.read(unit.flat_grad).read(s_.micro == 0 ? kNoTensor : unit.flat_grad_sum);
  TensorId made = unit.shard_grad;
  if (made == kNoTensor)
    made =
        b_.tensor_in(unit.group, "fsdp.sharded_grad",
                     unit.shard_grad_cast == Bytes(0) ? unit.reduce_output : unit.shard_grad_cast,
                     Category::gradients, Residency::step, models::Stream::reduce);
  reduce.write(unit.reduce_in).write(made);
  if (unit.shard_grad_cast != Bytes(0)) reduce.scratch(unit.reduce_output, Category::communication);
}

std::vector<TensorId> FlatParameters::lists() {
  std::vector<TensorId> lists;
  if (strategy_.offload.params) return lists;  // steps on the host
  const auto all = [&](const Unit& unit) {
    const auto add = [&](Bytes bytes) { add_lists(unit.group, bytes, lists); };
    if (unit.listed == Bytes(0)) return;
    if (!rules_.each_parameter) return add(unit.listed);
    for (const models::SteppedTensor& part : unit.parts)
      if (optimizer_.lists(part)) add(optimizer_.size_of(part));
  };
  all(s_.root);
  for (const Run& run : s_.runs)
    for (const Unit& unit : run.units) all(unit);
  return lists;
}

// As without sharding, of the parts: the root's first, which are the embedding's on rank 0.
std::vector<models::SteppedTensor> FlatParameters::stepped(std::int64_t most_layers) const {
  std::vector<models::SteppedTensor> out;
  const auto all = [&](const Unit& unit) {
    out.insert(out.end(), unit.parts.begin(), unit.parts.end());
  };
  all(s_.root);
  for (const Run& run : s_.runs)
    for (std::int64_t i = 0; i < std::min(run.count, most_layers); ++i)
      for (const Unit& unit : run.units) all(unit);
  return out;
}

// sync_module_states: parameters are copied together until they are 250 MiB or more, two such
// buckets at once; one alone is a view (_init_utils.py, PARAM_BROADCAST_BUCKET_SIZE; c10d's
// comm.cpp, broadcast_coalesced; csrc/utils/tensor_flatten.h, flatten_dense_tensors).
void FlatParameters::send_unit(const Unit& unit, DType loaded, Start& start) const {
  constexpr std::int64_t kBucket = 250 << 20;
  std::vector<std::int32_t> sent;
  Bytes bucket;
  int tensors = 0;
  const auto send = [&] {
    if (sent.size() >= 2) start.drop(sent[sent.size() - 2]);
    sent.push_back(start.hold(tensors > 1 ? b_.rounded(bucket) : Bytes(0)));
    bucket = Bytes(0), tensors = 0;
  };
  for (const Parameter& p : *unit.parameters) {
    if (p.adapter) continue;
    bucket += storage(Count(p.elements), loaded);
    ++tensors;
    if (bucket.value() >= kBucket) send();
  }
  if (tensors > 0) send();
  for (std::size_t i = sent.size() - std::min<std::size_t>(sent.size(), 2); i < sent.size(); ++i)
    start.drop(sent[i]);
}

// Layer by layer, then the root: parameters are made (or moved to the GPU), concatenated, and the
// rank's part of that is cloned (_flat_param.py, flatten_tensors, shard) before any of them goes.
// What was loaded in 16 bits is cast when all is wrapped (Accelerate's upcast).
void FlatParameters::add_start(Start& start) const {
  const bool to_host = strategy_.offload.params;  // each shard goes there when it is cloned
  const DType loaded = strategy_.param_dtype.value_or(regime_.stored);
  std::vector<std::int32_t> low;
  const auto wrap = [&](const Unit& unit, std::int64_t instance) {
    const std::int32_t first = start.held();
    for (const Parameter& p : *unit.parameters)
      if (!p.adapter) start.hold(b_.rounded(storage(Count(p.elements), loaded)));
    // A rank that loads nothing makes a tied table for both modules, and then ties them again
    // (accelerate, utils/fsdp_utils.py, ensure_weights_retied).
    if (&unit == &s_.root && d_.tied_head)
      start.drop(
          start.hold(b_.rounded(storage(Count(checked_multiply(d_.vocab, d_.hidden)), loaded))));
    if (strategy_.data.sync_module_states) send_unit(unit, loaded, start);
    const std::int64_t width = storage(Count(1), regime_.weight).value();
    const std::int64_t elements = unit.full.value() / width;
    const std::int32_t flat = start.hold(b_.rounded(storage(Count(elements), loaded)));
    const bool kept = loaded == regime_.stored || !unit.trains;
    if (kept && !to_host)
      start.take_instance(unit.flat_shard, instance);
    else
      low.push_back(start.hold(b_.rounded(storage(Count(elements / s_.shards), loaded))));
    start.drop(first, flat);  // what has gone already goes no second time
    if (to_host) start.drop(low.back()), low.clear();
  };
  const auto each = [&](auto what) {
    for (const Run& run : s_.runs)
      for (std::int64_t i = 0; i < run.count; ++i)
        for (const Unit& unit : run.units) what(unit, i);
    what(s_.root, std::int64_t{-1});
  };
  each(wrap);
  if (low.empty()) return;
  std::size_t next = 0;
  each([&](const Unit& unit, std::int64_t instance) {
    if (!unit.trains) return;
    start.take_instance(unit.flat_shard, instance);
    start.drop(low[next++]);
  });
}

// SHARD_GRAD_OP gathers once a step, and no_sync reduces at the last micro-batch alone. A
// checkpoint around the unit gathers for its own forward too.
void FlatParameters::add_messages(const Unit& unit, Messages& out) const {
  using Kind = Message::Kind;
  using When = Message::When;
  const bool twice = checkpoints_around();
  const auto flat = [&](const Flat& sizes, bool trains) {
    Message gather = message(unit, Kind::all_gather, When::forward, sizes.full);
    if (!reshards()) gather.micros = Message::Micros::first;
    add(out, gather);
    Message again = message(unit, Kind::all_gather, When::backward, sizes.full);
    again.count = !twice ? unit.regathered : unit.regathered == unit.copies ? 2 * unit.copies : 0;
    add(out, again);
    if (!trains) return;
    add(out, message(unit, Kind::reduce_scatter, When::reduction, sizes.reduce_input));
    add(out, message(unit, Kind::all_reduce, When::reduction, sizes.reduce_output));
  };
  flat({.full = unit.gathered,
        .reduce_input = unit.reduce_input,
        .reduce_output = unit.reduce_output},
       unit.trains);
  for (const Parameter& p : *unit.parameters) {
    if (!p.adapter) continue;
    if (ignores_adapters())
      add(out, message(unit, Kind::all_reduce, When::reduction,
                       b_.rounded(storage(Count(p.elements), adapter_stored()))));
    else
      flat(adapter_of(p.elements), true);
  }
}

}  // namespace plimsoll::planner::pytorch

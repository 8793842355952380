// FSDP2: what a unit takes, and its messages.
//
// An all-gather per unit and pass of every micro-batch (the tail's once: it is not resharded), each
// issued while the unit before it computes, and copied out of; a reduce-scatter per unit at the
// last one, copied into, beside the backward of the next; hybrid sharding all-reduces the shards
// across groups.
#include <algorithm>

#include "planner/stacks/pytorch/wrappers/fsdp2.h"

namespace plimsoll::planner::pytorch {

using Kind = Message::Kind;
using When = Message::When;

// Elements of the rank's rows, padding among them.
SymInt FullyShard::shard_of(const Parameter& p) const {
  return ceil_divide(p.rows, s_.shards) * (p.elements / p.rows);
}

DType FullyShard::reduced_in(const Parameter& p) const {
  return strategy_.data.reduce_dtype.value_or(p.adapter ? s_.seen(p) : regime_.reduce);
}

// torchao, float8/fsdp_utils.py: WeightWithDynamicFloat8CastTensor casts a shard before it is
// gathered (fsdp_pre_all_gather), by the scale that was made of all shards behind the last step.
DType FullyShard::gathered_in(const Parameter& p) const {
  return p.float8 && strategy_.fp8_all_gather ? DType::fp8_e4m3 : s_.seen(p);
}

// What the casts take while they run, one shard after another, beyond the casts and what is
// gathered: the shard in fp32 times its scale, and that clamped.
SymBytes FullyShard::cast_scratch(const Unit& unit) const {
  SymBytes most, before;
  if (unit.empty() || !strategy_.fp8_all_gather) return most;
  for (const Parameter& p : *unit.parameters) {
    if (!p.float8) continue;
    const SymBytes wide = b_.rounded(storage(shard_of(p), DType::fp32));
    before += b_.rounded(storage(shard_of(p), DType::fp8_e4m3));
    most = larger(most, before + wide + wide);
  }
  const SymBytes made = unit.cast + unit.gathered;
  return larger(most, made) - made;
}

// The copy into the reduce-scatter's input (_chunk_cat, ATen/native/cuda/TensorShape.cu) reads a
// table of 8-byte entries: 6 a gradient, 2 more, and one per 2 KiB of every gradient's part. It
// casts bf16 to fp32 in its kernel, and no other dtypes (_chunk_cat_out_cuda): gradients of others
// are padded first to rows that the ranks share evenly.
SymBytes FullyShard::copy_scratch(const Unit& unit) const {
  constexpr std::int64_t kChunkCatBlock = 2048;
  SymInt blocks = 0;
  std::int64_t trained = 0;
  bool one_kernel = true;
  for (const Parameter& p : *unit.parameters) {
    if (!p.trainable) continue;
    const DType dtype = s_.seen(p), reduce = reduced_in(p);
    one_kernel = one_kernel && (dtype == reduce || (dtype == DType::bf16 && reduce == DType::fp32));
    blocks = blocks + ceil_divide(storage(shard_of(p), reduce).value(), kChunkCatBlock);
    ++trained;
  }
  if (one_kernel) return b_.rounded(SymBytes(8 * (blocks + 6 * trained + 2)));
  SymBytes padded;
  for (const Parameter& p : *unit.parameters)
    if (p.trainable && p.rows % s_.shards != 0)
      padded += b_.rounded(storage(shard_of(p) * s_.shards, s_.seen(p)));
  return padded;
}

void FullyShard::size(Unit& unit) const {
  unit.reshards = strategy_.data.zero >= 3 && unit.group != models::kNoGroup;
  if (unit.empty()) return;
  SymBytes gathered, cast, reduced, wanted;  // of this rank's shards
  bool converts = false;
  for (const Parameter& p : *unit.parameters) {
    const SymInt shard = shard_of(p);
    const DType dtype = gathered_in(p);
    unit.full += b_.rounded(storage(shard * s_.shards, dtype));
    gathered += storage(shard, dtype);
    // From the host each shard comes in a block of its own, and is cast there; so is one of float8.
    if (strategy_.offload.params || dtype == DType::fp8_e4m3)
      cast += b_.rounded(storage(shard, dtype));
    else if (s_.stored(p) != dtype)
      cast += storage(shard, dtype);
    if (!p.trainable) continue;
    const DType reduce = reduced_in(p);
    reduced += storage(shard, reduce);
    wanted += storage(shard, s_.stored(p));
    converts = converts || reduce != s_.stored(p);
  }
  if (s_.shards > 1) unit.gathered = b_.rounded(gathered * s_.shards);
  unit.cast = b_.rounded(cast);
  unit.reduce_input = b_.rounded(reduced * s_.shards);
  unit.reduce_output = b_.rounded(reduced);
  unit.copy_scratch = copy_scratch(unit);
  if (converts) unit.shard_grad_cast = b_.rounded(wanted);
}

// What `full` is made of: FSDP2 copies each parameter out of the gathered ones.
std::vector<Bytes> FullyShard::full_parts(const Unit& unit) const {
  std::vector<Bytes> parts;
  for (const Parameter& p : *unit.parameters) {
    const SymInt rows = ceil_divide(p.rows, s_.shards) * s_.shards;
    parts.push_back(b_.rounded(storage(rows * (p.elements / p.rows), gathered_in(p))));
  }
  return parts;
}

TensorId FullyShard::tensor_of(const Unit& unit, const char* name, SymBytes bytes,
                               Category category, models::Stream stream) {
  return b_.tensor_in(unit.group, name, bytes, category, models::Residency::step, stream);
}

void FullyShard::declare_gathers(Unit& unit) {
  if (unit.empty()) return;
  const auto tensor = [&](const char* name, SymBytes bytes, Category category,
                          models::Stream stream) {
    return tensor_of(unit, name, bytes, category, stream);
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
}

void FullyShard::declare(Unit& unit) {
  unit.begin_micro_batch();
  if (unit.empty()) return;
  declare_gathers(unit);
  unit.reduce_in = unit.shard_grad = kNoTensor;
  if (!s_.last_micro()) return;
  unit.reduce_in = tensor_of(unit, "fsdp.reduce_scatter_input", unit.reduce_input,
                             Category::communication, models::Stream::compute);
  if (strategy_.offload.params) return;  // it goes to the host when it is made
  unit.shard_grad =
      tensor_of(unit, "fsdp.sharded_grad",
                unit.shard_grad_cast == Bytes(0) ? unit.reduce_output : unit.shard_grad_cast,
                Category::gradients, models::Stream::reduce);
}

void FullyShard::add_messages(const Unit& unit, Messages& out) const {
  Bytes read, full;  // of gradients; of parameters
  for (const Parameter& p : *unit.parameters) {
    const SymInt rows = ceil_divide(p.rows, s_.shards) * s_.shards;
    full += storage(rows * (p.elements / p.rows), gathered_in(p));
    if (p.trainable) read += storage(rows * (p.elements / p.rows), s_.seen(p));
  }
  Message gather = message(unit, Kind::all_gather, When::forward, unit.gathered);
  gather.copied = 2 * full.real();
  gather.count *= unit.calls;
  add(out, gather);
  Message again = message(unit, Kind::all_gather, When::backward, unit.gathered);
  again.copied = gather.copied;
  again.count = unit.regathered * unit.calls;
  add(out, again);
  Message reduce = message(unit, Kind::reduce_scatter, When::reduction, unit.reduce_input);
  reduce.copied = (read + unit.reduce_input).real();
  add(out, reduce);
  add(out, message(unit, Kind::all_reduce, When::reduction, unit.reduce_output));
}

}  // namespace plimsoll::planner::pytorch

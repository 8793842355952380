// DistributedDataParallel's buckets, and what it allocates while it is made (torch 2.11,
// nn/parallel/distributed.py, csrc/distributed/c10d/reducer.cpp).
#include <algorithm>
#include <array>
#include <utility>

#include "models/decisions/mesh.h"
#include "models/storages.h"
#include "planner/stacks/pytorch/wrappers/replicated.h"

namespace plimsoll::planner::pytorch {

using models::Residency;

namespace {
constexpr std::int64_t kFirstBucket = 1 << 20;  // dist._DEFAULT_FIRST_BUCKET_BYTES
constexpr std::int64_t kDefaultBucket = 25 << 20;
constexpr std::int64_t kBroadcast = 250 << 20;  // broadcast_bucket_size

// Flat tensors of parameters in a row, each closed by the parameter with which it reaches its
// limit (compute_bucket_assignment_by_size).
class FlatTensors {
 public:
  FlatTensors(std::int64_t first_limit, std::int64_t limit) : now_(first_limit), limit_(limit) {}
  // Whether that closes one.
  bool add(Bytes parameter) {
    content_ += parameter.value();
    if (content_ < now_) return false;
    close();
    return true;
  }
  std::vector<std::int64_t> take() {
    if (content_ > 0) close();
    return std::move(full_);
  }

 private:
  void close() {
    full_.push_back(content_);
    content_ = 0;
    now_ = limit_;
  }
  std::int64_t now_, limit_, content_ = 0;
  std::vector<std::int64_t> full_;
};
}  // namespace

// After the first step gradients are bucketed in the order in which they became ready: from the
// back of the model to its front. That of a table which the head shares is whole after the
// embedding's backward: it comes last.
std::vector<Replicated::Bucket> Replicated::buckets() const {
  const std::int64_t cap = strategy_.data.bucket_cap.value();
  FlatTensors flat(cap == kDefaultBucket ? kFirstBucket : cap, cap);
  std::vector<Bucket> out;
  Bucket at{.part = Message::Part::tail};
  const auto add = [&](const Parameter& p) {
    if (p.trainable && flat.add(storage(Count(p.elements), s_.stored(p)))) out.push_back(at);
  };
  const std::int64_t table = d_.tied_head ? checked_multiply(d_.vocab, d_.table_width()) : 0;
  const Parameter* shared = nullptr;
  for (auto p = parts_.tail.rbegin(); p != parts_.tail.rend(); ++p)
    if (p->elements == table && shared == nullptr)
      shared = &*p;
    else
      add(*p);
  at.part = Message::Part::layer;
  for (auto run = parts_.runs.rbegin(); run != parts_.runs.rend(); ++run) {
    std::vector<std::vector<Parameter>> layers;
    for (const LayerPart& layer : run->pattern)
      layers.push_back(in_backward_order(layer.parameters));
    for (auto i = static_cast<std::size_t>(run->count); i-- > 0;)
      for (const Parameter& p : layers[i % layers.size()]) add(p);
  }
  at = {};
  for (const Parameter& p : in_backward_order(parts_.embedding)) add(p);
  if (shared != nullptr) add(*shared);
  const std::vector<std::int64_t> sizes = flat.take();
  out.resize(sizes.size(), at);
  for (std::size_t i = 0; i < sizes.size(); ++i) out[i].bytes = b_.rounded(Bytes(sizes[i]));
  return out;
}

void Replicated::declare_buckets() {
  const std::vector<Bucket> all = buckets();
  const auto bucket = [&](Bytes bytes) {
    const TensorId tensor = b_.tensor_in(models::kNoGroup, "ddp.buckets", bytes,
                                         Category::communication, Residency::persistent);
    if (first_bucket_ == kNoTensor) first_bucket_ = tensor;
    last_bucket_ = tensor;
  };
  first_bucket_ = last_bucket_ = kNoTensor;
  if (rules_.each_parameter) {
    for (const Bucket& one : all) bucket(one.bytes);
    return;
  }
  Bytes sum;
  for (const Bucket& one : all) sum += one.bytes;
  bucket(sum);
}

// Buffers that a forward is preceded by the broadcast of: a checkpoint's integers, scales and
// biases (GPTQ, AWQ), which are no parameters. Flat copies of one dtype each, in the order of their
// first tensors, of which two live at a time (csrc/distributed/c10d/comm.cpp, broadcast_coalesced).
Bytes Replicated::packed_buffers() const {
  if (!strategy_.quantize || !strategy_.quantize->storage->grouped) return {};
  struct Flat {
    std::int64_t first, bytes;
  };
  std::vector<Flat> all;
  std::array<Flat, 2> open{};
  std::int64_t index = 0;
  const auto add = [&](Flat& flat, Bytes bytes) {
    if (flat.bytes == 0) flat.first = index;
    ++index;
    flat.bytes += bytes.value();
    if (flat.bytes >= kBroadcast) all.push_back(std::exchange(flat, {}));
  };
  for (const LayerRun& run : parts_.runs)
    for (std::int64_t i = 0; i < run.count; ++i)
      for (const Parameter& p : run.layer(i).parameters) {
        if (p.bias_of_packed) add(open[1], storage(Count(p.elements), DType::fp16));
        if (p.packed == nullptr) continue;
        for (const auto& tensor :
             models::packed_tensors(*p.packed, p.unpacked, strategy_.quantize->held_in))
          add(open[tensor.dtype == p.packed->scale ? 1 : 0], tensor.bytes());
      }
  for (const Flat& flat : open)
    if (flat.bytes > 0) all.push_back(flat);
  std::ranges::sort(all, std::ranges::less{}, &Flat::first);
  std::int64_t most = 0, before = 0;
  for (const Flat& flat : all)
    most = std::max(most, std::exchange(before, flat.bytes) + flat.bytes);
  return Bytes(most);
}

// Rank 0's parameters are broadcast in flat copies, two at a time; then one bucket is made for all
// gradients, which gives way to those in the order of the backward when the second step begins.
void Replicated::add_start(Start& start) const {
  if (first_bucket_ == kNoTensor) return;
  start.take_model();
  FlatTensors broadcast(kBroadcast, kBroadcast);
  std::int64_t gradients = 0;
  const auto all = [&](const std::vector<Parameter>& parameters) {  // in the model's order
    for (const Parameter& p : parameters) {
      const Bytes bytes = storage(Count(p.elements), s_.stored(p));
      broadcast.add(bytes);
      if (p.trainable) gradients += bytes.value();
    }
  };
  all(parts_.embedding);
  for (const LayerRun& run : parts_.runs)
    for (std::int64_t i = 0; i < run.count; ++i) all(run.layer(i).parameters);
  all(parts_.tail);
  std::int32_t before = -1;
  for (const std::int64_t bytes : broadcast.take()) {
    const std::int32_t copy = start.hold(Bytes(bytes));
    if (before >= 0) start.drop(before);
    before = copy;
  }
  if (before >= 0) start.drop(before);
  const std::int32_t whole = start.hold(Bytes(gradients));
  start.before_second_step();
  start.drop(whole);
  start.take(first_bucket_, last_bucket_);
}

// One all-reduce a bucket, at the last micro-batch, while the backward goes on (reducer.cpp). Under
// ZeroRedundancyOptimizer owners broadcast each parameter that they stepped
// (zero_redundancy_optimizer.py, _sync_params).
void Replicated::write_messages(Messages& out) {
  Unit unit;
  unit.layer = Message::kAnyLayer;
  for (const Bucket& bucket : buckets()) {
    unit.part = bucket.part;
    add(out, message(unit, Message::Kind::all_reduce, Message::When::reduction, bucket.bytes));
  }
  if (!partitions_) return;
  const auto broadcast = [&](const std::vector<Parameter>& parameters, std::int64_t copies) {
    for (const Parameter& p : parameters)
      if (p.trainable)
        add(out, {.kind = Message::Kind::broadcast,
                  .array = storage(Count(p.elements), s_.stored(p)),
                  .count = copies,
                  .group = models::decisions::mesh_of(strategy_).data(),
                  .when = Message::When::step});
  };
  broadcast(parts_.embedding, 1);
  for (const LayerRun& run : parts_.runs)
    for (const LayerPart& layer : run.pattern) broadcast(layer.parameters, run.repeats());
  broadcast(parts_.tail, 1);
}

}  // namespace plimsoll::planner::pytorch

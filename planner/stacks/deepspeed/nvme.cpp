#include "planner/stacks/deepspeed/nvme.h"

#include <algorithm>
#include <string>

#include "models/optimizers.h"
#include "planner/stacks/deepspeed/engine_wrapper.h"

namespace plimsoll::planner::deepspeed {

// stage3.py, partition_grads: one after another each part comes from its place on the host, its
// norm is taken in fp64 (250 million elements at a time), and it is cast to the masters' dtype;
// those casts of the whole bucket wait for one another.
std::int64_t OnTheWay::most() const {
  constexpr std::int64_t norm_at_a_time = 250'000'000;
  const std::int64_t norm = bits(DType::fp64) * wide_ / bits(state_);
  std::int64_t most = 0, casts = 0;
  for (auto at = parts_.rbegin(); at != parts_.rend(); ++at) {
    const std::int64_t part = *at;
    most = std::max(most, casts + part + std::min(part, norm_at_a_time) * norm);
    casts += part * wide_;
    most = std::max(most, casts + (wide_ > 1 ? part : 0));
  }
  return most;
}

std::int64_t OnTheWay::staying() const {
  std::int64_t sum = 0;
  for (const std::int64_t part : parts_)
    if (gradient_stays(part, state_)) sum += part * wide_;
  return sum;
}

namespace {

void refuse_param_buffers(const FlatLayout& layout, const Engine& engine) {
  const models::NvmeOptions& o = engine.options.nvme;
  std::int64_t largest = 0;
  for (const FlatLayout::Part& part : layout.shards().parts) {
    const bool file = goes_to_file(part.elements, engine.model);
    if (file) largest = std::max(largest, part.elements);
    check(!(file && part.adapter), ErrorKind::unsupported,
          "--offload-to nvme: adapters of which a rank has 1 MiB or more are not modelled yet in "
          "files (a smaller --lora-rank, or more --gpus)");
  }
  check(largest <= o.param_buffer_size, ErrorKind::bad_input, [&] {
    return "--offload-param-buffer-size " + std::to_string(o.param_buffer_size) +
           ": a rank's part of the largest tensor is " + std::to_string(largest) +
           " elements, and DeepSpeed refuses what its offload_param.buffer_size does not hold "
           "(\"More elements " +
           std::to_string(largest) + " than buffer size " + std::to_string(o.param_buffer_size) +
           "\"); at least " + std::to_string(largest) + " are accepted";
  });
  check(largest == 0 || o.param_buffer_count > 0, ErrorKind::bad_input,
        "--offload-param-buffer-count 0: DeepSpeed's offload_param.buffer_count must be at least "
        "1");
}

}  // namespace

void refuse_buffers(const FlatLayout& layout, const Engine& engine) {
  if (!engine.offload.nvme) return;
  if (engine.offload.params) refuse_param_buffers(layout, engine);
  if (!engine.offload.optimizer) return;
  const std::int64_t count = engine.options.nvme.optimizer_buffer_count;
  // swap_in_optimizer_state: a sub-group's parameters, gradients and states at a time.
  const bool files = goes_to_file(layout.shards().sub_group, engine.state);
  const std::int64_t needed =
      files ? 2 + std::ssize(models::rule_of(models::Optimizer::adamw).states) : 1;
  check(count >= needed, ErrorKind::bad_input, [&] {
    return "--offload-optimizer-buffer-count " + std::to_string(count) +
           ": DeepSpeed's offload_optimizer.buffer_count must be at least " +
           std::to_string(needed) +
           (files ? ": parameters, gradients and the optimizer's states" : "");
  });
}

bool EngineWrapper::optimizer_in_files() const {
  return engine_.offload.nvme && engine_.offload.optimizer &&
         goes_to_file(layout_.shards().sub_group, engine_.state);
}

bool EngineWrapper::gradient_stays(std::int64_t elements) const {
  return optimizer_in_files() && s_.last_micro() &&
         deepspeed::gradient_stays(ceil_divide(elements, engine_.ranks), engine_.state);
}

// Their bytes at the backward's end.
Bytes EngineWrapper::gradients_that_stay() const {
  Bytes sum;
  if (!optimizer_in_files()) return sum;
  for (const FlatLayout::Block& block : layout_.blocks())
    for (const std::int64_t elements : block.parameters)
      if (const std::int64_t part = ceil_divide(elements, engine_.ranks);
          deepspeed::gradient_stays(part, engine_.state))
        sum += bytes(part, engine_.state) * block.count;
  return sum;
}

// Of one that is reduced with the last bucket, at the backward's end (epilogue).
void EngineWrapper::keep_gradient(OpBuilder arrival, const Hook* hook, std::int64_t elements) {
  if (!gradient_stays(elements) || (hook != nullptr && hook->last)) return;
  const TensorId kept =
      b_.tensor("zero3.unswapped_gradient",
                bytes(ceil_divide(elements, engine_.ranks), engine_.state), Category::gradients);
  arrival.write(kept);
  unswapped_.push_back(kept);
}

void EngineWrapper::keep_last_gradients(OpBuilder reduce) {
  Bytes sum;
  for (const HookRun& run : hook_runs_)
    for (const Hook& hook : run.hooks)
      if (hook.last && gradient_stays(hook.elements))
        sum += bytes(ceil_divide(hook.elements, engine_.ranks), engine_.state) * run.repeats;
  if (sum == Bytes(0)) return;
  const TensorId kept = b_.tensor("zero3.unswapped_gradients", sum, Category::gradients);
  reduce.write(kept);
  unswapped_.push_back(kept);
}

// What of a sub-group's states is in files, and in the buffers that it comes through.
void EngineWrapper::add_optimizer_files(HostMemory& host) const {
  const FlatLayout::Shards& shards = layout_.shards();
  const auto states = std::ssize(models::rule_of(strategy_.optimizer).states);
  host.lock(in_file(shards.sub_group, engine_.state) * engine_.options.nvme.optimizer_buffer_count);
  for (const std::int64_t group : shards.sub_groups)
    if (goes_to_file(group, engine_.state))
      host.nvme += in_file(group, engine_.state) * (1 + states);
  if (!optimizer_in_files()) return;
  for (const FlatLayout::Block& block : layout_.blocks())
    for (const std::int64_t elements : block.parameters)
      if (const std::int64_t part = ceil_divide(elements, engine_.ranks);
          goes_to_file(part, engine_.state)) {
        const Bytes all = storage(Count(part), engine_.state);
        host.nvme += (all - Bytes(all.value() % kFileAlignment.value())) * block.count;
      }
}

// stage3.py, _create_fp16_partitions_with_defragmentation: as many parameters as max_in_cpu leave
// their files for good, a whole sub-group at a time. One that does not fit stays there, and is
// written through a buffer of the largest sub-group's parameters, uncut.
void EngineWrapper::add_param_files(HostMemory& host) const {
  const FlatLayout::Shards& shards = layout_.shards();
  const models::NvmeOptions& o = engine_.options.nvme;
  const std::int64_t alignment = kFileAlignment.value() * 8 / bits(engine_.model);
  const std::int64_t aligned = ceil_divide(o.param_buffer_size, alignment) * alignment;
  host.lock(storage(Count(checked_multiply(aligned, o.param_buffer_count)), engine_.model));
  for (const FlatLayout::Part& part : shards.parts)
    if (goes_to_file(part.elements, engine_.model))
      host.nvme += in_file(part.elements, engine_.model) * part.count;
  // zero.Init wrote the head's table before the model tied it to the embedding's.
  const std::int64_t table =
      d_.tied_head ? ceil_divide(checked_multiply(d_.vocab, d_.table_width()), engine_.ranks) : 0;
  if (goes_to_file(table, engine_.model)) host.nvme += in_file(table, engine_.model);
  if (has_params_in_files()) host.lock(shards.sub_group_uncut);
}

bool EngineWrapper::has_params_in_files() const {
  const std::int64_t in_cpu = std::min(layout_.shards().trained, engine_.options.nvme.max_in_cpu);
  std::int64_t all = 0;
  for (const std::int64_t group : layout_.shards().sub_groups) {
    all += group;
    if (all > in_cpu) return true;
  }
  return false;
}

}  // namespace plimsoll::planner::deepspeed

// What Unsloth keeps beside a model: unsloth 2025.11.6, models/llama.py and kernels/utils.py;
// unsloth_zoo 2025.11.6, gradient_checkpointing.py.
#include <algorithm>

#include "planner/stacks/pytorch/step_writer.h"

namespace plimsoll::planner::pytorch {

using models::Residency;

namespace {

// LlamaRotaryEmbedding: rows of its tables. Up to 32768 it makes as many as the model has
// positions, and then grows by 8192.
std::int64_t table_rows(std::int64_t positions) {
  constexpr std::int64_t kFirst = 4 * 8192, kStep = 8192;
  return positions <= kFirst ? positions : ceil_divide(positions, kStep) * kStep;
}

// The largest weight that matmul_lora unpacks, and the most scales of one.
struct Unpacked {
  std::int64_t values = 0, scales = 0;
};

Unpacked largest_unpacked(const ModelParts& parts) {
  Unpacked most;
  for (const LayerRun& run : parts.runs)
    for (const LayerPart& layer : run.pattern)
      for (const LinearPart& part : layer.linears) {
        if (part.packed == nullptr || part.lora_rank == 0 || part.bias) continue;
        const std::int64_t values = checked_multiply(part.in, part.out);
        most.values = std::max(most.values, values);
        most.scales = std::max(most.scales, ceil_divide(values, part.packed->block));
      }
  return most;
}

}  // namespace

void StepWriter::declare_unsloth_inputs() {
  const auto persistent = [&](const char* name, SymBytes bytes, Category category) {
    if (bytes > Bytes(0))
      s_.b.tensor_in(models::kNoGroup, name, bytes, category, Residency::persistent);
  };
  const std::int64_t table = checked_multiply(table_rows(s_.parts.max_positions), s_.d.head_dim);
  for (const char* name : {"rotary.cos", "rotary.sin"})
    persistent(name, s_.layer.bytes(table, s_.regime.weight), Category::parameters);
  for (const char* name : {"rotary.cos_cached", "rotary.sin_cached"})  // of one value
    persistent(name, s_.layer.bytes(1, s_.regime.weight), Category::parameters);
  const Unpacked most = largest_unpacked(s_.parts);
  persistent("unpacked.weight", s_.layer.bytes(most.values, s_.regime.compute),
             Category::temporaries);
  persistent("unpacked.scales", s_.layer.fp32(most.scales), Category::temporaries);
  if (s_.strategy.offload.activations) declare_input_buffer();
  declare_batch();
}

// unsloth_zoo, gradient_checkpointing.py: a buffer on the device of at least 2 x 256 x 2048 values,
// through which inputs of more than MINIMUM_SIZE come back, and pinned buffers on the host: 200 to
// begin with, which grow as they are used.
void StepWriter::declare_input_buffer() {
  constexpr std::int64_t kLeast = 2 * 256 * 2048, kBuffers = 200, kFirst = 128 * 1024;
  const SymInt values = s_.tokens.total() * s_.d.hidden;
  const bool offloads = values > SymInt(kLeast);
  const TensorId buffer = s_.b.tensor_in(models::kNoGroup, "activations.buffer",
                                         s_.layer.bytes(larger(values, kLeast), s_.regime.residual),
                                         Category::activations, Residency::persistent);
  for (std::int64_t i = 0; i < kBuffers; ++i)
    s_.host.pin(s_.layer.bytes(kFirst, s_.regime.residual));
  if (!offloads) return;
  s_.input_buffer = buffer;
  for (std::int64_t i = 0; i < s_.d.layers; ++i) s_.host.pin(s_.stream_bytes());
}

}  // namespace plimsoll::planner::pytorch

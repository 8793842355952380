// Faults of the runtime: what really happens to memory is held against an honest plan.
#include <doctest/doctest.h>

#include <functional>

#include "models/storages.h"
#include "tests/honesty/scenario.h"
#include "tests/honesty/seams.h"

namespace plimsoll::honesty {
namespace {

using models::Phase;

std::string difference_of(const Case& planned, const witness::Measured& run) {
  return first_difference(prediction_of(planned, witness::predicted(planned)), run);
}

void check_caught(const char* what, const Case& workload, const RuntimeFault& fault,
                  const char* named) {
  CAPTURE(what);
  CHECK(difference_of(workload, run_with({}, workload)) == "");
  const std::string difference = difference_of(workload, run_with(fault, workload));
  CAPTURE(difference);
  CHECK(difference.find(named) != std::string::npos);
}

TEST_CASE("a tensor that outlives its last owner is caught and named") {
  check_caught("a late destructor: attention's gradient goes between two ops", llama(1, 0),
               {.kept = Kept{"layers.2.self_attn.attention.out.grad", 0}},
               "layers.2.self_attn.attention.out.grad (3,840 B): dies op 60");
  check_caught("a temporary held until the norm's backward", llama(2, 0),
               {.kept = Kept{"layers.1.mlp.down_proj.input.grad", 3}},
               "layers.1.mlp.down_proj.input.grad (3,200 B): dies");
  check_caught("a saved activation leaks", llama(1, 0),
               {.kept = Kept{"layers.1.mlp.up_proj.out", kForLong}},
               "layers.1.mlp.up_proj.out (3,200 B): dies");
  check_caught("gathered parameters not freed", llama(2, 3),
               {.kept = Kept{"layers.1.parameters.gathered", kForLong}},
               "layers.1.parameters.gathered (24,000 B): dies");
  check_caught("whole gradients kept after they are reduced", llama(2, 2),
               {.kept = Kept{"layers.1.gradients", 2}}, "layers.1.gradients (24,000 B): dies");
  check_caught("a cast kept after its sum is taken", cast(2, 1),
               {.kept = Kept{"layers.1.gradients.compressed", 2}},
               "layers.1.gradients.compressed (12,000 B): dies");
  check_caught("whole gradients kept beside their cast", cast(2, 2),
               {.kept = Kept{"layers.1.gradients", 2}}, "layers.1.gradients (24,000 B): dies");
  check_caught("gradients that no zero_grad frees", llama(1, 0),
               {.kept = Kept{"tail.gradients", kForLong}}, "tail.gradients");
  Case recomputes = llama(1, 0);
  recomputes.strategy.recompute.kind = models::RecomputeKind::full;
  check_caught("the layer's values of the forward kept although they are made again", recomputes,
               {.kept = Kept{"layers.0.mlp.up_proj.out", 4}}, "layers.0.mlp.up_proj.out");
}

// 24 · 48 values in 2 bytes.
TEST_CASE("a weight that is kept unpacked is caught and named") {
  check_caught("the temporary of a forward kept until the backward", packed(1, 0),
               {.kept = Kept{"layers.1.self_attn.q_proj.weight.dequantized", kForLong}},
               "layers.1.self_attn.q_proj.weight.dequantized (2,304 B): dies");
  check_caught("for one op more", packed(2, 3),
               {.kept = Kept{"layers.0.mlp.down_proj.weight.dequantized", 0}},
               "layers.0.mlp.down_proj.weight.dequantized (1,920 B): dies");
}

TEST_CASE("a tensor that nobody planned is caught and named") {
  check_caught("a leak", llama(1, 0),
               {.stray = Stray{"layers.1.mlp.act", Phase::forward, "leak", Bytes(64), kForLong}},
               "leak (64 B), born op 26 (forward layers.1.mlp.act): measured, and not predicted");
  check_caught("a block of an op of its own, gone before the op is over", llama(1, 0),
               {.stray = Stray{"layers.0.mlp.act", Phase::backward, "block", Bytes(4096), 0}},
               "block (4,096 B)");
  check_caught("one byte between two ops", llama(1, 0),
               {.stray = Stray{"optimizer.grad_norm", Phase::optimizer, "byte", Bytes(1), 1}},
               "byte (1 B)");
  check_caught("a leak on one rank of three", llama(3, 1),
               {.stray = Stray{"loss", Phase::forward, "leak", Bytes(256), kForLong}, .rank = 1},
               "rank 1, leak (256 B)");
}

// The run follows another decision than the plan.
void check_another(const char* what, const Case& planned,
                   const std::function<void(Case& run)>& change, const char* named) {
  CAPTURE(what);
  CHECK(difference_of(planned, witness::measured(planned)) == "");
  Case other = planned;
  change(other);
  const std::string difference = difference_of(planned, witness::measured(other));
  CAPTURE(difference);
  CHECK(difference.find(named) != std::string::npos);
}

TEST_CASE("a run that follows another decision than the plan is caught, and its tensor named") {
  const auto config = [](std::int64_t layers) {
    return R"({"model_type": "llama", "hidden_size": 24, "num_attention_heads": 6,
        "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 40, "vocab_size": 67,
        "max_position_embeddings": 64, "num_hidden_layers": )" +
           std::to_string(layers) + "}";
  };
  check_another(
      "one layer more", llama(1, 0), [&](Case& run) { run.config = config(4); }, "layers.3.");
  check_another(
      "an activation freed too early: norms made again", llama(1, 0),
      [](Case& run) { run.strategy.recompute.kind = models::RecomputeKind::selective; },
      "layers.0.input_layernorm.out (1,920 B): dies op 102");
  Case recomputes = llama(1, 0);
  recomputes.strategy.recompute.kind = models::RecomputeKind::full;
  check_another(
      "a missing recomputation", recomputes,
      [](Case& run) { run.strategy.recompute.kind = models::RecomputeKind::none; },
      "layers.0.input_layernorm.statistics");
  Case mixed = llama(2, 1);
  mixed.strategy.precision = models::Precision::bf16_mixed;
  mixed.strategy.master_weights = false;
  check_another(
      "moments in 16 bits", mixed,
      [](Case& run) {
        run.strategy.precision = models::Precision::bf16;
        run.strategy.master_weights = {};
      },
      "exp_avg");
  Case adapted = mixed;
  adapted.strategy.lora = models::Lora{.rank = 3, .alpha = 6, .targets = {"all-linear"}};
  check_another(
      "adapters in 16 bits", adapted, [](Case& run) { run.strategy.lora->dtype = DType::bf16; },
      "parameters");
  check_another(
      "another optimizer", llama(1, 0),
      [](Case& run) { run.strategy.optimizer = models::Optimizer::momentum; }, "embedding.exp_avg");
  Case in_8_bits = llama(2, 2);
  in_8_bits.strategy.optimizer = models::Optimizer::adam8bit;
  check_another(
      "moments in fp32 that were planned in 8 bits", in_8_bits,
      [](Case& run) { run.strategy.optimizer = models::Optimizer::adamw; }, "exp_avg");
  check_another(
      "one moment in 8 bits that were planned to be two", in_8_bits,
      [](Case& run) { run.strategy.optimizer = models::Optimizer::lion8bit; }, "exp_avg_sq");
  check_another(
      "a base that is not packed", packed(2, 0), [](Case& run) { run.strategy.quantize.reset(); },
      "parameters");
  check_another(
      "scales in fp32 that were planned in 8 bits", packed(2, 3),
      [](Case& run) { run.strategy.quantize->storage = models::find_packed_storage("nf4"); },
      "parameters");
  // A scale for each row of 16 or more values, where each 256 had a scale and a zero.
  check_another(
      "rows in 8 bits that were planned as blocks", packed(2, 3, "int8-affine"),
      [](Case& run) { run.strategy.quantize->storage = models::find_packed_storage("int8"); },
      "parameters");
  check_another(
      "a sequence more", llama(1, 0), [](Case& run) { run.batch.micro_batch = 3; }, "batch.ids");
  check_another(
      "shards of two ranks instead of four", llama(4, 3),
      [](Case& run) { run.strategy.data.shard_group = 2; }, "embedding.exp_avg");
  check_another(
      "gradients that stay whole", llama(2, 2), [](Case& run) { run.strategy.data.zero = 1; },
      "backward tail.reduced predicted, backward tail.reduce measured");
}

}  // namespace
}  // namespace plimsoll::honesty

// --loss fused and chunked of stack pytorch, worked out by hand.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>

#include "models/model_catalog.h"
#include "planner/program/timeline.h"
#include "planner/stacks/pytorch/stack.h"

using namespace plimsoll;

namespace {

// llama-3.1-8b in pure bf16, one sequence of 8192, every layer recomputed, SGD.
struct Written {
  models::StepProgram program;
  planner::Timeline timeline;
  explicit Written(models::Loss loss) {
    const models::ModelSpec model = models::catalog_model("llama-3.1-8b");
    models::Strategy strategy;
    strategy.precision = models::Precision::bf16;
    strategy.loss = loss;
    strategy.optimizer = models::Optimizer::sgd;
    strategy.recompute.kind = models::RecomputeKind::full;
    const planner::ModelParts parts = planner::model_parts(model, strategy);
    planner::pytorch::Rules rules;
    rules.granularity = 1;
    planner::pytorch::step_writer(program, parts, strategy, {.seq_len = 8192}, rules)->write();
    timeline = planner::unroll(program);
  }
  Bytes tensor(const char* name) const {
    for (const models::TensorDecl& t : program.tensors)
      if (std::strcmp(t.name, name) == 0) return t.bytes;
    return Bytes(-1);
  }
  // Alive between forward and backward.
  Bytes after_forward() const {
    Bytes last;
    for (const planner::Moment& moment : timeline.steps)
      if (program.ops[moment.at.op].phase == models::Phase::forward) last = moment.after;
    return last;
  }
  Bytes forward_peak() const {
    Bytes most;
    for (const planner::Moment& moment : timeline.steps)
      if (program.ops[moment.at.op].phase == models::Phase::forward)
        most = std::max(most, moment.high_water);
    return most;
  }
};

constexpr std::int64_t kT = 8192, kV = 128'256, kH = 4096;

}  // namespace

TEST_CASE("Liger's chunk holds as many logits as there are hidden values") {
  // V / h = 31.3: 32; T / 32 = 256 rows, a power of two; 256 · 128256 · 2 bytes.
  CHECK(Written(models::Loss::fused).tensor("loss.logits.chunk") == Bytes(65'667'072));
}

TEST_CASE("the fused loss leaves two gradients to backward instead of log-probabilities") {
  const Bytes full = Written(models::Loss::full).after_forward();
  const Bytes fused = Written(models::Loss::fused).after_forward();
  // Full: 4 T V, the total weight (4 B) and the saved input of the head, 2 T h. Fused: d(hidden)
  // 2 T h and d(weight) 2 V h.
  CHECK(full - fused == Bytes(4 * kT * kV + 4 + 2 * kT * kH - 2 * kT * kH - 2 * kV * kH));
}

TEST_CASE("the chunked loss upcasts an eighth of the logits at a time") {
  const Written chunked(models::Loss::chunked);
  // The same log-probabilities are saved; at forward's peak one part of 1024 tokens is upcast
  // instead of all 8192 (and nll_loss keeps its total weight, 4 bytes).
  CHECK(chunked.tensor("loss.log_softmax") == Bytes(4 * kT * kV));
  CHECK(Written(models::Loss::full).forward_peak() - chunked.forward_peak() ==
        Bytes(4 * kT * kV - 4 * kT / 8 * kV + 4));
}

// All tokens but the last one are scored: 2 N h of their rows, labels, two fp32 numbers of each and
// which they are; how many, 8 bytes. Not labels padded by one, and not nll_loss's total weight.
// Where 4096 rows of 32768 words pass, 256 MiB, all logits would be 2 GiB in 16 bits.
TEST_CASE("TRL's tiles leave rows and not logits, of which one tile lives at a time") {
  const Written tiled(models::Loss::tiled);
  constexpr std::int64_t kN = kT - 1;
  CHECK(tiled.tensor("loss.logits.tile") == Bytes(256LL << 20));
  const Bytes full = Written(models::Loss::full).after_forward();
  CHECK(full - tiled.after_forward() == Bytes(4 * kT * kV + 4 + 2 * kT * kH + 8 * (kT + 1) -
                                              (2 * kN * kH + kN * (8 + 4 + 4 + 1) + 8)));
}

TEST_CASE("every kind of loss leaves nothing behind") {
  for (const models::Loss loss :
       {models::Loss::full, models::Loss::chunked, models::Loss::fused, models::Loss::tiled}) {
    const Written written(loss);
    Bytes persistent;
    for (const models::TensorDecl& t : written.program.tensors)
      if (t.residency == models::Residency::persistent)
        persistent += t.group == models::kNoGroup ? t.bytes : t.bytes * 32;
    CHECK(written.timeline.steps.back().after == persistent);
  }
}

// 49280 logits a token and 24 layers' one key and value of 128: 4 bytes each, beside the low
// logits (2 V), log_softmax's (2 V), and what nll_loss reads in fp32 (4 V).
TEST_CASE("what GPT-BigCode's own loss of 4.45 returns in 16 bits is there in fp32, too") {
  const models::ModelSpec model = models::catalog_model("santacoder");
  models::Strategy s;
  s.transformers = {4, 45, 0};
  s.torch = {2, 4, 1};
  s.recompute.kind = models::RecomputeKind::full;
  const auto bytes_at_outputs = [&](models::Precision precision) {
    s.precision = precision;
    models::StepProgram program;
    planner::pytorch::Rules rules;
    rules.granularity = 1;
    const planner::ModelParts parts = planner::model_parts(model, s);
    planner::pytorch::step_writer(program, parts, s, {.seq_len = 512}, rules)->write();
    std::int64_t bytes = 0;
    for (const models::Op& op : program.ops)
      if (std::strcmp(op.name, "model.outputs.fp32") == 0)
        for (const models::Operand& operand : program.operands_of(op))
          if (operand.access == models::Access::write)
            bytes += program.tensors[static_cast<std::size_t>(operand.tensor)].bytes.value();
    return bytes;
  };
  CHECK(bytes_at_outputs(models::Precision::bf16_mixed) == 512 * 4 * (49280 + 24 * 2 * 128));
  CHECK(bytes_at_outputs(models::Precision::bf16) == 0);
  s.transformers = {4, 49, 0};
  CHECK(bytes_at_outputs(models::Precision::bf16_mixed) == 0);
}

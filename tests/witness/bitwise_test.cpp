// What may not change a single bit of a training run, and a ledger.
#include <doctest/doctest.h>

#include <cmath>

#include "models/storages.h"
#include "tests/witness/case.h"
#include "tests/witness/late_copies.h"

namespace plimsoll::witness {
namespace {

using models::Precision;
using models::Recompute;
using models::RecomputeKind;

constexpr Precision kPrecisions[] = {Precision::fp32, Precision::bf16_mixed, Precision::fp16_mixed,
                                     Precision::bf16};

Case base(const char* model, Precision precision, std::int64_t ranks, int zero) {
  Case c;
  c.model = model;
  c.strategy.stack = models::Stack::plimsoll;
  c.strategy.device = models::Device::cpu;
  c.strategy.precision = precision;
  c.strategy.gpus = ranks;
  c.strategy.data.zero = zero;
  c.strategy.data.bucket_cap = Bytes(3000);  // several messages in a unit
  c.batch = {.seq_len = 10, .micro_batch = 1};
  c.deterministic = true;
  c.steps = 3;
  return c;
}

models::Lora lora(double dropout = 0) {
  return {.rank = 3, .alpha = 6, .dropout = dropout, .targets = {"all-linear"}};
}

// What differs first of losses, norms, overflows and weights; all ranks say the same of a step.
std::string difference(const Measured& a, const Measured& b) {
  for (std::size_t rank = 0; rank < b.ranks.size(); ++rank)
    for (std::size_t i = 0; i < b.ranks[rank].size(); ++i) {
      const runtime::StepResult &x = a.ranks[0][i], &y = b.ranks[rank][i];
      const std::string where =
          " of step " + std::to_string(i) + " on rank " + std::to_string(rank) + ": ";
      const auto differ = [&](const char* what, double p, double q) {
        return what + where + std::to_string(p) + " and " + std::to_string(q);
      };
      if (x.loss != y.loss) return differ("loss", x.loss, y.loss);
      if (x.grad_norm != y.grad_norm) return differ("norm", x.grad_norm, y.grad_norm);
      if (x.skipped != y.skipped) return differ("overflow", x.skipped, y.skipped);
    }
  if (a.parameters.size() != b.parameters.size()) return "as many parameters";
  for (std::size_t i = 0; i < a.parameters.size(); ++i)
    if (a.parameters[i] != b.parameters[i]) return "weights of parameter " + std::to_string(i);
  return "";
}

void check_same(const Measured& reference, const Case& c) {
  CAPTURE(text(c));
  CHECK(difference(reference, measured(c)) == "");
}

void check_stages(Case c) {
  c.strategy.data.zero = 0;
  const Measured ddp = measured(c);
  for (const int zero : {1, 2, 3}) {
    c.strategy.data.zero = zero;
    check_same(ddp, c);
  }
}

// Of the tensor, the smallest possible: the comparison itself can fail.
TEST_CASE("another bit is another run") {
  Case c = base("llama", Precision::fp32, 2, 0);
  const Measured one = measured(c);
  Measured other = one;
  CHECK(difference(one, other) == "");
  other.parameters[3][1] = std::nextafter(other.parameters[3][1], 9.f);
  CHECK(difference(one, other) == "weights of parameter 3");
  other = one;
  other.ranks[1][2].loss = std::nextafter(other.ranks[1][2].loss, 9);
  CHECK(difference(one, other).starts_with("loss of step 2 on rank 1"));
  c.strategy.attention = models::Attention::eager;  // adds in another order
  CHECK(difference(one, measured(c)) != "");
}

TEST_CASE("DDP, ZeRO-1, 2 and 3 of equally many ranks are the same run bit for bit") {
  for (const Precision precision : kPrecisions)
    for (const std::int64_t ranks : {2, 3, 4, 8})
      for (const std::int64_t accum : {1, 3}) {
        Case c = base(accum == 1 ? "llama" : "gpt2-dropout", precision, ranks, 0);
        c.poison = ranks < 4;  // 16 MiB of workspace for each rank take their time
        c.batch.grad_accum = accum;
        check_stages(c);
        c.model = accum == 1 ? "gpt2" : "qwen3";
        c.strategy.lora = lora(accum == 1 ? 0 : 0.25);
        check_stages(c);
      }
}

// Each rank's part is rounded by at most 2^-9 of it, and the sum by 2^-9 of it: parts of one sign
// make 2^-8 of the norm, and parts that cancel more.
TEST_CASE("gradients cast for the exchange: stages are the same run, near the one without") {
  for (const char* model : {"llama", "gpt2"})
    for (const std::int64_t accum : {1, 3}) {
      Case c = base(model, Precision::fp32, 4, 0);
      c.batch.grad_accum = accum;
      const Measured plain = measured(c);
      c.strategy.data.reduce_dtype = DType::bf16;
      check_stages(c);
      const Measured cast = measured(c);
      CHECK(difference(plain, cast) != "");
      const runtime::StepResult &a = plain.ranks[0][0], &b = cast.ranks[0][0];
      CHECK(a.loss == b.loss);  // of the first step's forward
      CHECK(std::abs(a.grad_norm - b.grad_norm) < 0x1p-7 * a.grad_norm);
      CHECK(a.grad_norm != b.grad_norm);
      CHECK(std::abs(plain.ranks[0][2].loss - cast.ranks[0][2].loss) < 1e-2 * a.loss);
    }
}

TEST_CASE("offloaded states change no bit, with masters, without, and in 8 bits") {
  for (const models::Optimizer optimizer :
       {models::Optimizer::adamw, models::Optimizer::adam8bit, models::Optimizer::sgd})
    for (const Precision precision : kPrecisions)
      for (const int zero : {0, 1, 2, 3}) {
        Case c = base("llama", precision, 3, zero);
        c.strategy.optimizer = optimizer;
        const Measured reference = measured(c);
        c.strategy.offload.optimizer = true;
        check_same(reference, c);
      }
}

TEST_CASE("inputs of layers on the host change no bit") {
  for (const char* model : {"llama", "gpt2-dropout", "gemma3_text"})
    for (const int zero : {0, 1, 2, 3})
      for (const bool states : {false, true}) {
        Case c = base(model, Precision::bf16_mixed, 3, zero);
        c.strategy.recompute.kind = RecomputeKind::full;
        c.batch.grad_accum = 2;
        c.poison = true;
        const Measured reference = measured(c);
        c.strategy.offload.activations = true;
        c.strategy.offload.optimizer = states;
        check_same(reference, c);
      }
}

// Each of two steps has 2 micro-batches, whose 3 layers' inputs go and come back on 3 ranks.
TEST_CASE("nor do copies that arrive only when they are waited for") {
  static LateCopies late;
  for (const int zero : {0, 3}) {
    Case c = base("llama", Precision::bf16_mixed, 3, zero);
    c.strategy.recompute.kind = RecomputeKind::full;
    c.batch.grad_accum = 2;
    c.poison = true;
    c.steps = 2;
    const Measured reference = measured(c);
    c.strategy.offload.activations = true;
    const std::int64_t before = late.copies();
    run_on(late);
    check_same(reference, c);
    run_on(runtime::host_device());
    CHECK(late.copies() - before == 2 * 2 * 2 * 3 * 3);
  }
}

TEST_CASE("stepping in the backward changes no bit of a run that clips nothing") {
  for (const Precision precision : {Precision::fp32, Precision::bf16_mixed, Precision::bf16})
    for (const std::int64_t ranks : {1, 3})
      for (const int zero : {0, 1, 2, 3})
        for (const bool adapters : {false, true}) {
          Case c = base(ranks == 1 ? "gpt2" : "llama", precision, ranks, zero);
          c.max_norm = 0;
          c.poison = true;
          if (adapters) c.strategy.lora = lora();
          c.strategy.recompute.kind = zero == 1 ? RecomputeKind::full : RecomputeKind::none;
          Measured reference = measured(c);
          for (auto& rank : reference.ranks)
            for (runtime::StepResult& step : rank) step.grad_norm = 0;  // of all: nobody knows
          c.strategy.optimizer_in_backward = true;
          check_same(reference, c);
          c.strategy.offload.optimizer = true;
          check_same(reference, c);
        }
}

TEST_CASE("a step that an overflow cuts short leaves weights as they are, offloaded too") {
  Case c = base("llama", Precision::fp16_mixed, 2, 3);
  c.loss_scale = 1e30;
  c.steps = 1;
  const Measured plain = measured(c);
  c.strategy.offload.optimizer = true;
  const Measured offloaded = measured(c);
  CHECK(offloaded.ranks[1][0].skipped);
  CHECK(offloaded.parameters == plain.parameters);
  c.loss_scale = 1024;
  CHECK(measured(c).parameters != plain.parameters);
}

TEST_CASE("the same of adapters on a packed base, whose bytes are gathered") {
  for (const char* storage : {"nf4", "nf4-dq", "int8", "int8-affine"})
    for (const std::int64_t ranks : {2, 3}) {
      Case c = base("llama", Precision::bf16_mixed, ranks, 0);
      c.strategy.lora = lora();
      c.strategy.quantize = {.storage = models::find_packed_storage(storage)};
      check_stages(c);
      c.strategy.recompute.kind = RecomputeKind::full;
      check_stages(c);
    }
}

TEST_CASE("the same of a subset of the parameters, chunks of the loss, SGD and Lion") {
  for (const std::int64_t ranks : {2, 3}) {
    Case c = base("qwen3", Precision::bf16_mixed, ranks, 0);
    c.strategy.train = {"*norm*", "*layers.2.mlp*"};
    check_stages(c);
    c.strategy.train.clear();
    c.strategy.loss = models::Loss::chunked;
    c.strategy.optimizer = models::Optimizer::momentum;
    check_stages(c);
    c.strategy.loss = models::Loss::fused;
    c.strategy.optimizer = models::Optimizer::sgd;
    c.strategy.data.shard_group = 0;
    check_stages(c);
    c.strategy.optimizer = models::Optimizer::lion;
    check_stages(c);
    c.strategy.optimizer = models::Optimizer::adam8bit;
    c.steps = 3;
    check_stages(c);
  }
}

TEST_CASE("recomputation changes no bit, dropout included") {
  for (const Precision precision : kPrecisions)
    for (const char* model : {"llama", "gpt2-dropout", "qwen3"})
      for (const int zero : {0, 3}) {
        Case c = base(model, precision, 2, zero);
        if (model == std::string("qwen3")) c.strategy.lora = lora(0.25);
        c.batch.grad_accum = 2;
        const Measured plain = measured(c);
        for (const Recompute& recompute :
             {Recompute{RecomputeKind::selective}, Recompute{RecomputeKind::full},
              Recompute{RecomputeKind::every, 2}, Recompute{RecomputeKind::sqrt},
              Recompute{RecomputeKind::block, 1}, Recompute{RecomputeKind::nth, 2},
              Recompute{RecomputeKind::recursive, 1}}) {
          c.strategy.recompute = recompute;
          check_same(plain, c);
        }
      }
}

TEST_CASE("a run that is repeated is the same bit for bit, deterministic or not") {
  for (const Precision precision : kPrecisions)
    for (const bool deterministic : {false, true})
      for (const int zero : {0, 1, 2, 3}) {
        Case c = base("gpt2-dropout", precision, 3, zero);
        c.deterministic = deterministic;
        c.batch.grad_accum = 2;
        check_same(measured(c), c);
      }
}

// Also what the first step finds is what every other finds: nothing is allocated once and late.
TEST_CASE("the ledger of every step is the first one's, on every rank") {
  for (const char* model : {"llama", "gpt2-dropout", "qwen3"})
    for (const std::int64_t ranks : {1, 2, 3})
      for (const int zero : {0, 1, 2, 3})
        for (const bool deterministic : {false, true}) {
          Case c = base(model, Precision::fp16_mixed, ranks, zero);
          if (ranks == 3) c.strategy.lora = lora(0.25);
          if (ranks == 2) c.strategy.recompute.kind = RecomputeKind::full;
          c.deterministic = deterministic;
          c.batch.grad_accum = 2;
          c.steps = 5;
          CAPTURE(text(c));
          const Measured run = measured(c);
          for (const auto& steps : run.ranks)
            for (const runtime::StepResult& step : steps)
              CHECK(step.memory == run.ranks[0][0].memory);
        }
}

}  // namespace
}  // namespace plimsoll::witness

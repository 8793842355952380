// What holds of the work of every op, whatever code runs: who only lets go of tensors moves nothing
// and launches nothing.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "tests/planner/rarer_code.h"
#include "tests/planner/written_work.h"

using namespace plimsoll;
using models::Access;
using models::Strategy;
using tests::all_changes;
using tests::kModels;
using tests::Written;

namespace {

// The ops that write nothing, take no memory for a moment, and say that they move or launch
// something.
std::string moving_for_nobody(const char* config, const Strategy& s) {
  const Written step(config, s, {.seq_len = 64, .micro_batch = 2});
  std::string out;
  for (std::size_t i = 0; i < step.program.ops.size(); ++i) {
    const models::Op& op = step.program.ops[i];
    const bool writes =
        std::ranges::any_of(step.program.operands_of(op), [](const models::Operand& operand) {
          return operand.access == Access::write || operand.access == Access::update;
        });
    if (writes || op.scratch > Bytes(0) || !planner::is_computed(step.program, op)) continue;
    const planner::WorkSum work = planner::rest_of_op(step.program, step.works, i);
    if (work.moved != 0 || work.kernels != 0) out += std::string(op.name) + "\n";
  }
  return out;
}

double flops(const planner::WorkSum& work) {
  double sum = 0;
  for (const planner::Gemm& gemm : work.gemms) sum += planner::flops_of(gemm);
  return sum;
}

}  // namespace

TEST_CASE("an op that makes nothing, not even for a moment, asks nothing of the GPU") {
  int written = 0;
  for (const char* config : kModels)
    for (const auto& [name, change] : all_changes()) {
      Strategy s;
      change(s);
      const std::string model = std::string(config).substr(15, 12);
      CAPTURE(model);
      const std::string change_name = name;
      CAPTURE(change_name);
      std::string found;
      try {
        found = moving_for_nobody(config, s);
        ++written;
      } catch (const Error&) {  // no code of it, or no adapter on it
      }
      CHECK(found == "");
    }
  CHECK(written >= 130);
}

// torch/utils/checkpoint.py, CheckpointFunction: the whole layer runs again.
TEST_CASE("a reentrant checkpoint's backward is the layer's forward again, and its backward") {
  int written = 0;
  for (const char* config : kModels)
    for (const auto& [name, change] : all_changes()) {
      Strategy s;
      change(s);
      // Checkpointed already, compiled to other ops, without a cache to join the prefix to; and
      // what offloading reads again in the backward is counted with what it is for.
      if (std::string_view(name) == "prefix" || s.offload.activations) continue;
      if (s.recompute.kind != models::RecomputeKind::none || s.compile != models::Compile::no)
        continue;
      const std::string model = std::string(config).substr(15, 12);
      CAPTURE(model);
      const std::string of = name;
      CAPTURE(of);
      planner::StepWork plain, again;
      try {
        plain = Written(config, s, {.seq_len = 64, .micro_batch = 2}).all();
        s.recompute.kind = models::RecomputeKind::full;
        s.use_reentrant = true;
        again = Written(config, s, {.seq_len = 64, .micro_batch = 2}).all();
      } catch (const Error&) {
        continue;
      }
      ++written;
      // With adapters the first layer's input has no gradient but in a checkpoint: the last's has.
      const bool all = !s.lora && again.layers.size() == plain.layers.size();
      for (std::size_t back = 1; back <= (all ? plain.layers.size() : 1); ++back) {
        const planner::WorkOfPart &once = plain.layers[plain.layers.size() - back],
                                  &twice = again.layers[again.layers.size() - back];
        CHECK(twice.backward.moved == once.forward.moved + once.backward.moved);
        CHECK(twice.backward.kernels == once.forward.kernels + once.backward.kernels);
        CHECK(twice.backward.casts == once.forward.casts + once.backward.casts);
        CHECK(twice.backward.gemms.size() ==
              once.forward.gemms.size() + once.backward.gemms.size());
        CHECK(twice.backward.attentions.size() ==
              once.forward.attentions.size() + once.backward.attentions.size());
      }
    }
  CHECK(written >= 100);
}

// Layers do not know which loss is behind them, in anybody's code, with adapters or without. Behind
// them a head's products are once for the hidden state's gradient, and once more for its weights',
// where these train.
TEST_CASE("a loss changes nothing that the layers compute, nor the head's products") {
  int compared = 0;
  for (const char* config : kModels)
    for (const models::ModelCode code :
         {models::ModelCode::transformers, models::ModelCode::torchtune_0_6_1,
          models::ModelCode::torchtitan_0_2_2, models::ModelCode::litgpt_0_3_0,
          models::ModelCode::litgpt_0_5_13})
      for (const bool adapters : {false, true}) {
        Strategy s;
        s.code = code;
        s.precision = models::Precision::bf16;
        if (adapters) s.lora = models::Lora{.rank = 4, .targets = {"q_proj", "v_proj"}};
        std::vector<planner::StepWork> steps;
        for (const models::Loss loss : {models::Loss::full, models::Loss::chunked}) {
          s.loss = loss;
          try {
            steps.push_back(Written(config, s, {.seq_len = 64, .micro_batch = 2}).all());
          } catch (const Error&) {  // not of this code, or no adapter on it
          }
        }
        for (const planner::StepWork& step : steps) {
          CAPTURE(std::string(config).substr(15, 12));
          CAPTURE(static_cast<int>(code));
          CHECK(flops(step.ends.backward) == (adapters ? 1 : 2) * flops(step.ends.forward));
        }
        if (steps.size() < 2) continue;
        ++compared;
        for (std::size_t layer = 0; layer < steps[0].layers.size(); ++layer)
          for (const auto part : {&planner::WorkOfPart::forward, &planner::WorkOfPart::backward}) {
            const planner::WorkSum &one = steps[0].layers[layer].*part,
                                   &other = steps[1].layers[layer].*part;
            CAPTURE(std::string(config).substr(15, 12));
            CAPTURE(static_cast<int>(code));
            CHECK(one.moved == other.moved);
            CHECK(one.kernels == other.kernels);
            CHECK(one.gemms.size() == other.gemms.size());
          }
      }
  CHECK(compared >= 10);
}

// C = A B: d(A) = d(C) Bᵀ and d(B) = Aᵀ d(C), each of as many products as C. Attention's kernels
// are no GEMMs.
TEST_CASE("each product of a layer that trains is two in the backward, of the same three lengths") {
  int written = 0;
  for (const char* config : kModels)
    for (const auto& [name, change] : all_changes()) {
      Strategy s;
      change(s);
      if (s.lora || s.recompute.kind != models::RecomputeKind::none) continue;
      CAPTURE(std::string(config).substr(15, 12));
      const std::string of = name;
      CAPTURE(of);
      planner::StepWork step;
      try {
        step = Written(config, s, {.seq_len = 64, .micro_batch = 2}).all();
      } catch (const Error&) {  // no code of it
        continue;
      }
      ++written;
      const auto lengths = [](const planner::WorkSum& work, int times) {
        std::vector<std::array<double, 4>> out;
        for (const planner::Gemm& gemm : work.gemms) {
          std::array<double, 4> one{gemm.m, gemm.n, gemm.k, gemm.count};
          std::sort(one.begin(), one.begin() + 3);
          for (int i = 0; i < times; ++i) out.push_back(one);
        }
        std::ranges::sort(out);
        return out;
      };
      for (const planner::WorkOfPart& layer : step.layers) {
        const bool same = lengths(layer.backward, 1) == lengths(layer.forward, 2);
        CHECK(same);
      }
    }
  CHECK(written >= 150);
}

// Rows are alike: each one more adds the same.
TEST_CASE("what a step moves and multiplies grows by as much with each row") {
  int written = 0;
  for (const char* config : kModels)
    for (const auto& [name, change] : all_changes()) {
      Strategy s;
      change(s);
      CAPTURE(std::string(config).substr(15, 12));
      const std::string of = name;
      CAPTURE(of);
      std::vector<planner::StepWork> steps;
      try {
        for (const std::int64_t rows : {512, 1024, 1536})
          steps.push_back(Written(config, s, {.seq_len = 64, .micro_batch = rows}).all());
      } catch (const Error&) {  // no code of it, or no adapter on it
        continue;
      }
      ++written;
      const auto hold = [&](auto part, auto what) {
        const double a = what(part(steps[0])), b = what(part(steps[1])), c = what(part(steps[2]));
        CHECK(b > 0);
        CHECK(c - b == b - a);
        CHECK(a >= b - a);  // and no rows are not less than nothing
      };
      for (const auto phase : {&planner::WorkOfPart::forward, &planner::WorkOfPart::backward})
        for (std::size_t layer = 0; layer <= steps[0].layers.size(); ++layer) {
          const auto part = [&](const planner::StepWork& step) {
            return (layer < step.layers.size() ? step.layers[layer] : step.ends).*phase;
          };
          CAPTURE(layer);
          hold(part, [](const planner::WorkSum& work) { return work.moved; });
          hold(part, [](const planner::WorkSum& work) { return flops(work) + 1; });
        }
    }
  CHECK(written >= 180);
}

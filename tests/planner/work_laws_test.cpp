// What holds of the work of every op, whatever code runs: who only lets go of tensors moves nothing
// and launches nothing.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "tests/planner/every_code.h"
#include "tests/planner/written_work.h"

using namespace plimsoll;
using models::Access;
using models::Strategy;
using tests::changes;
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
    for (const auto& [name, change] : changes()) {
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
    for (const auto& [name, change] : changes()) {
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
          models::ModelCode::torchtitan_0_2_2, models::ModelCode::litgpt_0_5_13})
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

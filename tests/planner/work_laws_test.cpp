// What holds of the work of every op, whatever code runs: an op that writes nothing moves nothing
// and launches nothing, and who writes launches something.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <string>

#include "models/storages.h"
#include "tests/planner/written_work.h"

using namespace plimsoll;
using models::Access;
using models::Strategy;
using tests::Written;

namespace {

constexpr const char* kLlama = R"({"model_type": "llama", "hidden_size": 256, "vocab_size": 1000,
  "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "max_position_embeddings": 512})";

// Names of the ops that break it.
std::string broken(const char* config, const Strategy& s, bool law) {
  const Written step(config, s, {.seq_len = 64, .micro_batch = 2});
  std::string out;
  for (std::size_t i = 0; i < step.program.ops.size(); ++i) {
    const models::Op& op = step.program.ops[i];
    if (!planner::is_computed(step.program, op)) continue;
    const bool writes =
        std::ranges::any_of(step.program.operands_of(op), [](const models::Operand& operand) {
          return operand.access == Access::write || operand.access == Access::update;
        });
    const planner::WorkSum work = planner::rest_of_op(step.program, step.works, i);
    const bool gemm = std::ranges::any_of(step.works.gemms(), [&](const auto& of) { return of.op == i; }) || std::ranges::any_of(step.works.attentions(), [&](const auto& of) { return of.op == i; });
    if (law && !writes && (work.moved != 0 || work.kernels != 0)) out += std::string(op.name) + " moves " + std::to_string(work.moved) + "/" + std::to_string(work.kernels) + "\n";
    if (!law && writes && !gemm && (work.moved == 0 || work.kernels == 0)) out += std::string(op.name) + " writes\n";
  }
  return out;
}

}  // namespace

TEST_CASE("probe of laws") {
  const std::function<void(Strategy&)> changes[] = {
    [](Strategy&) {}, [](Strategy& s) { s.recompute.kind = models::RecomputeKind::full; },
    [](Strategy& s) { s.kernels = models::Kernels::liger; },
    [](Strategy& s) { s.kernels = models::Kernels::liger; s.loss = models::Loss::fused; },
    [](Strategy& s) { s.lora = models::Lora{.rank = 4, .targets = {"q_proj", "v_proj"}}; },
    [](Strategy& s) { s.offload.activations = true; },
    [](Strategy& s) { s.attention = models::Attention::eager; },
    [](Strategy& s) { s.precision = models::Precision::bf16; },
    [](Strategy& s) { s.loss = models::Loss::chunked; },
    [](Strategy& s) { s.gpus = 2; s.data.zero = 3; s.data.fsdp_version = 1;},
    [](Strategy& s) { s.gpus = 2; s.data.zero = 3; s.data.fsdp_version = 2;},
  };
  int n = 0;
  for (const auto& change : changes) {
    Strategy s;
    change(s);
    CAPTURE(n++);
    CHECK(broken(kLlama, s, true) == "");
    CHECK(broken(kLlama, s, false) == "");
  }
}

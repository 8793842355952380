// IA3, VeRA and adapters of a mixture's experts: what is refused, by the option that asks for it,
// and what their steps keep. That the steps are PyTorch's own is pytorch_traces_test.cpp's matter.
#include <doctest/doctest.h>

#include <functional>
#include <string>

#include "models/model_catalog.h"
#include "models/storages.h"
#include "planner/model_parts.h"
#include "planner/plan.h"
#include "planner/stacks/pytorch/stack.h"

using namespace plimsoll;
using models::AdapterKind;
using models::Lora;
using models::Strategy;

namespace {

const Lora kIa3{.kind = AdapterKind::ia3,
                .targets = {"k_proj", "v_proj", "down_proj"},
                .feedforward = {"down_proj"}};
const Lora kVera{.kind = AdapterKind::vera, .rank = 256, .targets = {"q_proj", "v_proj"}};

std::string refusal(const Lora& lora, const std::function<void(Strategy&)>& change) {
  Strategy s;
  s.lora = lora;
  change(s);
  try {
    planner::pytorch::refuse(models::catalog_model("llama-2-7b"), s, {});
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::unsupported);
    return error.message();
  }
  return "accepted";
}

planner::ModelParts parts_of(const char* model, const Lora& lora, const char* release) {
  Strategy s;
  s.lora = lora;
  s.transformers = *models::release_from(release);
  return planner::model_parts(models::catalog_model(model), s);
}

std::string no_parts(const char* model, const Lora& lora, const char* release) {
  try {
    parts_of(model, lora, release);
  } catch (const Error& error) {
    return error.message();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("vectors are planned on one GPU and under DDP; the rest is refused by name") {
  for (const auto& [lora, asked] :
       {std::pair(kIa3, "--adapter ia3 with "), std::pair(kVera, "--adapter vera with ")}) {
    CAPTURE(asked);
    CHECK(refusal(lora, [](Strategy&) {}) == "accepted");
    CHECK(refusal(lora, [](Strategy& s) { s.gpus = 8; }) == "accepted");
    const auto refused = [&, of = lora, with = std::string(asked)](
                             const std::string& what,
                             const std::function<void(Strategy&)>& change) {
      return refusal(of, change).starts_with(with + what);
    };
    CHECK(refused("FSDP", [](Strategy& s) {
      s.gpus = 8;
      s.data.zero = 3;
    }));
    CHECK(refused("--recompute ops:", [](Strategy& s) {
      s.recompute = {.kind = models::RecomputeKind::ops, .kept = {"attention"}};
    }));
    CHECK(refused("--optimizer-in-backward", [](Strategy& s) { s.optimizer_in_backward = true; }));
    CHECK(refused("Transformers before 5.0", [](Strategy& s) {
      s.transformers = models::Release{4, 57, 0};
    }));
  }
}

TEST_CASE("stacked experts have adapters by parameter, those of a loop by linear") {
  const Lora stacked{.rank = 4, .targets = {"q_proj"}, .parameters = {"experts.down_proj"}};
  const planner::ModelParts parts = parts_of("mixtral-8x7b", stacked, "5.17.0");
  const planner::LayerPart& layer = parts.runs.front().layer(0);
  CHECK(layer.experts.front().down_rank == 4);
  CHECK(layer.experts.front().gate_up_rank == 0);
  CHECK(no_parts("mixtral-8x7b", stacked, "4.57.0").find("no parameter before Transformers 5.0") !=
        std::string::npos);

  const Lora linears{.rank = 4, .targets = {"w1", "w2", "w3"}};
  const planner::ModelParts looped = parts_of("mixtral-8x7b", linears, "4.57.0");
  int adapted = 0;
  for (const planner::LinearPart& linear : looped.runs.front().layer(0).linears)
    adapted += linear.adapter == planner::Adapter::lora ? 1 : 0;
  CHECK(adapted == 8 * 3);
  CHECK(no_parts("mixtral-8x7b", linears, "5.17.0")
            .find("one parameter and no linear modules in Transformers 5") != std::string::npos);
}

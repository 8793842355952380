// DoRA: what is refused, by the option that asks for it.
#include <doctest/doctest.h>

#include <functional>
#include <string>

#include "models/model_catalog.h"
#include "models/storages.h"
#include "planner/stacks/pytorch/stack.h"

using namespace plimsoll;
using models::Strategy;

namespace {

std::string refusal(const std::function<void(Strategy&)>& change) {
  Strategy s;
  s.lora = models::Lora{.targets = {"all-linear"}, .dora = true};
  change(s);
  try {
    planner::pytorch::refuse(models::catalog_model("llama-2-7b"), s, {});
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::unsupported);
    return error.message();
  }
  return "accepted";
}

bool refused(const std::string& with, const std::function<void(Strategy&)>& change) {
  const std::string message = refusal(change);
  CAPTURE(message);
  return message.starts_with("--use-dora yes with " + with);
}

void pack(Strategy& s, bool kbit_prep) {
  s.quantize =
      models::Quantization{.storage = models::find_packed_storage("nf4"), .kbit_prep = kbit_prep};
  s.param_dtype = DType::bf16;
}

}  // namespace

TEST_CASE("DoRA is planned on one GPU, under DDP and FSDP2, and on a prepared packed base") {
  CHECK(refusal([](Strategy&) {}) == "accepted");
  CHECK(refusal([](Strategy& s) { s.gpus = 8; }) == "accepted");
  CHECK(refusal([](Strategy& s) {
          s.gpus = 8;
          s.data.zero = 3;
        }) == "accepted");
  CHECK(refusal([](Strategy& s) { pack(s, true); }) == "accepted");
}

TEST_CASE("what DoRA is not planned with is refused by name") {
  CHECK(refused("--fsdp-version 1", [](Strategy& s) {
    s.gpus = 8;
    s.data.zero = 3;
    s.data.fsdp_version = 1;
  }));
  for (const int zero : {2, 3}) {
    CHECK(refused("--quantize under FSDP", [&](Strategy& s) {
      s.gpus = 8;
      s.data.zero = zero;
      pack(s, true);
    }));
  }
  CHECK(refused("--quantize and --kbit-prep no", [](Strategy& s) { pack(s, false); }));
  CHECK(refused("--recompute ops:", [](Strategy& s) {
    s.recompute = {.kind = models::RecomputeKind::ops, .kept = {"attention"}};
  }));
  CHECK(refused("--optimizer-in-backward", [](Strategy& s) { s.optimizer_in_backward = true; }));
}

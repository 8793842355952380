// Where a refusal ends by a number: the release that is the first (or the last) to be planned, and
// the stage of ZeRO, each beside the one before it.
#include "tests/planner/refusal_rows.h"

using namespace plimsoll;
using models::AdapterKind;
using models::Lora;
using models::RecomputeKind;
using models::Release;
using tests::kNothing;
using tests::pack_base;
using tests::Refusable;
using tests::refusal_of;
using tests::shard_by_fsdp;

namespace {

using Change = std::function<void(Refusable&)>;

std::string with(const Change& first, const Change& then = nullptr) {
  Refusable asked;
  first(asked);
  if (then) then(asked);
  return refusal_of(asked);
}

// On two GPUs, so that there is somebody to share with.
Change stage(int zero) {
  return [zero](Refusable& a) { a.s.gpus = 2, a.s.data.zero = zero; };
}
Change release(Release of) {
  return [of](Refusable& a) { a.s.transformers = of; };
}
Change adapt(const Lora& lora) {
  return [lora](Refusable& a) { a.s.lora = lora; };
}

const Lora kIa3{.kind = AdapterKind::ia3,
                .targets = {"k_proj", "v_proj", "down_proj"},
                .feedforward = {"down_proj"}};
const Lora kVera{.kind = AdapterKind::vera, .rank = 256, .targets = {"q_proj", "v_proj"}};
const Lora kPrompt{.kind = AdapterKind::prompt_tuning, .virtual_tokens = 20};
const Lora kPrefix{.kind = AdapterKind::prefix_tuning, .virtual_tokens = 20};
const Lora kSeveral{.rank = 4, .targets = {"q_proj"}, .adapters = 3};

void keep_attention(Refusable& a) {
  a.s.recompute = {.kind = RecomputeKind::ops, .kept = {"attention"}};
}
void compile(Refusable& a) {
  a.s.compile = models::Compile::block;
}
void offload_activations(Refusable& a) {
  a.s.offload.activations = true, a.s.precision = models::Precision::bf16;
}

}  // namespace

TEST_CASE("what is planned of Transformers 5 is planned from 5.0.0 on, and not of 4.57.6") {
  const std::vector<std::pair<const char*, Change>> rows{
      {"--recompute ops:attention is modelled with Transformers 5.0", keep_attention},
      {"--compile with Transformers before 5.0", compile},
      {"--offload activations with Transformers before 5.0", offload_activations},
      {"--adapter ia3 with Transformers before 5.0", adapt(kIa3)},
      {"--adapter vera with Transformers before 5.0", adapt(kVera)},
      {"--adapter prompt-tuning with Transformers before 5.0", adapt(kPrompt)},
      {"--adapter prefix-tuning with Transformers before 5.0", adapt(kPrefix)},
      {"--adapters with Transformers before 5.0", adapt(kSeveral)}};
  for (const auto& [says, change] : rows) {
    CAPTURE(says);
    CHECK(with(change, release({5, 0, 0})) == kNothing);
    CHECK(with(change, release({4, 57, 6})).starts_with(says));
  }
}

TEST_CASE("ZeroRedundancyOptimizer shares states alone: what FSDP refuses it takes") {
  const std::vector<std::pair<const char*, Change>> rows{
      {"--adapter ia3 with FSDP", adapt(kIa3)},
      {"--adapter vera with FSDP", adapt(kVera)},
      {"--adapter prompt-tuning with FSDP", adapt(kPrompt)},
      {"--adapter prefix-tuning with FSDP", adapt(kPrefix)},
      {"--adapters with FSDP", adapt(kSeveral)},
      {"--offload activations without --recompute full is not modelled under FSDP",
       offload_activations},
      {"--modules-to-save with FSDP",
       adapt({.targets = {"q_proj"}, .modules_to_save = {"lm_head"}})},
      {"--lora-bias yes with FSDP", adapt({.targets = {"q_proj"}, .bias = true})}};
  for (const auto& [says, change] : rows) {
    CAPTURE(says);
    CHECK(with(change, stage(1)) == kNothing);
    CHECK(with(change, stage(2)).starts_with(says));
    CHECK(with(change, stage(3)).starts_with(says));
  }
}

TEST_CASE("compiled layers: not under DDP, nor where its states are shared; FSDP2's from stage 2") {
  CHECK(with(compile) == kNothing);
  for (const int zero : {0, 1})
    CHECK(with(compile, stage(zero)).starts_with("--compile under DDP"));
  for (const int zero : {2, 3}) CHECK(with(compile, stage(zero)) == kNothing);
}

TEST_CASE("FSDP2 alone gathers weights in float8, in both of its stages") {
  const Change gather = [](Refusable& a) {
    a.s.precision = models::Precision::fp8_mixed, a.s.fp8_all_gather = true;
  };
  const char* const says = "--fp8-all-gather yes is of FSDP2";
  for (const int zero : {0, 1}) CHECK(with(gather, stage(zero)).starts_with(says));
  for (const int zero : {2, 3}) CHECK(with(gather, stage(zero)) == kNothing);
  CHECK(with(gather, [](Refusable& a) { shard_by_fsdp(a, 1); }).starts_with(says));
}

TEST_CASE("reentrant checkpoints: of every stage but FSDP2's") {
  const Change reentrant = [](Refusable& a) {
    a.s.recompute = {.kind = RecomputeKind::full};
    a.s.use_reentrant = true;
  };
  for (const int zero : {0, 1}) CHECK(with(reentrant, stage(zero)) == kNothing);
  for (const int zero : {2, 3})
    CHECK(with(reentrant, stage(zero)).starts_with("--use-reentrant yes with FSDP2"));
  CHECK(with(reentrant, [](Refusable& a) { shard_by_fsdp(a, 1); }) == kNothing);
}

// Transformers 5 does not use a PyTorch before 2.5; Accelerate has FSDP2 from 2.6 on.
TEST_CASE("releases of PyTorch that other packages ask for") {
  const auto asked = [](Release torch, Release transformers, int zero = 0) {
    return with([=](Refusable& a) {
      a.s.torch = torch, a.s.transformers = transformers;
      if (zero > 0) a.s.gpus = 2, a.s.data.zero = zero;
    });
  };
  CHECK(asked({2, 4, 1}, {4, 57, 6}) == kNothing);
  CHECK(asked({2, 4, 1}, {5, 0, 0}).find("with Transformers 5.0.0, which needs 2.5.0") !=
        std::string::npos);
  CHECK(asked({2, 5, 1}, {5, 0, 0}) == kNothing);
  CHECK(asked({2, 5, 1}, {5, 0, 0}, 1) == kNothing);
  for (const int zero : {2, 3}) {
    CHECK(asked({2, 6, 0}, {5, 0, 0}, zero) == kNothing);
    CHECK(asked({2, 5, 1}, {5, 0, 0}, zero).find("Accelerate has it from 2.6.0 on") !=
          std::string::npos);
  }
}

TEST_CASE("checkpoints around some layers: of layers that have them, not under FSDP1") {
  const Change block = [](Refusable& a) { a.s.recompute = {RecomputeKind::block, 2}; };
  CHECK(with(block) == kNothing);
  CHECK(with(block, release({4, 52, 0})) == kNothing);
  CHECK(with(block, release({4, 51, 3}))
            .starts_with("--recompute block:2 needs layers that are checkpoints by themselves: "
                         "Transformers 4.52 and later"));
  CHECK(with(block, [](Refusable& a) { shard_by_fsdp(a, 2); }) == kNothing);
  CHECK(with(block, [](Refusable& a) {
          shard_by_fsdp(a, 1);
        }).starts_with("--fsdp-version 1 with checkpoints of some layers"));
  const Change nth = [](Refusable& a) { a.s.recompute = {RecomputeKind::nth, 2}; };
  CHECK(with(nth, release({4, 52, 0})) == kNothing);
  CHECK(with(nth, release({4, 51, 3})).starts_with("--recompute nth:2 needs layers that are"));
  CHECK(with(nth, [](Refusable& a) {
          shard_by_fsdp(a, 1);
        }).starts_with("--fsdp-version 1 with checkpoints of some layers"));
  CHECK(with([](Refusable& a) {
          a.s.recompute = {RecomputeKind::recursive, 4};
        }) == "--recompute recursive:4 is modelled with --stack plimsoll, which runs it");
}

// OLMo 2's rotary tables are in fp32.
TEST_CASE("layers whose inputs FSDP2 casts are not compiled") {
  const Change olmo = [](Refusable& a) {
    a.model = "olmo-2-7b", a.s.compile = models::Compile::block;
  };
  const auto fsdp = [](int version, models::Precision precision) -> Change {
    return [=](Refusable& a) { shard_by_fsdp(a, version), a.s.precision = precision; };
  };
  CHECK(with(olmo, fsdp(2, models::Precision::bf16_mixed))
            .starts_with("--compile with olmo2 under FSDP2 in mixed precision"));
  CHECK(with(olmo, fsdp(2, models::Precision::bf16)) == kNothing);
}

// TRL's casts behind PEFT's k-bit preparation, and streams that autocast widens in their first
// layer (planner/stacks/pytorch/regime.h, set_stream). Their steps, op by op, are the traces
// *-kbit-casting* and *-nf4-dq-mixed* of other families than Llama's.
#include <doctest/doctest.h>

#include <functional>
#include <string>

#include "models/model_catalog.h"
#include "models/storages.h"
#include "planner/plan.h"

using namespace plimsoll;
using models::Strategy;

namespace {

using Change = std::function<void(planner::Question&)>;

planner::Question question(const models::ModelSpec& model, const Change& change) {
  planner::Question q;
  q.model = &model;
  q.batch = {.seq_len = 512, .micro_batch = 2};
  q.strategy.lora = models::Lora{.targets = {"all-linear"}};
  q.strategy.param_dtype = DType::bf16;
  q.strategy.recompute.kind = models::RecomputeKind::full;
  q.strategy.quantize = models::Quantization{.storage = models::find_packed_storage("nf4")};
  change(q);
  return q;
}

reports::Plan plan_of(const char* name, const Change& change) {
  const models::ModelSpec model = models::catalog_model(name);
  return planner::plan(question(model, change));
}

std::string refusal(const char* name, ErrorKind kind, const Change& change) {
  try {
    (void)plan_of(name, change);
  } catch (const Error& error) {
    CHECK(error.kind() == kind);
    return error.message();
  }
  return "accepted";
}

void casts(planner::Question& q) {
  q.strategy.quantize->kbit_casting = true;
}
void as_loaded(planner::Question& q) {
  q.strategy.quantize->kbit_prep = false;
}
bool has(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("TRL casts the tables back to bf16, and leaves the norms in fp32") {
  // Llama-2-7B: 32,000 x 4,096 values of the embedding and as many of the head, in 2 bytes and not
  // in 4.
  const std::int64_t tables = 2 * 32'000LL * 4'096;
  const reports::Plan prepared = plan_of("llama-2-7b", [](planner::Question&) {}),
                      cast = plan_of("llama-2-7b", casts),
                      loaded = plan_of("llama-2-7b", as_loaded);
  CHECK((prepared.states.parameters - cast.states.parameters).value() == 2 * tables);
  CHECK((prepared.resident - cast.resident).value() == 2 * tables);
  // 65 norms of 4,096 values.
  CHECK((cast.states.parameters - loaded.states.parameters).value() == 2 * 65 * 4'096);
  // The first of 32 layers reads 16 bits: its checkpoint is half of the others'.
  const std::int64_t stream = 2 * 512 * 4'096;
  CHECK((cast.peak - loaded.peak).value() > 31 * 2 * stream);
  CHECK(cast.peak < prepared.peak);
}

TEST_CASE("under FSDP TRL prepares nothing and casts nothing") {
  const auto sharded = [](planner::Question& q) {
    q.strategy.gpus = 2;
    q.strategy.data.zero = 3;
    q.strategy.quantize->held_in = DType::bf16;
  };
  const reports::Plan with = plan_of("llama-3.2-1b", [&](planner::Question& q) {
    sharded(q);
    casts(q);
  });
  CHECK(with.peak == plan_of("llama-3.2-1b", sharded).peak);
}

TEST_CASE("casts are TRL's own: behind the preparation, of 4 bits, with bf16") {
  using models::Precision;
  CHECK(has(refusal("llama-3.2-1b", ErrorKind::bad_input,
                    [](planner::Question& q) {
                      as_loaded(q);
                      casts(q);
                    }),
            "--kbit-casting yes without --kbit-prep yes"));
  CHECK(has(refusal("llama-3.2-1b", ErrorKind::bad_input,
                    [](planner::Question& q) {
                      q.strategy.precision = Precision::fp16_mixed;
                      q.strategy.param_dtype = DType::fp16;
                      casts(q);
                    }),
            "--kbit-casting yes with --precision fp16-mixed: TRL casts where bf16 is on"));
  CHECK(has(refusal("llama-3.2-1b", ErrorKind::bad_input,
                    [](planner::Question& q) {
                      q.strategy.quantize->storage = models::find_packed_storage("int8");
                      casts(q);
                    }),
            "--kbit-casting yes with --quantize int8: TRL casts 4-bit bases alone"));
  CHECK(has(refusal("llama-2-7b", ErrorKind::unsupported,
                    [](planner::Question& q) {
                      q.strategy.lora->modules_to_save = {"lm_head"};
                      casts(q);
                    }),
            "--modules-to-save is not modelled yet"));
  // Its tables are called embed_in and embed_out, which TRL does not look for; OPT has positions
  // that it does not name beside a table that it does.
  CHECK(has(refusal("pythia-160m", ErrorKind::bad_input, casts),
            "of which gpt_neox has none: --kbit-casting no plans what it does"));
  CHECK(has(refusal("opt-125m", ErrorKind::unsupported, casts),
            "--kbit-casting yes of opt is not modelled yet: beside modules that TRL casts"));
}

TEST_CASE("what is not modelled of a stream that widens is refused by name") {
  const auto refused = [](const char* name, const Change& change) {
    return refusal(name, ErrorKind::unsupported, change);
  };
  CHECK(refused("phi-2", as_loaded) == "accepted");
  CHECK(refused("gpt2", as_loaded) == "accepted");
  CHECK(has(refused("phi-2",
                    [](planner::Question& q) {
                      as_loaded(q);
                      q.strategy.offload.activations = true;
                    }),
            "--offload activations is not modelled where autocast makes the residual stream fp32"));
  CHECK(has(refused("llama-3.2-1b",
                    [](planner::Question& q) {
                      casts(q);
                      q.strategy.recompute = {.kind = models::RecomputeKind::every, .layers = 4};
                    }),
            "--recompute with checkpoints of several layers is not modelled where"));
  const auto over_bf16 = [](planner::Question& q) {
    q.strategy.quantize.reset();
    q.strategy.precision = models::Precision::fp16_mixed;
  };
  CHECK(refused("llama-3.2-1b", over_bf16) == "accepted");
  CHECK(has(refused("llama-3.2-1b",
                    [&](planner::Question& q) {
                      over_bf16(q);
                      q.strategy.recompute = {.kind = models::RecomputeKind::ops,
                                              .kept = {"attention"}};
                    }),
            "--recompute ops: is not modelled where autocast makes the residual stream fp32"));
  CHECK(has(refused("llama-3.2-1b",
                    [&](planner::Question& q) {
                      over_bf16(q);
                      q.strategy.lora.reset();
                      q.strategy.recompute.kind = models::RecomputeKind::none;
                      q.strategy.compile = models::Compile::block;
                    }),
            "--compile is not modelled where autocast makes the residual stream fp32"));
  CHECK(has(refused("phi-2",
                    [](planner::Question& q) {
                      q.strategy.lora = models::Lora{.targets = {"q_proj"}};
                      q.strategy.quantize = models::Quantization{
                          .storage = models::find_packed_storage("torchao-int8")};
                    }),
            "--quantize torchao-int8 is not modelled where autocast"));
  // Gemma's norm casts back to what it was given: nothing widens.
  CHECK(refused("gemma-2b", [](planner::Question& q) {
          casts(q);
          q.strategy.recompute = {.kind = models::RecomputeKind::every, .layers = 3};
        }) == "accepted");
}

#include "reports/plan_json.h"

#include <doctest/doctest.h>

#include "reports/fingerprint.h"
#include "reports/workload_json.h"
#include "tests/reports/made_up_plan.h"

using namespace plimsoll;
using namespace plimsoll::reports;

namespace {
std::string document(const Plan& plan) {
  std::string text;
  JsonWriter json(text, JsonWriter::Style::compact);
  write_plan(json, plan, {.version = "1.2.3", .commit = "abc"});
  return text;
}

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}
}  // namespace

TEST_CASE("the keys of a plan stand in the order of the contract") {
  const std::string text = document(made_up_plan());
  const char* keys[] = {"schema",         "tool",           "workload",
                        "environment",    "model",          "fits",
                        "verdict",        "capacity_bytes", "usable_bytes",
                        "device_bytes",   "headroom_bytes", "peak_bytes",
                        "resident_bytes", "reserved_bytes", "range",
                        "high_end",       "flushing",       "peak",
                        "states",         "at_peak",        "outside_allocator",
                        "host",           "ranks",          "flops",
                        "communication",  "time",           "timeline",
                        "tensors",        "advice",         "remedies",
                        "assumptions"};
  std::size_t at = 0;
  for (const char* key : keys) {
    const std::size_t next = text.find("\"" + std::string(key) + "\":", at);
    CHECK_MESSAGE(next != std::string::npos, key);
    at = next == std::string::npos ? at : next;
  }
}

TEST_CASE("bytes are integers and what is not known is null") {
  const std::string text = document(made_up_plan());
  CHECK(has(text, R"("peak_bytes":42949672960,)"));  // 40 * 2^30
  CHECK(has(text, R"("range":null,)"));
  CHECK(has(text, R"("step_seconds":2.0,)"));
  CHECK(has(text, R"("limited_by":"links between nodes")"));
  Plan unknown = made_up_plan();
  unknown.time = {};
  CHECK(has(document(unknown), R"("step_seconds":null,)"));
  CHECK(has(document(unknown), R"("limited_by":null)"));
  CHECK(has(text, R"("verdict":"fits",)"));
}

TEST_CASE(
    "a plan of states alone claims no peak, and a verdict only where they alone are too much") {
  Plan plan = made_up_plan();
  plan.states_only = true;
  std::string text = document(plan);
  CHECK(has(text, R"("fits":null,"verdict":null,)"));
  CHECK(has(text, R"("peak_bytes":null,)"));
  CHECK(has(text, R"("at_peak":null,)"));
  CHECK(has(text, R"("gradients_bytes":4294967296,)"));
  plan.verdict = Verdict::does_not_fit;
  plan.fits = false;
  text = document(plan);
  CHECK(has(text, R"("fits":false,"verdict":"does not fit",)"));
}

TEST_CASE("the deterministic mode is another workload, and the word is absent without it") {
  Plan plan = made_up_plan();
  const std::string text = canonical_workload(plan);
  CHECK(!has(text, "deterministic"));
  plan.strategy.deterministic = true;
  CHECK(has(canonical_workload(plan), R"("wrap":null},"deterministic":true,"ep":1,)"));
}

// As documents have always had them: with another member every fingerprint would be another.
TEST_CASE("how linears run in float8 is part of the workload where they do") {
  Plan plan = made_up_plan();
  CHECK_FALSE(has(canonical_workload(plan), "fp8_"));
  plan.strategy.precision = models::Precision::fp8_mixed;
  plan.strategy.fp8_recipe = models::Fp8Recipe::rowwise;
  plan.strategy.fp8_all_gather = true;
  CHECK(has(canonical_workload(plan),
            R"("ep":1,"fp8_all_gather":true,"fp8_recipe":"rowwise","freeze":)"));
}

TEST_CASE("options that are not modelled stand in the workload, in the order of their keys") {
  const std::string text = canonical_workload(made_up_plan());
  CHECK(has(text, R"("fsdp_upcast":true,"galore_rank":null,"grad_dtype":)"));
  CHECK(has(text, R"("kbit_prep":null,"lora":)"));
  CHECK(has(text, R"("offload":[],"offload_to":"cpu","optimizer":"adamw",)"
                  R"("optimizer_in_backward":false,"param_dtype":)"));
  CHECK(has(text, R"("pp":1,"pp_schedule":null,"precision":)"));
  CHECK(has(text, R"("quant_storage":null,"quantize":null,"recompute":)"));
  CHECK(has(text, R"("sequence_parallel":false,"shard_group":)"));
  CHECK(has(text, R"("virtual_stages":1,"world_size":)"));
}

TEST_CASE("how ranks exchange data is part of the workload where it is not the device's own way") {
  Plan plan = made_up_plan();
  plan.strategy.stack = models::Stack::plimsoll;
  plan.strategy.gpus = 4;
  const std::string usual = canonical_workload(plan);
  CHECK(has(usual, R"("stack":{"device":"cuda","name":"plimsoll"})"));
  plan.strategy.exchange = models::Exchange::nccl;
  CHECK(canonical_workload(plan) == usual);
  plan.strategy.exchange = models::Exchange::threads;
  CHECK(has(canonical_workload(plan),
            R"("stack":{"device":"cuda","exchange":"threads","name":"plimsoll"})"));
  plan.strategy.gpus = 1;  // nothing is exchanged
  CHECK(!has(canonical_workload(plan), "exchange"));
}

TEST_CASE("the fingerprint follows the question and not the machine, the name or the answer") {
  const Plan plan = made_up_plan();
  const std::string same = fingerprint(canonical_workload(plan));
  Plan other = plan;
  other.model_name = "another/name";
  other.gpu.reset();
  other.cluster.reserve = 1_GiB;
  other.peak = 1_GiB;
  CHECK(fingerprint(canonical_workload(other)) == same);
  other = plan;
  other.batch.seq_len = 8193;
  CHECK(fingerprint(canonical_workload(other)) != same);
  other = plan;
  other.strategy.gpus = 16;
  CHECK(fingerprint(canonical_workload(other)) != same);
  other = plan;
  other.config_json = R"({"hidden_size":16,"model_type":"llama"})";
  CHECK(fingerprint(canonical_workload(other)) != same);
}

TEST_CASE("an option that spells out its default is the same workload") {
  const Plan plan = made_up_plan();
  Plan other = plan;
  other.strategy.param_dtype = DType::fp32;  // what bf16-mixed loads
  other.strategy.data.fsdp_upcast = true;
  other.strategy.optimizer_impl = models::OptimizerImpl::foreach;
  CHECK(canonical_workload(other) == canonical_workload(plan));
}

// Every figure another, so that none stands under another's key.
TEST_CASE("each figure of a plan stands under its own key") {
  Plan plan = made_up_plan();
  plan.capacity = 1001_B;
  plan.usable = 1002_B;
  plan.device = 1003_B;
  plan.headroom = 1004_B;
  plan.peak = 1005_B;
  plan.resident = 1006_B;
  plan.reserved = 1007_B;
  plan.range = Range{1008_B, 1009_B, "seen"};
  plan.high_end = HighEnd{.reserved = 1010_B, .overhead = 1100_B, .fits = false};  // together 2110
  plan.flushing = Flushing{.reserved = 1011_B,
                           .malloced = 1012_B,
                           .flushes = 13,
                           .frees = 14,
                           .mallocs = 15,
                           .seconds = 0.5};
  plan.peak_place.rank = 3;
  plan.states = {.parameters = 1016_B, .gradients = 1017_B, .optimizer = 1018_B};
  plan.at_peak = {1021_B, 1022_B, 1023_B, 1024_B, 1025_B, 1026_B, 1027_B, 1028_B};
  plan.overhead = {.context = 1031_B, .libraries = 1032_B, .nccl = 1033_B};  // together 3096
  plan.host_pinned = 1034_B;
  plan.host_pageable = 1035_B;
  plan.nvme = 1036_B;
  plan.bytes_sent_per_gpu_per_step = 1037_B;
  plan.collectives = {{.kind = "all_gather", .count = 38, .array = 1039_B, .group = 40}};
  const std::string text = document(plan);
  for (const char* part :
       {R"("capacity_bytes":1001,"usable_bytes":1002,"device_bytes":1003,"headroom_bytes":1004,)",
        R"("peak_bytes":1005,"resident_bytes":1006,"reserved_bytes":1007,)",
        R"("range":{"low_bytes":1008,"high_bytes":1009,"why":"seen"},)",
        R"("high_end":{"device_bytes":2110,"reserved_bytes":1010,)",
        R"("outside_allocator_bytes":1100,"fits":false},)",
        R"("flushing":{"device_bytes":4107,"reserved_bytes":1011,"flushes_per_step":13,)",
        R"("segments_freed_per_step":14,"segments_allocated_per_step":15,)",
        R"("allocated_bytes_per_step":1012,"seconds_per_step":0.5},)",
        R"("peak":{"rank":3,"phase":"backward","where":"layers.31.mlp"},)",
        R"({"parameters_bytes":1016,"gradients_bytes":1017,"optimizer_bytes":1018})",
        R"("at_peak":{"parameters_bytes":1021,"gradients_bytes":1022,"optimizer_bytes":1023,)",
        R"("activations_bytes":1024,"logits_bytes":1025,"temporaries_bytes":1026,)",
        R"("communication_bytes":1027,"workspace_bytes":1028})",
        R"("outside_allocator":{"context_bytes":1031,"libraries_bytes":1032,"nccl_bytes":1033})",
        R"("host":{"pinned_bytes":1034,"pageable_bytes":1035,"nvme_bytes":1036})",
        R"("bytes_sent_per_gpu_per_step":1037,)",
        R"({"kind":"all_gather","count":38,"array_bytes":1039,"group":40})",
        R"("step_seconds":2.0,"compute_seconds":1.5,"exposed_communication_seconds":0.4,)",
        R"("pipeline_bubble_seconds":0.0,"optimizer_seconds":0.1,"tokens_per_second":262144.0,)",
        R"("tokens_per_second_per_gpu":32768.0,"mfu":0.4,"mfu_full_attention":0.45,"hfu":0.5,)"})
    CHECK_MESSAGE(has(text, part), part);
}

TEST_CASE(
    "a verdict is told of a whole plan with a known card; of states alone only that they are too "
    "much") {
  Plan plan = made_up_plan();
  const auto said = [&](Verdict verdict, bool states_only) {
    plan.verdict = verdict;
    plan.states_only = states_only;
    return verdict_text(plan).value_or("null");
  };
  CHECK(said(Verdict::fits, false) == "fits");
  CHECK(said(Verdict::borderline, false) == "borderline");
  CHECK(said(Verdict::does_not_fit, false) == "does not fit");
  CHECK(said(Verdict::fits, true) == "null");
  CHECK(said(Verdict::borderline, true) == "null");
  CHECK(said(Verdict::does_not_fit, true) == "does not fit");
  plan.usable.reset();
  CHECK(said(Verdict::fits, false) == "null");
  CHECK(said(Verdict::does_not_fit, false) == "null");
}

// torch.utils.checkpoint in its old form: said where layers are recomputed and it is not usual.
TEST_CASE("reentrant checkpoints are part of the workload where they are not the stack's own way") {
  Plan plan = made_up_plan();
  for (const models::Stack stack : {models::Stack::pytorch, models::Stack::deepspeed}) {
    plan.strategy = {};
    plan.strategy.stack = stack;
    plan.strategy.recompute.kind = models::RecomputeKind::full;
    CHECK_FALSE(has(document(plan), "use_reentrant"));
    plan.strategy.use_reentrant = false;
    CHECK_FALSE(has(document(plan), "use_reentrant"));
    plan.strategy.use_reentrant = true;
    CHECK(has(document(plan), R"("use_reentrant":true)"));
    plan.strategy.recompute.kind = models::RecomputeKind::none;
    CHECK_FALSE(has(document(plan), "use_reentrant"));
  }
}

TEST_CASE("kernels are part of DeepSpeed's workload where they are not eager") {
  Plan plan = made_up_plan();
  plan.strategy = {};
  plan.strategy.stack = models::Stack::deepspeed;
  CHECK_FALSE(has(document(plan), "\"kernels\":"));
  plan.strategy.kernels = models::Kernels::liger;
  CHECK(has(document(plan), R"("kernels":"liger")"));
}

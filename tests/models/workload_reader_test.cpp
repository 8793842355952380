// The question read back from a document, member by member.
#include "models/workload_reader.h"

#include <doctest/doctest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "models/run_names.h"
#include "models/storages.h"
#include "tests/models/file_settings.h"

using namespace plimsoll;
using namespace plimsoll::models;
using nlohmann::json;
using tests::says;

namespace {
json least() {
  return json::parse(R"({"model": {"config": null, "name": "tiny"},
      "stack": {"name": "pytorch"},
      "strategy": {"precision": "fp32", "optimizer": "sgd", "attention": "eager", "loss": "full"},
      "batch": {}})");
}
Workload read(const json& document) {
  return read_workload(document.dump(), "w");
}
// Of `least` with one member other.
Workload with(const char* pointer, const json& value) {
  json document = least();
  document[json::json_pointer(pointer)] = value;
  return read(document);
}
std::string refused(const char* pointer, const json& value) {
  try {
    (void)with(pointer, value);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::bad_input);
    return error.message();
  }
  return "accepted";
}
}  // namespace

TEST_CASE("what a workload leaves out has the value that it had before there was such a member") {
  const Workload w = read(least());
  CHECK(w.fingerprint.empty());
  CHECK(w.model_name == "tiny");
  CHECK(w.model_config.empty());
  Strategy expected;
  expected.precision = Precision::fp32;
  expected.optimizer = Optimizer::sgd;
  expected.attention = Attention::eager;
  CHECK(w.strategy == expected);
  CHECK(w.batch == Batch{});
}

TEST_CASE("each member of a workload's strategy is read, and no other with it") {
  Strategy base = read(least()).strategy;
  const auto check = [&](const char* pointer, const json& value, const auto& change) {
    CAPTURE(pointer);
    Strategy expected = base;
    change(expected);
    CHECK(expected != base);
    CHECK(with(pointer, value).strategy == expected);
  };
  check("/stack/device", "cpu", [](Strategy& s) { s.device = Device::cpu; });
  check("/stack/exchange", "mpi", [](Strategy& s) { s.exchange = Exchange::mpi; });
  check("/stack/compile", "block", [](Strategy& s) { s.compile = Compile::block; });
  check("/stack/compile", true, [](Strategy& s) { s.compile = Compile::model; });
  check("/stack/allocator_conf", "expandable_segments:True",
        [](Strategy& s) { s.allocator.expandable_segments = true; });
  check("/stack/hold_outputs", true, [](Strategy& s) { s.hold_outputs = true; });
  check("/stack/kernels", "liger", [](Strategy& s) { s.kernels = Kernels::liger; });
  check("/stack/model_code", "torchtune@0.6.1",
        [](Strategy& s) { s.code = *choice_from<ModelCode>("torchtune@0.6.1"); });
  check("/stack/model_code", "litgpt@0.5.13",
        [](Strategy& s) { s.code = *choice_from<ModelCode>("litgpt@0.5.13"); });
  check("/stack/optimizer_impl", "for-loop",
        [](Strategy& s) { s.optimizer_impl = OptimizerImpl::for_loop; });
  check("/stack/transformers_version", "4.48.3", [](Strategy& s) {
    s.transformers = Release{4, 48, 3};
  });
  check("/stack/fsdp_version", 1, [](Strategy& s) { s.data.fsdp_version = 1; });
  check("/stack/use_reentrant", false, [](Strategy& s) { s.use_reentrant = false; });
  check("/strategy/world_size", 6, [](Strategy& s) { s.gpus = 6; });
  check("/strategy/precision", "bf16", [](Strategy& s) { s.precision = Precision::bf16; });
  check("/strategy/fp8_recipe", "rowwise", [](Strategy& s) { s.fp8_recipe = Fp8Recipe::rowwise; });
  check("/strategy/fp8_all_gather", true, [](Strategy& s) { s.fp8_all_gather = true; });
  check("/strategy/param_dtype", "bf16", [](Strategy& s) { s.param_dtype = DType::bf16; });
  check("/strategy/grad_dtype", "bf16", [](Strategy& s) { s.grad_dtype = DType::bf16; });
  check("/strategy/reduce_dtype", "bf16", [](Strategy& s) { s.data.reduce_dtype = DType::bf16; });
  check("/strategy/master_weights", false, [](Strategy& s) { s.master_weights = false; });
  check("/strategy/zero", 3, [](Strategy& s) { s.data.zero = 3; });
  check("/strategy/zero", 2, [](Strategy& s) {
    s.data.zero = 2;
    s.data.reshard_after_forward = false;
  });
  check("/strategy/shard_group", 4, [](Strategy& s) { s.data.shard_group = 4; });
  check("/strategy/fsdp_upcast", false, [](Strategy& s) { s.data.fsdp_upcast = false; });
  check("/strategy/ddp", {{"bucket_cap_mb", 0.5}},
        [](Strategy& s) { s.data.bucket_cap = Bytes(1 << 19); });
  check("/strategy/ddp", {{"bucket_cap_mb", 1 << 20}},
        [](Strategy& s) { s.data.bucket_cap = Bytes(std::int64_t{1} << 40); });
  check("/strategy/ddp", {{"bucket_view", true}},
        [](Strategy& s) { s.data.gradient_as_bucket_view = true; });
  check("/strategy/optimizer", "lion", [](Strategy& s) { s.optimizer = Optimizer::lion; });
  check("/strategy/galore_rank", 7, [](Strategy& s) { s.galore_rank = 7; });
  check("/strategy/optimizer_in_backward", true,
        [](Strategy& s) { s.optimizer_in_backward = true; });
  check("/strategy/recompute", "every:3", [](Strategy& s) {
    s.recompute = {RecomputeKind::every, 3, {}};
  });
  check("/strategy/attention", "math", [](Strategy& s) { s.attention = Attention::math; });
  check("/strategy/loss", "chunked", [](Strategy& s) { s.loss = Loss::chunked; });
  check("/strategy/rows", "padded", [](Strategy& s) { s.rows = Rows::padded; });
  check("/strategy/deterministic", true, [](Strategy& s) { s.deterministic = true; });
  check("/strategy/tp", 2, [](Strategy& s) { s.tp = 2; });
  check("/strategy/pp", 3, [](Strategy& s) { s.pp = 3; });
  check("/strategy/cp", 4, [](Strategy& s) { s.cp = 4; });
  check("/strategy/ep", 5, [](Strategy& s) { s.ep = 5; });
  check("/strategy/offload", {"optimizer", "activations"},
        [](Strategy& s) { s.offload.optimizer = s.offload.activations = true; });
  check("/strategy/offload", {"params"}, [](Strategy& s) { s.offload.params = true; });
  check("/strategy/offload_pin", false, [](Strategy& s) { s.offload.pinned = false; });
  check("/strategy/freeze", {"a*", "b"}, [](Strategy& s) { s.freeze = {"a*", "b"}; });
  check("/strategy/train", {"c"}, [](Strategy& s) { s.train = {"c"}; });
  check("/strategy/quantize", "nf4", [](Strategy& s) {
    s.quantize = Quantization{find_packed_storage("nf4"), DType::uint8, {}};
  });
}

TEST_CASE("adapters, a packed base and DeepSpeed's knobs are read member by member") {
  const Workload alone = with("/strategy/lora", json::object());
  Lora expected;
  expected.targets = {"all-linear"};
  CHECK(alone.strategy.lora == expected);
  const Workload all = with("/strategy/lora", json::parse(R"({"kind": "ia3", "rank": 3,
      "alpha": 4.5, "dropout": 0.25, "adapter_dtype": "bf16", "targets": "q,v,down",
      "modules_to_save": "lm_head,embed", "feedforward": "down", "target_parameters": "gate_up",
      "lora_bias": true, "use_dora": true})"));
  CHECK(all.strategy.lora == Lora{.kind = AdapterKind::ia3,
                                  .rank = 3,
                                  .alpha = 4.5,
                                  .dropout = 0.25,
                                  .dtype = DType::bf16,
                                  .targets = {"q", "v", "down"},
                                  .modules_to_save = {"lm_head", "embed"},
                                  .parameters = {"gate_up"},
                                  .bias = true,
                                  .dora = true,
                                  .feedforward = {"down"}});
  json packed = least();
  packed["strategy"].update(
      json::parse(R"({"quantize": "nf4-dq", "quant_storage": "bf16", "kbit_prep": false})"));
  CHECK(read(packed).strategy.quantize ==
        Quantization{find_packed_storage("nf4-dq"), DType::bf16, false});
  packed["strategy"]["kbit_casting"] = true;
  CHECK(read(packed).strategy.quantize->kbit_casting);
  json knobs = least();
  knobs["stack"] = json::parse(R"({"name": "deepspeed", "deepspeed": {"reduce_bucket_size": 1,
      "allgather_bucket_size": 2, "overlap_comm": false, "contiguous_gradients": false,
      "reduce_scatter": false, "sub_group_size": 3, "stage3_prefetch_bucket_size": 4,
      "stage3_param_persistence_threshold": 5, "stage3_model_persistence_threshold": 6,
      "stage3_max_live_parameters": 7, "stage3_max_reuse_distance": 8,
      "check_grad_overflow": false}})");
  CHECK(read(knobs).strategy.data.deepspeed == DeepSpeedOptions{.reduce_bucket_size = 1,
                                                                .allgather_bucket_size = 2,
                                                                .overlap_comm = false,
                                                                .contiguous_gradients = false,
                                                                .reduce_scatter = false,
                                                                .sub_group_size = 3,
                                                                .prefetch_bucket_size = 4,
                                                                .param_persistence_threshold = 5,
                                                                .model_persistence_threshold = 6,
                                                                .max_live_parameters = 7,
                                                                .max_reuse_distance = 8,
                                                                .check_grad_overflow = false});
  knobs["stack"]["deepspeed"] =
      json::parse(R"({"offload_optimizer_buffer_count": 1, "offload_param_buffer_count": 2,
      "offload_param_buffer_size": 3, "offload_param_max_in_cpu": 4})");
  CHECK(read(knobs).strategy.data.deepspeed.nvme == NvmeOptions{1, 2, 3, 4});
  knobs["stack"]["deepspeed"] = json::object();
  CHECK(read(knobs).strategy.data.deepspeed == DeepSpeedOptions{});
  // No such knob elsewhere, and no reduce_dtype of FSDP's.
  knobs["strategy"]["fsdp_upcast"] = false;
  knobs["strategy"]["grad_dtype"] = "fp32";
  CHECK_FALSE(read(knobs).strategy.data.fsdp_upcast.has_value());
  CHECK_FALSE(read(knobs).strategy.data.reduce_dtype.has_value());
}

TEST_CASE("what FSDP reduces in has two names in a document, which may not differ") {
  json knobs = least();
  knobs["strategy"]["zero"] = 3;
  const auto both = [&] {
    const Strategy s = read(knobs).strategy;
    CHECK(s.grad_dtype == DType::bf16);
    CHECK(s.data.reduce_dtype == DType::bf16);
  };
  knobs["strategy"]["grad_dtype"] = "bf16";
  both();
  knobs["strategy"]["reduce_dtype"] = "bf16";
  both();
  knobs["strategy"].erase("grad_dtype");
  both();
  knobs["strategy"]["grad_dtype"] = "fp32";
  CHECK_THROWS_WITH_AS(read(knobs), doctest::Contains("reduce_dtype"), Error);
}

TEST_CASE("the batch, the model and the nodes of a document are read") {
  json document = least();
  document["batch"] = json::parse(R"({"seq_len": 2, "micro_batch": 3, "grad_accum": 4,
      "real_tokens": 5, "row_samples": 6, "row_tokens": 7})");
  document["fingerprint"] = "00ff";
  document["model"]["config"] = {{"model_type", "llama"}};
  const Workload bare = read(document);
  CHECK(bare.batch == Batch{.seq_len = 2,
                            .micro_batch = 3,
                            .grad_accum = 4,
                            .row_tokens = 7,
                            .row_samples = 6,
                            .real_tokens = 5});
  CHECK(bare.fingerprint == "00ff");
  CHECK(bare.model_config == R"({"model_type":"llama"})");
  CHECK(bare.strategy.gpus_per_node == 8);
  for (const char* schema : {"plimsoll.plan/1", "plimsoll.measurement/1"}) {
    const json whole{{"schema", schema},
                     {"workload", document},
                     {"environment", {{"cluster", {{"gpus_per_node", 4}}}}}};
    CHECK(read(whole).batch == bare.batch);
    CHECK(read(whole).strategy.gpus_per_node == 4);
  }
}

TEST_CASE("what a workload cannot say is refused with its member and what it can be") {
  CHECK(refused("/schema", "plimsoll.check/1") ==
        "w: a document of schema plimsoll.check/1, where a plan (plimsoll.plan/1) is needed");
  CHECK(refused("/batch", 3) == "w: batch is 3, but an object is needed");
  CHECK(
      refused("/batch", nullptr) ==
      "w: batch is null, but an object, as in a plan that `plimsoll fit --json` wrote, is needed");
  CHECK(refused("/stack/name", "jax") ==
        "w: stack: name is \"jax\", but one of plimsoll, pytorch, deepspeed, megatron is needed");
  CHECK(refused("/strategy/param_dtype", "int3") ==
        "w: strategy: param_dtype is \"int3\", but fp32, bf16 or fp16 is needed");
  CHECK(refused("/strategy/recompute", "some") ==
        "w: strategy: recompute is \"some\", but none, selective, full, sqrt, every:K, "
        "block:N, nth:N, recursive:C or ops:NAME+NAME is needed");
  CHECK(refused("/strategy/quantize", "fp8") ==
        "w: strategy: quantize is \"fp8\", but " + packed_storage_names() + " is needed");
  CHECK(refused("/strategy/quantize", "nf5") ==
        "w: strategy: quantize is \"nf5\", but " + packed_storage_names() + " is needed");
  CHECK(refused("/strategy/offload", {"weights"}) ==
        "w: strategy: offload is a list of 1, but optimizer, gradients, params or activations is "
        "needed");
  CHECK(refused("/strategy/offload_to", "nvme") == "accepted");  // nothing is offloaded
  json both = least();
  both["strategy"]["offload"] = {"params"};
  both["strategy"]["offload_to"] = "nvme";
  CHECK_THROWS_WITH_AS((void)read(both), "w: strategy: offload_to is \"nvme\", but cpu is needed",
                       Error);
  both["strategy"]["zero"] = 3;
  both["stack"]["name"] = "deepspeed";
  CHECK(read(both).strategy.offload == Offload{.params = true, .nvme = true});
  both["strategy"]["offload_to"] = "managed";
  CHECK_THROWS_WITH_AS((void)read(both),
                       "w: strategy: offload_to is \"managed\", but cpu or nvme is needed", Error);
  json threads = least();
  threads["stack"]["name"] = "pytorch";
  threads["strategy"]["data_parallel"] = "dp";
  CHECK(read(threads).strategy.data.kind == DataParallelKind::dp);
  for (const auto& [pointer, other] :
       std::map<std::string, json>{{"/stack/name", "deepspeed"}, {"/strategy/zero", 3}}) {
    json wrong = threads;
    wrong[json::json_pointer(pointer)] = other;
    CHECK_THROWS_WITH_AS((void)read(wrong),
                         "w: strategy: data_parallel is \"dp\", but ddp (dp is of stack pytorch, "
                         "zero 0) is needed",
                         Error);
  }
  CHECK(refused("/strategy/zero", 4) == "w: strategy: zero is 4, but 0, 1, 2 or 3 is needed");
  for (const double mebi : {0.0, -1.0, 1048577.0})
    CHECK(says(refused("/strategy/ddp", {{"bucket_cap_mb", mebi}}),
               "but MiB from above 0 to 1048576 is needed"));
  const std::string releases = ", but a release from " + text_of(kOldestTransformers) + " to " +
                               text_of(kNewestTransformers) + " is needed";
  for (const char* release : {"4.44.9", "9.0.0", "4", "4.45.x", "-4.45.0"})
    CHECK(refused("/stack/transformers_version", release) ==
          "w: stack: transformers_version is \"" + std::string(release) + "\"" + releases);
  CHECK(with("/stack/transformers_version", text_of(kOldestTransformers)).strategy.transformers ==
        kOldestTransformers);
  CHECK(with("/stack/transformers_version", text_of(kNewestTransformers)).strategy.transformers ==
        kNewestTransformers);
}

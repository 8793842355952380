#include "tools/cli/request.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "models/run_names.h"
#include "models/storages.h"
#include "planner/plan.h"
#include "planner/stacks/stack_info.h"

using namespace plimsoll;
using namespace plimsoll::tools;

namespace {
using Given = std::vector<std::pair<std::string, std::string>>;

Request request(const std::string& model, const Given& given) {
  Options options;
  const bool named = !given.empty() && given[0].first == "gpu";
  bool host = false;
  for (const auto& [name, value] : given) host |= name == "device" && value == "cpu";
  if (!named && !host) options.add("gpu", "h100");  // the same on a machine that has another one
  for (const auto& [name, value] : given) options.add(name, value);
  Sources sources;
  return request_from(model, options, sources);
}

std::string refusal(const std::string& model, const Given& given,
                    ErrorKind kind = ErrorKind::bad_input) {
  try {
    (void)request(model, given);
  } catch (const Error& error) {
    CHECK(error.kind() == kind);
    return error.message();
  }
  return "";
}
}  // namespace

TEST_CASE("the defaults are those of the contract") {
  const Request r = request("llama-3.1-8b", {});
  const models::Strategy& s = r.question.strategy;
  CHECK(s == models::Strategy{});
  CHECK(s.stack == models::Stack::pytorch);
  CHECK(s.precision == models::Precision::bf16_mixed);
  CHECK(r.question.batch == models::Batch{.seq_len = 4096, .micro_batch = 1, .grad_accum = 1});
  CHECK(r.question.cluster.gpu->name == "h100-sxm-80gb");
}

TEST_CASE("the deterministic mode is our own runtime's") {
  CHECK(request("gpt2", {{"stack", "plimsoll"}, {"deterministic", ""}})
            .question.strategy.deterministic);
  CHECK(refusal("gpt2", {{"deterministic", ""}}).starts_with("--deterministic: belongs to"));
}

TEST_CASE("how ranks exchange data is our own runtime's, and of its device") {
  const auto exchange = [](const char* device, const char* name) {
    return request("gpt2", {{"stack", "plimsoll"}, {"device", device}, {"exchange", name}})
        .question.strategy.exchange;
  };
  CHECK(exchange("cpu", "mpi") == models::Exchange::mpi);
  CHECK(exchange("cuda", "nccl") == models::Exchange::nccl);
  CHECK(exchange("cuda", "threads") == models::Exchange::threads);
  const auto refused = [](const char* device, const char* name) {
    return refusal("gpt2", {{"stack", "plimsoll"}, {"device", device}, {"exchange", name}});
  };
  CHECK(refused("cuda", "mpi").starts_with("--exchange mpi: nccl is for --device cuda"));
  CHECK(refused("cpu", "nccl").starts_with("--exchange nccl: nccl is for"));
  CHECK(refused("cpu", "gloo").find("threads") != std::string::npos);
  CHECK(refusal("gpt2", {{"exchange", "nccl"}}).starts_with("--exchange nccl: belongs to"));
}

TEST_CASE("the sequence is as long as the model takes, and no longer") {
  CHECK(request("gpt2", {}).question.batch.seq_len == 1024);
  CHECK(refusal("gpt2", {{"seq-len", "1025"}}) ==
        "--seq-len 1025: the model takes at most 1024 tokens");
}

TEST_CASE("a global batch is divided into micro-steps") {
  // 64 = 2 sequences * 8 GPUs * 4 micro-steps
  const Given given{{"global-batch", "64"}, {"micro-batch", "2"}, {"gpus", "8"}};
  CHECK(request("gpt2", given).question.batch.grad_accum == 4);
  CHECK(refusal("gpt2", {{"global-batch", "20"}, {"gpus", "8"}}) ==
        "--global-batch 20: must be a multiple of 8 (--micro-batch 1 x --gpus 8)");
  CHECK(refusal("gpt2", {{"global-batch", "16"}, {"gpus", "8"}, {"grad-accum", "4"}}) ==
        "--global-batch 16: --grad-accum 4 gives 32: give one of the two");
}

TEST_CASE("options that contradict each other are refused with the reason") {
  const Given cases[] = {
      {{"shard-group", "3"}, {"gpus", "8"}, {"zero", "3"}},
      {{"shard-group", "2"}, {"gpus", "8"}},
      {{"shard-group", "2"}, {"gpus", "8"}, {"zero", "1"}},
      {{"device", "cpu"}},
      {{"fsdp-upcast", "no"}},
      {{"gradient-as-bucket-view", "yes"}, {"zero", "3"}, {"gpus", "8"}},
      {{"reduce-bucket", "25MiB"}},
      {{"bucket-cap-mb", "25"}, {"stack", "plimsoll"}},
      {{"master-weights", "yes"}},
      {{"grad-dtype", "bf16"}},
      {{"precision", "bf16"}, {"param-dtype", "fp32"}},
      {{"lora-alpha", "16"}},
      {{"train", "*.norm.*"}},
      {{"lora-rank", "8"}, {"adapter-dtype", "fp16"}},
      {{"lora-rank", "8"}, {"lora-dropout", "1.5"}},
      {{"reserve", "200GB"}},
      {{"gpu-memory", "80"}},
      {{"gpu-memory", "eighty"}},
      {{"gpus", "0"}},
      {{"params", "7e9"}},
      {{"micro-batch", "9223372036854775807"}},
  };
  for (const Given& given : cases) {
    const std::string message = refusal("gpt2", given);
    CHECK_MESSAGE(!message.empty(), given.front().first);
    CHECK(message.size() < 200);
  }
}

TEST_CASE("a shard group of all ranks is the default by another name") {
  const Given given{{"shard-group", "8"}, {"gpus", "8"}, {"zero", "3"}};
  CHECK(request("gpt2", given).question.strategy.data.shard_group == 0);
}

TEST_CASE("tensor parallelism divides the GPUs, and shards lie in what is left") {
  const Given given{{"tp", "2"},
                    {"gpus", "16"},
                    {"zero", "3"},
                    {"model-code", "torchtitan@0.2.2"},
                    {"shard-group", "4"}};
  const models::Strategy s = request("llama-3-8b", given).question.strategy;
  CHECK(s.tp == 2);
  CHECK(s.data.shard_group == 4);
  const auto with = [&](std::string tp, std::string group) {
    return refusal("llama-3-8b",
                   {{"tp", std::move(tp)}, {"gpus", "16"}, {"zero", "3"}, {"shard-group", group}});
  };
  CHECK(with("3", "4") == "--tp 3: must divide --gpus 16");
  CHECK(with("2", "16") == "--shard-group 16: must divide --gpus 16 / --tp 2");
  CHECK(with("1", "3") == "--shard-group 3: must divide --gpus 16");
  // All ranks that see other rows are the default by another name.
  const Given all{{"tp", "2"}, {"gpus", "16"}, {"zero", "3"}, {"shard-group", "8"}};
  CHECK(request("llama-3-8b", all).question.strategy.data.shard_group == 0);
}

TEST_CASE("a global batch is of the ranks that see other rows") {
  const auto with = [](std::string global) {
    return Given{{"tp", "2"}, {"gpus", "16"}, {"micro-batch", "2"}, {"global-batch", global}};
  };
  CHECK(request("llama-3-8b", with("64")).question.batch.grad_accum == 4);  // 64 / (2 · 8)
  CHECK(refusal("llama-3-8b", with("24")) ==
        "--global-batch 24: must be a multiple of 16 (--micro-batch 2 x --gpus 16 / --tp 2)");
}

TEST_CASE("what this version does not model is refused by name") {
  const std::pair<const char*, const char*> cases[] = {
      {"pp", "2"},
      {"cp", "2"},
      {"ep", "2"},
      {"sequence-parallel", ""},
      {"pp-schedule", "1f1b"},
      {"virtual-stages", "2"},
      {"compile", "model"},
      {"stack", "megatron"},
      {"quantize", "fp8"},
      {"quantize", "mxfp4"},
      {"offload-to", "managed"},
      {"mode", "inference"},
      {"batch", "4"},
      {"context", "8192"},
      {"kv-dtype", "bf16"},
      {"torch-version", "2.3"},
      {"transformers-version", "4.40"},
      {"prefetch", "2"},
  };
  for (const auto& [option, value] : cases)
    CHECK_MESSAGE(refusal("gpt2", {{option, value}}, ErrorKind::unsupported)
                      .starts_with(std::string("--") + option),
                  option);
}

TEST_CASE("a packed base is named, frozen and adapted") {
  CHECK(refusal("gpt2", {{"quantize", "nf3"}, {"lora-rank", "8"}}, ErrorKind::bad_input) ==
        "--quantize nf3: must be " + models::packed_storage_names());
  CHECK(refusal("gpt2", {{"quantize", "nf4"}}, ErrorKind::bad_input)
            .starts_with("--quantize nf4: a packed base is frozen"));
  CHECK(refusal("gpt2", {{"quant-storage", "bf16"}}, ErrorKind::bad_input) ==
        "--quant-storage bf16: needs --quantize");
  CHECK(refusal("gpt2", {{"kbit-prep", "yes"}}, ErrorKind::bad_input) ==
        "--kbit-prep yes: needs --quantize");
  CHECK(refusal("gpt2", {{"kbit-casting", "yes"}}, ErrorKind::bad_input) ==
        "--kbit-casting yes: needs --quantize");
  const Given given{{"quantize", "nf4-dq"}, {"lora-rank", "8"}};
  const models::Strategy s = request("gpt2", given).question.strategy;
  CHECK(s.quantize->storage->name == "nf4-dq");
  CHECK(s.param_dtype == DType::bf16);  // as checkpoints are
}

TEST_CASE("Liger brings its fused loss, unless --loss says otherwise or there is none") {
  const auto loss = [](const char* model, std::vector<std::pair<const char*, const char*>> given) {
    Options options;
    for (const auto& [name, value] : given) options.add(name, value);
    Sources sources;
    return request_from(model, options, sources).question.strategy.loss;
  };
  CHECK(loss("llama-3-8b", {}) == models::Loss::full);
  CHECK(loss("llama-3-8b", {{"kernels", "liger"}}) == models::Loss::fused);
  CHECK(loss("llama-3-8b", {{"kernels", "liger"}, {"loss", "full"}}) == models::Loss::full);
  CHECK(loss("granite-3.1-2b", {{"kernels", "liger"}}) == models::Loss::full);
  CHECK(refusal("llama-3-8b", {{"kernels", "liger"}, {"stack", "plimsoll"}}, ErrorKind::bad_input)
            .starts_with("--kernels liger: "));
}

TEST_CASE("FSDP's version is 1 or 2, and belongs to sharded parameters") {
  CHECK(refusal("gpt2", {{"fsdp-version", "1"}}, ErrorKind::bad_input) ==
        "--fsdp-version 1: FSDP is --stack pytorch with --zero 2 or 3");
  CHECK(refusal("gpt2", {{"fsdp-version", "3"}, {"zero", "3"}, {"gpus", "2"}},
                ErrorKind::bad_input) == "--fsdp-version 3: must be at most 2");
}

TEST_CASE("values that say what is modelled anyway are accepted") {
  CHECK(refusal("gpt2", {{"tp", "1"},
                         {"pp", "1"},
                         {"kernels", "eager"},
                         {"mode", "train"},
                         {"torch-version", "2.11"},
                         {"transformers-version", "5.17"},
                         {"optimizer", "adamw"}}) == "");
  CHECK(refusal("gpt2", {{"transformers-version", "4.48.1"}}) == "");
  CHECK(refusal("gpt2", {{"transformers-version", "new"}}) ==
        "--transformers-version new: must be a release, such as 4.57.1");
  CHECK(refusal("gpt2", {{"transformers-version", "4.48"}, {"stack", "plimsoll"}}) != "");
  CHECK(refusal("gpt2", {{"torch-version", "2.8"}}) == "");
  CHECK(refusal("gpt2", {{"torch-version", "nightly"}}) ==
        "--torch-version nightly: must be a release, such as 2.8.0");
  CHECK(refusal("gpt2", {{"torch-version", "2.8"}, {"stack", "deepspeed"}}) ==
        "--torch-version 2.8: other releases than 2.11.0 are modelled with --stack pytorch");
  CHECK(refusal("gpt2", {{"tp", "0"}}) == "--tp 0: must be at least 1");
  CHECK(refusal("gpt2", {{"stack", "deepsped"}}).find("did you mean 'deepspeed'?") !=
        std::string::npos);
}

TEST_CASE("a bare count is answered in the paper's layout and refuses what it cannot know") {
  const Request r = request("", {{"params", "7.5e9"}, {"gpus", "64"}, {"zero", "2"}});
  CHECK(*r.parameters == Count(7'500'000'000));
  CHECK(r.model == nullptr);
  for (const char* option : {"lora-rank", "optimizer-impl", "stack", "param-dtype", "freeze"})
    CHECK_MESSAGE(refusal("", {{"params", "7.5e9"}, {option, "8"}}).starts_with("--params with --"),
                  option);
  CHECK(refusal("", {{"params", "1e9"}, {"seq-len", "8"}}) ==
        "--params with --seq-len: a bare count is answered in the ZeRO paper's layout (AdamW, no "
        "stack, no step); give a MODEL for more");
  CHECK(refusal("", {{"params", "1e9"}, {"optimizer", "adamw"}, {"mode", "train"}}) == "");
  CHECK(refusal("", {{"params", "1e9"}, {"precision", "bf16"}}) != "");
  CHECK(refusal("", {}).starts_with("MODEL is missing"));
}

TEST_CASE("unknown models and GPUs are refused with the nearest name") {
  CHECK(refusal("llama-3.1-9b", {}).find("did you mean 'llama-3.1-8b'?") != std::string::npos);
  Options options;
  options.add("gpu", "h1000");
  Sources sources;
  CHECK_THROWS_AS(request_from("gpt2", options, sources), Error);
}

TEST_CASE("the stacks that --stack takes are those that the planner has") {
  const Option& option = *find_plan_option("stack");
  const auto taken = option.names.first(option.modelled);
  CHECK(taken.size() == planner::stacks().size());
  for (const planner::StackInfo* stack : planner::stacks())
    CHECK_MESSAGE(std::ranges::count(taken, name_of(stack->kind)) == 1, stack->title);
}

TEST_CASE("no option is ignored: each one refuses a value that makes no sense") {
  for (const Option& option : plan_options()) {
    if (option.value.empty() || option.repeatable) continue;  // flags, patterns
    // What else an option asks for before it looks at its value.
    Given given{{std::string(option.name), "%%"}};
    if (option.name.starts_with("lora-") || option.name == "adapter-dtype" ||
        option.name == "adapters" || option.name == "use-dora" ||
        option.name == "target-parameters" || option.name == "modules-to-save")
      if (option.name != "lora-rank") given.emplace_back("lora-rank", "8");
    if (option.name == "fsdp-upcast" || option.name == "grad-dtype")
      given.emplace_back("zero", "3");
    if (option.name == "reduce-bucket" || option.name == "master-weights")
      given.emplace_back("stack", "plimsoll");
    if (option.name == "lora-targets" || option.name == "modules-to-save" ||
        option.name == "target-parameters")
      given[0].second = "a,,b";
    std::string message;
    try {
      (void)request(option.name == "params" ? "" : "gpt2", given);
    } catch (const Error& error) {
      message = error.message();
    }
    CHECK_MESSAGE(message.find(given[0].second) != std::string::npos, option.name);
  }
}

// GB and GiB, GB/s, MiB, elements: each option's own, every figure another, so that none lands in
// another's place.
TEST_CASE("options that have a unit mean it") {
  const auto cluster = [](const char* option, const char* value) {
    return request("gpt2", {{option, value}}).question.cluster;
  };
  CHECK(cluster("gpu-memory", "80GB").memory == Bytes(80'000'000'000));
  CHECK(cluster("gpu-memory", "80GiB").memory == Bytes(85'899'345'920));
  CHECK(cluster("gpu-memory", "81559MiB").memory == Bytes(85'520'809'984));
  CHECK(cluster("gpu-memory", "12345678901").memory == Bytes(12'345'678'901));
  CHECK(cluster("gpu-memory", "80GB").reserve == 0_B);
  CHECK(cluster("reserve", "1.5GB").reserve == Bytes(1'500'000'000));
  CHECK(cluster("reserve", "1.5GiB").reserve == Bytes(1'610'612'736));
  CHECK(!cluster("reserve", "1GB").memory);
  // GB/s, of 10^9 bytes.
  CHECK(cluster("intra-node-bandwidth", "450").intra_node_bandwidth == 450e9);
  CHECK(!cluster("intra-node-bandwidth", "450").inter_node_bandwidth);
  CHECK(cluster("inter-node-bandwidth", "12.5").inter_node_bandwidth == 12.5e9);
  CHECK(!cluster("inter-node-bandwidth", "12.5").intra_node_bandwidth);
  const auto data = [](const Given& given) {
    return request("gpt2", given).question.strategy.data;
  };
  CHECK(data({}).bucket_cap == 25_MiB);
  CHECK(data({{"bucket-cap-mb", "10"}}).bucket_cap == Bytes(10'485'760));  // torch's MB are MiB
  CHECK(data({{"stack", "plimsoll"}, {"reduce-bucket", "10MB"}}).bucket_cap == Bytes(10'000'000));
  CHECK(data({{"stack", "plimsoll"}, {"reduce-bucket", "10MiB"}}).bucket_cap == Bytes(10'485'760));
}

TEST_CASE("DeepSpeed's sizes are elements, each its own") {
  const models::DeepSpeedOptions o = request("gpt2", {{"stack", "deepspeed"},
                                                      {"gpus", "4"},
                                                      {"zero", "3"},
                                                      {"reduce-bucket-size", "2e8"},
                                                      {"sub-group-size", "300M"},
                                                      {"stage3-prefetch-bucket-size", "4e7"},
                                                      {"stage3-param-persistence-threshold", "50K"},
                                                      {"stage3-max-live-parameters", "6e8"},
                                                      {"stage3-max-reuse-distance", "0.7B"},
                                                      {"overlap-comm", "no"}})
                                         .question.strategy.data.deepspeed;
  models::DeepSpeedOptions expected;
  expected.reduce_bucket_size = 200'000'000;
  expected.sub_group_size = 300'000'000;
  expected.prefetch_bucket_size = 40'000'000;
  expected.param_persistence_threshold = 50'000;
  expected.max_live_parameters = 600'000'000;
  expected.max_reuse_distance = 700'000'000;
  expected.overlap_comm = false;
  CHECK(o == expected);
}

TEST_CASE("--grad-dtype is FSDP's reduce dtype, and the gradients' own elsewhere") {
  const Given fsdp{{"gpus", "4"}, {"zero", "3"}, {"grad-dtype", "fp32"}};
  const models::Strategy s = request("gpt2", fsdp).question.strategy;
  CHECK(s.data.reduce_dtype == DType::fp32);
  CHECK(!request("gpt2", {{"gpus", "4"}, {"zero", "3"}}).question.strategy.data.reduce_dtype);
  const Given deepspeed{
      {"gpus", "4"}, {"zero", "2"}, {"stack", "deepspeed"}, {"grad-dtype", "fp32"}};
  CHECK(request("gpt2", deepspeed).question.strategy.grad_dtype == DType::fp32);
  CHECK(!request("gpt2", deepspeed).question.strategy.data.reduce_dtype);
  // What is reduced is twice as wide in fp32 as in bf16, what is gathered is not.
  const auto sent = [](Given given, const std::string& kind) {
    given.emplace_back("seq-len", "64");
    const Request r = request("gpt2", given);
    Bytes all;
    for (const reports::Collective& c : planner::plan(r.question).collectives)
      if (c.kind == kind) all += c.array * c.count;
    return all;
  };
  const Given low{{"gpus", "4"}, {"zero", "3"}, {"grad-dtype", "bf16"}};
  // 124439808 parameters; of 50257 rows 4 ranks hold 12565 each: 3 · 768 more. Blocks of 512 B.
  CHECK(sent(low, "reduce_scatter") >= Bytes(2 * 124'442'112));
  CHECK(sent(low, "reduce_scatter") <= Bytes(2 * 124'442'112 + 14 * 512));
  CHECK(sent(fsdp, "reduce_scatter") >= Bytes(4 * 124'442'112));
  CHECK(sent(fsdp, "reduce_scatter") <= Bytes(4 * 124'442'112 + 14 * 512));
  CHECK(sent(fsdp, "all_gather") == sent(low, "all_gather"));
}

TEST_CASE("GPUs, their nodes and their groups are not taken for one another") {
  const models::Strategy s = request("gpt2", {{"gpus", "24"},
                                              {"gpus-per-node", "6"},
                                              {"zero", "3"},
                                              {"shard-group", "12"},
                                              {"micro-batch", "5"},
                                              {"grad-accum", "7"}})
                                 .question.strategy;
  CHECK(s.gpus == 24);
  CHECK(s.gpus_per_node == 6);
  CHECK(s.data.shard_group == 12);
  const Request lora = request("gpt2", {{"lora-rank", "4"},
                                        {"lora-alpha", "24"},
                                        {"lora-dropout", "0.25"},
                                        {"micro-batch", "5"},
                                        {"grad-accum", "7"}});
  CHECK(lora.question.strategy.lora->rank == 4);
  CHECK(lora.question.strategy.lora->alpha == 24);
  CHECK(lora.question.strategy.lora->dropout == 0.25);
  CHECK(lora.question.batch == models::Batch{.seq_len = 1024, .micro_batch = 5, .grad_accum = 7});
}

// --trainer: another program's defaults as options of this one, and torchtitan's own model.
#include "models/trainers.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>

#include "models/storages.h"
#include "planner/plan.h"
#include "tools/cli/request.h"

using namespace plimsoll;
using namespace plimsoll::tools;

namespace {
using Given = std::vector<std::pair<std::string, std::string>>;

Request request(const std::string& model, const Given& given) {
  Options options;
  options.add("gpu", "h100");
  for (const auto& [name, value] : given) options.add(name, value);
  Sources sources;
  return request_from(model, options, sources);
}

std::string refusal(const std::string& model, const Given& given) {
  try {
    const Request asked = request(model, given);
    (void)planner::plan(asked.question);
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

bool any_note(const Request& request, std::string_view part) {
  return std::ranges::any_of(
      request.notes, [&](const std::string& note) { return note.find(part) != std::string::npos; });
}
}  // namespace

TEST_CASE("a trainer sets only options that there are, each once, and says where it read them") {
  for (const models::Trainer& trainer : models::trainers()) {
    CAPTURE(trainer.name);
    std::set<std::string_view> seen;
    for (const models::TrainerDefault& one : trainer.defaults) {
      CAPTURE(one.option);
      const models::Option* option = models::find_plan_option(one.option);
      REQUIRE(option != nullptr);
      CHECK_FALSE(option->is_never_modelled());
      CHECK(seen.insert(one.option).second);
      CHECK_FALSE(one.source.empty());
    }
  }
  CHECK(models::find_trainer("torchtitan")->version == "0.2.2");
  CHECK(models::find_trainer("torchtitan@2024-12")->version == "2024-12");
  CHECK(models::find_trainer("torchtitan@") == nullptr);
  CHECK(models::find_trainer("titan") == nullptr);
}

// Compute capabilities 7.0, 7.5, 8.0, 9.0, 10.0, and another vendor's.
TEST_CASE(
    "Unsloth takes xformers in fp16 on cards before Ampere, and what is said goes before that") {
  const auto on = [](const char* gpu, const Given& given) {
    Options options;
    options.add("gpu", gpu);
    options.add("trainer", "unsloth");
    for (const auto& [name, value] : given) options.add(name, value);
    Sources sources;
    return request_from("llama-3.2-1b", options, sources).question.strategy;
  };
  for (const auto& [gpu, older] : std::map<const char*, bool>{{"v100-sxm-16gb", true},
                                                              {"t4", true},
                                                              {"a100-80gb", false},
                                                              {"h100", false},
                                                              {"b200", false},
                                                              {"mi325x", false}}) {
    CAPTURE(gpu);
    const models::Strategy s = on(gpu, {});
    CHECK(s.attention == (older ? models::Attention::xformers : models::Attention::flash_2));
    CHECK(s.precision == (older ? models::Precision::fp16_mixed : models::Precision::bf16_mixed));
    CHECK(s.param_dtype == (older ? DType::fp16 : DType::bf16));
  }
  CHECK(on("t4", {{"attention", "flash"}}).attention == models::Attention::flash);
}

TEST_CASE("a trainer's defaults are as if they had been said, and options go before them") {
  const Request r = request(
      "llama-3-8b", {{"trainer", "torchtitan@2024-12"}, {"gpus", "8"}, {"recompute", "full"}});
  const models::Strategy& s = r.question.strategy;
  CHECK(s.code == models::ModelCode::torchtitan_2024_12);
  CHECK(s.data.zero == 3);
  CHECK(s.data.reduce_dtype == DType::fp32);
  CHECK(s.optimizer_impl == models::OptimizerImpl::foreach);
  CHECK(s.recompute.kind == models::RecomputeKind::full);
  CHECK(any_note(r, "--model-code torchtitan@2024-12"));
  CHECK(any_note(r, "you say otherwise than --recompute ops:torchtitan"));
  const Request same =
      request("llama-3-8b", {{"trainer", "torchtitan@2024-12"}, {"gpus", "8"}, {"zero", "3"}});
  CHECK_FALSE(any_note(same, "otherwise"));
  CHECK(any_note(same, "--zero 3"));
  const std::string known =
      "; known are axolotl@0.19, litgpt@0.5.13, litgpt@0.4.13, litgpt@0.3.0, litgpt-full@0.5.13, "
      "litgpt-full@0.4.13, litgpt-full@0.3.0, llamafactory@0.9.5, "
      "ms-swift@4.6, "
      "torchtitan@0.2.2, torchtitan@2024-12, torchtune@0.6.1, torchtune-single-device@0.6.1, "
      "transformers@5.17, "
      "trl@1.16, trl@0.29, trl@0.24, trl@0.12, unsloth@2025.11";
  CHECK(refusal("llama-3-8b", {{"trainer", "megatron"}}) ==
        "--trainer megatron: not known" + known);
  CHECK(refusal("llama-3-8b", {{"trainer", "tortitan"}}) ==
        "--trainer tortitan: not known (did you mean torchtitan?)" + known);
  CHECK(refusal("llama-3-8b", {{"trainer", "trl@0.25"}}) ==
        "--trainer trl@0.25: not known (did you mean trl@0.29?)" + known);
}

// Read off their sources, and not off the table.
TEST_CASE("each trainer's options are these") {
  const std::map<std::string, std::string> expected{
      {"axolotl@0.19",
       "--precision bf16-mixed --param-dtype bf16 --optimizer adamw --optimizer-impl fused "
       "--micro-batch 1 --grad-accum 1 --seq-len 512 --recompute none"},
      {"litgpt@0.5.13",
       "--model-code litgpt@0.5.13 --precision bf16 --adapter-dtype bf16 --optimizer adamw "
       "--optimizer-impl foreach --micro-batch 1 --loss chunked --recompute none"},
      {"litgpt@0.4.13",
       "--model-code litgpt@0.4.13 --torch-version 2.4.1 --precision bf16 --adapter-dtype bf16 "
       "--optimizer adamw --optimizer-impl foreach --micro-batch 1 --loss chunked --recompute "
       "none --bitsandbytes-version 0.42"},
      {"litgpt@0.3.0",
       "--model-code litgpt@0.3.0 --torch-version 2.4.1 --precision bf16 --adapter-dtype bf16 "
       "--optimizer adamw --optimizer-impl foreach --micro-batch 1 --loss chunked --recompute "
       "none --bitsandbytes-version 0.42"},
      {"litgpt-full@0.4.13",
       "--model-code litgpt@0.4.13 --torch-version 2.4.1 --precision bf16 --optimizer adamw "
       "--optimizer-impl foreach --micro-batch 1 --recompute none"},
      {"litgpt-full@0.3.0",
       "--model-code litgpt@0.3.0 --torch-version 2.4.1 --precision bf16 --optimizer adamw "
       "--optimizer-impl foreach --micro-batch 1 --recompute none"},
      {"litgpt-full@0.5.13",
       "--model-code litgpt@0.5.13 --precision bf16 --optimizer adamw --optimizer-impl foreach "
       "--micro-batch 1 --recompute none"},
      {"llamafactory@0.9.5",
       "--optimizer adamw --optimizer-impl fused --micro-batch 8 --seq-len 2048 --recompute full "
       "--use-reentrant yes"},
      {"ms-swift@4.6",
       "--precision bf16-mixed --param-dtype bf16 --optimizer adamw --optimizer-impl fused "
       "--micro-batch 1 --recompute full"},
      {"torchtitan@0.2.2",
       "--model-code torchtitan@0.2.2 --zero 3 --precision bf16-mixed --grad-dtype fp32 "
       "--optimizer adamw --optimizer-impl fused --recompute ops:torchtitan"},
      {"torchtitan@2024-12",
       "--model-code torchtitan@2024-12 --zero 3 --precision bf16-mixed --grad-dtype fp32 "
       "--optimizer adamw --optimizer-impl foreach --recompute ops:torchtitan"},
      {"torchtune@0.6.1",
       "--model-code torchtune@0.6.1 --zero 3 --precision bf16 --adapter-dtype bf16 --optimizer "
       "adamw --optimizer-impl fused --micro-batch 2 --loss chunked --recompute full"},
      {"torchtune-single-device@0.6.1",
       "--model-code torchtune@0.6.1 --precision bf16 --adapter-dtype bf16 --micro-batch 2 --loss "
       "chunked --recompute full"},
      {"transformers@5.17",
       "--transformers-version 5.17 --precision fp32 --optimizer adamw --optimizer-impl fused "
       "--micro-batch 8 --recompute none"},
      {"trl@1.16",
       "--transformers-version 5.17 --precision bf16-mixed --param-dtype fp32 --optimizer adamw "
       "--optimizer-impl fused --micro-batch 8 --grad-accum 1 --seq-len 1024 --recompute full "
       "--kbit-prep no --adapter-dtype bf16 --loss tiled"},
      {"trl@0.29",
       "--transformers-version 5.17 --precision bf16-mixed --param-dtype fp32 --optimizer adamw "
       "--optimizer-impl fused --micro-batch 8 --grad-accum 1 --seq-len 1024 --recompute full "
       "--kbit-prep no --adapter-dtype bf16"},
      {"trl@0.24",
       "--transformers-version 4.57 --precision bf16-mixed --param-dtype fp32 --optimizer adamw "
       "--optimizer-impl fused --micro-batch 8 --grad-accum 1 --seq-len 1024 --recompute full "
       "--use-reentrant yes --kbit-casting yes"},
      {"trl@0.12",
       "--transformers-version 4.46 --precision fp32 --optimizer adamw --optimizer-impl foreach "
       "--micro-batch 8 --grad-accum 1 --seq-len 1024 --recompute none "
       "--kbit-casting yes"},
      {"unsloth@2025.11",
       "--transformers-version 4.57.2 --kernels unsloth --attention flash-2 --precision bf16-mixed "
       "--param-dtype bf16 --lora-rank 16 --lora-targets all-linear --optimizer adam8bit "
       "--micro-batch 4 --grad-accum 2 --seq-len 2048 --loss fused --recompute full "
       "--offload activations"}};
  std::map<std::string, std::string> found;
  for (const models::Trainer& trainer : models::trainers()) {
    std::string& text = found[std::string(trainer.name) + "@" + std::string(trainer.version)];
    for (const models::TrainerDefault& one : trainer.defaults)
      text +=
          (text.empty() ? "--" : " --") + std::string(one.option) + " " + std::string(one.value);
  }
  CHECK(found == expected);
}

TEST_CASE("an option goes before each default of each trainer") {
  for (const models::Trainer& trainer : models::trainers()) {
    const std::string name = std::string(trainer.name) + "@" + std::string(trainer.version);
    CAPTURE(name);
    const bool shards = trainer.name == "torchtitan" || trainer.name == "torchtune";
    const Request r = request("llama-3-8b", {{"trainer", name},
                                             {"gpus", shards ? "2" : "1"},
                                             {"micro-batch", "3"},
                                             {"seq-len", "256"},
                                             {"optimizer-impl", "for-loop"},
                                             {"recompute", "full"},
                                             {"optimizer", "sgd"}});
    CHECK(r.question.batch.micro_batch == 3);
    CHECK(r.question.batch.seq_len == 256);
    CHECK(r.question.strategy.optimizer == models::Optimizer::sgd);
    CHECK(r.question.strategy.optimizer_impl == models::OptimizerImpl::for_loop);
    CHECK(r.question.strategy.recompute.kind == models::RecomputeKind::full);
  }
}

TEST_CASE("what a trainer says of its checkpoints goes with them") {
  for (const char* trainer : {"trl@0.24", "llamafactory"}) {
    const Request r = request("llama-3-8b", {{"trainer", trainer}, {"recompute", "none"}});
    CHECK(r.question.strategy.recompute.kind == models::RecomputeKind::none);
    CHECK(!r.question.strategy.use_reentrant);
    CHECK(request("llama-3-8b", {{"trainer", trainer}, {"recompute", "every:2"}})
              .question.strategy.use_reentrant == true);
  }
}

TEST_CASE("TRL recomputes and computes in 16 bits from 0.24 on, and not in 0.12") {
  const Request asked_now = request("llama-3-8b", {{"trainer", "trl@0.24"}}),
                asked_then = request("llama-3-8b", {{"trainer", "trl@0.12"}});
  const planner::Question &now = asked_now.question, &then = asked_then.question;
  CHECK(now.batch.tokens() == 8 * 1024);
  CHECK(now.strategy.precision == models::Precision::bf16_mixed);
  CHECK(now.strategy.use_reentrant == true);
  CHECK(then.strategy.precision == models::Precision::fp32);
  CHECK(then.strategy.optimizer_impl == models::OptimizerImpl::foreach);
  CHECK(planner::plan(now).peak < planner::plan(then).peak);
}

TEST_CASE("the defaults of programs around Trainer are each its own") {
  const auto strategy = [](const char* trainer) {
    return request("llama-3-8b", {{"trainer", trainer}}).question;
  };
  const planner::Question axolotl = strategy("axolotl"), factory = strategy("llamafactory"),
                          swift = strategy("ms-swift");
  CHECK(axolotl.batch.seq_len == 512);
  CHECK(axolotl.strategy.param_dtype == DType::bf16);
  CHECK(axolotl.strategy.recompute.kind == models::RecomputeKind::none);
  CHECK(factory.batch.micro_batch == 8);
  CHECK(factory.strategy.use_reentrant == true);
  CHECK(factory.strategy.recompute.kind == models::RecomputeKind::full);
  CHECK(swift.batch.micro_batch == 1);
  CHECK(swift.strategy.param_dtype == DType::bf16);
  CHECK(swift.strategy.recompute.kind == models::RecomputeKind::full);
}

TEST_CASE("what a trainer's code does not do names the trainer") {
  const Given base{{"trainer", "torchtitan"}, {"gpus", "8"}};
  const auto with = [&](const char* name, const char* value) {
    Given given = base;
    given.emplace_back(name, value);
    return refusal("llama-3-8b", given);
  };
  CHECK(refusal("llama-3-8b", base) == "");
  CHECK(refusal("gpt2", base).find("its gpt2 is not modelled") != std::string::npos);
  CHECK(refusal("llama-3-8b", {{"trainer", "torchtitan"}}).find("--model-code") !=
        std::string::npos);  // one GPU
  for (const auto& [name, value] : Given{{"zero", "2"},
                                         {"precision", "bf16"},
                                         {"loss", "chunked"},
                                         {"attention", "eager"},
                                         {"lora-rank", "8"},
                                         {"grad-accum", "2"},
                                         {"recompute", "every:2"},
                                         {"offload", "params"},
                                         {"use-reentrant", "yes"}}) {
    CAPTURE(name);
    CHECK(with(name.c_str(), value.c_str()).find("--") != std::string::npos);
  }
  CHECK(with("stack", "deepspeed") ==
        "torchtitan@0.2.2: torchtitan/models/llama3/model/model.py: --model-code "
        "torchtitan@0.2.2: belongs to --stack pytorch");
  CHECK(refusal("llama-3-8b", {{"gpus", "8"}, {"zero", "3"}, {"recompute", "ops:torchtitan"}})
            .starts_with("--recompute ops:torchtitan is modelled with torchtitan's own model"));
}

TEST_CASE("LitGPT's code names what its scripts do otherwise, or what is not modelled of them") {
  const auto with = [](Given given) {
    given.insert(given.begin(), {"trainer", "litgpt"});
    return refusal("llama-3.1-8b", given);
  };
  CHECK(with({{"lora-rank", "8"}, {"lora-targets", "q_proj,v_proj"}}) == "");
  CHECK(refusal("llama-3.2-3b", {{"trainer", "litgpt-full"}}) == "");
  CHECK(with({}).find("--loss full (finetune/full.py)") != std::string::npos);
  CHECK(refusal("mistral-7b-v0.3", {{"trainer", "litgpt"}, {"lora-rank", "8"}}) == "");
  CHECK(refusal("mistral-7b-v0.1", {{"trainer", "litgpt@0.3.0"}, {"lora-rank", "8"}}) == "");
  for (const char* const other : {"mistral-7b-v0.1", "qwen2.5-7b"})
    CHECK(refusal(other, {{"trainer", "litgpt"}, {"lora-rank", "8"}})
              .find("is not modelled (llama and mistral are, without biases and windows)") !=
          std::string::npos);
}

TEST_CASE("torchtune's code names what its recipes do otherwise, or what is not modelled of them") {
  const auto with = [](Given given) {
    given.insert(given.begin(), {"trainer", "torchtune"});
    return refusal("llama-3.1-8b", given);
  };
  const Given eight{{"gpus", "8"}};
  CHECK(with(eight) == "");
  CHECK(with({{"gpus", "8"}, {"lora-rank", "8"}}) == "");
  CHECK(refusal("llama-3.2-3b", {{"trainer", "torchtune-single-device"}}) == "");
  CHECK(refusal("mistral-7b-v0.1", {{"trainer", "torchtune-single-device"}}) == "");
  CHECK(refusal("qwen2.5-7b", {{"trainer", "torchtune-single-device"}})
            .find("its qwen2 is not modelled (llama and mistral are, without biases)") !=
        std::string::npos);
  CHECK(with({}).find("one GPU (--gpus 1 --zero 0)") != std::string::npos);
  const std::string code = "--model-code torchtune@0.6.1 ";
  for (const auto& [given, why] : std::vector<std::pair<Given, std::string>>{
           {{{"zero", "2"}}, "it has no DDP"},
           {{{"precision", "bf16-mixed"}}, "--precision bf16 alone"},
           {{{"lora-rank", "8"}, {"quantize", "nf4"}}, "torchao's NF4Tensor"},
           {{{"lora-rank", "8"}, {"adapter-dtype", "fp32"}}, "--adapter-dtype bf16"},
           {{{"lora-rank", "8"}, {"lora-targets", "q_proj,up_proj"}}, "none of it"},
           {{{"lora-rank", "8"}, {"use-dora", "yes"}}, "DoRALinear"},
           {{{"loss", "fused"}}, "--loss full or chunked"},
           {{{"attention", "eager"}}, "--attention flash"},
           {{{"recompute", "every:2"}}, "--recompute none and full"},
           {{{"compile", "block"}}, "--compile"},
           {{{"offload", "params"}}, "fsdp_cpu_offload"},
           {{{"grad-accum", "2"}}, "reduces every micro-step"},
           {{{"freeze", "*embed_tokens*"}}, "no --freeze"}}) {
    Given all = eight;
    all.insert(all.end(), given.begin(), given.end());
    const std::string said = with(all);
    CAPTURE(said);
    CAPTURE(why);
    CHECK(said.find(code) != std::string::npos);
    CHECK(said.find(why) != std::string::npos);
  }
  Given offloaded = eight;
  offloaded.emplace_back("offload", "activations");
  CHECK(with(offloaded).find("--offload activations is not modelled") != std::string::npos);
}

TEST_CASE("the policy keeps, in 16 bits, every second GEMM and the attention of each layer") {
  // Of 4,096 tokens more, at the loss, beside each layer's input: q, v, gate and down (4,096 +
  // 1,024 + 14,336 + 4,096 values), attention's result, and in fp32 the logarithms of its sums.
  const auto peak = [](const char* recompute, const char* tokens) {
    const Request r = request(
        "llama-3-8b",
        {{"trainer", "torchtitan"}, {"gpus", "8"}, {"recompute", recompute}, {"seq-len", tokens}});
    return planner::plan(r.question).peak;
  };
  const Bytes more_ops = peak("ops:torchtitan", "8192") - peak("ops:torchtitan", "4096");
  const Bytes more_full = peak("full", "8192") - peak("full", "4096");
  const std::int64_t kept = 2 * (4096 + 1024 + 14336 + 4096) + 2 * 4096 + 4 * 32;
  CHECK(more_ops - more_full == Bytes(32 * 4096 * kept));
}

// trl 0.29.1, trainer/sft_trainer.py, __init__: adapters of a packed base go to bf16, and nothing
// is prepared. 0.24.0, models/utils.py, prepare_peft_model: prepared, and cast where bf16 is on and
// the base has 4 bits. 0.12.2 likewise.
TEST_CASE("TRL's treatment of a packed base goes by its release") {
  const auto asked = [](const std::string& trainer, Given given) {
    given.emplace_back("trainer", trainer);
    given.emplace_back("lora-rank", "16");
    return request("llama-3-8b", given).question.strategy;
  };
  const auto packed = [&](const std::string& trainer, const char* kind, Given given = {}) {
    given.emplace_back("quantize", kind);
    return asked(trainer, given);
  };
  CHECK(packed("trl@0.29", "nf4").quantize->kbit_prep == false);
  CHECK(packed("trl@0.29", "nf4").lora->dtype == DType::bf16);
  CHECK(packed("trl@0.29", "int8").lora->dtype == DType::bf16);
  CHECK(asked("trl@0.29", {}).lora->dtype == DType::fp32);
  CHECK(models::casts_behind_kbit(packed("trl@0.24", "nf4-dq")));
  CHECK(packed("trl@0.24", "nf4-dq").lora->dtype == DType::fp32);
  CHECK_FALSE(models::casts_behind_kbit(packed("trl@0.24", "int8")));
  CHECK(models::kbit_prepared(packed("trl@0.24", "int8")));
  CHECK_FALSE(packed("trl@0.24", "nf4", {{"kbit-prep", "no"}}).quantize->kbit_casting);
  CHECK_FALSE(packed("trl@0.24", "nf4", {{"kbit-casting", "no"}}).quantize->kbit_casting);
  CHECK_FALSE(packed("trl@0.12", "nf4").quantize->kbit_casting);  // computes in fp32
  CHECK(models::casts_behind_kbit(packed("trl@0.12", "nf4", {{"precision", "bf16-mixed"}})));
}

// deepspeed 0.19.8, runtime/engine.py, _configure_distributed_model.
TEST_CASE("what a trainer loads weights in is nothing where DeepSpeed's engine casts them") {
  const Given zero2{{"trainer", "trl"}, {"stack", "deepspeed"}, {"gpus", "8"}, {"zero", "2"}};
  const Request asked = request("llama-3.2-1b", zero2);
  CHECK_FALSE(asked.question.strategy.param_dtype.has_value());
  CHECK(asked.question.strategy.loss == models::Loss::tiled);
  CHECK(any_note(asked, "trl@1.16: it loads weights in fp32, which DeepSpeed's engine casts"));
  CHECK(refusal("llama-3.2-1b", zero2).empty());
  Given said = zero2;
  said.emplace_back("param-dtype", "fp32");
  CHECK(refusal("llama-3.2-1b", said).find("bf16 weights beside fp32 masters") !=
        std::string::npos);
  const Given fsdp{{"trainer", "trl"}, {"gpus", "8"}, {"zero", "2"}};
  CHECK(request("llama-3.2-1b", fsdp).question.strategy.param_dtype == DType::fp32);
}

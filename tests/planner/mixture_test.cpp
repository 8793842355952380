// Mixtures of experts (mixtral, qwen3_moe): what is refused, what is counted, cub's scratch. Their
// steps op by op: pytorch_traces_test.cpp; full-size ones: dry_runs_test.cpp.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "models/lora.h"
#include "models/model_catalog.h"
#include "models/model_reader.h"
#include "models/step_flops.h"
#include "models/storages.h"
#include "planner/model_parts.h"
#include "planner/plan.h"
#include "planner/stacks/pytorch/kernels.h"

using namespace plimsoll;

namespace {

std::string config(const std::string& more) {
  return R"({"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 64,
    "intermediate_size": 96, "moe_intermediate_size": 32, "num_hidden_layers": 6,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 100,
    "num_experts": 8, "num_experts_per_tok": 2)" +
         more + "}";
}
models::ModelSpec model_with(const std::string& more) {
  return models::read_model(config(more), "tiny", "tiny", {});
}

planner::Question question_of(const models::ModelSpec& model) {
  planner::Question question;
  question.model = &model;
  question.batch = {.seq_len = 128, .micro_batch = 1};
  return question;
}

std::string refusal(const planner::Question& question) {
  try {
    planner::plan(question);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::unsupported);
    return error.message();
  }
  return "";
}

}  // namespace

TEST_CASE("cub's temporary storage is what torch's sorts asked for") {
  // torch.sort and index_put with accumulate on the dry runtime, torch 2.11.
  using planner::pytorch::bits_of;
  using planner::pytorch::pair_sort_bytes;
  CHECK(pair_sort_bytes(4097, 64) == 83'967);
  CHECK(pair_sort_bytes(131'072, 64) == 2'143'743);
  CHECK(pair_sort_bytes(2304, bits_of(2303)) == 1);
  CHECK(pair_sort_bytes(2305, bits_of(2304)) == 43'007);
  CHECK(pair_sort_bytes(4096, bits_of(4095)) == 71'167);
  CHECK(pair_sort_bytes(32'768, bits_of(32'767)) == 537'087);
  CHECK(pair_sort_bytes(131'072, bits_of(131'071)) == 2'133'503);
  CHECK(pair_sort_bytes(131'072, bits_of(16'383)) == 2'131'455);
  CHECK(pair_sort_bytes(2'097'152, bits_of(2'097'151)) == 34'028'031);
  CHECK(pair_sort_bytes(9217, bits_of(199)) == 5631);  // one pass
  CHECK(bits_of(0) == 1);
}

TEST_CASE("experts are trained as a whole: they are one parameter") {
  const models::ModelSpec model = models::catalog_model("qwen3-30b-a3b");
  planner::Question question = question_of(model);
  question.strategy.freeze = {"*.experts.7.*"};
  CHECK(refusal(question).find("gate_up_proj") != std::string::npos);
  question.strategy.freeze = {"*.experts.*.up_proj.weight"};
  CHECK(refusal(question).find("gate_up_proj") != std::string::npos);
  question.strategy.freeze = {"*.experts.*.down_proj.weight"};
  CHECK(refusal(question) == "");
  question.strategy.freeze = {"*.layers.3.mlp.experts.*"};
  CHECK(refusal(question) == "");
}

TEST_CASE("experts are no linear modules: adapters on them are named by parameter") {
  const models::ModelSpec model = models::catalog_model("mixtral-8x7b");
  planner::Question question = question_of(model);
  question.strategy.lora = models::Lora{};
  for (const char* target : {"w2", "block_sparse_moe.experts.3.w1"}) {
    question.strategy.lora->targets = {target};
    CHECK(refusal(question).find("no linear modules in Transformers 5") != std::string::npos);
  }
  question.strategy.lora->targets = {"gate"};
  CHECK(refusal(question).find("adapters on the routers of mixtral-8x7b") != std::string::npos);
  question.strategy.lora->targets = {"attention"};
  CHECK(refusal(question) == "");
  // PEFT 0.21 adapts the stacked experts, and the routers, too.
  CHECK(models::usual_lora_target(model) == std::string("attention"));
  question.strategy.lora->targets = {"all-linear"};
  CHECK(refusal(question).find("PEFT adapts the routers of mixtral-8x7b") != std::string::npos);
}

TEST_CASE("what a mixture's config changes is planned or named") {
  for (const char* in_the_way : {R"("router_jitter_noise": 0.1)", R"("hidden_act": "gelu")"}) {
    CAPTURE(in_the_way);
    const models::ModelSpec model = model_with(std::string(", ") + in_the_way);
    CHECK_FALSE(model.decoder.has_value());
    CHECK(!model.no_decoder.empty());
  }
  CHECK_FALSE(models::read_model(config(", \"num_experts\": 512"), "tiny", "tiny", {}).decoder);
  for (const char* planned :
       {R"("norm_topk_prob": true)", R"("mlp_only_layers": [0, 4])", R"("decoder_sparse_step": 2)",
        R"("use_sliding_window": true, "sliding_window": 32)", R"("num_experts_per_tok": 1)"}) {
    CAPTURE(planned);
    const models::ModelSpec model = model_with(std::string(", ") + planned);
    REQUIRE(model.decoder.has_value());
    const reports::Plan plan = planner::plan(question_of(model));
    CHECK(plan.parameters == model.parameter_count());
  }
}

TEST_CASE("a token is multiplied with the experts that it visits") {
  for (const char* name : {"mixtral-8x7b", "qwen3-235b-a22b"}) {
    const models::ModelSpec model = models::catalog_model(name);
    const models::GemmsOfToken gemms = models::gemms_of_token(model, {});
    // All active parameters but the embedding and the norms.
    const double active = model.active_parameter_count().real();
    CHECK(gemms.layers.trained + gemms.head.trained < active);
    CHECK(gemms.layers.trained + 2 * gemms.head.trained > 0.999 * active);
  }
}

// Transformers before 5.0: nn.Linear's of each expert and of the router, all of which
// replace_with_bnb_linear replaces; after, parameters that it leaves.
TEST_CASE("a loop's experts and router are packed one by one, stacked experts are not") {
  const models::ModelSpec model = model_with("");
  planner::Question question = question_of(model);
  models::Strategy& s = question.strategy;
  s.param_dtype = DType::bf16;
  s.lora = models::Lora{};
  s.lora->rank = 4;
  s.lora->targets = {"q_proj"};
  s.quantize = models::Quantization{.storage = models::find_packed_storage("nf4")};
  const auto packed = [&] {
    std::vector<std::int64_t> values;
    const planner::ModelParts parts = planner::model_parts(model, s);
    for (const planner::Parameter& p : parts.runs.at(0).layer(0).parameters)
      if (p.packed != nullptr) values.push_back(p.unpacked.values());
    std::ranges::sort(values);
    return values;
  };
  // q and o of 64 x 64, k and v of 32 x 64.
  CHECK(packed() == std::vector<std::int64_t>{2048, 2048, 4096, 4096});
  s.transformers = {4, 57, 1};
  // And the router of 8 x 64, three matrices of 32 x 64 for each of eight experts.
  std::vector<std::int64_t> all(1 + 2 + 24, 2048);
  all.front() = 512;
  all.insert(all.end(), 2, 4096);
  CHECK(packed() == all);
  s.quantize->storage = models::find_packed_storage("int8");
  CHECK(packed() == all);
  // Checkpoints of GPTQ have the router as it was.
  s.quantize->storage = models::find_packed_storage("gptq");
  all.erase(all.begin());
  CHECK(packed() == all);
}

// transformers 4.57.6 and 5.0.0, modeling_utils.py, gradient_checkpointing_enable; peft 0.21.2,
// peft_model.py and utils/other.py: see forces_input_gradient.
TEST_CASE("a frozen embedding is asked for a gradient by the release, by PEFT, or by nobody") {
  models::Strategy s;
  s.lora = models::Lora{};
  CHECK_FALSE(planner::forces_input_gradient(s));  // no checkpoints
  s.recompute.kind = models::RecomputeKind::full;
  s.transformers = {4, 57, 6};
  CHECK(planner::forces_input_gradient(s));  // PEFT
  s.quantize = models::Quantization{.storage = models::find_packed_storage("int8")};
  CHECK_FALSE(planner::forces_input_gradient(s));
  s.use_reentrant = true;
  CHECK(planner::forces_input_gradient(s));  // prepare_model_for_kbit_training
  s.use_reentrant = false;
  s.transformers = {5, 0, 0};
  CHECK(planner::forces_input_gradient(s));
  s.stack = models::Stack::plimsoll;
  CHECK_FALSE(planner::forces_input_gradient(s));
}

TEST_CASE("what of GPT-OSS is not modelled is refused by name") {
  const models::ModelSpec model = models::catalog_model("gpt-oss-20b");
  planner::Question question = question_of(model);
  question.strategy.attention = models::Attention::eager;
  CHECK(refusal(question) == "");
  question.strategy.rows = models::Rows::flattened;
  CHECK(refusal(question) ==
        "rows that hold padding or several samples are not modelled yet for gpt_oss (its masks are "
        "made without positions)");
  question.strategy.rows = models::Rows::full;
  question.strategy.recompute.kind = models::RecomputeKind::selective;
  CHECK(refusal(question) == "--recompute selective of gpt_oss is not modelled yet");
  question.strategy.recompute.kind = models::RecomputeKind::none;
  question.strategy.stack = models::Stack::plimsoll;
  CHECK(refusal(question).find("learned scores beside those of the keys") != std::string::npos);
  question.strategy.stack = models::Stack::pytorch;
  question.strategy.lora = models::Lora{};
  question.strategy.lora->targets = {"attention"};
  question.strategy.lora->parameters = {"mlp.experts.gate_up_proj"};
  CHECK(refusal(question) ==
        "--target-parameters mlp.experts.gate_up_proj: adapters on the experts of gpt-oss-20b are "
        "not modelled yet (--lora-targets attention is)");
}

TEST_CASE("experts in a loop are not planned under DeepSpeed's engine, stacked ones are") {
  const models::ModelSpec model = models::catalog_model("mixtral-8x7b");
  planner::Question question = question_of(model);
  question.strategy.stack = models::Stack::deepspeed;
  question.strategy.gpus = 8;
  question.strategy.data.zero = 2;
  CHECK(refusal(question) == "");
  question.strategy.transformers = {4, 57, 6};
  CHECK(
      refusal(question).starts_with("--stack deepspeed: --transformers-version 4.57.6, in which "
                                    "the experts of mixtral are a loop over modules"));
}

// What our own runtime does not do is refused by its option, and its neighbour is not; what the
// rest of the planner is told of each stack.
#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <vector>

#include "models/gpu_catalog.h"
#include "models/model_reader.h"
#include "planner/plan.h"
#include "planner/stacks/stack_info.h"

using namespace plimsoll;
using models::Attention;
using models::Stack;
using models::Strategy;

namespace {

std::string refusal(const std::function<void(Strategy&)>& change, const char* gpu = "h100") {
  static const models::ModelSpec model = models::read_model(
      R"({"model_type": "llama", "hidden_size": 64, "vocab_size": 128, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
    "max_position_embeddings": 512})",
      "llama", "llama", {});
  planner::Question question;
  question.model = &model;
  question.strategy.stack = Stack::plimsoll;
  change(question.strategy);
  question.cluster.gpu = models::find_gpu(gpu);
  question.batch = {.seq_len = 16};
  question.detail = planner::Detail::none;
  question.remedies = false;
  try {
    planner::plan(question);
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

}  // namespace

TEST_CASE("8 bits are for cards that multiply them") {
  const auto eight = [](Strategy& s) { s.precision = models::Precision::fp8_mixed; };
  CHECK(refusal(eight, "rtx-4090").empty());
  CHECK(refusal(eight, "a100-80gb").starts_with("--precision fp8-mixed: A100"));
  CHECK(
      refusal([&](Strategy& s) { eight(s), s.device = models::Device::cpu; }, "a100-80gb").empty());
}

TEST_CASE("GaLore is for whole matrices on the device") {
  const auto galore = [](const std::function<void(Strategy&)>& change) {
    return refusal([&](Strategy& s) { s.optimizer = models::Optimizer::galore, change(s); });
  };
  CHECK(galore([](Strategy&) {}).empty());
  CHECK(galore([](Strategy& s) { s.gpus = 4; }).empty());
  for (const int zero : {1, 2, 3})
    CHECK(galore([=](Strategy& s) {
            s.gpus = 4, s.data.zero = zero;
          }).starts_with("--optimizer galore with --zero 1, 2 or 3: it projects whole matrices"));
  CHECK(galore([](Strategy& s) { s.data.zero = 3; }).empty());  // one rank shards nothing
  CHECK(galore([](Strategy& s) {
          s.lora = models::Lora{};
        }).starts_with("--optimizer galore with adapters"));
  CHECK(galore([](Strategy& s) {
          s.offload.optimizer = true;
        }).starts_with("--optimizer galore with --offload optimizer"));
  CHECK(galore([](Strategy& s) { s.optimizer = models::Optimizer::galore8bit; }) ==
        "--optimizer galore8bit with --stack plimsoll: is not modelled yet; it is modelled with "
        "--stack pytorch");
  // What it has not at all is not refused for how it would be sharded.
  CHECK(galore([](Strategy& s) {
          s.optimizer = models::Optimizer::apollo, s.gpus = 4, s.data.zero = 3;
        }).starts_with("--optimizer apollo with --stack plimsoll: is not modelled yet"));
}

TEST_CASE("gradients are cast to what is narrower, and to fp16 with loss scaling alone") {
  const std::vector<std::pair<const char*, std::function<void(Strategy&)>>> rows{
      {"--reduce-dtype fp32: gradients are bf16 and are reduced in it; plimsoll takes bf16, or",
       [](Strategy& s) { s.data.reduce_dtype = DType::fp32; }},
      {"--reduce-dtype bf16: gradients are fp16 and are reduced in it; plimsoll takes fp16, or",
       [](Strategy& s) {
         s.precision = models::Precision::fp16_mixed, s.data.reduce_dtype = DType::bf16;
       }},
      {"--reduce-dtype fp16: gradients are bf16",
       [](Strategy& s) { s.data.reduce_dtype = DType::fp16; }},
      {"--reduce-dtype fp16 needs --precision fp16-mixed",
       [](Strategy& s) {
         s.precision = models::Precision::fp32, s.data.reduce_dtype = DType::fp16;
       }},
      {"--reduce-dtype fp16 needs --precision fp16-mixed",
       [](Strategy& s) { s.grad_dtype = DType::fp32, s.data.reduce_dtype = DType::fp16; }},
      {"", [](Strategy& s) { s.data.reduce_dtype = DType::bf16; }},
      {"",
       [](Strategy& s) {
         s.precision = models::Precision::fp16_mixed, s.grad_dtype = DType::fp32;
         s.data.reduce_dtype = DType::bf16;
       }},
      {"",
       [](Strategy& s) {
         s.precision = models::Precision::fp16_mixed, s.data.reduce_dtype = DType::fp16;
       }},
      // Of adapters in fp32; the frozen base has no gradients.
      {"",
       [](Strategy& s) {
         s.lora = models::Lora{.rank = 1, .targets = {"q_proj"}}, s.data.reduce_dtype = DType::fp32;
       }},
      {"--reduce-dtype fp32: gradients are bf16", [](Strategy& s) {
         s.lora = models::Lora{.rank = 1, .targets = {"q_proj"}}, s.data.reduce_dtype = DType::fp32;
         s.train = {"*norm*"};
       }}};
  for (const auto& [says, change] : rows) {
    const std::string message = refusal(change);
    CAPTURE(says);
    CAPTURE(message);
    CHECK((*says == 0 ? message.empty() : message.starts_with(says)));
  }
}

TEST_CASE("stack plimsoll refuses what its runtime has not, and nothing beside it") {
  struct Row {
    const char* says;  // how the message begins; "": it is planned
    std::function<void(Strategy&)> change;
  };
  const char* const axes = "--tp, --pp, --cp and --ep are not modelled";
  const std::vector<Row> rows{
      {"", [](Strategy&) {}},
      {"--shard-group shards nothing with --zero 0",
       [](Strategy& s) { s.gpus = 8, s.data.shard_group = 2; }},
      {"", [](Strategy& s) { s.gpus = 8, s.data.shard_group = 1; }},
      {"", [](Strategy& s) { s.gpus = 8, s.data.zero = 1, s.data.shard_group = 2; }},
      {"--tp 2 is modelled for torchtitan's Llama alone",
       [](Strategy& s) { s.gpus = 8, s.tp = 2; }},
      {axes, [](Strategy& s) { s.pp = 2; }},
      {axes, [](Strategy& s) { s.cp = 2; }},
      {axes, [](Strategy& s) { s.ep = 2; }},
      {"", [](Strategy& s) { s.precision = models::Precision::fp8_mixed; }},
      {"--precision fp8-mixed on --stack plimsoll: adapters",
       [](Strategy& s) {
         s.precision = models::Precision::fp8_mixed;
         s.lora = models::Lora{};
       }},
      {"--precision fp8-mixed on --stack plimsoll: --fp8-recipe is tensorwise",
       [](Strategy& s) {
         s.precision = models::Precision::fp8_mixed;
         s.fp8_recipe = models::Fp8Recipe::rowwise;
       }},
      {"--precision fp8-mixed on --stack plimsoll: --fp8-all-gather yes",
       [](Strategy& s) {
         s.precision = models::Precision::fp8_mixed;
         s.fp8_all_gather = true;
       }},
      {"plimsoll's ZeRO-3 always reshards",
       [](Strategy& s) { s.gpus = 8, s.data.zero = 3, s.data.reshard_after_forward = false; }},
      {"--fsdp-upcast is for --stack pytorch", [](Strategy& s) { s.data.fsdp_upcast = false; }},
      {"--compile is for --stack pytorch", [](Strategy& s) { s.compile = models::Compile::block; }},
      {"--kernels: plimsoll has its own (fused)",
       [](Strategy& s) { s.kernels = models::Kernels::liger; }},
      {"", [](Strategy& s) { s.kernels = models::Kernels::fused; }},
      {"--attention flash-1, flash-2, flash-3",
       [](Strategy& s) { s.attention = Attention::flash_1; }},
      {"--attention flash-1, flash-2, flash-3",
       [](Strategy& s) { s.attention = Attention::flash_2; }},
      {"--attention flash-1, flash-2, flash-3",
       [](Strategy& s) { s.attention = Attention::flash_3; }},
      {"", [](Strategy& s) { s.attention = Attention::eager; }},
      {"", [](Strategy& s) { s.attention = Attention::math; }},
      {"", [](Strategy& s) { s.optimizer_in_backward = true; }},
      {"--optimizer-in-backward with --precision fp16-mixed",
       [](Strategy& s) {
         s.optimizer_in_backward = true;
         s.precision = models::Precision::fp16_mixed;
       }},
      {"--recompute ops needs --stack pytorch",
       [](Strategy& s) {
         s.recompute = {models::RecomputeKind::ops, 1, {"attention"}};
       }},
      {"", [](Strategy& s) { s.recompute.kind = models::RecomputeKind::selective; }},
      {"--padding-mask yes: our own runtime's rows are full",
       [](Strategy& s) { s.rows = models::Rows::padded; }},
      {"--use-dora: plimsoll's runtime has PEFT's plain adapters alone",
       [](Strategy& s) { s.lora = models::Lora{.targets = {"q_proj"}, .dora = true}; }},
      {"", [](Strategy& s) { s.lora = models::Lora{.targets = {"q_proj"}}; }},
      {"--use-reentrant: plimsoll does not use torch.utils.checkpoint",
       [](Strategy& s) { s.use_reentrant = false; }},
      {"--optimizer-impl: plimsoll's optimizer is always fused",
       [](Strategy& s) { s.optimizer_impl = models::OptimizerImpl::foreach; }},
      {"", [](Strategy& s) { s.optimizer_impl = models::OptimizerImpl::fused; }},
  };
  int number = 0;
  for (const Row& row : rows) {
    const std::string message = refusal(row.change), says = row.says;
    ++number;
    CAPTURE(number);
    CHECK(message.substr(0, says.empty() ? message.npos : says.size()) == says);
  }
}

TEST_CASE("stacks are told apart by facts with a name") {
  const planner::StackInfo &pytorch = planner::stack_info(Stack::pytorch),
                           &deepspeed = planner::stack_info(Stack::deepspeed),
                           &own = planner::stack_info(Stack::plimsoll);
  // Transformers' modules run under both; only there does bitsandbytes pack a base, which
  // DeepSpeed's ZeRO-3 would cut.
  CHECK(pytorch.runs_transformers);
  CHECK(deepspeed.runs_transformers);
  CHECK_FALSE(own.runs_transformers);
  CHECK(pytorch.packs_bases);
  CHECK(deepspeed.packs_bases);
  CHECK(pytorch.packs_to_stage == 3);
  CHECK(deepspeed.packs_to_stage == 3);
  CHECK_FALSE(own.packs_bases);
  // DeepSpeed's ranks are PyTorch's processes.
  CHECK(deepspeed.wraps_another());
  CHECK(deepspeed.processes == Stack::pytorch);
  CHECK_FALSE(pytorch.wraps_another());
  CHECK_FALSE(own.wraps_another());
  CHECK(pytorch.has_fsdp);
  CHECK(pytorch.mixed_is_autocast);
  CHECK(pytorch.foreach_by_default);
  for (const planner::StackInfo* other : {&deepspeed, &own}) {
    CHECK_FALSE(other->has_fsdp);
    CHECK_FALSE(other->mixed_is_autocast);
    CHECK_FALSE(other->foreach_by_default);
  }
  CHECK(deepspeed.offloads_optimizer);
  CHECK_FALSE(pytorch.offloads_optimizer);  // but with the parameters
  CHECK(own.own_kernels);
  CHECK(own.reserves_exactly);
  CHECK(own.untried_on_gpus);
  CHECK_FALSE(pytorch.own_kernels);
  CHECK_FALSE(pytorch.reserves_exactly);
  CHECK_FALSE(pytorch.untried_on_gpus);
  // FSDP shards in groups from stage 2 on, we from 1 on, DeepSpeed 0.19 has no MiCS.
  CHECK(pytorch.hybrid_from_stage == 2);
  CHECK(own.hybrid_from_stage == 1);
  CHECK(deepspeed.hybrid_from_stage > 3);
}

TEST_CASE("what computes is one GPU's, and keeps what decides its dtypes") {
  const auto computes = [](Stack stack, int zero) {
    Strategy s;
    s.stack = stack;
    s.gpus = 16;
    s.data.zero = zero;
    s.data.fsdp_version = 1;
    s.data.shard_group = zero > 0 ? 4 : 0;
    if (stack == Stack::deepspeed) s.data.shard_group = 0;
    return planner::stack_info(stack).compute_as(s);
  };
  // FSDP's policy casts other things than autocast: two ranks tell.
  CHECK(computes(Stack::pytorch, 3).gpus == 2);
  CHECK(computes(Stack::pytorch, 2).gpus == 2);
  CHECK(computes(Stack::pytorch, 2).data.zero == 3);
  CHECK(computes(Stack::pytorch, 3).data.fsdp_version == 1);
  CHECK(computes(Stack::pytorch, 3).data.shard_group == 0);
  CHECK(computes(Stack::pytorch, 1).gpus == 1);
  CHECK(computes(Stack::pytorch, 1).data.zero == 0);
  CHECK(computes(Stack::pytorch, 0).gpus_per_node == 1);
  for (const int zero : {0, 1, 2, 3}) {
    CHECK(computes(Stack::plimsoll, zero).gpus == 1);
    CHECK(computes(Stack::plimsoll, zero).data == models::DataParallel());
    const Strategy modules = computes(Stack::deepspeed, zero);
    CHECK(modules.stack == Stack::pytorch);
    CHECK(modules.precision == models::Precision::bf16);
    CHECK(modules.gpus == 1);
  }
}

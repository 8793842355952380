// What DeepSpeed's engine is asked to be, from the options; what it refuses, and where that ends.
#include "planner/stacks/deepspeed/engine.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "models/gpu_catalog.h"
#include "models/model_reader.h"
#include "models/storages.h"
#include "planner/program/timeline.h"
#include "planner/stack_step.h"

using namespace plimsoll;
using models::Optimizer;
using models::OptimizerImpl;
using models::Precision;
using models::Strategy;
using planner::deepspeed::Engine;
using planner::deepspeed::OptimizerWrapper;

namespace {

constexpr const char* kNothing = "";
using Change = std::function<void(Strategy&)>;

Strategy asked(int zero, const Change& change = nullptr) {
  Strategy s;
  s.stack = models::Stack::deepspeed;
  s.gpus = 8;
  s.data.zero = zero;
  if (change) change(s);
  return s;
}

Engine engine(int zero, const Change& change = nullptr) {
  return planner::deepspeed::engine_of(asked(zero, change));
}

models::Quantization packed(const char* kind, DType held_in = DType::uint8) {
  return {.storage = models::find_packed_storage(kind), .held_in = held_in};
}

struct Row {
  const char* says;  // how the message begins
  int zero;
  Change change;
};

void check_rows(const std::vector<Row>& rows) {
  int number = 0;
  for (const Row& row : rows) {
    std::string message;
    try {
      engine(row.zero, row.change);
    } catch (const Error& error) {
      message = error.message();
    }
    ++number;
    CAPTURE(number);
    const std::string says = row.says;
    CHECK(message.substr(0, says.empty() ? message.npos : says.size()) == says);
  }
}

}  // namespace

TEST_CASE("a base that our own runtime alone packs so is refused") {
  check_rows({{"--quantize int8-affine is plimsoll's runtime's own (--stack plimsoll)", 2,
               [](Strategy& s) { s.quantize = packed("int8-affine"); }},
              {kNothing, 2, [](Strategy& s) { s.quantize = packed("int8"); }}});
}

TEST_CASE("what the engine does not do is refused by its option, and its neighbour is not") {
  check_rows({
      {"--device cpu is for --stack plimsoll", 2,
       [](Strategy& s) { s.device = models::Device::cpu; }},
      {"--stack deepspeed: --shard-group", 3, [](Strategy& s) { s.data.shard_group = 4; }},
      {kNothing, 3, [](Strategy& s) { s.data.shard_group = 8; }},
      {"--modules-to-save with --zero 3 is not modelled yet with --stack deepspeed", 3,
       [](Strategy& s) { s.lora = models::Lora{.modules_to_save = {"lm_head"}}; }},
      {kNothing, 2, [](Strategy& s) { s.lora = models::Lora{.modules_to_save = {"lm_head"}}; }},
      {"--lora-bias is not modelled yet with --stack deepspeed", 1,
       [](Strategy& s) { s.lora = models::Lora{.modules_to_save = {"lm_head"}, .bias = true}; }},
      {kNothing, 1, [](Strategy& s) { s.lora = models::Lora{.kind = models::AdapterKind::ia3}; }},
      {"--adapter prefix-tuning is not modelled yet", 1,
       [](Strategy& s) { s.lora = models::Lora{.kind = models::AdapterKind::prefix_tuning}; }},
      {"--adapter vera with --stack deepspeed: the engine casts its vectors", 0,
       [](Strategy& s) { s.lora = models::Lora{.kind = models::AdapterKind::vera}; }},
      {"--use-dora is not modelled yet with --stack deepspeed", 2,
       [](Strategy& s) { s.lora = models::Lora{.targets = {"q_proj"}, .dora = true}; }},
      {kNothing, 2, [](Strategy& s) { s.lora = models::Lora{.targets = {"q_proj"}}; }},
      {"--stack deepspeed: --quantize hqq is not modelled yet; bases that bitsandbytes packs", 2,
       [](Strategy& s) { s.quantize = packed("hqq"); }},
      {kNothing, 3, [](Strategy& s) { s.quantize = packed("nf4"); }},
      {kNothing, 2, [](Strategy& s) { s.quantize = packed("nf4"); }},
      {"--stack deepspeed: --quantize int8 with --precision fp32", 1,
       [](Strategy& s) {
         s.quantize = packed("int8");
         s.precision = Precision::fp32;
       }},
      {"--quant-storage fp16: DeepSpeed casts all floats of the module to bf16", 2,
       [](Strategy& s) { s.quantize = packed("nf4", DType::fp16); }},
      {kNothing, 2, [](Strategy& s) { s.quantize = packed("nf4", DType::bf16); }},
      {"--stack deepspeed: --kernels fused is not modelled yet", 2,
       [](Strategy& s) { s.kernels = models::Kernels::fused; }},
      {"--stack deepspeed: --kernels unsloth is not modelled yet", 2,
       [](Strategy& s) { s.kernels = models::Kernels::unsloth; }},
      {kNothing, 2, [](Strategy& s) { s.kernels = models::Kernels::liger; }},
      {"--stack deepspeed: --grad-dtype fp32 with --zero 1", 1,
       [](Strategy& s) { s.grad_dtype = DType::fp32; }},
      {kNothing, 1, [](Strategy& s) { s.grad_dtype = DType::fp32, s.precision = Precision::fp32; }},
      {kNothing, 1, [](Strategy& s) { s.grad_dtype = DType::bf16; }},
      {kNothing, 2, [](Strategy& s) { s.grad_dtype = DType::fp32; }},
      {"--grad-dtype: DeepSpeed accumulates in the model's dtype", 0,
       [](Strategy& s) { s.grad_dtype = DType::fp32; }},
      {kNothing, 3, [](Strategy& s) { s.rows = models::Rows::padded; }},
      {"--stack deepspeed: --transformers-version 4.57.6 with --zero 3", 3,
       [](Strategy& s) {
         s.transformers = {4, 57, 6};
       }},
      {kNothing, 2,
       [](Strategy& s) {
         s.transformers = {4, 57, 6};
       }},
      {"--stack deepspeed: --optimizer-in-backward", 2,
       [](Strategy& s) { s.optimizer_in_backward = true; }},
      {"--stack deepspeed: --recompute ops", 2,
       [](Strategy& s) {
         s.recompute = {models::RecomputeKind::ops, 1, {"attention"}};
       }},
      {"--stack deepspeed: --precision bf16 (no fp32 masters)", 0,
       [](Strategy& s) { s.precision = Precision::bf16; }},
      {kNothing, 1, [](Strategy& s) { s.precision = Precision::bf16; }},
      {"--stack deepspeed: --precision fp16 is not modelled", 1,
       [](Strategy& s) { s.precision = Precision::fp16; }},
      {kNothing, 0, [](Strategy& s) { s.precision = Precision::fp16_mixed; }},
      {"--master-weights no on deepspeed", 2, [](Strategy& s) { s.master_weights = false; }},
      {kNothing, 2, [](Strategy& s) { s.master_weights = false, s.precision = Precision::bf16; }},
      {kNothing, 2, [](Strategy& s) { s.master_weights = true; }},
      {"--stack deepspeed: --optimizer momentum with --zero 0", 0,
       [](Strategy& s) { s.optimizer = Optimizer::momentum; }},
      {kNothing, 1, [](Strategy& s) { s.optimizer = Optimizer::momentum; }},
      {"--optimizer-impl: torch.optim has no lion", 2,
       [](Strategy& s) {
         s.optimizer = Optimizer::lion, s.optimizer_impl = OptimizerImpl::foreach;
       }},
      {kNothing, 2,
       [](Strategy& s) { s.optimizer = Optimizer::lion, s.optimizer_impl = OptimizerImpl::fused; }},
      {kNothing, 2, [](Strategy& s) { s.optimizer = Optimizer::lion; }},
  });
}

TEST_CASE("what ZeRO-Offload takes, by stage, optimizer and dtype") {
  const auto states = [](Strategy& s) { s.offload.optimizer = true; };
  const auto params = [](Strategy& s) { s.offload.params = true; };
  const auto and_then = [](const Change& first, const Change& then) {
    return [=](Strategy& s) { first(s), then(s); };
  };
  const Change wide = [](Strategy& s) { s.grad_dtype = DType::fp32; };
  const Change pure = [](Strategy& s) { s.precision = Precision::bf16; };
  const Change sgd = [](Strategy& s) { s.optimizer = Optimizer::sgd; };
  check_rows({
      {"--stack deepspeed: --offload activations", 3,
       [](Strategy& s) { s.offload.activations = true; }},
      {"--stack deepspeed: --offload optimizer needs --zero 1", 0, states},
      {kNothing, 1, states},
      {kNothing, 2, states},
      {kNothing, 3, states},
      {"--stack deepspeed: --offload params needs --zero 3", 2, params},
      {kNothing, 3, params},
      {kNothing, 3, and_then(states, params)},
      {"--stack deepspeed: --offload with --grad-dtype fp32", 2, and_then(states, wide)},
      {kNothing, 2,
       and_then(states, and_then(wide, [](Strategy& s) { s.precision = Precision::fp32; }))},
      {"--stack deepspeed: --offload with --precision bf16", 2, and_then(states, pure)},
      {"--stack deepspeed: --offload with --precision bf16", 3, and_then(params, pure)},
      {"--stack deepspeed: --offload optimizer with another optimizer", 2, and_then(states, sgd)},
      {kNothing, 3, and_then(params, sgd)},
      {"--stack deepspeed: --offload optimizer steps with DeepSpeedCPUAdam", 2,
       and_then(states, [](Strategy& s) { s.optimizer_impl = OptimizerImpl::foreach; })},
      {kNothing, 2, and_then(states, [](Strategy& s) { s.optimizer_impl = OptimizerImpl::fused; })},
  });
}

// runtime/engine.py, _do_optimizer_sanity_check; zero/config.py, overlap_comm.
TEST_CASE(
    "the engine's wrapper, dtypes and the rank that is shown follow from stage and precision") {
  const auto wrapper = [](int zero, Precision precision, OptimizerImpl impl) {
    return engine(zero, [=](Strategy& s) { s.precision = precision, s.optimizer_impl = impl; })
        .wrapper;
  };
  CHECK(wrapper(3, Precision::bf16_mixed, OptimizerImpl::fused) == OptimizerWrapper::stage3);
  CHECK(wrapper(2, Precision::fp32, OptimizerImpl::fused) == OptimizerWrapper::stage_1_and_2);
  CHECK(wrapper(1, Precision::fp32, OptimizerImpl::fused) == OptimizerWrapper::stage_1_and_2);
  CHECK(wrapper(0, Precision::fp32, OptimizerImpl::fused) == OptimizerWrapper::plain);
  CHECK(wrapper(0, Precision::bf16_mixed, OptimizerImpl::fused) == OptimizerWrapper::fused);
  CHECK(wrapper(0, Precision::fp16_mixed, OptimizerImpl::foreach) == OptimizerWrapper::unfused);
  CHECK(engine(0).wrapper == OptimizerWrapper::fused);

  CHECK(engine(0).rank == 0);
  CHECK(engine(1).rank == 0);
  CHECK(engine(2).rank == 7);
  CHECK(engine(3).rank == 0);
  CHECK(engine(2).ranks == 8);
  CHECK_FALSE(engine(2).overlap);
  CHECK(engine(3).overlap);
  CHECK(engine(1, [](Strategy& s) { s.data.deepspeed.overlap_comm = true; }).overlap);
  CHECK_FALSE(engine(3, [](Strategy& s) { s.data.deepspeed.overlap_comm = false; }).overlap);

  const auto of = [](Precision precision) {
    return engine(2, [=](Strategy& s) { s.precision = precision; });
  };
  CHECK(of(Precision::bf16_mixed).model == DType::bf16);
  CHECK(of(Precision::bf16_mixed).state == DType::fp32);
  CHECK(of(Precision::bf16_mixed).accumulation == DType::bf16);
  CHECK(of(Precision::bf16).model == DType::bf16);
  CHECK(of(Precision::bf16).state == DType::bf16);
  CHECK(of(Precision::fp16_mixed).model == DType::fp16);
  CHECK(of(Precision::fp16_mixed).state == DType::fp32);
  CHECK(of(Precision::fp32).model == DType::fp32);
  CHECK(engine(2, [](Strategy& s) { s.grad_dtype = DType::fp32; }).accumulation == DType::fp32);
}

TEST_CASE("packed bases are not planned in files") {
  check_rows({{"--stack deepspeed: --offload-to nvme with --quantize", 3, [](Strategy& s) {
                 s.quantize = packed("nf4", DType::bf16);
                 s.offload.optimizer = s.offload.nvme = true;
               }}});
}

TEST_CASE("modules run on one GPU in the engine's dtype, adapters too unless they are sharded") {
  const auto modules = [](int zero, Precision precision) {
    const Strategy s = asked(zero, [=](Strategy& of) {
      of.precision = precision;
      of.param_dtype = DType::fp32;
      of.offload.optimizer = zero > 0;
      of.lora = models::Lora{.targets = {"q_proj"}};
    });
    return planner::deepspeed::module_strategy(s, planner::deepspeed::engine_of(s));
  };
  CHECK(modules(2, Precision::bf16_mixed).precision == Precision::bf16);
  CHECK(modules(2, Precision::fp16_mixed).precision == Precision::fp16);
  CHECK(modules(2, Precision::fp32).precision == Precision::fp32);
  CHECK(modules(2, Precision::bf16_mixed).lora->dtype == DType::bf16);
  CHECK(modules(2, Precision::fp16_mixed).lora->dtype == DType::fp16);
  CHECK(modules(3, Precision::bf16_mixed).lora->dtype == DType::fp32);
  const Strategy one = modules(3, Precision::bf16_mixed);
  CHECK(one.gpus == 1);
  CHECK(one.data == models::DataParallel());
  CHECK(one.offload == models::Offload());
  CHECK_FALSE(one.param_dtype.has_value());
}

namespace {

models::ModelSpec llama(int layers) {
  return models::read_model(
      R"({"model_type": "llama", "hidden_size": 64, "vocab_size": 4096, "intermediate_size": 128,
    "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 512,
    "num_hidden_layers": )" +
          std::to_string(layers) + "}",
      "llama", "llama", {});
}

models::StepProgram program_of(int zero, const Change& change, int layers = 2) {
  const models::ModelSpec model = llama(layers);
  planner::Question question;
  question.model = &model;
  question.strategy = asked(zero, change);
  question.cluster.gpu = models::find_gpu("h100-sxm-80gb");
  question.batch = {.seq_len = 16};
  planner::StackStep step;
  planner::write_step(question, planner::model_parts(model, question.strategy), step);
  return std::move(step.program);
}

Bytes most_scratch(const models::StepProgram& program, std::string_view op) {
  Bytes most;
  for (const models::Op& one : program.ops)
    if (std::string_view(one.name) == op) most = std::max(most, one.scratch);
  return most;
}

// The op that writes a tensor first.
std::string begun_by(const models::StepProgram& program, std::string_view tensor) {
  for (const models::Op& op : program.ops)
    for (const models::Operand& operand : program.operands_of(op))
      if (operand.tensor != models::kNoTensor && operand.access == models::Access::write &&
          std::string_view(program.tensors[static_cast<std::size_t>(operand.tensor)].name) ==
              tensor)
        return op.name;
  return "nobody";
}

}  // namespace

// stage_1_and_2.py clones a gradient that is larger than the bucket before it goes to the host;
// stage3.py does not. The table's is 4,096 · 64 values in 16 bits; RMS norms need 16 · 64 in fp32.
TEST_CASE("with offloading a gradient larger than the bucket is cloned, but not by stage 3") {
  const Change small = [](Strategy& s) {
    s.offload.optimizer = true;
    s.data.deepspeed.reduce_bucket_size = 100'000;
  };
  CHECK(most_scratch(program_of(1,
                                [&](Strategy& s) {
                                  small(s);
                                  s.data.deepspeed.overlap_comm = true;
                                }),
                     "zero.hook") == Bytes(4096 * 64 * 2));
  CHECK(most_scratch(program_of(2, small), "zero.hook") == Bytes(4096 * 64 * 2));
  CHECK(most_scratch(program_of(3, small), "zero.hook") < Bytes(4096 * 64 * 2));
  CHECK(most_scratch(
            program_of(2, [](Strategy& s) { s.data.deepspeed.reduce_bucket_size = 100'000; }),
            "zero.hook") < Bytes(4096 * 64 * 2));
}

// stage_1_and_2.py: sums in fp32 are made when a bucket's copy is reduced into them, 16-bit ones
// are copied out of it when the next gradient comes.
TEST_CASE("a partition's gradients begin with the first reduction that has some of them") {
  const Change small = [](Strategy& s) { s.data.deepspeed.reduce_bucket_size = 10'000; };
  CHECK(begun_by(program_of(2, small), "grads_in_partition") == "zero.hook");
  CHECK(begun_by(program_of(2,
                            [&](Strategy& s) {
                              small(s);
                              s.grad_dtype = DType::fp32;
                            }),
                 "grad_partition") == "zero.reduce");
}

// stage_1_and_2.py, reduce_independent_p_g_buckets_and_remove_grads: what is larger than the bucket
// is not copied into it and waits there, until the next gradient comes and it is reduced. A layer's
// last gradient is that of q_proj's A, 64 · 64 values; the next is the next layer's first.
TEST_CASE(
    "a layer's last gradient that is larger than the bucket waits for the next layer's first") {
  const auto waiting = [](std::int64_t bucket) {
    const models::StepProgram program = program_of(
        2,
        [&](Strategy& s) {
          s.lora = models::Lora{.rank = 64, .targets = {"q_proj", "v_proj"}};
          s.data.deepspeed.reduce_bucket_size = bucket;
        },
        8);
    const planner::Timeline timeline = planner::unroll(program);
    std::vector<std::string> ends;  // by which op, and how many layers later
    for (const planner::Lifetime& life : timeline.lifetimes) {
      const auto& tensor = program.tensors[static_cast<std::size_t>(life.tensor)];
      if (std::string_view(tensor.name) != "zero.waiting_grad") continue;
      CHECK(tensor.bytes == Bytes(64 * 64 * 2));
      const auto at = [&](std::int64_t step) {
        return timeline.steps[static_cast<std::size_t>(step)].at;
      };
      const auto birth = at(life.birth), death = at(life.death);
      const bool of_run = death.segment == birth.segment;
      ends.push_back(std::string(program.ops[death.op].name) + " " +
                     (of_run ? std::to_string(death.iteration - birth.iteration) : "beyond"));
    }
    return ends;
  };
  CHECK(waiting(64 * 64).empty());
  // Six layers in a row; the last of them in the backward waits for a layer with hooks of its own,
  // where this rank's partition begins.
  CHECK(waiting(64 * 64 - 1) == std::vector<std::string>{"zero.hook beyond", "zero.hook 1",
                                                         "zero.hook 1", "zero.hook 1",
                                                         "zero.hook 1", "zero.hook 1"});
}

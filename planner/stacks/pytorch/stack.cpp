#include "planner/stacks/pytorch/stack.h"
#include "planner/stacks/pytorch/adapter.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "models/bitsandbytes.h"
#include "models/decisions/layer.h"
#include "models/decisions/mesh.h"
#include "models/gpu_catalog.h"
#include "models/optimizers.h"
#include "models/overheads.h"
#include "models/run_names.h"
#include "models/stack_versions.h"
#include "planner/program/peak.h"
#include "planner/stacks/pytorch/refusals.h"
#include "planner/stacks/pytorch/sdpa_kernel.h"
#include "planner/stacks/pytorch/wrappers/data_parallel.h"
#include "planner/stacks/pytorch/wrappers/fsdp1.h"
#include "planner/stacks/pytorch/wrappers/fsdp2.h"
#include "planner/stacks/pytorch/wrappers/replicated.h"

namespace plimsoll::planner::pytorch {

using reports::Assumption;

bool any_of_lt(const ModelParts& parts) {
  const auto of_lt = [](const LinearPart& part) {
    // LLM.int8() adds the bias as it scales the sums (bitsandbytes 0.50.2, int8_mm_dequant).
    const bool int8 = part.packed != nullptr && part.packed->gemm == models::PackedGemm::int8;
    return (part.bias && !int8 && !is_hqq(part) && !is_torchao(part) && !is_awq(part)) ||
           part.float8;
  };
  return std::ranges::any_of(parts.runs.front().pattern.front().linears, of_lt);
}

// torch keeps one cuBLAS workspace per thread that multiplies, the forward's and autograd's, and a
// cuBLASLt one where a GEMM adds a bias (addmm); both inside its allocator.
Rules rules_for(const Question& question, const ModelParts& parts,
                std::vector<Assumption>& assumptions) {
  Rules rules;
  set_loop(rules, parts.decoder, question.strategy);
  rules.card = question.cluster.memory.value_or(Bytes(0));
  if (!question.cluster.gpu) return rules;
  const models::Gpu& gpu = *question.cluster.gpu;
  rules.gpu = processors_of(gpu);
  if (!question.cluster.memory) rules.card = gpu.cuda_total.bytes;
  const models::Release& release = question.strategy.torch;
  const std::string torch =
      "torch " + std::to_string(release.major) + "." + std::to_string(release.minor);
  const auto overheads = models::overheads_of("pytorch", gpu, models::text_of(release));
  const auto bytes = [&](std::string_view name, std::int64_t otherwise) {
    const models::Overhead* entry = models::find_overhead(overheads, name);
    return entry != nullptr && entry->range ? entry->range->typical : otherwise;
  };
  rules.card = larger(rules.card - Bytes(bytes("context", 0)), Bytes(0));
  rules.blas.forward = Bytes(bytes("cublas_workspace", 0));
  rules.blas.backward = rules.blas.forward * (bytes("cublas_threads", 2) - 1);
  const bool stays = release >= models::kLtKeepsWorkspace;  // else it goes behind each GEMM
  const Bytes lt(stays ? bytes("cublaslt_workspace", 0) : 0);
  if (any_of_lt(parts))
    rules.blas.lt = lt;
  else if (!parts.prompt.empty())
    rules.blas.lt_start = lt;
  rules.sdpa = sdpa_of(gpu, overheads);
  assumptions.push_back({"cuBLAS workspaces in the allocator, bytes",
                         std::to_string(workspaces_in_all(rules.blas, question.strategy).value()),
                         "derived", torch + ", aten/src/ATen/cuda/CublasHandlePool.cpp"});
  if (question.strategy.attention == models::Attention::flash_1)
    assumptions.push_back(
        {"memory of FlashAttention's first generation", "\"as the second's\"", "assumed",
         "both save their inputs, their output and its row statistics (arXiv 2307.08691, 3.1)"});
  refuse_on_gpu(question, rules.sdpa);
  if (question.strategy.attention == models::Attention::flash_3)
    assumptions.push_back(
        {"kernel of attention", "\"flash_attn 3\"", "derived",
         "Dao-AILab/flash-attention @0251105a, hopper/flash_api.cpp: grouped keys "
         "and values, no mask, no dropout"});
  if (question.strategy.attention == models::Attention::flash_2)
    assumptions.push_back({"kernel of attention", "\"flash_attn 2\"", "derived",
                           "csrc/flash_attn/flash_api.cpp: grouped keys and values, no mask"});
  if (question.strategy.attention == models::Attention::xformers)
    assumptions.push_back(kernel_of_xformers());
  if (question.strategy.attention == models::Attention::flex)
    assumptions.push_back(kernel_of_flex(torch));
  if (question.strategy.attention == models::Attention::flash ||
      models::is_sdpa_kernel(question.strategy.attention))
    assumptions.push_back(kernel_of_sdpa(rules, parts.decoder.head_dim, question, torch));
  return rules;
}

// What decides the rules, for who asks a million times about one GPU and one model, for the peak
// alone: no allocator is replayed, so that what always lives together may be one tensor.
Rules quick_rules(const Question& question, const ModelParts& parts) {
  struct Known {
    std::string gpu;
    std::optional<Bytes> memory;
    bool bias = false, perceptron = false;
    models::Release torch;
    Rules rules;
  };
  thread_local std::optional<Known> known;
  const std::string& gpu = question.cluster.gpu ? question.cluster.gpu->name : std::string();
  const bool bias = any_of_lt(parts), perceptron = !parts.prompt.empty();
  const models::Release& torch = question.strategy.torch;
  const std::optional<Bytes>& memory = question.cluster.memory;
  if (!known || known->gpu != gpu || known->memory != memory || known->bias != bias ||
      known->perceptron != perceptron || known->torch != torch) {
    std::vector<Assumption> unread;
    known = Known{gpu, memory, bias, perceptron, torch, rules_for(question, parts, unread)};
    known->rules.each_parameter = false;
  }
  refuse_on_gpu(question, known->rules.sdpa);
  set_loop(known->rules, parts.decoder, question.strategy);
  return known->rules;
}

namespace {

void add_float8(const models::Strategy& s, std::vector<Assumption>& out) {
  if (s.precision != models::Precision::fp8_mixed) return;
  const bool first = models::is_transformers(s.code);
  const char* const which = first ? "\"all of the layers but the first\"" : "\"all of the layers\"";
  out.push_back({"linears in float8", which, "derived",
                 "torchao 0.18, float8_linear.py; accelerate 1.15.0, utils/ao.py; torchtitan"});
}

std::array<const char*, 2> awq_base(const models::Release& transformers) {
  if (transformers < models::Release{5, 0, 0})
    return {"4 bits in groups of 128; AutoAWQ's Triton kernels", "autoawq 0.2.9, linear/gemm.py"};
  const bool batched = transformers < models::Release{5, 20, 2};
  return {
      "4 bits in groups of 128; backend auto_trainable",
      batched ? "gptqmodel 7.3.4, qlinear/gemm_awq.py" : "gptqmodel 7.7.0, qlinear/gemm_awq.py"};
}

std::array<const char*, 2> packed_base(const models::Strategy& s) {
  using enum models::PackedGemm;
  const models::PackedGemm gemm = s.quantize->storage->gemm;
  if (gemm == awq) return awq_base(s.transformers);
  if (gemm == gptq)
    return {"4 bits; triton v2 kernels, the weight unpacked to fp16",
            "fms-acceleration @876e2ed, plugins/accelerated-peft; PEFT's GPTQLoraLinear"};
  if (gemm == hqq)
    return {"4 bits in groups of 64; backend PYTORCH, the weight unpacked each time",
            "hqq 0.2.8, core/quantize.py; PEFT's HqqLoraLinear"};
  if (gemm == torchao)
    return {"8 bits, a scale for each row; each GEMM's copy in 16 bits is kept",
            "torchao 0.18, Int8Tensor; transformers 5.17, integrations/torchao.py"};
  return {"quantized as it is loaded; GEMMs in the dtype of the precision",
          "bitsandbytes 0.50.2; transformers 5.17, integrations/bitsandbytes.py"};
}

// Of a base that is packed.
void assume_packed(const models::Strategy& s, std::vector<Assumption>& out) {
  const auto say = [&](const char* what, const char* value, const char* source) {
    out.push_back({what, std::string("\"") + value + "\"", "derived", source});
  };
  const models::PackedGemm gemm = s.quantize->storage->gemm;
  if (models::is_litgpt_of_2024(s.code))
    say("packed base", "of halves, the head too",
        "lightning 2.4.0, fabric/plugins/precision/bitsandbytes.py; litgpt 0.4.13, lora.py, GPT");
  else if (models::is_litgpt(s.code))
    say("packed base",
        "of halves, the head too; the embedding and its norm are trained and never "
        "stepped with, and the embedding that was replaced stays",
        "lightning 2.6.6, fabric/plugins/precision/bitsandbytes.py; litgpt 0.5.13, "
        "finetune/lora.py, main");
  else
    say("packed base", packed_base(s)[0], packed_base(s)[1]);
  if (gemm == models::PackedGemm::hqq || gemm == models::PackedGemm::torchao)
    say("what packing left in the allocator's cache", "nothing: its load is not planned",
        "dry runs of steps that need less than the load reserved up to 57 % more");
  if (gemm == models::PackedGemm::dequantizes && s.bitsandbytes >= models::kFuses4Bit)
    say("GEMMs of 5 to 1,536 tokens with packed weights",
        "the weight is unpacked for a moment, in every forward too",
        "bitsandbytes' fused kernels, which some GPUs take for some shapes, need less");
  if (s.kernels == models::Kernels::fused)
    say("fused adapters", "queries, keys and values in one function, and the output projection",
        "fms-acceleration @876e2ed, plugins/fused-ops-and-kernels, LoRA_QKV and LoRA_W");
  if (s.kernels == models::Kernels::fused && s.data.zero >= 2)
    out.push_back({"fused adapters under FSDP", "\"whole on each GPU, in 16 bits\"", "calibrated",
                   "that they are ignored: utils.py, lora_adapters_switch_ddp_from_fsdp; their "
                   "dtype: bytes between steps of the runs in reports/memory_accuracy.md, on two "
                   "GPUs and on four"});
  if (s.data.zero >= 2)
    say("start of the run", "not planned: packed weights may lie whole on each GPU until sharded",
        "accelerate 1.15.0, utils/fsdp_utils.py, fsdp2_prepare_model (model_has_params4bit)");
}

void add_assumptions(const models::Decoder& decoder, const models::Strategy& s,
                     std::vector<Assumption>& out) {
  const auto say = [&](const char* what, const char* value, const char* source) {
    out.push_back({what, std::string("\"") + value + "\"", "derived", source});
  };
  const std::string versions =
      "torch " + models::text_of(s.torch) + ", " +
      (models::is_transformers(s.code) ? "transformers " + models::text_of(s.transformers)
                                       : std::string(models::name_of(s.code)));
  say("versions modelled", versions.c_str(),
      "allocator traces and dry runs of real steps, tests/golden");
  if (s.quantize) assume_packed(s, out);
  if (s.bitsandbytes != models::kBitsandbytes && models::runs_bitsandbytes(s))
    say("bitsandbytes", models::text_of(s.bitsandbytes).c_str(),
        models::matmul_4bit_keeps_input(s)
            ? "its autograd/_functions.py: MatMul4Bit's context keeps its input (ctx.tensors)"
            : "its autograd/_functions.py, optim/optimizer.py");
  if (s.compile != models::Compile::no) {
    say("compiled layers", "each by itself; kept: the minimum cut of AOTAutograd's partitioner",
        "torch 2.11, _functorch/partitioners.py; tests/golden/compiled_saved.json");
    out.push_back({"temporaries of compiled kernels",
                   "\"one kernel for each buffer, in the graph's order\"", "assumed",
                   "Inductor on a dry device, Triton's kernels not launched: peaks within 0.25 %; "
                   "no GPU has measured them, nor what autotuning takes in the first step"});
  }
  if (s.tp > 1)
    say("tensor parallelism",
        "each sequence is shared between attention and MLP (SequenceParallel), the loss divided by "
        "vocabulary (loss_parallel)",
        "its apply_tp (parallelize_llama.py, infra/parallelize.py); torch 2.11, "
        "distributed/tensor/parallel");
  if (s.optimizer_in_backward)
    say("optimizer", "one for each parameter, which steps when its gradient is there",
        "torch 2.11, Tensor.register_post_accumulate_grad_hook (torchtune's optimizer_in_bwd)");
  const models::TorchOptimizer& optimizer = models::rule_of(s.optimizer).torch;
  if (optimizer.assumption != nullptr)
    say("optimizer states", optimizer.assumption, optimizer.source);
  if (optimizer.factors)
    out.push_back({"GaLore's projection", "\"without cuSOLVER's own workspace\"", "assumed",
                   "not measured; cusolverDnSgesvdj_bufferSize says how much, on a GPU"});
  if (is_fsdp1(s)) {
    say("FSDP units", "each layer, and the root with all the rest; use_orig_params, BACKWARD_PRE",
        "accelerate 1.15.0, accelerator.py, prepare_model; torch/distributed/fsdp/_flat_param.py");
    say("blocks of FSDP1's streams", "free for others as soon as they are let go",
        "torch holds them until their stream is done, so that reserved bytes depend on timing");
    return;
  }
  if (s.data.zero == 2)
    say("--zero 2", "FSDP2 with reshard_after_forward=False: parameters are sharded between steps",
        "torch/distributed/fsdp/_fully_shard");
  if (s.data.kind == models::DataParallelKind::dp)
    say("GPU of torch.nn.DataParallel that is planned", "the first; the others need less",
        "torch 2.11, nn/parallel/comm.py; tests/golden/dry_runs_data_parallel.json");
  if (models::is_torchtitan_of_2024(s.code))
    return say("FSDP units",
               "each layer, the last one not resharded, and the root with all the rest",
               "torchtitan at 83c879f18 and 3f20451bc, parallelisms/parallelize_llama.py");
  if (s.data.zero >= 2 && models::is_torchtune(s.code)) {
    Rules own;
    set_loop(own, decoder, s);
    const bool ends = own.fsdp_units == FsdpUnits::ends;
    return say("FSDP units",
               ends ? "each layer, the embedding, the head, and the root, which is not resharded "
                      "after forward"
                    : "each layer, and the root with all the rest, which is not resharded after "
                      "forward",
               "torchtune 0.6.1, training/_distributed.py, shard_model; custom_sharded_layers of "
               "its configurations; fully_shard of torch 2.6");
  }
  if (s.data.zero >= 2)
    say("FSDP units", "each layer, the embedding, final norm with head",
        "accelerate 1.15.0, utils/fsdp_utils.py, fsdp2_prepare_model");
}

// In each packed linear of layers, a layer's at a time in reentrant checkpoints.
void assume_outliers(const ModelParts& parts, const Question& question,
                     std::vector<Assumption>& out) {
  const models::Strategy& s = question.strategy;
  if (!s.quantize || s.quantize->storage->gemm != models::PackedGemm::int8) return;
  const bool nested = models::decisions::reentrant_checkpoints(s);
  std::int64_t all = 0, one = 0;
  for (const LayerRun& run : parts.runs)
    for (const LayerPart& layer : run.pattern) {
      std::int64_t inputs = 0;
      for (const LinearPart& linear : layer.linears)
        if (linear.packed != nullptr) inputs += linear.in;
      one = std::max(one, inputs);
      all = checked_add(all, checked_multiply(inputs, run.repeats()));
    }
  const bool wide = models::kbit_prepared(s) || s.precision == models::Precision::fp32;
  const Count values(checked_multiply(question.batch.tokens(), nested ? one : all));
  out.push_back(
      {"if every column of LLM.int8() stood out: bytes more",
       std::to_string(storage(values, wide ? DType::fp32 : DType::bf16).value()), "assumed",
       "values of 6.0 or more, by the data: arXiv 2208.07339 found them in 0.1 % of the "
       "columns; each is kept once more until the backward has ended, beside what the GEMM "
       "with it takes for a moment"});
}

// How far the peak could be from what is planned.
void assume_visits(const Question& question, const ModelParts& parts,
                   std::vector<Assumption>& out) {
  const auto loops = [](const LayerRun& run) {
    return std::ranges::any_of(
        run.pattern, [](const LayerPart& layer) { return layer.block->loop.experts > 1; });
  };
  if (std::ranges::none_of(parts.runs, loops)) return;
  out.push_back({"tokens that visit each expert", "\"as many\"", "assumed",
                 "what the router of a trained model with a balancing loss comes close to"});
  Rules rules = quick_rules(question, parts);
  rules.one_expert = true;
  models::StepProgram program;
  step_writer(program, parts, question.strategy, question.batch, rules)->write();
  PeakFinder finder;
  out.push_back({"peak if every token visited the same expert of a layer, bytes",
                 std::to_string(finder.find(program).bytes.value()), "derived",
                 "the same step, that expert being the last one"});
}

}  // namespace

std::unique_ptr<StepWriter> step_writer(models::StepProgram& program, const ModelParts& parts,
                                        const models::Strategy& strategy,
                                        const models::Batch& batch, const Rules& rules) {
  const auto wrapper = [](Step& step, Checkpoints& checkpoints) -> std::unique_ptr<Wrapper> {
    if (is_fsdp1(step.strategy)) return std::make_unique<FlatParameters>(step, checkpoints);
    if (step.strategy.data.zero >= 2) return std::make_unique<FullyShard>(step);
    if (step.strategy.data.kind == models::DataParallelKind::dp)
      return std::make_unique<OneProcess>(step);
    return std::make_unique<Replicated>(step);
  };
  return std::make_unique<StepWriter>(program, parts, strategy, batch, rules, wrapper);
}

void write_messages(const ModelParts& parts, const models::Strategy& strategy, Messages& out) {
  models::StepProgram program;
  Rules rules;
  rules.granularity = 1;  // what is sent is not rounded to blocks
  set_loop(rules, parts.decoder, strategy);
  models::Strategy s = strategy;
  // Checkpoints of several layers gather as those of one; what is kept by op is not sent again.
  if (models::decisions::recomputes_layers(s.recompute.kind) && s.tp == 1)
    s.recompute = {models::RecomputeKind::full, 1};
  step_writer(program, parts, s, {}, rules)->write_messages(out);
}

void write_optimizer(const ModelParts& parts, const models::Strategy& strategy,
                     models::StepProgram& program, Works& works) {
  Rules rules;
  rules.each_parameter = false;
  rules.works = &works;
  set_loop(rules, parts.decoder, strategy);
  step_writer(program, parts, strategy, {}, rules)->write_optimizer();
}

void write_compute(const Question& question, const ModelParts& parts, models::StepProgram& program,
                   Works& works) {
  Rules rules = quick_rules(question, parts);
  rules.works = &works;
  step_writer(program, parts, question.strategy, question.batch, rules)->write();
}

void write_step(const Question& question, const ModelParts& parts, StackStep& step) {
  refuse_of_model(question);
  refuse(*question.model, question.strategy, question.batch);
  if (step.program_only) {
    Rules rules = quick_rules(question, parts);
    rules.rank = step.rank;
    const auto writer = step_writer(step.program, parts, question.strategy, question.batch, rules);
    writer->write();
    step.rank = writer->rank();
    step.caching_allocator = true;
    return;
  }
  Rules rules = rules_for(question, parts, step.assumptions);
  rules.rank = step.rank;
  add_assumptions(parts.decoder, question.strategy, step.assumptions);
  add_float8(question.strategy, step.assumptions);
  assume_litgpt(question.strategy, step.assumptions);
  assume_outliers(parts, question, step.assumptions);
  assume_visits(question, parts, step.assumptions);
  const auto writer = step_writer(step.program, parts, question.strategy, question.batch, rules);
  writer->write();
  step.rank = writer->rank();
  step.ranks = writer->ranks();
  step.states = writer->states();
  step.managed = writer->managed();
  step.host = writer->host();
  assume_offloaded(question.strategy, step.assumptions);
  assume_unsloth(question.strategy, step.assumptions);
  assume_host_optimizer(question.strategy, step.assumptions);
  if (question.strategy.offload.params)
    step.assumptions.push_back(
        {"parameters, gradients and optimizer states", "\"on the host, where the optimizer steps\"",
         "derived",
         is_fsdp1(question.strategy)
             ? "torch 2.11, CPUOffload(offload_params=True); tests/golden/dry_runs_offload.json"
             : "torch 2.11, CPUOffloadPolicy; tests/golden/dry_runs_offload.json"});
  assume_managed(step.managed, step.assumptions);
  writer->add_start(step.start);
  step.caching_allocator = true;
}

}  // namespace plimsoll::planner::pytorch

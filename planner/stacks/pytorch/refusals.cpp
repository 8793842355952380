// What stack pytorch does not plan, by the option that asks for it.
#include <algorithm>
#include <string>

#include "models/decisions/layer.h"
#include "models/decisions/mesh.h"
#include "models/optimizer_states.h"
#include "models/optimizers.h"
#include "models/recompute.h"
#include "models/run_names.h"
#include "models/stack_versions.h"
#include "models/storages.h"
#include "planner/stacks/pytorch/compiled/block_graph.h"
#include "planner/stacks/pytorch/refusals.h"
#include "planner/stacks/pytorch/stack.h"

namespace plimsoll::planner::pytorch {

using models::decisions::mesh_of;

namespace {

// The oldest release whose code of the family is the planned one, as far as it was compared.
models::Release oldest(const models::ModelSpec& model, const models::Strategy& s) {
  if (model.model_type == "gpt2") return models::kOldestGpt2;
  if (model.model_type == "qwen2") return models::kOldestQwen2;
  if (model.model_type == "qwen3") return models::kOldestQwen3;
  if (model.model_type == "llama" || model.model_type == "mistral" || model.model_type == "granite")
    return models::kOldestTransformers;
  if (model.model_type == "mixtral" || model.model_type == "qwen3_moe")
    return models::kOldestMixtures;
  // Its SDPA read a mask of floats in older releases; those between were not compared.
  if (model.model_type == "gpt_bigcode" && models::is_flash_package(s.attention) &&
      s.transformers < models::kLossPadsLabels)
    return models::kOldestTransformers;
  return models::kTransformers;
}

// Its checkpoints around FSDP2's modules: what the hooks of detached inputs gather and hold was not
// measured.
void refuse_reentrant(const models::Strategy& s) {
  const bool fsdp2 = s.data.zero >= 2 && s.data.fsdp_version == 2;
  check(!fsdp2 || !models::decisions::reentrant_checkpoints(s), ErrorKind::unsupported,
        "--use-reentrant yes with FSDP2 is not modelled yet (with DDP, on one GPU and with "
        "--fsdp-version 1 it is)");
}

void refuse_fsdp1(const models::Strategy& s) {
  const auto refuse_if = [](bool it_is, const char* what) {
    check(!it_is, ErrorKind::unsupported,
          [&] { return "--fsdp-version 1 " + std::string(what) + " is not modelled yet (2 is)"; });
  };
  refuse_if(!mesh_of(s).shards(), "of one rank (NO_SHARD)");
  refuse_if(!s.freeze.empty() || !s.train.empty(), "with --freeze or --train");
  refuse_if(models::groups_layers(s.recompute.kind), "with checkpoints of several layers");
  refuse_if(models::leaves_layers(s.recompute.kind), "with checkpoints of some layers");
  const bool plain = s.optimizer == models::Optimizer::adamw ||
                     s.optimizer == models::Optimizer::sgd ||
                     s.optimizer == models::Optimizer::momentum;
  check(s.data.use_orig_params || plain, ErrorKind::unsupported,
        "--fsdp-use-orig-params no is modelled with --optimizer adamw, sgd or momentum");
}

// Selective checkpoints by operator: create_selective_checkpoint_contexts around each layer, by a
// policy that keeps what named modules' aten.mm and aten.addmm make, and SDPA's kernel.
void refuse_kept_ops(const models::ModelSpec& model, const models::Strategy& s) {
  if (s.recompute.kind != models::RecomputeKind::ops || models::is_torchtitan(s.code)) return;
  const auto refuse_if = [&](bool it_is, ErrorKind kind, const char* what) {
    check(!it_is, kind, [&] { return "--recompute " + text_of(s.recompute) + " " + what; });
  };
  models::check_kept(s.recompute, model.blocks);
  const bool attention = std::ranges::find(s.recompute.kept, "attention") != s.recompute.kept.end();
  refuse_if(
      s.use_reentrant.value_or(false), ErrorKind::bad_input,
      "with --use-reentrant yes: PyTorch has context_fn for checkpoints that are not reentrant");
  refuse_if(s.transformers < models::Release{5, 0, 0}, ErrorKind::unsupported,
            "is modelled with Transformers 5.0 and later");
  refuse_if(is_fsdp1(s), ErrorKind::unsupported, "with --fsdp-version 1 is not modelled yet");
  refuse_if(s.kernels != models::Kernels::eager, ErrorKind::unsupported,
            "is modelled with --kernels eager alone");
  refuse_if(s.quantize.has_value(), ErrorKind::unsupported, "with --quantize is not modelled yet");
  refuse_if(attention && s.attention != models::Attention::flash, ErrorKind::unsupported,
            "keeps attention's result with --attention flash (one kernel of SDPA) alone");
  const models::Decoder& d = *model.decoder;
  refuse_if(attention && s.precision == models::Precision::fp32 && d.kv_heads < d.heads,
            ErrorKind::bad_input,
            "keeps nothing of attention: grouped queries in fp32 run SDPA's math, not one kernel");
  const auto routes = [](const std::shared_ptr<const models::Block>& block) {
    return block->experts > 0;
  };
  refuse_if(std::ranges::any_of(model.blocks, routes), ErrorKind::unsupported,
            "is not modelled yet for models with experts");
}

void refuse_some_layers(const models::Strategy& s) {
  if (!models::leaves_layers(s.recompute.kind)) return;
  const auto refuse_if = [&](bool it_is, const char* what) {
    check(!it_is, ErrorKind::unsupported,
          [&] { return "--recompute " + text_of(s.recompute) + " " + what; });
  };
  refuse_if(models::is_transformers(s.code) && s.transformers < models::kLayersCheckpointThemselves,
            "needs layers that are checkpoints by themselves: Transformers 4.52 and later");
  refuse_if(s.tp > 1, "with --tp is not modelled yet");
}

// Families whose compiled layers were held against the real partitioner
// (tests/golden/compiled_saved.json).
constexpr std::string_view kCompiledFamilies[] = {"llama", "mistral", "qwen2",   "qwen3",
                                                  "gemma", "gpt2",    "granite", "olmo2"};

// A layer that is compiled by itself (compiled/): what was held against the real partitioner.
void refuse_compiled(const models::ModelSpec& model, const models::Strategy& s,
                     const models::Batch& batch) {
  if (s.compile == models::Compile::no) return;
  using models::RecomputeKind;
  const auto refuse_if = [](bool it_is, const char* what) {
    check(!it_is, ErrorKind::unsupported,
          [&] { return "--compile " + std::string(what) + " is not modelled yet"; });
  };
  refuse_if(s.compile == models::Compile::model, "model (block is)");
  refuse_if(s.lora || s.quantize || !s.freeze.empty() || !s.train.empty(),
            "with adapters, a quantized base, --freeze or --train");
  refuse_if(s.kernels != models::Kernels::eager, "with --kernels other than eager");
  refuse_if(s.attention != models::Attention::flash, "with --attention other than flash");
  refuse_if(s.rows != models::Rows::full, "with rows that hold padding or several samples");
  refuse_if(s.precision == models::Precision::fp16_mixed || s.precision == models::Precision::fp16,
            "in fp16");
  // torch/_dynamo/backends/distributed.py, DDPOptimizer: a graph for each of DDP's buckets.
  refuse_if(mesh_of(s).communicates() && s.data.zero < 2,
            "under DDP, which splits each layer at its buckets,");
  refuse_if(is_fsdp1(s), "with --fsdp-version 1");
  refuse_if(s.offload.any(), "with --offload");
  refuse_if(s.optimizer_in_backward, "with --optimizer-in-backward");
  refuse_if(s.use_reentrant.value_or(false), "with --use-reentrant yes");
  refuse_if(s.transformers < models::Release{5, 0, 0}, "with Transformers before 5.0");
  refuse_if(
      s.recompute.kind == RecomputeKind::selective || models::groups_layers(s.recompute.kind) ||
          (s.recompute.kind == RecomputeKind::ops && !models::keeps_torchtitan_ops(s.recompute)),
      "with --recompute other than none, full, block:N, nth:N and ops:torchtitan");
  const models::Decoder& d = *model.decoder;
  refuse_if(s.precision == models::Precision::fp32 && d.kv_heads < d.heads,
            "in fp32 with grouped queries (SDPA's math)");
  if (!models::is_transformers(s.code)) {
    check(s.code == models::ModelCode::torchtitan_2024_12, ErrorKind::unsupported, [&] {
      return "--compile with --model-code " + std::string(models::name_of(s.code)) +
             " (torchtitan@2024-12 is) is not modelled yet";
    });
    return;
  }
  check(std::ranges::find(kCompiledFamilies, model.model_type) != std::end(kCompiledFamilies),
        ErrorKind::unsupported, [&] {
          return "--compile: compiled layers of " + model.model_type + " are not modelled yet";
        });
  refuse_if(d.window > 0 && batch.seq_len >= d.window,
            "with a sliding window that the sequence reaches");
  for (const auto& block : model.blocks) compiled::refuse_block(*block);
}

void refuse_optimizer(const models::Strategy& s) {
  models::check_optimizer(s);
  const models::OptimizerRule& rule = models::rule_of(s.optimizer);
  check(!s.optimizer_impl || rule.torch.package == nullptr, ErrorKind::bad_input, [&] {
    return "--optimizer-impl " + std::string(models::name_of(*s.optimizer_impl)) + ": " +
           rule.torch.package + " steps --optimizer " + std::string(rule.name) +
           ", which has one form";
  });
  check(s.optimizer_impl != models::OptimizerImpl::fused || rule.torch.refusal_fused == nullptr,
        ErrorKind::bad_input,
        [&] { return "--optimizer-impl fused: " + std::string(rule.torch.refusal_fused); });
  const Regime regime = regime_of(s, s.data.zero >= 2, false);
  check((s.lora ? regime.adapter : regime.stored) != DType::bf16 ||
            rule.torch.refusal_bf16 == nullptr,
        ErrorKind::unsupported, [&] {
          return "--optimizer " + std::string(rule.name) +
                 " with parameters in bf16: " + rule.torch.refusal_bf16;
        });
  const char* const why = s.data.zero == 1  ? rule.torch.refusal_zero1
                          : s.data.zero < 2 ? nullptr
                          : is_fsdp1(s)     ? rule.torch.refusal_fsdp1
                                            : rule.torch.refusal_fsdp2;
  check(why == nullptr, ErrorKind::unsupported, [&] {
    return "--optimizer " + std::string(rule.name) + " with --zero " + std::to_string(s.data.zero) +
           ": " + why;
  });
}

// q_galore_projector.py, _quantize: "assert w.nelement() % q_group_size == 0".
void refuse_begun_groups(const models::ModelSpec& model, const models::Strategy& s) {
  if (s.optimizer != models::Optimizer::q_galore) return;
  for (const models::ParameterRow& row : model.parameters) {
    using models::ModuleKind;
    const bool layers = row.module != ModuleKind::embedding && row.module != ModuleKind::head;
    if (!layers || row.shape.rank != 2) continue;
    const auto& axes = row.shape.axes;
    const std::int64_t rank =
        models::rank_of(s, {.elements = axes[0] * axes[1], .rows = axes[0], .columns = axes[1]});
    const std::int64_t values = rank * std::min(axes[0], axes[1]);
    check(values % models::kProjectorGroup == 0, ErrorKind::bad_input, [&] {
      return "--optimizer q-galore with --galore-rank " + std::to_string(rank) + ": the " +
             std::to_string(values) + " values of the basis of " + row.name +
             " are no multiple of 256, which q_galore_torch stops at";
    });
  }
}

void refuse_projection(const models::ModelSpec& model, const models::Strategy& s) {
  refuse_begun_groups(model, s);
  const models::TorchOptimizer& rule = models::rule_of(s.optimizer).torch;
  if (rule.projects_to == 0) return;
  const auto refuse_if = [&](bool it_is, const char* what) {
    check(!it_is, ErrorKind::unsupported, [&] {
      return "--optimizer " + std::string(models::rule_of(s.optimizer).name) + " " + what +
             " is not modelled yet";
    });
  };
  refuse_if(rule.factors && mesh_of(s).communicates(), "on several GPUs");
  refuse_if(s.lora.has_value(), "with --lora-rank, whose matrices have a low rank already,");
  refuse_if(s.precision == models::Precision::fp16_mixed, "with --precision fp16-mixed");
}

// DDP's hooks (torch 2.11, distributed/algorithms/ddp_comm_hooks/default_hooks.py, _compress_hook)
// make a 16-bit copy of each bucket. No one waits for the all-reduce itself, so NCCL keeps the copy
// until its watchdog has seen it end and the next collective is called (c10d/ProcessGroupNCCL.cpp,
// TensorShelf): how many buckets' copies live at once is a matter of the clock. Where the
// gradients' dtype is set too, it is FSDP's, and this the same strategy asked again without
// sharding.
void refuse_compression(const models::Strategy& s) {
  if (!s.data.reduce_dtype || s.grad_dtype || s.data.zero >= 2) return;
  check(false, ErrorKind::unsupported, [&] {
    return "--reduce-dtype " + std::string(name_of(*s.data.reduce_dtype)) +
           (s.data.kind == models::DataParallelKind::ddp
                ? ": DDP's communication hooks (bf16_compress_hook, fp16_compress_hook) are not "
                  "modelled yet: how many buckets' copies live at once depends on NCCL's watchdog; "
                : ": torch.nn.DataParallel reduces in the dtype of its gradients; ") +
           "FSDP (--zero 2 or 3) and --stack plimsoll take it";
  });
}

// Hooks behind each gradient's accumulation (torch/autograd, register_post_accumulate_grad_hook).
void refuse_in_backward(const models::Strategy& s, const models::Batch& batch) {
  if (!s.optimizer_in_backward) return;
  const auto refuse_if = [](bool it_is, ErrorKind kind, const char* why) {
    check(!it_is, kind, [&] { return "--optimizer-in-backward " + std::string(why); });
  };
  refuse_if(batch.grad_accum > 1, ErrorKind::bad_input,
            "with --grad-accum: gradients would be stepped with before they are whole");
  refuse_if(s.precision == models::Precision::fp16_mixed, ErrorKind::bad_input,
            "with --precision fp16-mixed: a scaler looks at all gradients before it steps");
  refuse_if(mesh_of(s).communicates(), ErrorKind::unsupported, "is modelled on one GPU");
  const auto not_yet = [](const models::OptimizerRule& rule) {
    return !rule.torch.refusal && !rule.torch.in_backward;
  };
  check(!not_yet(models::rule_of(s.optimizer)), ErrorKind::unsupported, [&] {
    return "--optimizer-in-backward is modelled with all optimizers but " +
           models::optimizer_names(not_yet);
  });
}

// lomo_optim 0.1.1: its states are of frozen parameters too, and of matrices and vectors alone.
void refuse_behind(const models::ModelSpec& model, const models::Strategy& s) {
  const models::OptimizerRule& rule = models::rule_of(s.optimizer);
  if (!rule.torch.behind) return;
  const auto refuse_if = [&](bool it_is, const char* what) {
    check(!it_is, ErrorKind::unsupported,
          [&] { return "--optimizer " + std::string(rule.name) + " " + what; });
  };
  refuse_if(s.lora || !s.freeze.empty(), "with frozen parameters is not modelled yet");
  const auto stacked = [](const models::ParameterRow& row) { return !row.stacked.empty(); };
  refuse_if(std::ranges::any_of(model.parameters, stacked),
            "with experts that are stacked in one parameter is not modelled yet");
}

// fully_shard casts a layer's inputs as it runs forward (_fsdp_state.py, _pre_forward), and not as
// it runs again in the backward: rotary tables in fp32 make other dtypes then.
void refuse_cast_tables(const models::ModelSpec& model, const models::Strategy& s) {
  const bool casts = s.data.zero >= 2 && s.data.fsdp_version == 2 && is_mixed(s.precision);
  check(!casts || !model.decoder || !model.decoder->fp32_rotary ||
            !models::decisions::recomputes_layers(s.recompute.kind),
        ErrorKind::unsupported, [&] {
          return "--recompute with " + model.model_type +
                 " under FSDP2 in mixed precision: PyTorch ends it with a CheckpointError (rotary "
                 "tables are cast in the forward alone); with --precision bf16 it trains";
        });
  check(!casts || !model.decoder || !model.decoder->fp32_rotary || s.compile == models::Compile::no,
        ErrorKind::unsupported, [&] {
          return "--compile with " + model.model_type +
                 " under FSDP2 in mixed precision, which casts rotary tables with a layer's "
                 "inputs, is not modelled yet";
        });
}

}  // namespace

void refuse_release(const models::ModelSpec& model, const models::Strategy& s) {
  check(s.transformers >= oldest(model, s), ErrorKind::unsupported, [&] {
    return "--transformers-version " + models::text_of(s.transformers) + ": the steps of " +
           model.model_type + " are modelled from " + models::text_of(oldest(model, s)) + " on";
  });
  const bool own_loss = s.kernels == models::Kernels::fused;
  check(s.loss == models::Loss::full || own_loss || s.transformers >= models::kLossPadsLabels,
        ErrorKind::unsupported, [&] {
          return "--transformers-version " + models::text_of(s.transformers) +
                 " is modelled with --loss full only; chunked and fused losses from " +
                 models::text_of(models::kLossPadsLabels) + " on";
        });
  check(s.kernels != models::Kernels::liger || s.transformers >= models::Release{5, 0, 0},
        ErrorKind::unsupported, [&] {
          return "--transformers-version " + models::text_of(s.transformers) +
                 ": Liger's kernels are modelled with 5.0 and later";
        });
}

void refuse(const models::ModelSpec& model, const models::Strategy& s, const models::Batch& batch) {
  refuse_data_parallel(s);
  refuse_unsloth(model, s);
  refuse_rows(model, s);
  refuse_torch(model, s);
  refuse_float8(model, s, batch);
  refuse_loops(model, s, batch);
  refuse_code(model, s, batch);
  refuse_kept_ops(model, s);
  check(s.recompute.kind != models::RecomputeKind::recursive, ErrorKind::unsupported, [&] {
    return "--recompute " + text_of(s.recompute) +
           " is modelled with --stack plimsoll, which runs it";
  });
  refuse_some_layers(s);
  refuse_compiled(model, s, batch);
  refuse_optimizer(s);
  refuse_adapters(model, s);
  refuse_projection(model, s);
  refuse_compression(s);
  refuse_in_backward(s, batch);
  refuse_behind(model, s);
  refuse_offloaded_activations(model, s, batch);
  refuse_offload(s, batch);
  refuse_packed(s);
  refuse_bitsandbytes(s);
  if (is_fsdp1(s)) refuse_fsdp1(s);
  refuse_cast_tables(model, s);
  refuse_reentrant(s);
  refuse_release(model, s);
  const bool own_loss =
      s.kernels == models::Kernels::fused;  // of fms-acceleration, with any release
  check(s.loss != models::Loss::chunked || !own_loss, ErrorKind::unsupported,
        "--kernels fused: fms-acceleration has a full and a fused loss");
  const bool loss_alone = model.model_type == "gpt_bigcode";
  check(!own_loss || !loss_alone || s.transformers < models::kLossPadsLabels,
        ErrorKind::unsupported,
        "--kernels fused: fms-acceleration replaces the loss in GPT-BigCode's own code, which has "
        "none from Transformers 4.49 on");
  check(!own_loss || loss_alone || s.lora || !mesh_of(s).communicates() || s.data.zero >= 2,
        ErrorKind::bad_input,
        "--kernels fused: these norms make no gradients of their weights, and DDP waits for them; "
        "with --lora-rank or --zero 2 or 3 nothing does");
  check(s.device == models::Device::cuda, ErrorKind::bad_input,
        "--device cpu is for --stack plimsoll");
  check(!s.master_weights.value_or(false), ErrorKind::bad_input,
        "--master-weights yes: PyTorch's optimizers keep no separate masters; train mixed on fp32 "
        "weights (--param-dtype fp32)");
}

}  // namespace plimsoll::planner::pytorch

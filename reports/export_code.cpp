#include "reports/export_code.h"

#include <fmt/format.h>

#include "models/base/error.h"
#include "models/decisions/layer.h"
#include "models/decisions/mesh.h"
#include "models/lora.h"
#include "models/model_code.h"
#include "models/model_reader.h"
#include "models/optimizers.h"
#include "models/run_names.h"
#include "models/stack_versions.h"

namespace plimsoll::reports {

using models::Loss;
using models::RecomputeKind;
using models::Stack;
using models::Strategy;

namespace {

// The head is called as a module, because that is when FSDP and ZeRO-3 have gathered its weight.
// Labels are shifted as ForCausalLMLoss does (transformers 5.17, loss/loss_utils.py).
constexpr const char* kHeadWithLoss = R"(
def {0}(model{1}):
    """{2}"""
    head, with_logits = model.get_output_embeddings(), model.forward

    def head_and_loss(hidden, targets=None, count=None):
        if targets is None:  # evaluation, generation
            return F.linear(hidden, head.weight, head.bias)
        if count is None:
            count = (targets != -100).sum()
{3}
    @functools.wraps(with_logits)
    def forward(*inputs, labels=None, num_items_in_batch=None, **kwargs):
        if labels is None:
            return with_logits(*inputs, **kwargs)
        hidden = model.base_model(*inputs, **kwargs).last_hidden_state
        targets = F.pad(labels, (0, 1), value=-100)[..., 1:].reshape(-1)
        return CausalLMOutput(loss=head(hidden.flatten(0, 1), targets, num_items_in_batch))

    head.forward, model.forward = head_and_loss, forward

)";

// As torchtune's CEWithChunkedOutputLoss.
constexpr const char* kChunked =
    R"(        logits = [F.linear(part, head.weight, head.bias) for part in hidden.chunk(parts)]
        losses = [F.cross_entropy(part.float(), target, reduction="sum")
                  for part, target in zip(logits, targets.chunk(parts))]
        return sum(losses) / count
)";

// liger_kernel 0.8.5, ops/fused_linear_cross_entropy.py.
constexpr const char* kFused = R"(        total, *_ = LigerFusedLinearCrossEntropyFunction.apply(
            hidden, head.weight, targets, head.bias, None, -100, 0.0, 0.0, "sum")
        return total / count
)";

// The loop of the model sees groups where it had layers; modules, parameters and their names stay,
// so that wrappers and checkpoint files do not notice.
constexpr const char* kGroups = R"(
def checkpoint_groups(model, size):
    """One checkpoint around each {0} layers; the layers and their names stay."""
    [layers] = [m for m in model.base_model.children() if isinstance(m, torch.nn.ModuleList)]
    kinds = getattr(model.config, "layer_types", None) or ["one"]
    assert len(set(kinds)) == 1, "a group of layers gets one mask"

    class Group:
        def __init__(self, layers):
            self.layers = layers

        def __getattr__(self, name):  # what the model asks of a layer
            return getattr(self.layers[0], name)

        def run(self, hidden, *inputs, **kwargs):
            for layer in self.layers:
                hidden = layer(hidden, *inputs, **kwargs)
            return hidden

        def __call__(self, hidden, *inputs, **kwargs):
            return checkpoint(self.run, hidden, *inputs, use_reentrant=False, **kwargs)

    class Groups(torch.nn.ModuleList):
        def __iter__(self):
            plain = list(super().__iter__())
            if not (self.training and torch.is_grad_enabled()):
                return iter(plain)
            return iter([Group(plain[i:i + size]) for i in range(0, len(plain), size)])

        def __getitem__(self, index):  # the model's loop takes a slice
            return list(self) if isinstance(index, slice) else super().__getitem__(index)

    layers.__class__ = Groups

)";

// GradientCheckpointingLayer asks each layer's own flag (transformers 4.52, modeling_layers.py).
constexpr const char* kFirstLayers = R"(
def checkpoint_first_layers(model, count, use_reentrant):
    """Transformers' own checkpoints, around the first layers alone."""
    model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    [layers] = [m for m in model.base_model.children() if isinstance(m, torch.nn.ModuleList)]
    for layer in layers[count:]:
        layer.gradient_checkpointing = False

)";

constexpr const char* kEveryNth = R"(
def checkpoint_every_nth_layer(model, n, use_reentrant):
    """Transformers' own checkpoints, around every nth layer alone."""
    model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    [layers] = [m for m in model.base_model.children() if isinstance(m, torch.nn.ModuleList)]
    for number, layer in enumerate(layers, 1):
        layer.gradient_checkpointing = number % n == 0

)";

constexpr const char* kSelective = R"(
def checkpoint_attention(model):
    """A checkpoint around the core attention alone (Korthikanti et al. 2022)."""
    name = model.config._attn_implementation
    plain = ALL_ATTENTION_FUNCTIONS.get_interface(
        name, getattr(sys.modules[type(model).__module__], "eager_attention_forward", None))

    def recomputed(*inputs, **kwargs):
        return checkpoint(plain, *inputs, use_reentrant=False, **kwargs)

    AttentionInterface.register("recomputed", recomputed)
    AttentionMaskInterface.register("recomputed", ALL_MASK_ATTENTION_FUNCTIONS[name])
    model.set_attn_implementation("recomputed")

)";

// Which module a GEMM belongs to is known by hooks around its forward, in the recomputation too.
constexpr const char* kKeptOps = R"(
def checkpoint_layers_but(model, *kept):
    """A checkpoint around each layer, which keeps what these modules' GEMMs and attention make."""
    aten = torch.ops.aten
    gemms = {aten.mm.default, aten.addmm.default}
    attentions = {aten._scaled_dot_product_flash_attention.default,
                  aten._scaled_dot_product_efficient_attention.default,
                  aten._scaled_dot_product_cudnn_attention.default}
    running = []
    for path, module in model.named_modules():
        if any(f".{path}".endswith(f".{name}") for name in kept if name != "attention"):
            module.register_forward_pre_hook(lambda *_: running.append(True))
            module.register_forward_hook(lambda *_: running.pop() and None, always_call=True)

    def policy(context, op, *args, **kwargs):
        keeps = (op in gemms and running) or (op in attentions and "attention" in kept)
        return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE

    model.gradient_checkpointing_enable({
        "use_reentrant": False,
        "context_fn": functools.partial(create_selective_checkpoint_contexts, policy)})

)";

constexpr const char* kZeroOne = R"(
class ZeroTrainer(Trainer):
    """Each rank keeps the optimizer's states of its part of the parameters."""

    def create_optimizer(self, model=None):
        if self.optimizer is None:
            kind, options = self.get_optimizer_cls_and_kwargs(self.args, self.model)
            self.optimizer_cls_and_kwargs = (
                ZeroRedundancyOptimizer, {"optimizer_class": kind, **options})
            # Placing it would ask for the states of all ranks, which nobody has gathered.
            self.optimizer = self.accelerator.prepare_optimizer(
                super().create_optimizer(model), device_placement=False)
            self.optimizer._is_accelerate_prepared = True
        return self.optimizer

)";

// trl 1.16, trainer/sft_trainer.py, which has an option for it (activation_offloading=True).
constexpr const char* kOffloading = R"(
class OffloadingTrainer({0}):
    """What layers and loss save waits in the host's memory for the backward."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.offloading = get_act_offloading_ctx_manager(model=self.model)

    def training_step(self, *args, **kwargs):
        with self.offloading:
            return super().training_step(*args, **kwargs)

)";

// torch/backends/cuda: one of scaled_dot_product_attention's kernels remains.
const char* kernel_left(models::Attention attention) {
  if (attention == models::Attention::math) return "math";
  if (attention == models::Attention::cudnn) return "cudnn";
  return attention == models::Attention::efficient ? "mem_efficient" : nullptr;
}

std::string leave_kernel(const char* left) {
  std::string others;
  for (const char* kernel : {"flash", "mem_efficient", "cudnn", "math"})
    if (std::string_view(kernel) != left)
      others += (others.empty() ? "\"" : ", \"") + std::string(kernel) + "\"";
  return "for kernel in (" + others +
         "):\n    getattr(torch.backends.cuda, f\"enable_{kernel}_sdp\")(False)\n";
}

bool views_buckets(const Strategy& s) {
  return s.stack == Stack::pytorch && s.data.zero <= 1 &&
         models::decisions::mesh_of(s).communicates() && s.data.gradient_as_bucket_view;
}

void refuse_adapted_head(const models::Workload& w) {
  if (!w.strategy.lora || w.strategy.loss == Loss::full) return;
  const models::ModelSpec model =
      models::read_model(w.model_config, w.model_name, w.model_name, {});
  for (const models::LoraModule& module : lora_modules(model, *w.strategy.lora))
    check(!module.name.ends_with("lm_head"), ErrorKind::unsupported, [&] {
      return fmt::format(
          "export --to transformers: no code is known for --loss {} where the head "
          "has an adapter; --loss full is exported",
          name_of(w.strategy.loss));
    });
}

// Liger's patch has a loss of its own, which the Trainer switches on with it, and so has
// fms-acceleration's plugin.
bool comes_with_kernels(const Strategy& s) {
  return s.kernels != models::Kernels::eager && s.stack != Stack::plimsoll && s.loss == Loss::fused;
}

void add_loss(const Strategy& s, TrainingCode& out) {
  const Loss loss = s.loss;
  check(
      loss != Loss::tiled, ErrorKind::unsupported,
      "export: --loss tiled is what TRL's SFTTrainer does of itself, from release 1.x on; no code "
      "is written for another trainer");
  if (loss == Loss::full || comes_with_kernels(s)) return;
  const bool chunked = loss == Loss::chunked;
  const char* name = chunked ? "chunked_loss" : "fused_loss";
  out.imports.insert(out.imports.end(),
                     {"import functools", "import torch.nn.functional as F",
                      "from transformers.modeling_outputs import CausalLMOutput"});
  if (!chunked)
    out.imports.push_back(
        "from liger_kernel.ops.fused_linear_cross_entropy import "
        "LigerFusedLinearCrossEntropyFunction");
  out.before_model += fmt::format(
      fmt::runtime(kHeadWithLoss), name, chunked ? ", parts=8" : "",
      chunked ? "The head and the loss, one part of the tokens after the other."
              : "The head and the loss as one function, which keeps no logits (Liger's).",
      chunked ? kChunked : kFused);
  out.on_model += fmt::format("{}(model)\n", name);
}

std::int64_t layers_per_checkpoint(const models::Workload& w) {
  const models::ModelSpec model =
      models::read_model(w.model_config, w.model_name, w.model_name, {});
  return models::decisions::layers_per_checkpoint(w.strategy.recompute,
                                                  model.decoder ? model.decoder->layers : 1);
}

void add_checkpoints(const models::Workload& w, TrainingCode& out) {
  const RecomputeKind kind = w.strategy.recompute.kind;
  if (kind == RecomputeKind::none || kind == RecomputeKind::full) return;
  if (kind == RecomputeKind::ops) {
    out.imports.insert(
        out.imports.end(),
        {"import functools",
         "from torch.utils.checkpoint import (CheckpointPolicy,\n"
         "                                    create_selective_checkpoint_contexts)"});
    out.before_model += kKeptOps;
    std::string names;
    for (const std::string& kept : w.strategy.recompute.kept) names += ", \"" + kept + '"';
    out.on_model += "checkpoint_layers_but(model" + names + ")\n";
    return;
  }
  if (models::leaves_layers(kind)) {
    const bool first = kind == RecomputeKind::block;
    out.before_model += first ? kFirstLayers : kEveryNth;
    out.on_model += fmt::format(
        "{}(model, {}, {})\n", first ? "checkpoint_first_layers" : "checkpoint_every_nth_layer",
        w.strategy.recompute.layers,
        models::decisions::reentrant_checkpoints(w.strategy) ? "True" : "False");
    return;
  }
  out.imports.emplace_back("from torch.utils.checkpoint import checkpoint");
  if (kind == RecomputeKind::selective) {
    out.imports.insert(out.imports.end(),
                       {"import sys",
                        "from transformers import AttentionInterface, "
                        "AttentionMaskInterface",
                        "from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS",
                        "from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS"});
    out.before_model += kSelective;
    out.on_model += "checkpoint_attention(model)\n";
    return;
  }
  const std::int64_t size = layers_per_checkpoint(w);
  out.before_model += fmt::format(fmt::runtime(kGroups), size);
  out.on_model += fmt::format("checkpoint_groups(model, {})\n", size);
}

}  // namespace

std::vector<std::string> needed_code(const Strategy& s) {
  std::vector<std::string> out;
  if (s.loss == Loss::chunked && models::is_transformers(s.code)) out.emplace_back("chunked loss");
  if (s.loss == Loss::fused && !comes_with_kernels(s))
    out.emplace_back("fused loss (Liger's function)");
  if (s.recompute.kind == RecomputeKind::selective)
    out.emplace_back("a checkpoint around the core attention");
  if (s.recompute.kind == RecomputeKind::ops && !models::is_torchtitan(s.code))
    out.emplace_back("checkpoints that keep what named operators make");
  if (s.recompute.kind == RecomputeKind::sqrt)
    out.emplace_back("a checkpoint around every sqrt(layers) layers");
  if (s.recompute.kind == RecomputeKind::every)
    out.push_back(fmt::format("a checkpoint around every {} layers", s.recompute.layers));
  if (s.recompute.kind == RecomputeKind::block)
    out.push_back(fmt::format("checkpoints around the first {} layers alone", s.recompute.layers));
  if (s.recompute.kind == RecomputeKind::nth)
    out.push_back(fmt::format("checkpoints around one in {} layers", s.recompute.layers));
  if (kernel_left(s.attention) != nullptr)
    out.push_back(fmt::format("{} attention", name_of(s.attention)));
  if (s.stack == Stack::pytorch && s.data.zero == 1) out.emplace_back("ZeroRedundancyOptimizer");
  const bool brings_it = s.kernels == models::Kernels::unsloth;  // its own checkpoints
  if (s.stack == Stack::pytorch && s.offload.activations && !brings_it)
    out.emplace_back("activations on the host (TRL's trainers have activation_offloading=True)");
  if (views_buckets(s)) out.emplace_back("DDP's gradient_as_bucket_view");
  return out;
}

// AttentionMaskInterface (transformers 4.53, masking_utils.py) is what lets an attention of one's
// own keep the masks of the one it wraps.
bool no_code_known(const Strategy& s) {
  return s.recompute.kind == RecomputeKind::selective && s.transformers < models::kMasksAreBoolean;
}

std::string needed_code_note(const Strategy& s) {
  std::string parts;
  for (const std::string& part : needed_code(s)) parts += (parts.empty() ? "" : ", ") + part;
  if (parts.empty()) return "";
  if (no_code_known(s))
    return "Needs code that is not known for Transformers before 4.53: " + parts + ".";
  return "Needs code, no option switches it on: " + parts +
         "; `plimsoll export PLAN --to transformers` writes it.";
}

TrainingCode training_code(const models::Workload& w) {
  TrainingCode out;
  check(!no_code_known(w.strategy), ErrorKind::unsupported, [&] {
    return fmt::format(
        "export --to transformers: --recompute selective needs Transformers 4.53, "
        "the plan is of {}",
        models::text_of(w.strategy.transformers));
  });
  const bool own_loop =
      w.strategy.optimizer_in_backward && !models::rule_of(w.strategy.optimizer).torch.behind;
  check(!own_loop, ErrorKind::unsupported,
        "export --to transformers: --optimizer-in-backward is for a loop of one's own "
        "(Tensor.register_post_accumulate_grad_hook): the Trainer steps when the backward is over");
  refuse_adapted_head(w);
  add_loss(w.strategy, out);
  add_checkpoints(w, out);
  if (const char* const left = kernel_left(w.strategy.attention))
    out.on_model += leave_kernel(left);
  if (views_buckets(w.strategy))
    out.on_trainer = "    made.accelerator.ddp_handler.gradient_as_bucket_view = True\n";
  if (w.strategy.stack == Stack::pytorch && w.strategy.data.zero == 1) {
    out.imports.emplace_back("from torch.distributed.optim import ZeroRedundancyOptimizer");
    out.before_model += kZeroOne;
    out.trainer = "ZeroTrainer";
  }
  if (w.strategy.stack == Stack::pytorch && w.strategy.offload.activations) {
    out.imports.emplace_back(
        "from trl.models.activation_offloading import get_act_offloading_ctx_manager");
    out.before_model += fmt::format(fmt::runtime(kOffloading), out.trainer);
    out.trainer = "OffloadingTrainer";
  }
  return out;
}

}  // namespace plimsoll::reports

# llama-3.2-1b: stack pytorch, 8 GPUs, ZeRO 1, bf16-mixed, 4096 tokens x 1 x 2
# start it on 8 GPUs with torchrun or accelerate launch
# sequences of 4096 tokens are the data's matter (the tokenizer's max_length, or packing)
import functools
import sys

import torch
import torch.nn.functional as F
from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, AttentionMaskInterface
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_outputs import CausalLMOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS


def fused_loss(model):
    """The head and the loss as one function, which keeps no logits (Liger's)."""
    head, with_logits = model.get_output_embeddings(), model.forward

    def head_and_loss(hidden, targets=None, count=None):
        if targets is None:  # evaluation, generation
            return F.linear(hidden, head.weight, head.bias)
        if count is None:
            count = (targets != -100).sum()
        total, *_ = LigerFusedLinearCrossEntropyFunction.apply(
            hidden, head.weight, targets, head.bias, None, -100, 0.0, 0.0, "sum")
        return total / count

    @functools.wraps(with_logits)
    def forward(*inputs, labels=None, num_items_in_batch=None, **kwargs):
        if labels is None:
            return with_logits(*inputs, **kwargs)
        hidden = model.base_model(*inputs, **kwargs).last_hidden_state
        targets = F.pad(labels, (0, 1), value=-100)[..., 1:].reshape(-1)
        return CausalLMOutput(loss=head(hidden.flatten(0, 1), targets, num_items_in_batch))

    head.forward, model.forward = head_and_loss, forward


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


model = AutoModelForCausalLM.from_pretrained(
    "meta-llama/Llama-3.2-1B", dtype=torch.float32, attn_implementation="sdpa")
model.config.use_cache = False
fused_loss(model)
checkpoint_attention(model)

arguments = TrainingArguments(
    output_dir="output",
    per_device_train_batch_size=1,
    gradient_accumulation_steps=2,
    bf16=True,
    optim="adamw_torch",
    save_only_model=True,
    ddp_find_unused_parameters=False,
)


def trainer(data):
    """data: a dataset with input_ids, labels and attention_mask."""
    return ZeroTrainer(model=model, args=arguments, train_dataset=data)

# llama-3.1-70b: stack pytorch, 64 GPUs, ZeRO 3, bf16-mixed, 8192 tokens x 1 x 1
# start it on 64 GPUs with torchrun or accelerate launch
# sequences of 8192 tokens are the data's matter (the tokenizer's max_length, or packing)
import functools

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
from transformers.modeling_outputs import CausalLMOutput


def chunked_loss(model, parts=8):
    """The head and the loss, one part of the tokens after the other."""
    head, with_logits = model.get_output_embeddings(), model.forward

    def head_and_loss(hidden, targets=None, count=None):
        if targets is None:  # evaluation, generation
            return F.linear(hidden, head.weight, head.bias)
        if count is None:
            count = (targets != -100).sum()
        logits = [F.linear(part, head.weight, head.bias) for part in hidden.chunk(parts)]
        losses = [F.cross_entropy(part.float(), target, reduction="sum")
                  for part, target in zip(logits, targets.chunk(parts))]
        return sum(losses) / count

    @functools.wraps(with_logits)
    def forward(*inputs, labels=None, num_items_in_batch=None, **kwargs):
        if labels is None:
            return with_logits(*inputs, **kwargs)
        hidden = model.base_model(*inputs, **kwargs).last_hidden_state
        targets = F.pad(labels, (0, 1), value=-100)[..., 1:].reshape(-1)
        return CausalLMOutput(loss=head(hidden.flatten(0, 1), targets, num_items_in_batch))

    head.forward, model.forward = head_and_loss, forward


def checkpoint_groups(model, size):
    """One checkpoint around each 4 layers; the layers and their names stay."""
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


model = AutoModelForCausalLM.from_pretrained(
    "meta-llama/Llama-3.1-70B", dtype=torch.float32, attn_implementation="sdpa")
model.config.use_cache = False
chunked_loss(model)
checkpoint_groups(model, 4)

arguments = TrainingArguments(
    output_dir="output",
    per_device_train_batch_size=1,
    gradient_accumulation_steps=1,
    bf16=True,
    optim="adamw_torch",
    fsdp=True,
    fsdp_config={
        "version": 2,
        "reshard_after_forward": True,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "activation_checkpointing": False,
        "cpu_ram_efficient_loading": True,
        "state_dict_type": "SHARDED_STATE_DICT",
    },
)


def trainer(data):
    """data: a dataset with input_ids, labels and attention_mask."""
    return Trainer(model=model, args=arguments, train_dataset=data)

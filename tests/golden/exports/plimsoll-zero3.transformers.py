# llama-3.1-8b: stack plimsoll, 16 GPUs, ZeRO 3, bf16-mixed, 4096 tokens x 1 x 1
# the plan is of stack plimsoll; `plimsoll fit --stack pytorch` or deepspeed gives the figures of
#   what this snippet runs
# start it on 16 GPUs with torchrun or accelerate launch
# sequences of 4096 tokens are the data's matter (the tokenizer's max_length, or packing)
import torch
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments


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
    "meta-llama/Llama-3.1-8B", dtype=torch.float32, attn_implementation="sdpa")
model.config.use_cache = False
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

# llama-3.1-8b: stack plimsoll, 8 GPUs, ZeRO 2, bf16, 4096 tokens x 1 x 1
# the plan is of stack plimsoll; `plimsoll fit --stack pytorch` or deepspeed gives the figures of
#   what this snippet runs
# the plan is of stack plimsoll; DeepSpeed's buffers and copies differ: `plimsoll fit --stack
#   deepspeed` gives its figures
# start it on 8 GPUs with torchrun or accelerate launch
# with ZeRO stage 3 make TrainingArguments before the model is loaded, so that it is loaded in
#   shards
# sequences of 4096 tokens are the data's matter (the tokenizer's max_length, or packing)
import functools

import torch
import torch.nn.functional as F
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


arguments = TrainingArguments(
    output_dir="output",
    per_device_train_batch_size=1,
    gradient_accumulation_steps=1,
    bf16=True,
    optim="adamw_torch",
    deepspeed={
      "train_batch_size": "auto",
      "train_micro_batch_size_per_gpu": "auto",
      "gradient_accumulation_steps": "auto",
      "bf16": {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True},
      "optimizer": {
        "type": "AdamW",
        "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}
      },
      "zero_optimization": {
        "stage": 2,
        "overlap_comm": False,
        "contiguous_gradients": True,
        "reduce_scatter": True,
        "reduce_bucket_size": 500000000,
        "allgather_bucket_size": 500000000
      },
      "gradient_clipping": "auto"
    },
)

model = AutoModelForCausalLM.from_pretrained(
    "meta-llama/Llama-3.1-8B", dtype=torch.bfloat16, attn_implementation="sdpa")
model.config.use_cache = False
chunked_loss(model)


def trainer(data):
    """data: a dataset with input_ids, labels and attention_mask."""
    return Trainer(model=model, args=arguments, train_dataset=data)

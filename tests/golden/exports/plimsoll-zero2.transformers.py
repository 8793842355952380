# llama-3.1-8b: stack plimsoll, 8 GPUs, ZeRO 2, bf16, 4096 tokens x 1 x 1
# the plan is of stack plimsoll; `plimsoll fit --stack pytorch` or deepspeed gives the figures of
#   what this snippet runs
# the plan is of stack plimsoll; DeepSpeed's buffers and copies differ: `plimsoll fit --stack
#   deepspeed` gives its figures
# start it on 8 GPUs with torchrun or accelerate launch
# with ZeRO stage 3 make TrainingArguments before the model is loaded, so that it is loaded in
#   shards
# sequences of 4096 tokens are the data's matter (the tokenizer's max_length, or packing)
# the plan's chunked loss is the model's or the script's matter (Liger's fused linear cross entropy,
#   for one)
import torch
from transformers import AutoModelForCausalLM, TrainingArguments

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
      }
    },
)

model = AutoModelForCausalLM.from_pretrained(
    "meta-llama/Llama-3.1-8B", dtype=torch.bfloat16, attn_implementation="sdpa")
model.config.use_cache = False

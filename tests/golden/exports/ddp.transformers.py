# gpt2: stack pytorch, 4 GPUs, ZeRO 0, fp16-mixed, 1024 tokens x 8 x 1
# Trainer's sgd has momentum 0: pass an optimizer of your own
# start it on 4 GPUs with torchrun or accelerate launch
# sequences of 1024 tokens are the data's matter (the tokenizer's max_length, or packing)
import torch
from transformers import AutoModelForCausalLM, TrainingArguments

model = AutoModelForCausalLM.from_pretrained(
    "openai-community/gpt2", dtype=torch.float32, attn_implementation="sdpa")
model.config.use_cache = False

arguments = TrainingArguments(
    output_dir="output",
    per_device_train_batch_size=8,
    gradient_accumulation_steps=1,
    fp16=True,
    optim="sgd",
    ddp_bucket_cap_mb=100,
)

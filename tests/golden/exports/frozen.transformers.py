# llama-3.2-1b: stack pytorch, 1 GPU, ZeRO 0, fp32, 4096 tokens x 1 x 1
# sequences of 4096 tokens are the data's matter (the tokenizer's max_length, or packing)
from fnmatch import fnmatch

import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained(
    "meta-llama/Llama-3.2-1B", dtype=torch.float32, attn_implementation="eager")
model.config.use_cache = False

for name, parameter in model.named_parameters():
    frozen = any(fnmatch(name, pattern) for pattern in ["*embed_tokens*", "*norm*"])
    trained = any(fnmatch(name, pattern) for pattern in ["model.norm.*"])
    parameter.requires_grad_(trained or not frozen)

arguments = TrainingArguments(
    output_dir="output",
    per_device_train_batch_size=1,
    gradient_accumulation_steps=1,
    optim="adamw_torch",
)


def trainer(data):
    """data: a dataset with input_ids, labels and attention_mask."""
    return Trainer(model=model, args=arguments, train_dataset=data)

# gpt2: stack pytorch, 4 GPUs, ZeRO 0, fp16-mixed, 1024 tokens x 8 x 1
# start it on 4 GPUs with torchrun or accelerate launch
# sequences of 1024 tokens are the data's matter (the tokenizer's max_length, or packing)
import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained(
    "openai-community/gpt2", dtype=torch.float32, attn_implementation="sdpa")
model.config.use_cache = False

arguments = TrainingArguments(
    output_dir="output",
    per_device_train_batch_size=8,
    gradient_accumulation_steps=1,
    fp16=True,
    optim="sgd",
    optim_args="momentum=0.9",
    ddp_bucket_cap_mb=100,
    ddp_find_unused_parameters=False,
)


def trainer(data):
    """data: a dataset with input_ids, labels and attention_mask."""
    return Trainer(model=model, args=arguments, train_dataset=data)

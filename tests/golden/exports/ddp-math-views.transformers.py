# gpt2: stack pytorch, 2 GPUs, ZeRO 0, bf16-mixed, 1024 tokens x 4 x 1
# start it on 2 GPUs with torchrun or accelerate launch
# sequences of 1024 tokens are the data's matter (the tokenizer's max_length, or packing)
import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained(
    "openai-community/gpt2", dtype=torch.float32, attn_implementation="sdpa")
model.config.use_cache = False
for kernel in ("flash", "mem_efficient", "cudnn"):
    getattr(torch.backends.cuda, f"enable_{kernel}_sdp")(False)

arguments = TrainingArguments(
    output_dir="output",
    per_device_train_batch_size=4,
    gradient_accumulation_steps=1,
    bf16=True,
    optim="adamw_torch",
    ddp_find_unused_parameters=False,
)


def trainer(data):
    """data: a dataset with input_ids, labels and attention_mask."""
    made = Trainer(model=model, args=arguments, train_dataset=data)
    made.accelerator.ddp_handler.gradient_as_bucket_view = True
    return made

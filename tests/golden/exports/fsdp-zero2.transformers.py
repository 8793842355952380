# qwen2.5-7b: stack pytorch, 8 GPUs, ZeRO 2, bf16, 4096 tokens x 1 x 1
# start it on 8 GPUs with torchrun or accelerate launch
# sequences of 4096 tokens are the data's matter (the tokenizer's max_length, or packing)
import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained(
    "Qwen/Qwen2.5-7B", dtype=torch.bfloat16, attn_implementation="sdpa")
model.config.use_cache = False

arguments = TrainingArguments(
    output_dir="output",
    per_device_train_batch_size=1,
    gradient_accumulation_steps=1,
    optim="adamw_torch_fused",
    fsdp=True,
    fsdp_config={
        "version": 2,
        "reshard_after_forward": False,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "activation_checkpointing": False,
        "cpu_ram_efficient_loading": True,
        "state_dict_type": "SHARDED_STATE_DICT",
    },
)


def trainer(data):
    """data: a dataset with input_ids, labels and attention_mask."""
    return Trainer(model=model, args=arguments, train_dataset=data)

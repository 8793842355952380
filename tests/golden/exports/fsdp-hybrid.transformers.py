# llama-3.1-70b: stack pytorch, 64 GPUs, ZeRO 3, bf16-mixed, 4096 tokens x 1 x 4
# start it on 64 GPUs with torchrun or accelerate launch
# sequences of 4096 tokens are the data's matter (the tokenizer's max_length, or packing)
import torch
from accelerate import ParallelismConfig
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained(
    "meta-llama/Llama-3.1-70B", dtype=torch.float32, attn_implementation="sdpa")
model.config.use_cache = False

arguments = TrainingArguments(
    output_dir="output",
    per_device_train_batch_size=1,
    gradient_accumulation_steps=4,
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
    parallelism_config=ParallelismConfig(dp_replicate_size=8, dp_shard_size=8),
)


def trainer(data):
    """data: a dataset with input_ids, labels and attention_mask."""
    return Trainer(model=model, args=arguments, train_dataset=data)

# llama-3.1-8b: stack pytorch, 8 GPUs, ZeRO 3, bf16-mixed, 4096 tokens x 1 x 2
# Transformers 5.20 has no FSDP1; --fsdp-version 2 is planned and exported too
# written so that rank 0 alone loads the weights and sends them, which leaves blocks in the
#   allocator's cache that the plan has not: plan it with --fsdp-sync-module-states yes
# start it on 8 GPUs with torchrun or accelerate launch
# sequences of 4096 tokens are the data's matter (the tokenizer's max_length, or packing)
import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained(
    "meta-llama/Llama-3.1-8B", dtype=torch.float32, attn_implementation="sdpa")
model.config.use_cache = False

arguments = TrainingArguments(
    output_dir="output",
    per_device_train_batch_size=1,
    gradient_accumulation_steps=2,
    bf16=True,
    optim="adamw_torch",
    fsdp=True,
    fsdp_config={
        "version": 1,
        "reshard_after_forward": "FULL_SHARD",
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "backward_prefetch": "BACKWARD_PRE",
        "forward_prefetch": False,
        "use_orig_params": True,
        "activation_checkpointing": True,
        "cpu_ram_efficient_loading": True,
        "sync_module_states": True,
        "state_dict_type": "SHARDED_STATE_DICT",
    },
)


def trainer(data):
    """data: a dataset with input_ids, labels and attention_mask."""
    return Trainer(model=model, args=arguments, train_dataset=data)

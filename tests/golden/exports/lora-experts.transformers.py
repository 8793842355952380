# qwen3-30b-a3b: stack pytorch, 1 GPU, ZeRO 0, bf16-mixed, 4096 tokens x 1 x 1
# sequences of 4096 tokens are the data's matter (the tokenizer's max_length, or packing)
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained(
    "Qwen/Qwen3-30B-A3B", dtype=torch.bfloat16, attn_implementation="sdpa")
model.config.use_cache = False

peft_config = LoraConfig(
    r=8, lora_alpha=16, lora_dropout=0.0, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM",
    target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"])
model = get_peft_model(model, peft_config)

arguments = TrainingArguments(
    output_dir="output",
    per_device_train_batch_size=1,
    gradient_accumulation_steps=1,
    bf16=True,
    optim="adamw_torch",
)


def trainer(data):
    """data: a dataset with input_ids, labels and attention_mask."""
    return Trainer(model=model, args=arguments, train_dataset=data)

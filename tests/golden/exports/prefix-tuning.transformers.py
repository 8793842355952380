# llama-3.2-1b: stack pytorch, 1 GPU, ZeRO 0, bf16-mixed, 4096 tokens x 1 x 1
# sequences of 4096 tokens are the data's matter (the tokenizer's max_length, or packing)
import torch
from peft import PrefixTuningConfig, get_peft_model
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained(
    "meta-llama/Llama-3.2-1B", dtype=torch.bfloat16, attn_implementation="sdpa")
model.config.use_cache = False

peft_config = PrefixTuningConfig(
    num_virtual_tokens=20, prefix_projection=True, encoder_hidden_size=64, task_type="CAUSAL_LM")
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

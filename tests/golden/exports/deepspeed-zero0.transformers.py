# gpt2: stack deepspeed, 2 GPUs, ZeRO 0, fp16-mixed, 1024 tokens x 4 x 1
# start it on 2 GPUs with torchrun or accelerate launch
# with ZeRO stage 3 make TrainingArguments before the model is loaded, so that it is loaded in
#   shards
# sequences of 1024 tokens are the data's matter (the tokenizer's max_length, or packing)
import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

arguments = TrainingArguments(
    output_dir="output",
    per_device_train_batch_size=4,
    gradient_accumulation_steps=1,
    fp16=True,
    optim="adamw_torch_fused",
    deepspeed={
      "train_batch_size": "auto",
      "train_micro_batch_size_per_gpu": "auto",
      "gradient_accumulation_steps": "auto",
      "fp16": {"enabled": True},
      "optimizer": {
        "type": "AdamW",
        "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}
      },
      "zero_optimization": {
        "stage": 0
      },
      "gradient_clipping": "auto"
    },
)

model = AutoModelForCausalLM.from_pretrained(
    "openai-community/gpt2", dtype=torch.float32, attn_implementation="sdpa")
model.config.use_cache = False


def trainer(data):
    """data: a dataset with input_ids, labels and attention_mask."""
    return Trainer(model=model, args=arguments, train_dataset=data)

# llama-3.1-8b: stack deepspeed, 8 GPUs, ZeRO 2, bf16-mixed, 4096 tokens x 1 x 1
# start it on 8 GPUs with torchrun or accelerate launch
# with ZeRO stage 3 make TrainingArguments before the model is loaded, so that it is loaded in
#   shards
# sequences of 4096 tokens are the data's matter (the tokenizer's max_length, or packing)
import os

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments

arguments = TrainingArguments(
    output_dir="output",
    per_device_train_batch_size=1,
    gradient_accumulation_steps=1,
    bf16=True,
    gradient_checkpointing=True,
    gradient_checkpointing_kwargs={"use_reentrant": False},
    optim="paged_adamw_8bit",
    deepspeed={
      "train_batch_size": "auto",
      "train_micro_batch_size_per_gpu": "auto",
      "gradient_accumulation_steps": "auto",
      "bf16": {"enabled": True},
      "zero_allow_untested_optimizer": True,
      "zero_optimization": {
        "stage": 2,
        "overlap_comm": False,
        "contiguous_gradients": True,
        "reduce_scatter": True,
        "reduce_bucket_size": 500000000,
        "allgather_bucket_size": 500000000
      },
      "gradient_clipping": "auto"
    },
)

model = AutoModelForCausalLM.from_pretrained(
    "meta-llama/Llama-3.1-8B", dtype=torch.bfloat16, attn_implementation="sdpa",
    quantization_config=BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16, bnb_4bit_quant_storage=torch.uint8),
    device_map={"": int(os.environ["LOCAL_RANK"])})
model.config.use_cache = False

peft_config = LoraConfig(
    r=16, lora_alpha=16, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")
model = get_peft_model(model, peft_config)


def trainer(data):
    """data: a dataset with input_ids, labels and attention_mask."""
    return Trainer(model=model, args=arguments, train_dataset=data)

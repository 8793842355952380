# llama-3.1-8b: stack deepspeed, 8 GPUs, ZeRO 3, bf16-mixed, 4096 tokens x 1 x 1
# start it on 8 GPUs with torchrun or accelerate launch
# with ZeRO stage 3 make TrainingArguments before the model is loaded, so that it is loaded in
#   shards
# sequences of 4096 tokens are the data's matter (the tokenizer's max_length, or packing)
import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

arguments = TrainingArguments(
    output_dir="output",
    per_device_train_batch_size=1,
    gradient_accumulation_steps=1,
    bf16=True,
    gradient_checkpointing=True,
    gradient_checkpointing_kwargs={"use_reentrant": False},
    optim="adamw_torch_fused",
    deepspeed={
      "train_batch_size": "auto",
      "train_micro_batch_size_per_gpu": "auto",
      "gradient_accumulation_steps": "auto",
      "bf16": {"enabled": True},
      "optimizer": {
        "type": "AdamW",
        "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}
      },
      "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "offload_param": {"device": "cpu", "pin_memory": True},
        "overlap_comm": True,
        "contiguous_gradients": True,
        "reduce_scatter": True,
        "reduce_bucket_size": 500000000,
        "sub_group_size": 1000000000,
        "stage3_prefetch_bucket_size": 50000000,
        "stage3_param_persistence_threshold": 100000,
        "stage3_max_live_parameters": 1000000000,
        "stage3_max_reuse_distance": 1000000000,
        "stage3_gather_16bit_weights_on_model_save": True
      },
      "gradient_clipping": "auto"
    },
)

model = AutoModelForCausalLM.from_pretrained(
    "meta-llama/Llama-3.1-8B", dtype=torch.float32, attn_implementation="sdpa")
model.config.use_cache = False


def trainer(data):
    """data: a dataset with input_ids, labels and attention_mask."""
    return Trainer(model=model, args=arguments, train_dataset=data)

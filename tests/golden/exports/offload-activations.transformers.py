# llama-3.1-8b: stack pytorch, 4 GPUs, ZeRO 3, bf16-mixed, 8192 tokens x 1 x 1
# start it on 4 GPUs with torchrun or accelerate launch
# sequences of 8192 tokens are the data's matter (the tokenizer's max_length, or packing)
import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
from trl.models.activation_offloading import get_act_offloading_ctx_manager


class OffloadingTrainer(Trainer):
    """What layers and loss save waits in the host's memory for the backward."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.offloading = get_act_offloading_ctx_manager(model=self.model)

    def training_step(self, *args, **kwargs):
        with self.offloading:
            return super().training_step(*args, **kwargs)


model = AutoModelForCausalLM.from_pretrained(
    "meta-llama/Llama-3.1-8B", dtype=torch.float32, attn_implementation="sdpa")
model.config.use_cache = False

arguments = TrainingArguments(
    output_dir="output",
    per_device_train_batch_size=1,
    gradient_accumulation_steps=1,
    bf16=True,
    optim="adamw_torch",
    fsdp=True,
    fsdp_config={
        "version": 2,
        "reshard_after_forward": True,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "activation_checkpointing": True,
        "cpu_ram_efficient_loading": True,
        "state_dict_type": "SHARDED_STATE_DICT",
    },
)


def trainer(data):
    """data: a dataset with input_ids, labels and attention_mask."""
    return OffloadingTrainer(model=model, args=arguments, train_dataset=data)

#!/usr/bin/env python3
"""watched_runs.py CASE FOLDER: a run under plimsoll.Watch on the dry CUDA runtime; what came of it as JSON."""
import json
import logging
import os
import sys
import warnings

import by_program
import oracle

CAPACITY = {"too-small": 1 << 29, "longer-batch": 1 << 31}
LLAMA = {"vocab_size": 4000, "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 3,
         "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 4096}


def llama(dtype=None):
    import torch
    import transformers
    config = transformers.LlamaConfig(**LLAMA)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=dtype or torch.float32)


def data(length, classes=False):
    import torch

    class Tokens(torch.utils.data.Dataset):
        def __len__(self):
            return 256

        def __getitem__(self, _):
            ids = torch.zeros(length, dtype=torch.int64)
            return {"input_ids": ids, "labels": ids[0] if classes else ids}

    return Tokens()


def trainer(folder, model, classes=False, **arguments):
    import transformers
    return transformers.Trainer(model, transformers.TrainingArguments(
        folder, report_to=[], disable_tqdm=True, save_strategy="no", logging_strategy="no",
        max_steps=4, **arguments), train_dataset=data(256, classes))


def of_trainer(watch, trainer):
    with watch:
        trainer.train()
    return {"restored": "training_step" not in vars(trainer)}


def loop(watch, model, optimizer, batches, autocast=True, accumulation=1):
    import torch
    with watch:
        for batch in batches:
            for micro in range(accumulation):
                with watch.step(batch):
                    with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
                        loss = model(input_ids=batch, labels=batch).loss / accumulation
                    loss.backward()
                    del loss
            optimizer.step()
            optimizer.zero_grad()
    return {}


def tokens(*shape):
    import torch
    return torch.zeros(shape, dtype=torch.int64, device="cuda")


def adamw(model, **options):
    import torch
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], **options)


class Cases:
    """Each returns the watch, and what else is to be known."""

    def __init__(self, plimsoll, folder):
        self.plimsoll, self.folder = plimsoll, folder

    def watch(self, *what, **options):
        return self.plimsoll.Watch(*what, out=os.path.join(self.folder, "rank-{rank}.json"),
                                   kind="dry-run", gpu="h200", **options)

    def trainer(self):
        made = trainer(self.folder, llama(), bf16=True, per_device_train_batch_size=2,
                       gradient_accumulation_steps=2)
        watch = self.watch(made)
        return watch, of_trainer(watch, made)

    def trainer_classifier(self):
        import torch
        import transformers
        # As a checkpoint has it that another head is put on.
        config = transformers.LlamaConfig(**LLAMA, architectures=["LlamaForCausalLM"], pad_token_id=1)
        model = transformers.AutoModelForSequenceClassification.from_config(config, dtype=torch.float32)
        made = trainer(self.folder, model, True, bf16=True, per_device_train_batch_size=2)
        watch = self.watch(made)
        return watch, of_trainer(watch, made)

    def trainer_lora(self):
        import peft
        import torch
        model = peft.get_peft_model(llama(torch.bfloat16), peft.LoraConfig(
            r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
        made = trainer(self.folder, model, bf16=True, per_device_train_batch_size=4,
                       gradient_checkpointing=True, optim="adamw_torch")
        watch = self.watch(made)
        return watch, of_trainer(watch, made)

    def loop(self):
        model = llama().cuda()
        optimizer = adamw(model)
        watch = self.watch(model, optimizer)
        return watch, loop(watch, model, optimizer, [tokens(2, 256)] * 4)

    def loop_accumulation(self):
        import torch
        model = llama(torch.bfloat16).cuda()
        optimizer = adamw(model, foreach=False)
        watch = self.watch(model, optimizer, grad_accum=2)
        return watch, loop(watch, model, optimizer, [tokens(1, 256)] * 3, autocast=False, accumulation=2)

    def loop_fsdp2(self):
        import torch
        import torch_measure
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        torch_measure.start_process_group(8)
        model = llama().cuda()
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for layer in model.model.layers:
            fully_shard(layer, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
        optimizer = adamw(model)
        watch = self.watch(model, optimizer)
        return watch, loop(watch, model, optimizer, [tokens(2, 256)] * 4, autocast=False)

    def too_small(self):
        import torch
        model = llama().cuda()
        optimizer = adamw(model)
        watch = self.watch(model, optimizer)
        try:
            loop(watch, model, optimizer, [tokens(8, 1024)] * 2)
        except torch.OutOfMemoryError:
            return watch, {"ran_out": True}
        return watch, {}

    def longer_batch(self):
        model = llama().cuda()
        optimizer = adamw(model)
        watch = self.watch(model, optimizer)
        import torch
        try:
            loop(watch, model, optimizer, [tokens(1, 256)] * 3 + [tokens(16, 2048)])
        except torch.OutOfMemoryError:
            return watch, {"ran_out": True}
        return watch, {}

    def not_modelled(self):
        model = llama().cuda()
        optimizer = adamw(model)
        watch = self.watch(model, optimizer, tp=2)
        return watch, loop(watch, model, optimizer, [tokens(1, 256)] * 2)


def main(name, folder):
    oracle.torch_measure.start_dry_cuda(capacity_bytes=CAPACITY.get(name, 150109880320))
    logging.disable(logging.WARNING)
    plimsoll = by_program.load()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        watch, known = getattr(Cases(plimsoll, folder), name.replace("-", "_"))()
    said = [(type(w.message).__name__, str(w.message)) for w in caught
            if str(w.message).startswith("plimsoll")]
    with open(os.path.join(folder, "found.json"), "w", encoding="utf-8") as file:
        json.dump({**known, "plan": watch.plan, "measurement": watch.measurement,
                   "comparison": watch.comparison, "warnings": said}, file)


if __name__ == "__main__":
    main(*sys.argv[1:])

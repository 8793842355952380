#!/usr/bin/env python3
"""Training steps that nobody chose, through PyTorch's own allocator, without a GPU.

  drawn_runs.py --seed N --count N --out FILE [--from N] [--seconds N]

Draws workloads (models of five families with drawn extents, one in eight from the catalog; sharding,
precision, recomputation, optimizer, adapters, batch) and runs three steps of each as dry_runs.py
does. The n-th workload of a seed is the same whatever was drawn before it. What the planner was
mended with and what it is judged on are different seeds: tests/golden/drawn_runs.json is judged on.
A run is appended to FILE.lines as soon as it is there; the document is written at the end.
"""

import argparse
import json
import math
import os
import random
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
CATALOG = os.path.join(HERE, "..", "..", "models", "specs", "models")
CAPACITY = 1 << 42  # 4 TiB: nothing is refused
CATALOG_MODELS = ["gpt2", "gpt2-medium", "gpt2-large", "tinyllama-1.1b", "llama-3.2-1b",
                  "llama-3.2-3b", "llama-2-7b", "llama-3.1-8b", "mistral-7b-v0.3", "qwen2.5-0.5b",
                  "qwen2.5-1.5b", "qwen2.5-7b", "qwen3-0.6b", "qwen3-4b", "qwen3-8b"]


def weighted(draw, **weights):
    return draw.choices(list(weights), list(weights.values()))[0]


def between(draw, low, high):
    """Even over orders of magnitude."""
    return round(math.exp(draw.uniform(math.log(low), math.log(high))))


def drawn_gpt2(draw):
    heads = draw.randint(2, 20)
    dropout = draw.choice([0.0, 0.1])
    return {"model_type": "gpt2", "n_embd": heads * 64, "n_layer": draw.randint(2, 24),
            "n_head": heads, "n_positions": 1 << draw.randint(9, 12),
            "vocab_size": between(draw, 2000, 60000), "bos_token_id": 0, "eos_token_id": 0,
            "resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}


def drawn_llama(draw, family):
    head_dim = draw.choice([64, 128])
    groups = draw.choice([1, 2, 4])
    key_heads = draw.randint(1, 16 * 64 // (head_dim * groups) * 2)
    hidden = head_dim * key_heads * groups
    config = {"model_type": family, "hidden_size": hidden,
              "intermediate_size": 64 * max(1, round(hidden * draw.uniform(2, 4) / 64)),
              "num_hidden_layers": draw.randint(2, 28), "num_attention_heads": key_heads * groups,
              "num_key_value_heads": key_heads, "vocab_size": between(draw, 4000, 160000),
              "max_position_embeddings": 32768, "tie_word_embeddings": draw.random() < 0.4}
    if family == "qwen3":
        config["head_dim"] = head_dim
    if family == "mistral":
        config["sliding_window"] = None
    return config


def drawn_model(draw):
    if draw.random() < 0.125:
        name = draw.choice(CATALOG_MODELS)
        with open(os.path.join(CATALOG, name + ".json"), encoding="utf-8") as f:
            return name, json.load(f)["config"]
    family = draw.choice(["gpt2", "llama", "mistral", "qwen2", "qwen3"])
    return family, drawn_gpt2(draw) if family == "gpt2" else drawn_llama(draw, family)


def drawn_lora(draw, family):
    targets = ["all-linear"] + ([] if family == "gpt2" else ["q_proj,v_proj", "attention"])
    target = draw.choice(targets)
    if target == "attention":
        target = "q_proj,k_proj,v_proj,o_proj"
    return {"rank": 1 << draw.randint(2, 6), "alpha": 16.0, "targets": target,
            "dropout": draw.choice([0.0, 0.05]), "adapter_dtype": "fp32"}


def drawn_strategy(draw, family):
    stack, strategy = {}, {}
    strategy["precision"] = weighted(draw, **{"bf16-mixed": 45, "bf16": 30, "fp32": 8,
                                              "fp16-mixed": 10, "fp16": 7})
    mixed = strategy["precision"].endswith("-mixed")
    strategy["world_size"] = draw.choice([1, 1, 1, 2, 4, 8, 16, 64])
    strategy["zero"] = 0 if strategy["world_size"] == 1 else draw.choice([0, 1, 2, 3, 3])
    strategy["recompute"] = weighted(draw, none=45, full=28, selective=10, every=17)
    if strategy["recompute"] == "every":
        strategy["recompute"] = f"every:{draw.randint(2, 6)}"
    strategy["attention"] = weighted(draw, flash=80, eager=12, math=8)
    if strategy["recompute"] != "none" and strategy["attention"] == "math":
        strategy["attention"] = "flash"  # torch_measure.py cannot choose a backend in backward
    if strategy["recompute"] == "selective":
        strategy["attention"] = "flash"
    strategy["optimizer"] = weighted(draw, adamw=84, sgd=8, momentum=8)
    stack["optimizer_impl"] = weighted(draw, **{"foreach": 55, "fused": 25, "for-loop": 20})
    if draw.random() < 0.2:
        strategy["lora"] = drawn_lora(draw, family)
        if mixed and draw.random() < 0.7:
            strategy["param_dtype"] = "bf16" if strategy["precision"] == "bf16-mixed" else "fp16"
    if strategy["zero"] >= 2:
        blocks = strategy["recompute"].startswith("every")
        stack["fsdp_version"] = 1 if not blocks and draw.random() < 0.3 else 2
        if stack["fsdp_version"] == 2:
            stack["fsdp_units"] = "accelerate"
        if mixed:
            stack["fsdp_autocast"] = True
            low = strategy["precision"].split("-")[0]
            strategy["grad_dtype"] = draw.choice([low, "fp32"])
        if strategy["world_size"] >= 16 and draw.random() < 0.3:
            strategy["shard_group"] = 8
    elif strategy["world_size"] > 1:
        strategy["ddp"] = {"bucket_view": draw.random() < 0.4}
    return stack, strategy


def drawn(seed, number):
    draw = random.Random(f"plimsoll/{seed}/{number}")
    name, config = drawn_model(draw)
    stack, strategy = drawn_strategy(draw, config["model_type"])
    longest = config.get("n_positions", 8192)
    if strategy["attention"] != "flash":
        longest = min(longest, 2048)
    tokens = between(draw, 256, 32768)
    seq_len = min(longest, 64 * between(draw, 2, 128))
    if draw.random() < 0.2:
        seq_len = max(16, seq_len - draw.randint(1, 63))  # no round number
    batch = {"seq_len": seq_len, "micro_batch": max(1, min(64, round(tokens / seq_len))),
             "grad_accum": weighted(draw, **{"1": 70, "2": 15, "3": 5, "5": 10})}
    batch["grad_accum"] = int(batch["grad_accum"])
    return {"model": {"name": name, "config": config}, "stack": stack, "strategy": strategy,
            "batch": batch}


def measured(workload):
    import torch
    import torch_measure
    workload = torch_measure.normalised(workload)
    if workload["strategy"]["world_size"] > 1:
        torch_measure.start_process_group(workload["strategy"]["world_size"])
    training = torch_measure.Training(workload)
    for _ in range(3):
        torch.cuda.reset_peak_memory_stats()
        training.step()
    return {"peak_bytes": torch.cuda.max_memory_allocated(),
            "reserved_bytes": torch.cuda.max_memory_reserved(),
            "resident_bytes": torch.cuda.memory_allocated()}


def run(seed, number, seconds, lines):
    import torch_measure
    workload = drawn(seed, number)
    case = {"case": f"{seed}-{number:03}", "workload": workload}
    part = f"{lines}.{number}"

    def work():
        with open(part, "w", encoding="utf-8") as f:
            f.write(json.dumps({**case, **measured(workload)}))
    status, took = torch_measure.in_child(work, seconds)
    if status == 0:
        with open(part, encoding="utf-8") as f:
            case = json.load(f)
    else:
        case["error"] = "time" if status is None else f"status {status}"
    if os.path.exists(part):
        os.remove(part)
    with open(lines, "a", encoding="utf-8") as f:
        f.write(json.dumps(case) + "\n")
    print(case["case"], case.get("reserved_bytes", case.get("error")), f"{took:.1f} s",
          file=sys.stderr)
    return case


def write(path, seed, runs):
    import torch_measure
    versions = torch_measure.versions()
    defaults = {"stack": torch_measure.STACK_DEFAULTS, "strategy": torch_measure.STRATEGY_DEFAULTS,
                "batch": torch_measure.BATCH_DEFAULTS,
                "lora": torch_measure.adapters.USUAL["lora"]}
    head = {"schema": "plimsoll.drawn_runs/1", "seed": seed, "versions": versions,
            "defaults": defaults}
    text = json.dumps(head, indent=1)[:-2]
    text += ',\n "runs": [\n  ' + ",\n  ".join(json.dumps(r, sort_keys=True) for r in runs)
    torch_measure.write_atomically(path, text + "\n ]\n}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    sys.path.insert(0, HERE)
    import torch_measure
    torch_measure.start_dry_cuda(capacity_bytes=CAPACITY)
    import transformers  # noqa: F401  (once, before the forks)
    for module in ("accelerate.utils.fsdp_utils", "peft", "torch.distributed.fsdp"):
        __import__(module)
    lines = options.out + ".lines"
    runs = [run(options.seed, n, options.seconds, lines)
            for n in range(options.first, options.first + options.count)]
    write(options.out, options.seed, [r for r in runs if "error" not in r])
    return 0


if __name__ == "__main__":
    sys.exit(main())

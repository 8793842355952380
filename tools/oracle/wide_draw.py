#!/usr/bin/env python3
"""Draws cases of dry_runs.py over all families and options that the planner answers.

  wide_draw.py --seed N --count N --planned build/tests/planner/drawn_runs --out CASES.json

drawn_runs.py draws five families; this draws small models of 17 with packed bases, every optimizer,
Liger, kept operators, offloading. PROGRAM says which of the drawn questions are answered; only those
are written, the reasons of the others are counted on stderr. Then:

  dry_runs.py --cases CASES.json --jobs 2 --out RUNS.json
  build/tests/planner/drawn_runs RUNS.json            (runs beside plans, worst first)

What the planner is mended with and what it is judged on are different seeds:
tests/golden/dry_runs_drawn_13.json (--seed 13 --count 280) and _14 (--seed 14 --count 130) are
judged on.
"""

import argparse
import collections
import json
import os
import random
import subprocess
import sys
import tempfile

from drawn_runs import between, weighted

ROTARY = {"max_position_embeddings": 8192}
LLAMA_LIKE = ("llama", "mistral", "qwen2", "qwen3", "olmo2", "phi3", "granite", "mixtral",
              "qwen3_moe", "gemma", "gemma2", "gemma3_text")
LINEARS = {"gpt2": ["c_attn", "c_fc"], "gpt_bigcode": ["c_attn", "c_fc"],
           "opt": ["q_proj", "fc1", "fc2"], "phi": ["q_proj", "fc1", "fc2"],
           "gpt_neox": ["query_key_value", "dense_h_to_4h"],
           "bloom": ["query_key_value", "dense_h_to_4h"],
           "phi3": ["qkv_proj", "gate_up_proj", "down_proj"]}
OPTIMIZERS = ["sgd", "momentum", "adafactor", "muon", "lion", "ademamix", "adam8bit", "lion8bit",
              "ademamix8bit", "paged-adamw", "paged-adam8bit"]


def heads_of(draw):
    head_dim = draw.choice([64, 64, 128])
    groups = draw.choice([1, 1, 2, 4])
    keys = draw.randint(1, 16 // groups * 64 // head_dim) if groups < 16 else 1
    return head_dim, max(1, keys), groups


def llama_like(draw, family):
    head_dim, keys, groups = heads_of(draw)
    heads = keys * groups
    hidden = head_dim * heads
    config = {"model_type": family, **ROTARY, "hidden_size": hidden,
              "intermediate_size": 64 * max(1, round(hidden * draw.uniform(1.5, 4) / 64)),
              "num_hidden_layers": draw.randint(2, 15), "num_attention_heads": heads,
              "num_key_value_heads": keys, "vocab_size": between(draw, 4000, 150000),
              "tie_word_embeddings": draw.random() < 0.4}
    if family in ("qwen3", "qwen3_moe", "gemma", "gemma2", "gemma3_text"):
        config["head_dim"] = head_dim
    if family in ("mistral", "mixtral", "phi3"):
        config["sliding_window"] = None
    if family == "phi3":
        config["pad_token_id"] = 0
    if family == "granite":
        config.update(attention_multiplier=1 / head_dim, embedding_multiplier=12.0,
                      logits_scaling=8.0, residual_multiplier=0.22)
    if family.startswith("gemma"):
        config["tie_word_embeddings"] = True
    if family in ("gemma2", "gemma3_text"):
        config.update(query_pre_attn_scalar=head_dim, sliding_window=draw.choice([512, 1024]))
    if family == "mixtral":
        config.update(num_local_experts=draw.choice([4, 8]), num_experts_per_tok=2)
    if family == "qwen3_moe":
        config.update(num_experts=draw.choice([8, 16]), num_experts_per_tok=2,
                      moe_intermediate_size=draw.choice([128, 256, 512]), norm_topk_prob=True,
                      decoder_sparse_step=1, mlp_only_layers=[])
    return config


def gpt_like(draw, family):
    heads = draw.randint(2, 20)
    dropout = draw.choice([0.0, 0.1])
    return {"model_type": family, "n_embd": heads * draw.choice([64, 128]), "n_head": heads,
            "n_layer": draw.randint(2, 14), "n_positions": 2048,
            "vocab_size": between(draw, 4000, 150000), "bos_token_id": 0, "eos_token_id": 0,
            "resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout,
            **({"multi_query": True} if family == "gpt_bigcode" else {})}


def other(draw, family):
    heads = draw.randint(2, 20)
    hidden = heads * draw.choice([64, 128])
    both = {"model_type": family, "hidden_size": hidden, "num_hidden_layers": draw.randint(2, 14),
            "vocab_size": between(draw, 4000, 150000)}
    if family == "opt":
        return {**both, "do_layer_norm_before": True, "dropout": draw.choice([0.0, 0.1]),
                "ffn_dim": 4 * hidden, "max_position_embeddings": 2048,
                "num_attention_heads": heads, "word_embed_proj_dim": hidden}
    if family == "bloom":
        both.pop("num_hidden_layers")
        return {**both, "n_layer": draw.randint(2, 14), "n_head": heads,
                "hidden_dropout": 0.0, "attention_dropout": 0.0}
    both.update(ROTARY, num_attention_heads=heads, tie_word_embeddings=False,
                intermediate_size=64 * max(1, round(hidden * draw.uniform(2, 4) / 64)))
    if family == "phi":
        return {**both, "partial_rotary_factor": 0.5}
    return {**both, "rotary_pct": 0.25, "use_parallel_residual": draw.random() < 0.6,
            "tie_word_embeddings": draw.random() < 0.3}


def drawn_config(draw):
    family = draw.choice([*LLAMA_LIKE, "gpt2", "gpt_bigcode", "opt", "phi", "gpt_neox", "bloom"])
    if family in LLAMA_LIKE:
        return llama_like(draw, family)
    return gpt_like(draw, family) if family.startswith("gpt2") or family == "gpt_bigcode" \
        else other(draw, family)


def drawn_recompute(draw, family):
    kind = weighted(draw, none=40, full=28, selective=8, every=14, ops=10)
    if kind == "every":
        return f"every:{draw.randint(2, 5)}"
    if kind == "ops":
        names = LINEARS.get(family, ["q_proj", "o_proj", "down_proj", "gate_proj"]) + ["attention"]
        return "ops:" + "+".join(sorted(draw.sample(names, draw.randint(1, 2))))
    return kind


def drawn_adapters(draw, strategy, low):
    strategy["lora"] = {"rank": 1 << draw.randint(2, 6), "alpha": 16.0,
                        "targets": draw.choice(["all-linear", "all-linear", "q_proj,v_proj"]),
                        "dropout": draw.choice([0.0, 0.05]), "adapter_dtype": "fp32"}
    if draw.random() < 0.5:
        strategy["param_dtype"] = low
    if draw.random() < 0.5:
        strategy["quantize"] = draw.choice(["nf4", "nf4-dq", "fp4"])
        strategy["kbit_prep"] = draw.random() < 0.5
        if strategy["zero"] >= 2:
            strategy["quant_storage"] = low


def drawn_sharding(draw, stack, strategy, low):
    mixed = strategy["precision"].endswith("-mixed")
    if strategy["zero"] >= 2:
        stack["fsdp_version"] = 1 if draw.random() < 0.35 else 2
        if stack["fsdp_version"] == 2:
            stack["fsdp_units"] = "accelerate"
        if mixed:
            stack["fsdp_autocast"] = stack["fsdp_version"] == 1
            strategy["grad_dtype"] = draw.choice([low, "fp32"])
        if draw.random() < 0.15:
            strategy["offload"] = ["params"]
    elif strategy["world_size"] > 1:
        strategy["ddp"] = {"bucket_view": draw.random() < 0.4}


def drawn_case(seed, number):
    draw = random.Random(f"plimsoll/wide/{seed}/{number}")
    config = drawn_config(draw)
    family = config["model_type"]
    stack = {"kernels": "liger" if draw.random() < 0.2 else "eager"}
    strategy = {"precision": weighted(draw, **{"bf16-mixed": 48, "bf16": 30, "fp32": 8,
                                               "fp16-mixed": 14}),
                "world_size": draw.choice([1, 1, 1, 1, 2, 8, 8, 16])}
    low = "fp16" if strategy["precision"].startswith("fp16") else "bf16"
    strategy["zero"] = 0 if strategy["world_size"] == 1 else draw.choice([0, 1, 2, 3, 3])
    strategy["recompute"] = drawn_recompute(draw, family)
    strategy["attention"] = weighted(draw, flash=88, eager=12)
    strategy["loss"] = "fused" if stack["kernels"] == "liger" and draw.random() < 0.7 else "full"
    strategy["optimizer"] = draw.choice(["adamw"] * 8 + OPTIMIZERS)
    if strategy["optimizer"] == "adamw":
        stack["optimizer_impl"] = weighted(draw, **{"foreach": 55, "fused": 30, "for-loop": 15})
    if draw.random() < 0.08:
        strategy["optimizer_in_backward"] = True
    if draw.random() < 0.22:
        drawn_adapters(draw, strategy, low)
    drawn_sharding(draw, stack, strategy, low)
    if draw.random() < 0.06:
        stack["hold_outputs"] = True
    return {"name": f"drawn-{seed}-{number:03}", "stack": stack, "strategy": strategy,
            "model": {"name": f"drawn-{family}", "config": config},
            "batch": drawn_batch(draw, config, strategy)}


def drawn_batch(draw, config, strategy):
    longest = config.get("n_positions", config.get("max_position_embeddings", 2048))
    if strategy["attention"] != "flash":
        longest = min(longest, 1024)
    tokens = between(draw, 256, 16384)
    seq_len = min(longest, 64 * between(draw, 2, 128))
    if draw.random() < 0.25:
        seq_len = max(16, seq_len - draw.randint(1, 63))  # no round number
    accum = int(weighted(draw, **{"1": 66, "2": 16, "3": 4, "5": 14}))
    if strategy.get("optimizer_in_backward"):
        accum = 1  # a gradient is gone before the next one
    return {"seq_len": seq_len, "micro_batch": max(1, min(32, round(tokens / seq_len))),
            "grad_accum": accum}


def refusals(program, cases):
    """{name: why} of the cases that are not answered."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        runs = [{"case": c["name"], "workload": {k: c[k] for k in ("model", "stack", "strategy",
                                                                    "batch")},
                 "peak_bytes": 1, "reserved_bytes": 1} for c in cases]
        import torch_measure
        # In no workload that does not say them.
        stack = {k: v for k, v in torch_measure.STACK_DEFAULTS.items() if k != "model_code"}
        strategy = {k: v for k, v in torch_measure.STRATEGY_DEFAULTS.items() if k != "rows"}
        defaults = {"stack": stack,
                    "strategy": strategy,
                    "batch": torch_measure.BATCH_DEFAULTS,
                    "lora": torch_measure.adapters.USUAL["lora"]}
        json.dump({"runs": runs, "defaults": defaults}, f)
        f.flush()
        lines = subprocess.run([program, f.name], check=True, capture_output=True,
                               text=True).stdout.splitlines()
    return dict(line.split(" refused: ", 1) for line in lines if " refused: " in line)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--planned", required=True, metavar="PROGRAM")
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    cases = [drawn_case(options.seed, n) for n in range(options.count)]
    refused = refusals(options.planned, cases)
    reasons = collections.Counter(why[:110] for why in refused.values())
    for why, count in reasons.most_common():
        print(f"{count:4} {why}", file=sys.stderr)
    answered = [c for c in cases if c["name"] not in refused]
    print(f"{len(answered)} of {len(cases)} are answered", file=sys.stderr)
    with open(options.out + ".part", "w", encoding="utf-8") as f:
        f.write("[\n " + ",\n ".join(json.dumps(c, sort_keys=True) for c in answered) + "\n]\n")
    os.replace(options.out + ".part", options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())

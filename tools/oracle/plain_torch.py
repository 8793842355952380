#!/usr/bin/env python3
"""A plan's workload in plain PyTorch, for machines that have torch and no Transformers.

  plain_torch.py --workload PLAN.json --out MEASUREMENT.json [--compile] [--steps 12]
                 [--seconds 10] [--loss full] [--device cuda]

GPT-2 and Llama-like decoders with the modules, shapes and dtypes of Transformers' eager classes:
weights in fp32 under bf16 autocast (or all in bf16), scaled_dot_product_attention, no dropout, the
loss over all logits (or, fused, over some rows at a time), gradients clipped to 1, fused AdamW. The number of parameters must be the plan's. Rank 0 of
one GPU. Writes plimsoll.measurement/1: tokens/s, MFU by the plan's FLOPs, and torch's own statistics
of memory.
"""
import argparse
import datetime
import json
import math
import os
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

LOSS_PARTS = 8  # of a micro-batch's rows, under --loss fused


class RMSNorm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * y.to(x.dtype)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.kv, self.dim = c["heads"], c["kv_heads"], c["head_dim"]
        q, kv = self.heads * self.dim, self.kv * self.dim
        bias = c["qkv_bias"]
        self.fused = c["gpt2"]
        if self.fused:
            self.qkv = nn.Linear(c["hidden"], 3 * q)
        else:
            self.q = nn.Linear(c["hidden"], q, bias=bias)
            self.k = nn.Linear(c["hidden"], kv, bias=bias)
            self.v = nn.Linear(c["hidden"], kv, bias=bias)
        self.o = nn.Linear(q, c["hidden"], bias=c["gpt2"])

    def forward(self, x, rotary):
        batch, length, _ = x.shape
        parts = self.qkv(x).chunk(3, -1) if self.fused else (self.q(x), self.k(x), self.v(x))
        q, k, v = (p.view(batch, length, -1, self.dim).transpose(1, 2) for p in parts)
        if rotary is not None:
            cos, sin = (r.to(q.dtype) for r in rotary)
            q, k = (t * cos + torch.cat((-t[..., self.dim // 2:], t[..., :self.dim // 2]), -1) * sin
                    for t in (q, k))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.kv < self.heads)
        return self.o(y.transpose(1, 2).reshape(batch, length, -1))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        norm = (lambda: nn.LayerNorm(c["hidden"], c["eps"])) if c["gpt2"] else \
            (lambda: RMSNorm(c["hidden"], c["eps"]))
        self.norm_1, self.attention, self.norm_2 = norm(), Attention(c), norm()
        self.gated = not c["gpt2"]
        if self.gated:
            self.gate = nn.Linear(c["hidden"], c["ffn"], bias=False)
        self.up = nn.Linear(c["hidden"], c["ffn"], bias=c["gpt2"])
        self.down = nn.Linear(c["ffn"], c["hidden"], bias=c["gpt2"])

    def forward(self, x, rotary):
        x = x + self.attention(self.norm_1(x), rotary)
        y = self.norm_2(x)
        if self.gated:
            y = F.silu(self.gate(y)) * self.up(y)
        else:
            y = F.gelu(self.up(y), approximate="tanh")
        return x + self.down(y)


class Decoder(nn.Module):
    def __init__(self, c, length, fused_loss):
        super().__init__()
        self.fused_loss = fused_loss
        self.tokens = nn.Embedding(c["vocab"], c["hidden"])
        self.positions = nn.Embedding(c["positions"], c["hidden"]) if c["gpt2"] else None
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["layers"]))
        self.norm = nn.LayerNorm(c["hidden"], c["eps"]) if c["gpt2"] else RMSNorm(c["hidden"], c["eps"])
        self.head = nn.Linear(c["hidden"], c["vocab"], bias=False)
        if c["tied"]:
            self.head.weight = self.tokens.weight
        if not c["gpt2"]:
            rates = c["theta"] ** (-torch.arange(0, c["head_dim"], 2).float() / c["head_dim"])
            angles = torch.outer(torch.arange(length).float(), rates).repeat(1, 2)
            self.register_buffer("cos", angles.cos(), persistent=False)
            self.register_buffer("sin", angles.sin(), persistent=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids, targets):
        x = self.tokens(ids)
        rotary = None
        if self.positions is None:
            rotary = (self.cos, self.sin)
        else:
            x = x + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            x = layer(x, rotary)
        x = self.norm(x).view(-1, x.shape[-1])
        if not self.fused_loss:
            return F.cross_entropy(self.head(x).float(), targets.view(-1))
        parts = [checkpoint(self.loss_of_rows, *rows, use_reentrant=False)
                 for rows in zip(x.chunk(LOSS_PARTS), targets.view(-1).chunk(LOSS_PARTS))]
        return sum(parts) / x.shape[0]

    def loss_of_rows(self, x, targets):
        return F.cross_entropy(self.head(x).float(), targets, reduction="sum")


def sizes(config):
    """What a step needs of a config.json; a ValueError for other families."""
    kind = config.get("model_type")
    if kind == "gpt2":
        hidden, heads = config.get("n_embd", 768), config.get("n_head", 12)
        return {"gpt2": True, "hidden": hidden, "layers": config.get("n_layer", 12), "heads": heads,
                "kv_heads": heads, "head_dim": hidden // heads,
                "ffn": config.get("n_inner") or 4 * hidden, "vocab": config.get("vocab_size", 50257),
                "positions": config.get("n_positions", 1024), "qkv_bias": True, "tied": True,
                "eps": config.get("layer_norm_epsilon", 1e-5)}
    if kind not in ("llama", "mistral", "qwen2"):
        raise ValueError(f"model_type {kind!r}: gpt2, llama, mistral and qwen2 are written here")
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    rope = config.get("rope_parameters") or {}
    return {"gpt2": False, "hidden": hidden, "layers": config["num_hidden_layers"], "heads": heads,
            "kv_heads": config.get("num_key_value_heads") or heads,
            "head_dim": config.get("head_dim") or hidden // heads,
            "ffn": config["intermediate_size"], "vocab": config["vocab_size"],
            "qkv_bias": kind == "qwen2" or config.get("attention_bias", False),
            "tied": config.get("tie_word_embeddings", False), "eps": config.get("rms_norm_eps", 1e-6),
            "theta": rope.get("rope_theta") or config.get("rope_theta") or 10000.0}


def train(plan, device, options, measurement):
    workload = plan["workload"]
    batch, precision = workload["batch"], workload["strategy"]["precision"]
    torch.manual_seed(42)
    model = Decoder(sizes(workload["model"]["config"]), batch["seq_len"], options.loss == "fused")
    count = sum(p.numel() for p in model.parameters())
    if count != plan["model"]["parameters"]:
        raise ValueError(f"{count} parameters, the plan has {plan['model']['parameters']}")
    model.to(device, torch.bfloat16 if precision == "bf16" else torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    run = torch.compile(model) if options.compile else model
    shape = (batch["micro_batch"], batch["seq_len"] + 1)
    on_gpu = device == "cuda"
    wait = torch.cuda.synchronize if on_gpu else lambda: None
    loop, step = None, 0
    while step < options.steps or time.perf_counter() - loop < options.seconds:
        step += 1
        wait()
        began = time.perf_counter()
        for _ in range(batch["grad_accum"]):
            ids = torch.randint(model.head.out_features, shape, device=device)
            with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16-mixed"):
                loss = run(ids[:, :-1], ids[:, 1:].contiguous())
            (loss / batch["grad_accum"]).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        value = loss.item()
        wait()
        if not math.isfinite(value):
            raise ValueError(f"step {step}: the loss is {value}")
        measurement["steps"].append({"step": step, "seconds": time.perf_counter() - began,
                                     "loss": value, "grad_norm": norm.item()})
        if step == 1:  # it compiles
            loop = time.perf_counter()
        if step == 2 and on_gpu:  # compiling and autotuning take memory of their own
            torch.cuda.reset_peak_memory_stats()
    measurement["loop"] = {"steps": step - 1, "seconds": time.perf_counter() - loop}
    if on_gpu:
        free, total = torch.cuda.mem_get_info()
        measurement["ranks"][0].update(
            peak_bytes=torch.cuda.max_memory_allocated(), resident_bytes=torch.cuda.memory_allocated(),
            reserved_bytes=torch.cuda.max_memory_reserved(), device_bytes=total - free)


def environment(device):
    on_gpu = device == "cuda"
    return {"device": {"name": torch.cuda.get_device_name() if on_gpu else "host",
                       "capacity_bytes": torch.cuda.mem_get_info()[1] if on_gpu else None,
                       "driver": None},
            "versions": {"torch": torch.__version__, "cuda": torch.version.cuda}, "variables": {}}


def times(plan, steps, loop):
    """The first step is not timed: it compiles and warms up. `loop`: all others by the clock."""
    timed = [s["seconds"] for s in steps[1:]]
    if not timed:
        return None
    middle, batch = statistics.median(timed), plan["workload"]["batch"]
    flops, peak = plan["flops"]["model_flops_per_step"], plan["time"]["peak_flops"]
    return {"step_seconds": middle,
            "mad_seconds": statistics.median(abs(t - middle) for t in timed),
            "timed_steps": len(timed), "peak_flops": peak, "communication": "none",
            "tokens_per_second": batch["seq_len"] * batch["micro_batch"] * batch["grad_accum"] / middle,
            "model_flops_per_step": flops, "mfu": flops / middle / peak if flops and peak else None,
            "mfu_full_attention": None,
            "loop": loop and {**loop, "tokens_per_second":
                              batch["seq_len"] * batch["micro_batch"] * batch["grad_accum"]
                              * loop["steps"] / loop["seconds"],
                              "mfu": flops * loop["steps"] / loop["seconds"] / peak
                              if flops and peak else None}}


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--workload", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--compile", action="store_true")
    p.add_argument("--steps", type=int, default=12)
    p.add_argument("--seconds", type=float, default=0, help="and more steps, for so long")
    p.add_argument("--loss", choices=["full", "fused"], default="full")
    p.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    options = p.parse_args()
    with open(options.workload, encoding="utf-8") as file:
        plan = json.load(file)
    none = dict.fromkeys(("peak_bytes", "resident_bytes", "reserved_bytes", "device_bytes", "states",
                          "at_peak"))
    document = {"schema": "plimsoll.measurement/1",
                "tool": {"name": "plain_torch.py" + (" --compile" if options.compile else ""),
                         "version": torch.__version__, "commit": ""},
                "kind": "gpu" if options.device == "cuda" else "cpu",
                "measured_at": datetime.datetime.now(datetime.timezone.utc).strftime(
                    "%Y-%m-%dT%H:%M:%SZ"),
                "workload": plan["workload"], "environment": environment(options.device),
                "outcome": "completed", "error": None, "ranks": [{"rank": 0, **none}], "steps": []}
    try:
        train(plan, options.device, options, document)
    except (RuntimeError, ValueError) as e:
        full = isinstance(e, torch.OutOfMemoryError)
        document["outcome"] = "out_of_memory" if full else "failed"
        document["error"] = {"kind": document["outcome"], "message": str(e)[:4000],
                             "step": len(document["steps"]) + 1, "phase": None,
                             "tried_bytes": None, "live": None}
    document["time"] = times(plan, document["steps"], document.pop("loop", None))
    with open(options.out + ".part", "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
    os.replace(options.out + ".part", options.out)
    if document["error"]:
        print(document["error"]["message"], file=sys.stderr)
    return 0 if document["outcome"] == "completed" else 3


if __name__ == "__main__":
    sys.exit(main())

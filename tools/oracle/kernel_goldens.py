#!/usr/bin/env python3
"""Small inputs of every kernel and what PyTorch makes of them, for tests/kernels.

    kernel_goldens.py tests/golden/kernels

Inputs are multiples of 1/64 below 4, which fp32, bf16 and fp16 all hold exactly; results are computed
in fp64 (rotary tables and casts: by Transformers' and PyTorch's own code in their own dtypes). So one
golden serves every dtype, and what a test measures is the kernel's own rounding.
"""
import json
import math
import pathlib
import sys

import torch
import torch.nn.functional as F

torch.manual_seed(20240607)


def draw(*shape, positive=False):
    x = torch.randn(shape, dtype=torch.float64) * 64
    x = x.round().clamp(-255, 255) / 64
    return (x.abs() + 1 / 64) if positive else x


def stored(x):
    """A tensor as JSON: exact 64ths, integers, or eight digits."""
    if not x.is_floating_point():
        return {"shape": list(x.shape), "int32": x.flatten().tolist()}
    sixtyfourths = x.detach().double() * 64
    if torch.equal(sixtyfourths, sixtyfourths.round()):
        return {"shape": list(x.shape), "sixtyfourths": [int(v) for v in sixtyfourths.flatten()]}
    return {"shape": list(x.shape), "values": [float("%.8g" % v) for v in x.detach().flatten()]}


def case(name, inputs, outputs, **arguments):
    return {"name": name, "arguments": arguments, "in": {k: stored(v) for k, v in inputs.items()},
            "out": {k: stored(v) for k, v in outputs.items()}}


def gradients(y, d_y, *inputs):
    return torch.autograd.grad(y, inputs, d_y)


def leaves(*tensors):
    return [t.clone().requires_grad_() for t in tensors]


def embedding():
    cases = []
    for vocab, hidden, sequences, length in [(5, 3, 2, 7), (1, 1, 1, 1), (11, 513, 1, 4)]:
        table, positions = leaves(draw(vocab, hidden), draw(length + 2, hidden))
        ids = torch.randint(0, vocab, (sequences * length,))
        d_out = draw(sequences * length, hidden)
        at = torch.arange(length).repeat(sequences)
        out = F.embedding(ids, table) + F.embedding(at, positions)
        d_table, d_positions = gradients(out, d_out, table, positions)
        cases.append(case(f"{vocab}x{hidden} of {sequences}x{length}",
                          {"ids": ids, "table": table, "positions": positions, "d_out": d_out},
                          {"out": out, "d_table": d_table, "d_positions": d_positions},
                          length=length))
    return cases


def norms():
    cases = []
    for rows, width in [(3, 8), (1, 5), (300, 3), (2, 1), (3, 513)]:
        for kind in ["layer_norm", "rms_norm"]:
            x, weight, bias = leaves(draw(rows, width), draw(width), draw(width))
            d_y, eps = draw(rows, width), 1e-5
            if kind == "layer_norm":
                y = F.layer_norm(x, (width,), weight, bias, eps)
                d_x, d_weight, d_bias = gradients(y, d_y, x, weight, bias)
                more = {"d_bias": d_bias}
            else:
                y = F.rms_norm(x, (width,), weight, eps)
                d_x, d_weight = gradients(y, d_y, x, weight)
                more = {}
            cases.append(case(f"{kind} {rows}x{width}",
                              {"x": x, "weight": weight, "bias": bias, "d_y": d_y},
                              {"y": y, "d_x": d_x, "d_weight": d_weight, **more},
                              kind=kind, eps=eps))
    return cases


def linear():
    cases = []
    for tokens, wide, out in [(5, 7, 3), (1, 1, 1), (1, 9, 17), (13, 33, 18)]:
        x, weight, bias = leaves(draw(tokens, wide), draw(out, wide), draw(out))
        d_y = draw(tokens, out)
        y = F.linear(x, weight, bias)
        d_x, d_weight, d_bias = gradients(y, d_y, x, weight, bias)
        cases.append(case(f"{tokens}x{wide} to {out}",
                          {"x": x, "weight": weight, "bias": bias, "d_y": d_y},
                          {"y": y, "d_x": d_x, "d_weight": d_weight, "d_bias": d_bias}))
    return cases


def activations():
    cases = []
    for shape in [(3, 7), (1, 1), (2, 300)]:
        for kind in ["gelu_tanh", "gelu_erf", "relu"]:
            x, = leaves(draw(*shape))
            d_p = draw(*shape)
            p = {"gelu_tanh": lambda: F.gelu(x, approximate="tanh"), "gelu_erf": lambda: F.gelu(x),
                 "relu": lambda: F.relu(x)}[kind]()
            d_x, = gradients(p, d_p, x)
            cases.append(case(f"{kind} {shape}", {"x": x, "d_p": d_p}, {"p": p, "d_x": d_x},
                              kind=kind))
        gate, up = leaves(draw(*shape), draw(*shape))
        d_p = draw(*shape)
        p = F.silu(gate) * up
        d_gate, d_up = gradients(p, d_p, gate, up)
        cases.append(case(f"swiglu {shape}", {"gate": gate, "up": up, "d_p": d_p},
                          {"p": p, "d_gate": d_gate, "d_up": d_up}, kind="swiglu"))
    return cases


def attention():
    cases = []
    #       sequences, length, heads, kv_heads, head_dim, window
    for b, t, h, g, d, window in [(1, 1, 1, 1, 5, 0), (2, 7, 4, 2, 6, 0), (1, 35, 6, 2, 3, 0),
                                  (1, 20, 2, 2, 8, 5), (1, 17, 8, 1, 1, 0), (1, 33, 1, 1, 20, 16)]:
        q, k, v = leaves(draw(b * t, h * d), draw(b * t, g * d), draw(b * t, g * d))
        d_out, scale = draw(b * t, h * d), 1 / math.sqrt(d)

        def heads(x, n):
            return x.view(b, t, n, d).transpose(1, 2).repeat_interleave(h // n, 1)
        i = torch.arange(t)
        hidden = i[None, :] > i[:, None]
        if window:
            hidden = hidden | (i[None, :] <= i[:, None] - window)
        scores = (heads(q, h) @ heads(k, g).transpose(2, 3) * scale).masked_fill(hidden, -math.inf)
        p = scores.softmax(-1)
        p.retain_grad()
        out = (p @ heads(v, g)).transpose(1, 2).reshape(b * t, h * d)
        d_q, d_k, d_v = gradients(out, d_out, q, k, v)
        lse = scores.logsumexp(-1).transpose(1, 2).reshape(b * t, h)
        cases.append(case(f"{b}x{t}, {h} heads on {g}, {d} wide, window {window}",
                          {"q": q, "k": k, "v": v, "d_out": d_out},
                          {"out": out, "logsumexp": lse, "p": p, "d_q": d_q, "d_k": d_k,
                           "d_v": d_v},
                          sequences=b, length=t, heads=h, kv_heads=g, head_dim=d, window=window))
    return cases


def loss():
    cases = []
    for rows, vocab, ignored in [(3, 11, 1), (1, 1, 0), (4, 1030, 2), (5, 7, 5)]:
        logits, = leaves(draw(rows, vocab))
        targets = torch.randint(0, vocab, (rows,))
        targets[torch.randperm(rows)[:ignored]] = -100
        factor = 0.25
        losses = F.cross_entropy(logits, targets, reduction="none", ignore_index=-100)
        d_logits, = gradients(losses.sum() * factor, torch.ones((), dtype=torch.float64), logits)
        cases.append(case(f"{rows}x{vocab}, {ignored} ignored",
                          {"logits": logits, "targets": targets},
                          {"losses": losses, "d_logits": d_logits,
                           "logsumexp": logits.logsumexp(-1)}, factor=factor))
    return cases


def optimizers():
    cases = []
    n, steps = 37, 10
    start, grads = draw(n), draw(steps, n)
    kinds = {
        "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.9, 0.95), eps=1e-8,
                                             weight_decay=0.1),
        "sgd": lambda p: torch.optim.SGD(p, lr=0.01, weight_decay=0.1),
        "momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, weight_decay=0.1)}
    for kind, make in kinds.items():
        w, = leaves(start)
        optimizer = make([w])
        for g in grads:
            w.grad = g.clone()
            optimizer.step()
        cases.append(case(kind, {"weight": start, "gradients": grads}, {"weight": w}, kind=kind))
    for max_norm in [1.0, 1000.0]:
        w, = leaves(start)
        w.grad = grads[0].clone()
        norm = torch.nn.utils.clip_grad_norm_([w], max_norm)
        cases.append(case(f"clip to {max_norm}", {"gradient": grads[0]},
                          {"norm": norm.reshape(1), "clipped": w.grad}, kind="clip",
                          max_norm=max_norm))
    return cases


def rotary():
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
    cases = []
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 8192}
    at = torch.tensor([0, 1, 2, 63, 1000, 8191])
    for theta, d, scaling in [(10000.0, 6, None), (500000.0, 128, llama3), (10000.0, 2, None)]:
        parameters = {"rope_theta": theta, **(scaling or {"rope_type": "default"})}
        config = LlamaConfig(hidden_size=2 * d, num_attention_heads=2, head_dim=d,
                             max_position_embeddings=131072, rope_parameters=parameters)
        rope = LlamaRotaryEmbedding(config)
        x = draw(1, 2, len(at), d)
        cos, sin = rope(x.float(), at[None])
        turned, _ = apply_rotary_pos_emb(x, x, cos.double(), sin.double())
        cases.append(case(f"theta {theta:g}, {d} wide, {'llama3' if scaling else 'plain'}",
                          {"at": at, "x": x[0].transpose(0, 1).reshape(len(at), 2 * d)},
                          {"cosines": cos[0, :, :d // 2], "sines": sin[0, :, :d // 2],
                           "turned": turned[0].transpose(0, 1).reshape(len(at), 2 * d)},
                          theta=theta, head_dim=d, factor=8.0 if scaling else 1.0))
    return cases


def casts():
    """Bit patterns: fp32, and what PyTorch rounds them to."""
    ends = [0, 1, 0x007fffff, 0x00800000, 0x3f800000, 0x3f807fff, 0x3f808000, 0x3f808001, 0x3f818000,
            0x3f801000, 0x3f803000, 0x3f801001, 0x7f7fffff, 0x7f7f7fff, 0x7f7f8000, 0x7f800000,
            0x7fc00000, 0x7f800001, 0x477fe000, 0x477fefff, 0x477ff000, 0x47800000, 0x33000000,
            0x33000001, 0x33800000, 0x33c00000, 0x387fc000, 0x387fe000, 0x387ff000, 0x38800000,
            0x00008000, 0x00018000, 0x80000000]
    bits = torch.tensor(ends + [b | 0x80000000 for b in ends], dtype=torch.int64)
    spread = torch.randint(0, 2**32, (300,))
    near = torch.randint(0x32000000, 0x48000000, (300,))  # around fp16's range
    bits = torch.cat([bits, spread, near])
    x = torch.where(bits >= 2**31, bits - 2**32, bits).to(torch.int32).view(torch.float32)
    unsigned = {t: (x.to(t).view(torch.int16).to(torch.int64) & 0xffff).tolist()
                for t in [torch.bfloat16, torch.float16]}
    return [{"fp32": bits.tolist(), "bf16": unsigned[torch.bfloat16],
             "fp16": unsigned[torch.float16]}]


def main(arguments):
    folder = pathlib.Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    for family in [embedding, norms, linear, activations, attention, loss, optimizers, rotary, casts]:
        document = {"made_by": "tools/oracle/kernel_goldens.py", "torch": torch.__version__,
                    "cases": family()}
        text = json.dumps(document, separators=(",", ":"))
        (folder / f"{family.__name__}.json").write_text(text + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

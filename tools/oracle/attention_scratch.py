#!/usr/bin/env python3
"""What two of SDPA's kernels ask PyTorch's allocator for, by compute capability, without a GPU: cuDNN's
attention and the memory-efficient one, forward and backward.

  attention_scratch.py --out tests/golden/attention_scratch.json [--only CAPABILITY]

Each capability is a process of its own, on the dry CUDA runtime (torch_measure.py). The memory-efficient
kernels are PyTorch's own code; cuDNN's plans are cuDNN's (dry_cudnn.c). A row:
[backend, capability, dtype, sequences, heads, key heads, length, head size, causal | masked | all, dropout,
bytes that stay after the forward, more bytes at the forward's peak, more bytes at the backward's peak than
the gradients of q, k and v]; instead of the last three the error, where PyTorch has no such kernel.
"""
import argparse
import gc
import json
import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import sdpa_kernels  # noqa: E402
import torch_measure  # noqa: E402
from torch_measure import write_atomically  # noqa: E402

SCHEMA = "plimsoll.attention_scratch/1"
# Compute capability: of a Turing, Ampere (data centre, desktop), Ada, Hopper, Blackwell (both of the data
# centre's, desktop).
CAPABILITIES = ("7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "12.0")
BACKENDS = {"cudnn": "CUDNN_ATTENTION", "efficient": "EFFICIENT_ATTENTION"}
# (sequences, heads, key heads, length, head size)
SHAPES = ((1, 8, 2, 1024, 128), (2, 8, 8, 512, 64), (3, 4, 1, 77, 80), (2, 14, 2, 150, 128), (5, 6, 3, 333, 96),
          (2, 8, 8, 129, 40), (1, 4, 4, 128, 72), (2, 4, 4, 17, 64), (1, 8, 8, 200, 160), (1, 4, 2, 300, 256),
          (1, 4, 4, 300, 256), (3, 6, 6, 100, 112))
OTHERS = ((2, 14, 2, 150, 128), (2, 8, 8, 512, 64), (3, 4, 4, 77, 80), (1, 4, 4, 300, 256))


def asked(backend):
    """(dtype, shape, mask, dropout) of each row."""
    rows = [("bf16", shape, "causal", 0.0) for shape in SHAPES]
    rows += [("fp16", shape, "causal", 0.0) for shape in (SHAPES if backend == "efficient" else SHAPES[:5])]
    for shape in OTHERS:
        rows += [("bf16", shape, "masked", 0.0), ("bf16", shape, "all", 0.0), ("bf16", shape, "causal", 0.1)]
    if backend == "efficient":
        rows += [("fp32", shape, "causal", 0.0) for shape in SHAPES]
    return rows


def stat(which):
    import torch
    return torch.cuda.memory_stats().get(f"requested_bytes.all.{which}", 0)


def settle():
    """What autograd's thread held of the row before goes when that thread gets round to it."""
    gc.collect()
    for _ in range(100):
        if stat("current") == 0:
            break
        time.sleep(0.001)


def measured(dtype, shape, mask, dropout):
    import torch
    import torch.nn.functional as F
    b, heads, key_heads, length, width = shape

    def of(count):
        return torch.empty(b, length, count, width, dtype=torch_measure.torch_dtype(dtype), device="cuda") \
            .transpose(1, 2).requires_grad_()

    settle()
    q, k, v = of(heads), of(key_heads), of(key_heads)
    bias = torch.empty(b, 1, length, length, dtype=q.dtype, device="cuda") if mask == "masked" else None
    torch.cuda.reset_peak_memory_stats()
    start = stat("current")
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout, is_causal=mask == "causal",
                                         enable_gqa=heads != key_heads)
    held, top = stat("current") - start, stat("peak") - start
    d_out = torch.empty(b, length, heads, width, dtype=q.dtype, device="cuda").transpose(1, 2)
    torch.cuda.reset_peak_memory_stats()
    start = stat("current")
    results = sum(t.numel() * t.element_size() for t in torch.autograd.grad(out, (q, k, v), d_out))
    return [held, top - held, stat("peak") - start - results]


def rows_of(capability):
    major, minor = (int(part) for part in capability.split("."))
    torch_measure.start_dry_cuda(capability=(major, minor))
    sdpa_kernels.start_cudnn()
    import warnings
    from torch.nn.attention import SDPBackend, sdpa_kernel
    warnings.simplefilter("ignore")
    gc.freeze()  # imports are no garbage
    rows = []
    for backend, name in BACKENDS.items():
        for dtype, shape, mask, dropout in asked(backend):
            row = [backend, capability, dtype, *shape, mask, dropout]
            try:
                with sdpa_kernel(getattr(SDPBackend, name)):
                    rows.append(row + measured(dtype, shape, mask, dropout))
            except RuntimeError as e:
                rows.append(row + [str(e).split("\n", maxsplit=1)[0][:80]])
    return rows


def versions():
    import torch
    return {"torch": torch.__version__, "cudnn": torch.backends.cudnn.version()}


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    p.add_argument("--out", metavar="FILE", required=True)
    p.add_argument("--only", metavar="CAPABILITY", choices=CAPABILITIES)
    p.add_argument("--rows", action="store_true", help=argparse.SUPPRESS)  # of --only, alone
    options = p.parse_args()
    if options.rows:
        json.dump({"rows": rows_of(options.only), **versions()}, sys.stdout)
        return
    found = []
    for capability in CAPABILITIES:
        if options.only in (None, capability):
            command = [sys.executable, __file__, "--out", "-", "--rows", "--only", capability]
            found.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
    head = {"schema": SCHEMA, "torch": found[0]["torch"], "cudnn": found[0]["cudnn"]}
    lines = ",\n".join(json.dumps(row) for part in found for row in part["rows"])
    write_atomically(options.out, json.dumps(head)[:-1] + ', "rows": [\n' + lines + "]}\n")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""What one GPU takes and gives beside the training step: plimsoll.device_overheads/1.

  device_overheads.py --out FILE [--budget 300] [--only SECTION,…]

Sections: context (device memory outside PyTorch's allocator as contexts, kernels, cuBLAS, cuDNN and
a communicator of one rank come up), capacity, granularity, scratch (what the attention kernels ask
of the allocator), gemm, attention (rates), bandwidth, optimizer. Needs torch (ctypes for
cudaMalloc). `context` must come first in its process: memory that is there already cannot be told
apart. A section that fails says why and the others go on; none starts when the budget is spent.

--dry-run exercises the program on the CUDA runtime that computes nothing; every rate is null.
"""

import argparse
import contextlib
import ctypes
import gc
import json
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import device_rates  # noqa: E402
import torch_measure  # noqa: E402
from device_rates import BACKENDS, SHAPES, Device, sdpa_inputs  # noqa: E402
from torch_measure import BadInput, NoDevice, smi, to_number, write_atomically  # noqa: E402

SCHEMA = "plimsoll.device_overheads/1"


# ---- context -----------------------------------------------------------------------------------

def stages():
    """(name, what brings it up), in the order in which a training process meets them."""
    import torch
    import torch.nn.functional as F

    def tensor(*shape, dtype=torch.bfloat16, grad=False):
        return torch.ones(*shape, dtype=dtype, device="cuda", requires_grad=grad)

    def elementwise():
        x = tensor(1024, 1024, dtype=torch.float32)
        (x.exp() * x + x.rsqrt()).to(torch.bfloat16).sum()

    def transformer_kernels():
        x = tensor(4, 256, 512, grad=True)
        ids = torch.zeros(4, 256, dtype=torch.long, device="cuda")
        y = F.embedding(ids, tensor(1000, 512, grad=True)) + F.silu(x) * x
        y = F.layer_norm(y, (512,)) + y.float().pow(2).mean(-1, keepdim=True)
        F.cross_entropy(y.float().view(-1, 512), ids.view(-1)).backward()

    def blas():
        (tensor(512, 512) @ tensor(512, 512)).sum()

    def blas_backward():
        x = tensor(512, 512, grad=True)
        (x @ x).sum().backward()

    def blas_lt():
        F.linear(tensor(256, 512), tensor(512, 512), tensor(512)).sum()

    def attention(backend):
        from torch.nn.attention import SDPBackend, sdpa_kernel

        def run():
            q = tensor(2, 8, 512, 64, grad=True)
            with sdpa_kernel(getattr(SDPBackend, backend)):
                F.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
        return run

    def optimizers():
        for how in ({"foreach": True}, {"fused": True}):
            p = torch.nn.Parameter(tensor(1024, 1024, dtype=torch.float32))
            p.grad = torch.ones_like(p)
            torch.optim.AdamW([p], **how).step()

    return [("elementwise kernels", elementwise), ("transformer kernels", transformer_kernels),
            ("cuBLAS", blas), ("cuBLAS on the backward thread", blas_backward),
            ("cuBLASLt", blas_lt), ("FlashAttention", attention("FLASH_ATTENTION")),
            ("memory-efficient attention", attention("EFFICIENT_ATTENTION")),
            ("cuDNN attention", attention("CUDNN_ATTENTION")), ("AdamW", optimizers)]


def communicator():
    import torch
    import torch.distributed as dist
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29501")
    dist.init_process_group("nccl", rank=0, world_size=1,
                            device_id=torch.device("cuda", 0))
    dist.all_reduce(torch.ones(1 << 20, device="cuda"))
    torch.cuda.synchronize()


def context(device):
    """Rows of device memory outside the allocator, after each stage."""
    import torch
    before = to_number((smi(["memory.used"]) or [None])[0])
    rows, last = [], 0

    def row(name, error=None):
        nonlocal last
        now = device.outside()
        rows.append({"after": name, "outside_bytes": now, "added_bytes": now - last,
                     "allocator_reserved_bytes": torch.cuda.memory_reserved(), "error": error})
        last = now

    torch.cuda.init()
    torch.cuda.mem_get_info()
    row("context")
    torch.zeros(1, device="cuda").item()
    row("first kernel")
    todo = stages() + ([] if device.dry else [("NCCL, one rank", communicator)])
    for name, work in todo:
        error = None
        try:
            work()
        except (RuntimeError, AttributeError) as e:
            error = str(e).split("\\n")[0][:200]
        row(name, error)
    return {"smi_used_before_mib": before, "rows": rows,
            "module_loading": os.environ.get("CUDA_MODULE_LOADING", "default")}


# ---- memory ------------------------------------------------------------------------------------

def capacity(device):
    """What the card says it has, what CUDA says, and the largest single allocation."""
    import torch
    told = smi(["memory.total", "memory.reserved", "memory.free"]) or [None] * 3
    free, total = torch.cuda.mem_get_info()
    low, high = 0, free
    while high - low > 16 << 20:
        middle = (low + high) // 2
        try:
            block = torch.cuda.caching_allocator_alloc(middle)
            torch.cuda.caching_allocator_delete(block)
            low = middle
        except torch.OutOfMemoryError:
            high = middle
        torch.cuda.empty_cache()
    return {"smi_total_mib": to_number(told[0]), "smi_reserved_mib": to_number(told[1]),
            "smi_free_mib": to_number(told[2]), "cuda_total_bytes": total, "cuda_free_bytes": free,
            "properties_total_bytes": torch.cuda.get_device_properties(0).total_memory,
            "largest_allocation_bytes": low}


def cudart():
    """The CUDA runtime that torch has loaded; its symbols are in the process."""
    for name in (None, "libcudart.so.13", "libcudart.so.12"):
        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.CDLL(name)
            library.cudaMalloc.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t]
            library.cudaFree.argtypes = [ctypes.c_void_p]
            return library
    raise RuntimeError("no CUDA runtime in this process")


def granularity(device):
    """Device memory that 64 cudaMallocs of one size take, per allocation."""
    library, rows = cudart(), []
    for size in (1, 1 << 10, 64 << 10, 1 << 20, (1 << 20) + 1, 2 << 20, (2 << 20) + 1, 20 << 20):
        before, blocks = device.used(), []
        for _ in range(64):
            p = ctypes.c_void_p()
            if library.cudaMalloc(ctypes.byref(p), size) != 0:
                break
            blocks.append(p)
        taken = device.used() - before
        for p in blocks:
            library.cudaFree(p)
        rows.append({"request_bytes": size, "count": len(blocks), "taken_bytes": taken})
    return rows


def scratch(device):
    """Bytes that the attention kernels allocate beside their results, forward and backward: the
    allocator's own peaks, less what the operator returns (out; dq, dk, dv) and takes (d_out)."""
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
    gc.freeze()     # imports are no garbage: collecting before each case stays cheap
    rows = []
    for shape in SHAPES:
        for backend in BACKENDS:
            row = {"shape": list(shape), "backend": backend.split("_")[0].lower(), "error": None}
            rows.append(row)
            try:
                with sdpa_kernel(getattr(SDPBackend, backend)):
                    q, k, v = sdpa_inputs(*shape)
                    for _ in range(2):      # the first plan may allocate more
                        torch.cuda.synchronize()
                        row.update(one_attention(F, q, k, v))
            except RuntimeError as e:
                row["error"] = str(e).split("\n")[0][:200]
            q = k = v = None
            torch.cuda.empty_cache()
    return rows


def one_attention(F, q, k, v):
    import torch

    def peak():
        return torch.cuda.memory_stats()["requested_bytes.all.peak"]

    def now():
        return torch.cuda.memory_stats()["requested_bytes.all.current"]

    gc.collect()
    torch.cuda.reset_peak_memory_stats()
    start = now()
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True,
                                         enable_gqa=q.shape[1] != k.shape[1])
    held, top = now() - start, peak() - start
    grad = torch.ones_like(out)
    torch.cuda.reset_peak_memory_stats()
    start = now()
    results = torch.autograd.grad(out, (q, k, v), grad)
    results = sum(t.numel() * t.element_size() for t in results)
    return {"forward_held_bytes": held, "forward_scratch_bytes": top - held,
            "backward_scratch_bytes": peak() - start - results}


SECTIONS = {"context": context, "capacity": capacity, "granularity": granularity,
            "scratch": scratch, "bandwidth": device_rates.bandwidth, "gemm": device_rates.gemm,
            "attention": device_rates.attention, "optimizer": device_rates.optimizer}



def chosen(text):
    names = list(SECTIONS) if not text else text.split(",")
    for name in names:
        if name not in SECTIONS:
            raise BadInput(f"--only: {name!r} is not one of {', '.join(SECTIONS)}")
    return [name for name in SECTIONS if name in names]


def run(options):
    names = chosen(options.only)
    torch_measure.prepare(options.dry_run)
    import torch
    if not torch.cuda.is_available():
        raise NoDevice("torch sees no CUDA device")
    device, began, found, skipped = Device(options.dry_run), time.monotonic(), {}, []
    for name in names:
        if time.monotonic() - began > options.budget:
            skipped.append(name)
            continue
        started = time.monotonic()
        try:
            found[name] = SECTIONS[name](device)
        except (RuntimeError, OSError) as e:
            found[name] = {"error": str(e).split("\n")[0][:300]}
        print(f"{name}: {time.monotonic() - started:.1f} s", file=sys.stderr, flush=True)
        document = {"schema": SCHEMA, "kind": "dry-run" if options.dry_run else "gpu",
                    "measured_at": torch_measure.now(), "skipped": skipped,
                    "environment": torch_measure.environment(options.dry_run), **found}
        write_atomically(options.out, json.dumps(document, indent=1, allow_nan=False) + "\n")
    if skipped:
        print("budget spent before: " + ", ".join(skipped), file=sys.stderr)


def main(arguments=None):
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--out", metavar="FILE", required=True)
    p.add_argument("--only", metavar="SECTIONS", help="comma list of " + ", ".join(SECTIONS))
    p.add_argument("--budget", type=float, default=300,
                   help="seconds; no section starts later (300)")
    p.add_argument("--dry-run", action="store_true", help="exercise the program without a GPU")
    options = p.parse_args(arguments)
    try:
        run(options)
    except BadInput as e:
        print(f"device_overheads.py: {e}", file=sys.stderr)
        return torch_measure.EXIT_BAD_INPUT
    except NoDevice as e:
        print(f"device_overheads.py: {e}", file=sys.stderr)
        return torch_measure.EXIT_DEVICE
    return 0


if __name__ == "__main__":
    sys.exit(main())

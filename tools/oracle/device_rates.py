"""Rates of one GPU for device_overheads.py: products, attention, copies, optimizer."""

import time

from torch_measure import median

DTYPES = ("bf16", "fp16", "fp32", "tf32", "fp8")


class Device:
    def __init__(self, dry):
        self.dry = dry

    def used(self):
        import torch
        free, total = torch.cuda.mem_get_info()
        return total - free

    def outside(self):
        """Device memory in use that PyTorch's allocator does not hold."""
        import torch
        torch.cuda.synchronize()
        return self.used() - torch.cuda.memory_reserved()

    def seconds(self, work, least=3, most=50, enough=0.15):
        """Median seconds of work() on the stream: two to warm up, then until `enough` seconds."""
        import torch
        for _ in range(2):
            work()
        torch.cuda.synchronize()
        found, began = [], time.monotonic()
        while len(found) < least or (len(found) < most and time.monotonic() - began < enough):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            work()
            end.record()
            end.synchronize()
            found.append(start.elapsed_time(end) / 1000)
            if self.dry:
                return None
        return median(found)


def rate(amount, seconds):
    return amount / seconds if seconds else None


def sdpa_inputs(batch, heads, kv_heads, length, width):
    import torch
    return [torch.ones(batch, h, length, width, dtype=torch.bfloat16, device="cuda",
                       requires_grad=True) for h in (heads, kv_heads, kv_heads)]


BACKENDS = ("CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION")
# (batch, heads, kv heads, length, head width): Llama-3.1-8B's and Llama-3.2-1B's shapes, GPT-2's
SHAPES = [(1, 32, 8, s, 128) for s in (1024, 2048, 4096, 8192, 16384, 32768)] + \
    [(2, 32, 8, 4096, 64), (8, 12, 12, 1024, 64), (1, 32, 32, 4096, 128)]


GEMMS = [(4096, 4096, 4096), (8192, 8192, 8192), (8192, 4096, 4096), (8192, 14336, 4096),
         (8192, 4096, 14336), (8192, 128256, 4096), (16384, 2048, 2048), (16384, 8192, 2048),
         (4096, 2304, 768), (16384, 3072, 768)]


def product(dtype, m, n, k):
    """() -> one m x n x k product, as PyTorch would do it for that dtype."""
    import torch
    if dtype == "fp8":
        a = torch.randn(m, k, device="cuda").to(torch.float8_e4m3fn)
        b = torch.randn(n, k, device="cuda").to(torch.float8_e4m3fn).t()
        one = torch.ones((), device="cuda")
        return lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    kind = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(dtype, torch.float32)
    # Random values: a chip draws more power and clocks lower than on constants.
    a = torch.randn(m, k, device="cuda", dtype=kind)
    b = torch.randn(k, n, device="cuda", dtype=kind)
    return lambda: a @ b


def gemm(device):
    import torch
    rows = []
    for dtype in DTYPES:
        for m, n, k in GEMMS:
            if dtype in ("fp32", "tf32") and m * n * k > 8192 ** 3:
                continue
            row = {"dtype": dtype, "m": m, "n": n, "k": k, "flops_per_second": None,
                   "error": None}
            rows.append(row)
            torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
            try:
                seconds = device.seconds(product(dtype, m, n, k))
                row["flops_per_second"] = rate(2.0 * m * n * k, seconds)
            except (RuntimeError, ValueError) as e:
                row["error"] = str(e).split("\n")[0][:200]
            torch.cuda.empty_cache()
    torch.backends.cuda.matmul.allow_tf32 = False
    return rows


def attention(device):
    """FLOP/s of causal attention, counted once (half of the square): forward 2 products, backward
    5."""
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
    rows = []
    for shape in SHAPES:
        batch, heads, kv_heads, length, width = shape
        forward = 4.0 * batch * heads * length * length * width / 2
        for backend in BACKENDS:
            row = {"shape": list(shape), "backend": backend.split("_")[0].lower(), "error": None,
                   "forward_seconds": None, "backward_seconds": None}
            rows.append(row)
            try:
                with sdpa_kernel(getattr(SDPBackend, backend)):
                    q, k, v = sdpa_inputs(*shape)

                    def once():
                        return F.scaled_dot_product_attention(
                            q, k, v, is_causal=True, enable_gqa=heads != kv_heads)

                    row["forward_seconds"] = device.seconds(once)
                    out = once()
                    grad = torch.ones_like(out)
                    row["backward_seconds"] = device.seconds(
                        lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True))
            except RuntimeError as e:
                row["error"] = str(e).split("\n")[0][:200]
            row["forward_flops_per_second"] = rate(forward, row["forward_seconds"])
            row["backward_flops_per_second"] = rate(2.5 * forward, row["backward_seconds"])
            q = k = v = out = grad = None
            torch.cuda.empty_cache()
    return rows


def bandwidth(device):
    """Bytes per second: copies on the device (read plus written), and to and from the host."""
    import torch
    rows = []
    for size in (64 << 20, 1 << 30, 4 << 30):
        a, b = (torch.zeros(size, dtype=torch.uint8, device="cuda") for _ in range(2))
        rows.append({"what": "device copy", "bytes": size,
                     "bytes_per_second": rate(2 * size, device.seconds(lambda: b.copy_(a)))})
        x = a.view(torch.float32)
        rows.append({"what": "device scale in place", "bytes": size,
                     "bytes_per_second": rate(2 * size, device.seconds(lambda: x.mul_(1.0)))})
        del a, b, x
        torch.cuda.empty_cache()
    size = 256 << 20
    on_device = torch.zeros(size, dtype=torch.uint8, device="cuda")
    for pinned in (True, False):
        host = torch.zeros(size, dtype=torch.uint8, pin_memory=pinned)
        kind = "pinned" if pinned else "pageable"
        for what, work in (("host to device", lambda: on_device.copy_(host, non_blocking=True)),
                           ("device to host", lambda: host.copy_(on_device, non_blocking=True))):
            rows.append({"what": f"{what}, {kind}", "bytes": size,
                         "bytes_per_second": rate(size, device.seconds(work))})
    return rows


def optimizer(device):
    """AdamW on 400M fp32 parameters in 64 tensors: seconds, and bytes moved (read p, g, m, v; write
    p, m, v)."""
    import torch
    rows = []
    for how in ("fused", "foreach"):
        parameters = [torch.nn.Parameter(torch.zeros(6250000, device="cuda")) for _ in range(64)]
        for p in parameters:
            p.grad = torch.zeros_like(p)
        adam = torch.optim.AdamW(parameters, **{how: True})
        count = sum(p.numel() for p in parameters)
        seconds = device.seconds(adam.step)
        rows.append({"impl": how, "parameters": count, "seconds": seconds,
                     "bytes_per_second": rate(28 * count, seconds)})
        del parameters, adam
        torch.cuda.empty_cache()
    return rows

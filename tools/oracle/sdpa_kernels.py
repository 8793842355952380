"""Which kernel scaled_dot_product_attention takes, and cuDNN's on the dry device, for torch_measure.py."""
import contextlib
import ctypes

import dry_host


def load_dry_cudnn(name, capacity_bytes, capability, multiprocessors):
    """Beside dry_cuda.c, before torch is imported."""
    library = ctypes.CDLL(dry_host.compiled("dry_cudnn.c", "-ldl"), mode=ctypes.RTLD_GLOBAL)
    library.plimsoll_dry_cudnn(name, ctypes.c_uint64(capacity_bytes), *capability, multiprocessors)


def start_cudnn():
    """On the dry device cuDNN makes plans from now on: for its attention, asked for by name."""
    load = getattr(ctypes.CDLL(None), "plimsoll_dry_load", None)
    if load:
        load()


def leave(kernel):
    """This kernel alone, also for what the backward runs again."""
    import torch
    if kernel == "cudnn":
        start_cudnn()
    for name, of in (("flash", "flash"), ("efficient", "mem_efficient"), ("cudnn", "cudnn"),
                     ("math", "math")):
        getattr(torch.backends.cuda, f"enable_{of}_sdp")(name == kernel)


def of_forward(workload):
    """The context of a workload's forward."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    name, attention = workload["stack"]["sdpa_backend"], workload["strategy"]["attention"]
    if attention in ("cudnn", "efficient"):
        leave(attention)
        return contextlib.nullcontext()
    if attention == "math":
        name = "math"
    if name == "cudnn":
        start_cudnn()
    kinds = {"flash": SDPBackend.FLASH_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION,
             "cudnn": SDPBackend.CUDNN_ATTENTION, "math": SDPBackend.MATH}
    return sdpa_kernel(kinds[name]) if name in kinds else contextlib.nullcontext()

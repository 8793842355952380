"""Host memory of any size on a small machine (dry_host.c), for programs that offload to it."""

import gc
import hashlib
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))


def compiled(name, *flags):
    """A C file of this folder as a shared library, built once."""
    source = os.path.join(HERE, name)
    with open(source, "rb") as f:
        digest = hashlib.sha256(f.read()).hexdigest()[:12]
    folder = os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")),
                          "plimsoll")
    os.makedirs(folder, exist_ok=True)
    stem = name.removesuffix(".c")
    library = os.path.join(folder, f"{stem}_{digest}.so")
    if not os.path.exists(library):
        with tempfile.TemporaryDirectory(dir=folder) as tmp:
            built = os.path.join(tmp, stem + ".so")
            command = [os.environ.get("CC", "cc"), "-O1", "-shared", "-fPIC", *flags, source,
                       "-o", built]
            subprocess.run(command, check=True)
            os.replace(built, library)
    return library


def with_dry_host():
    """Starts this program anew with dry_host.c before the C library: host memory of any size. For
    what offloads; call it first of all."""
    library = compiled("dry_host.c", "-ldl")
    if library in os.environ.get("LD_PRELOAD", ""):
        return
    os.environ["LD_PRELOAD"] = library
    os.execv(sys.executable, [sys.executable, *sys.argv])


def has_dry_host():
    return "dry_host" in os.environ.get("LD_PRELOAD", "")


LARGE = 8 << 20  # dry_host.c maps what is larger again and again: it holds no data


def skip_host_arithmetic():
    """In-place operators of the CPU leave tensors alone that hold no data anyway; they still run
    for all others. Call it when dry_cuda.c has started."""
    import torch
    library = torch.library.Library("aten", "IMPL")

    names = ("copy_", "zero_", "fill_.Scalar", "normal_", "mul_.Tensor", "add_.Tensor", "lerp_.Scalar",
             "addcmul_", "addcdiv_")
    kernels = {name: torch.library.get_kernel("aten::" + name, "CPU") for name in names}

    def skip(name):
        def run(keys, tensor, *arguments, **named):
            from_device = any(isinstance(a, torch.Tensor) and a.is_cuda for a in arguments)
            if tensor.untyped_storage().nbytes() >= LARGE and not from_device:
                return tensor
            if name in ("copy_", "mul_.Tensor", "add_.Tensor"):  # a number was a tensor
                arguments = [a if isinstance(a, (torch.Tensor, bool)) else torch.scalar_tensor(a)
                             for a in arguments]
            return kernels[name].call_boxed(keys, tensor, *arguments, **named)

        library.impl(name, run, "CPU", with_keyset=True, allow_override=True)

    fused = torch.library.get_kernel("aten::_fused_adamw_", "CPU")

    def run_fused(keys, tensors, *arguments, **named):
        if any(t.untyped_storage().nbytes() < LARGE for t in tensors):
            fused.call_boxed(keys, tensors, *arguments, **named)

    library.impl("_fused_adamw_", run_fused, "CPU", with_keyset=True, allow_override=True)
    for name in names:
        skip(name)
    return library  # which undoes it when it goes


def host_bytes(apart=lambda storage: False):
    """What is on the host: pinned, as PyTorch's allocator of it rounds and keeps it (in use, and
    held from the driver), and the storages of pageable tensors of at least 1 KiB, but those that
    are counted apart."""
    import torch
    stats = torch.cuda.host_memory_stats()
    pageable = {}
    for thing in gc.get_objects():
        if type(thing) in (torch.Tensor, torch.nn.Parameter) and thing.device.type == "cpu":
            storage = thing.untyped_storage()
            if storage.nbytes() >= 1024 and not thing.is_pinned() and not apart(storage):
                pageable[storage.data_ptr()] = storage.nbytes()
    return {"pinned_bytes": stats["allocated_bytes.current"],
            "pinned_in_use_bytes": stats["active_bytes.current"],
            "pageable_bytes": sum(pageable.values())}

"""xformers (strategy.attention "xformers", on PYTHONPATH) as Unsloth finds it on a card before Ampere, for which the dry
device is one of compute capability 7.5.

Its memory_efficient_attention is Python: which operator serves, what autograd keeps. The operators that serve such a card
are PyTorch's own (ops/fmha/cutlass.py, aten::_efficient_attention_forward and _backward), which run here as they are. Its
C++ library, of other operators, is built for one release of PyTorch and of CUDA and is not loaded."""
import ctypes
import importlib.util

CAPABILITY, MULTIPROCESSORS = (7, 5), 40  # a T4's


def asked(workload):
    return workload["strategy"]["attention"] == "xformers"


def take_card(workload):
    """Before CUDA is touched, of a process that runs this workload alone."""
    of_dry_device = getattr(ctypes.CDLL(None), "plimsoll_dry_capability", None)
    if asked(workload) and of_dry_device:
        of_dry_device(*CAPABILITY, MULTIPROCESSORS)
        step_always()


def step_always():
    """GradScaler asks whether a gradient is infinite. The dry device remembers what was copied to an address before the
    number was there, and may say so of any step."""
    from torch.amp import GradScaler

    def step(self, optimizer, state, *arguments, **named):
        for found in state["found_inf_per_device"].values():
            found.item()
        return optimizer.step(*arguments, **named)

    GradScaler._maybe_opt_step = step


def offer():
    """Before Unsloth is imported, which asks whether the library loads."""
    if importlib.util.find_spec("xformers") is None:
        return
    import json
    import os
    from xformers import _cpp_lib
    with open(os.path.join(os.path.dirname(_cpp_lib.__file__), "cpp_lib.json"), encoding="utf-8") as f:
        built = _cpp_lib._BuildInfo(json.load(f))
    _cpp_lib._register_extensions = lambda: built
    _cpp_lib._build_metadata, _cpp_lib._built_with_cuda = built, True


def found():
    from unsloth.models import _utils
    return _utils.xformers is not None

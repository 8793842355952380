"""Liger's kernels as Trainer's use_liger_kernel applies them, and what a dry device needs for them."""

import functools


def check(kernels, loss, error):
    if loss == "fused" and kernels == "eager":
        raise error("strategy.loss: 'fused' is measured with stack.kernels 'liger' and 'fused'")


def apply(model, kernels, loss):
    """transformers integrations/liger.py: the instance is patched, a PEFT model's base. Without the
    fused loss there is torch's own; Granite, which has no fused one, keeps the patch's."""
    if kernels != "liger":
        return
    from liger_kernel.transformers import monkey_patch
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    if base.config.model_type not in monkey_patch.MODEL_TYPE_TO_APPLY_LIGER_FN:
        raise ValueError(f"stack.kernels: Liger has no kernels for {base.config.model_type}")
    scaled = base.config.model_type == "granite" and loss == "full"
    options = {} if scaled else {"fused_linear_cross_entropy": loss == "fused"}
    monkey_patch._apply_liger_kernel_to_instance(model=base, **options)
    believe_the_labels()


def believe_the_labels():
    """Liger's cross entropy asks whether they are in the vocabulary: they are; a dry read says no."""
    import torch
    from liger_kernel.ops import cross_entropy
    forward, ask = cross_entropy.cross_entropy_forward, torch.Tensor.__bool__

    def asked_and_true(tensor):
        ask(tensor)
        return True

    @functools.wraps(forward)
    def believing(*args, **kwargs):
        torch.Tensor.__bool__ = asked_and_true
        try:
            return forward(*args, **kwargs)
        finally:
            torch.Tensor.__bool__ = ask

    cross_entropy.cross_entropy_forward = believing


def launch_no_triton():
    """Triton compiles for a device and launches by the driver: its kernels are not run. What Liger
    allocates around them is Python's."""
    try:
        from triton.runtime.jit import KernelInterface
    except ImportError:
        return
    KernelInterface.__getitem__ = lambda self, grid: lambda *_, **__: None

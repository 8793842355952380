"""flex_attention (strategy.attention "flex") as Transformers calls it, for torch_measure.py: its kernels and its block masks
are compiled by Inductor as they are, and no Triton kernel is launched (compiled.py). Under a trace's observer, a
dispatch mode, torch.compile runs nothing that is compiled: it is left out of what it does not see into."""
import functools


def out_of_modes(workload):
    if workload["strategy"]["attention"] != "flex":
        return
    from torch.utils._python_dispatch import _disable_current_modes
    from transformers import masking_utils
    from transformers.integrations import flex_attention

    def seen_from_outside(module, name):
        inner = getattr(module, name)

        @functools.wraps(inner)
        def compiled(*arguments, **named):
            with _disable_current_modes():
                return inner(*arguments, **named)

        setattr(module, name, compiled)

    seen_from_outside(masking_utils, "create_block_mask")
    seen_from_outside(flex_attention, "compile_friendly_flex_attention")

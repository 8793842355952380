"""Selective activation checkpointing by operator, for torch_measure.py (strategy.recompute "ops:…").

"ops:attention+q_proj": a checkpoint around each layer (not reentrant) whose policy keeps what SDPA's kernel and the
products (aten.mm, aten.addmm) of those modules make; a name is a module's last parts, as PEFT's targets are. Which
module a product belongs to is known by hooks around its forward, in the recomputation too.
"""

import functools


def names_of(kind, error):
    """The names behind "ops:", or nothing where it is another kind."""
    if not (isinstance(kind, str) and kind.startswith("ops:")) or kind == "ops:torchtitan":
        return None
    names = kind[4:].split("+")
    if len(set(names)) != len(names) or names != sorted(names) or not all(names):
        raise error(f"strategy.recompute: {kind!r} is not ops: and sorted names joined by +")
    return names


def context_fn(model, names):
    """For torch.utils.checkpoint.checkpoint(context_fn=…)."""
    import torch
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
    aten = torch.ops.aten
    products = {aten.mm.default, aten.addmm.default}
    attentions = {aten._scaled_dot_product_flash_attention.default,
                  aten._scaled_dot_product_efficient_attention.default,
                  aten._scaled_dot_product_cudnn_attention.default}
    running = []
    found = set()
    for path, module in model.named_modules():
        for name in set(names) - {"attention"}:
            if f".{path}".endswith(f".{name}"):
                module.register_forward_pre_hook(lambda *_: running.append(True))
                module.register_forward_hook(lambda *_: running.pop() and None, always_call=True)
                found.add(name)
    missing = set(names) - found - {"attention"}
    if missing:
        raise ValueError(f"no module is called {', '.join(sorted(missing))}")

    def policy(ctx, op, *args, **kwargs):
        kept = (op in products and running) or (op in attentions and "attention" in names)
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return functools.partial(create_selective_checkpoint_contexts, policy)


def apply(model, names):
    model.gradient_checkpointing_enable(
        {"use_reentrant": False, "context_fn": context_fn(model, names)})

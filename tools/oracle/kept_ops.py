"""Selective activation checkpointing, for torch_measure.py (strategy.recompute "ops:…", "selective").

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


def checkpoint_core_attention(model, error):
    """Selective recompute of Korthikanti et al. 2022: the core attention, nothing else."""
    from torch.utils.checkpoint import checkpoint
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    import importlib
    name = model.config._attn_implementation
    module = importlib.import_module(type(model).__module__)
    inner = getattr(module, "eager_attention_forward", None) if name == "eager" \
        else ALL_ATTENTION_FUNCTIONS[name]
    if inner is None:
        raise error("strategy.recompute: selective needs a model with Transformers' attention "
                    "interface")

    def recomputed(module, query, key, value, mask, **kwargs):
        return checkpoint(inner, module, query, key, value, mask, use_reentrant=False, **kwargs)

    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    ALL_ATTENTION_FUNCTIONS.register("plimsoll_recomputed", recomputed)
    ALL_MASK_ATTENTION_FUNCTIONS.register("plimsoll_recomputed", ALL_MASK_ATTENTION_FUNCTIONS[name])
    model.config._attn_implementation = "plimsoll_recomputed"
    for m in model.modules():
        if getattr(m, "config", None) is not None and hasattr(m.config, "_attn_implementation"):
            m.config._attn_implementation = "plimsoll_recomputed"

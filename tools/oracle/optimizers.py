"""The optimizers of torch_measure.py's workloads, as people make them."""

import functools

# bitsandbytes' class, bits of its states, whether they are in managed memory.
BITSANDBYTES = {f"{paged}{name}": (kind, bits, paged != "")
                for paged in ("", "paged-")
                for name, kind, bits in (("adam8bit", "AdamW", 8), ("adamw", "AdamW", 32),
                                         ("lion", "Lion", 32), ("lion8bit", "Lion", 8),
                                         ("ademamix", "AdEMAMix", 32),
                                         ("ademamix8bit", "AdEMAMix", 8))
                if paged + name != "adamw"}

GALORE = ("galore", "galore8bit")


def build(model, workload):
    import torch
    stack, strategy = workload["stack"], workload["strategy"]
    parameters = [p for p in model.parameters() if p.requires_grad]
    how = {"foreach": stack["optimizer_impl"] == "foreach"}
    if stack["optimizer_impl"] == "fused":
        how = {"fused": True}
    kind = strategy["optimizer"]
    classes = {"adamw": (torch.optim.AdamW, {"lr": 1e-4, **how}),
               "sgd": (torch.optim.SGD, {"lr": 1e-4, **how}),
               "momentum": (torch.optim.SGD, {"lr": 1e-4, "momentum": 0.9, **how})}
    if strategy["zero"] == 1 and kind not in classes:
        raise NotImplementedError(f"{kind} with ZeroRedundancyOptimizer")
    if kind in GALORE:
        return galore_optimizer(model, kind, strategy)
    packages = {"adafactor": transformers_adafactor,
                **{name: functools.partial(bitsandbytes_optimizer, model, which)
                   for name, which in BITSANDBYTES.items()}}
    if kind in packages:
        make = packages[kind]
        return InBackward(parameters, make) if strategy["optimizer_in_backward"] \
            else make(parameters)
    if kind == "muon":
        if strategy["optimizer_in_backward"]:
            raise NotImplementedError("muon in the backward")
        return muon_and_adamw(model, how)
    cls, options = classes[kind]
    if strategy["optimizer_in_backward"]:
        return InBackward(parameters, lambda one: cls(one, **options))
    if strategy["zero"] == 1:
        from torch.distributed.optim import ZeroRedundancyOptimizer
        return ZeroRedundancyOptimizer(parameters, optimizer_class=cls, **options)
    return cls(parameters, **options)


class InBackward:
    """An optimizer for each parameter, which steps behind its gradient's accumulation."""

    def __init__(self, parameters, make):
        self.parts = {p: make([p]) for p in parameters}
        for p in self.parts:
            p.register_post_accumulate_grad_hook(self.hook)
        self.param_groups = [group for part in self.parts.values() for group in part.param_groups]

    def hook(self, p):
        self.parts[p].step()
        self.parts[p].zero_grad(set_to_none=True)

    @property
    def state(self):
        return {p: state for part in self.parts.values() for p, state in part.state.items()}

    def step(self):
        """It is done."""

    def zero_grad(self, set_to_none=True):
        """There is none left."""


def bitsandbytes_optimizer(model, which, parameters):
    """With what Trainer tells it: states of embeddings in fp32 (trainer.py, create_optimizer)."""
    import bitsandbytes
    import torch
    name, bits, paged = which
    built = getattr(bitsandbytes.optim, name)(parameters, lr=1e-4, optim_bits=bits, is_paged=paged)
    if bits == 8:
        manager = bitsandbytes.optim.GlobalOptimManager.get_instance()
        for module in model.modules():
            if isinstance(module, torch.nn.Embedding):
                manager.register_module_override(module, "weight", {"optim_bits": 32})
    return built


def svd_without_cusolver(x, full_matrices=True):
    """What torch.linalg.svd allocates (linalg_svd, BatchLinearAlgebra.cpp; seen on the dry device up
    to cusolverDnCreate, which needs a real one): U and Vh, S, info, and the copy that cuSOLVER
    overwrites. Its workspace is not known."""
    import torch
    assert not full_matrices and x.dtype == torch.float32
    m, n = x.shape
    k = min(m, n)
    u = torch.empty((k, m), device=x.device).t()
    vh = torch.empty((n, k), device=x.device).t()
    s = torch.empty(k, device=x.device)
    info = torch.empty(1, dtype=torch.int32, device=x.device)
    copy = torch.empty((n, m), device=x.device).t()
    del copy, info
    return u, s, vh


def galore_optimizer(model, kind, strategy):
    """galore_torch, as Transformers' Trainer makes it with optim_target_modules of the layers'
    matrices (attn, mlp in GaLore's own script); the bases are made anew in every step."""
    import galore_torch
    import torch
    torch.linalg.svd = svd_without_cusolver
    torch.cuda.synchronize = lambda *_: None
    cls = galore_torch.GaLoreAdamW8bit if kind == "galore8bit" else galore_torch.GaLoreAdamW
    ends = {id(p) for m in (model.get_input_embeddings(), model.get_output_embeddings())
            if m is not None for p in m.parameters()}
    ends |= {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    rank = {"rank": strategy["galore_rank"] or 128, "update_proj_gap": 1, "scale": 0.25,
            "proj_type": "std"}
    parameters = [p for p in model.parameters() if p.requires_grad]
    target = {id(p) for p in parameters if p.dim() == 2 and id(p) not in ends}
    options = {"lr": 1e-4} if kind == "galore8bit" else {"lr": 1e-4, "no_deprecation_warning": True}

    def make(some):
        groups = [{"params": [p for p in some if id(p) not in target]},
                  {"params": [p for p in some if id(p) in target], **rank}]
        return cls([group for group in groups if group["params"]], **options)
    if strategy["optimizer_in_backward"]:
        return InBackward(parameters, make)
    return make(parameters)


class Both:
    """Two optimizers, one after the other."""

    def __init__(self, *parts):
        self.parts = parts
        self.param_groups = [group for part in parts for group in part.param_groups]

    @property
    def state(self):
        return {p: state for part in self.parts for p, state in part.state.items()}

    def step(self):
        for part in self.parts:
            part.step()

    def zero_grad(self, set_to_none=True):
        for part in self.parts:
            part.zero_grad(set_to_none)


def muon_and_adamw(model, how):
    """As torch.optim.Muon's documentation says: Muon for the hidden layers' matrices, AdamW for
    embeddings, head and vectors."""
    import torch
    ends = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    inner = getattr(model, "module", model)
    head = inner.get_output_embeddings()
    ends |= {id(p) for p in head.parameters()} if head is not None else set()
    hidden, rest = [], []
    for p in model.parameters():
        if p.requires_grad:
            (hidden if p.dim() == 2 and id(p) not in ends else rest).append(p)
    parts = [torch.optim.Muon(hidden, lr=1e-4)] if hidden else []
    return Both(*parts, *([torch.optim.AdamW(rest, lr=1e-4, **how)] if rest else []))


def transformers_adafactor(parameters):
    """As Trainer makes it (trainer_optimizer.py)."""
    import transformers
    return transformers.optimization.Adafactor(parameters, lr=1e-4, scale_parameter=False,
                                               relative_step=False)

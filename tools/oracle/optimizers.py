"""The optimizers of torch_measure.py's workloads, as people make them."""

import functools

# bitsandbytes' class, bits of its states, whether they are in managed memory (None: it has none).
BITSANDBYTES = {f"{paged}{name}": (kind, bits, paged != "")
                for paged in ("", "paged-")
                for name, kind, bits in (("adam8bit", "AdamW", 8), ("adamw", "AdamW", 32),
                                         ("lion", "Lion", 32), ("lion8bit", "Lion", 8),
                                         ("ademamix", "AdEMAMix", 32),
                                         ("ademamix8bit", "AdEMAMix", 8))
                if paged + name != "adamw"}
BITSANDBYTES |= {"rmsprop-bnb": ("RMSprop", 32, None), "rmsprop8bit": ("RMSprop", 8, None)}

GALORE = ("galore", "galore8bit")
# What Q-GaLore's own scripts say (run_pretrain.py of VITA-Group/Q-GaLore) beside GaLore's arguments.
Q_GALORE = {"quant": True, "quant_n_bit": 4, "quant_group_size": 256, "cos_threshold": 0.4,
            "gamma_proj": 2, "queue_size": 5}
TORCHAO = {"torchao-adam8bit": "AdamW8bit", "torchao-adam4bit": "AdamW4bit",
           "torchao-adamfp8": "AdamWFp8"}
SCHEDULE_FREE = {"schedule-free-adamw": "AdamWScheduleFree", "schedule-free-sgd": "SGDScheduleFree",
                 "schedule-free-radam": "RAdamScheduleFree"}
# What the Trainer tells APOLLO unless optim_args say otherwise, and their paper APOLLO-mini.
APOLLO = {"apollo": {"rank": 128, "scale_type": "channel", "scale": 1.0},
          "apollo-mini": {"rank": 1, "scale_type": "tensor", "scale": 128.0}}
LOMO = {"lomo": "Lomo", "adalomo": "AdaLomo"}
PACKAGES = {**dict.fromkeys(TORCHAO, "torchao"), **dict.fromkeys(SCHEDULE_FREE, "schedulefree"),
            **dict.fromkeys(APOLLO, "apollo-torch"), "adam-mini": "adam-mini",
            "stable-adamw": "torch-optimi", "grokadamw": "grokadamw", "q-galore": "q-galore-torch",
            **dict.fromkeys(LOMO, "lomo-optim")}
NAMES = ["adamw", "sgd", "momentum", "adafactor", "muon", "rmsprop", "adagrad", *BITSANDBYTES,
         *GALORE, *PACKAGES]


def packages(workload):
    """Whose version a document names."""
    name = workload["strategy"]["optimizer"] if workload else None
    if workload and "optimizer" in workload["strategy"]["offload"]:
        return ("torchao",)
    below = ("bitsandbytes",) if name == "q-galore" else ()
    return below + (PACKAGES[name],) if name in PACKAGES else ()


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
               "momentum": (torch.optim.SGD, {"lr": 1e-4, "momentum": 0.9, **how}),
               "rmsprop": (torch.optim.RMSprop, {"lr": 1e-4, **how}),
               "adagrad": (torch.optim.Adagrad, {"lr": 1e-4, **how})}
    if strategy["zero"] == 1 and kind not in classes:
        raise NotImplementedError(f"{kind} with ZeroRedundancyOptimizer")
    if "optimizer" in strategy["offload"]:
        if "fused" not in how:
            raise NotImplementedError("an optimizer on the host that is not fused")
        return OnHost(parameters, *classes[kind], "gradients" in strategy["offload"])
    if kind in (*GALORE, "q-galore"):
        return galore_optimizer(model, kind, strategy)
    if kind in LOMO:
        return StepsBehind(model, LOMO[kind])
    if kind in APOLLO:
        return apollo_optimizer(model, kind, strategy)
    packages = {"adafactor": transformers_adafactor,
                **{name: functools.partial(bitsandbytes_optimizer, model, which,
                                           "model_code" not in stack)
                   for name, which in BITSANDBYTES.items()},
                **{name: functools.partial(torchao_optimizer, which)
                   for name, which in TORCHAO.items()},
                **{name: functools.partial(schedule_free_optimizer, which, how["foreach"])
                   for name, which in SCHEDULE_FREE.items() if "foreach" in how},
                "stable-adamw": stable_adamw, "grokadamw": grokadamw, "adam-mini": functools.partial(adam_mini, model)}
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


class OnHost:
    """torchao's, of one GPU: states and copies of weights on the host, which steps them, and
    gradients' (with `gradients`, theirs on the device go at once). AdamW in its one form, fused."""

    def __init__(self, parameters, cls, options, gradients):
        import torchao
        options = {name: value for name, value in options.items() if name != "fused"}
        self.inner = torchao.optim.CPUOffloadOptimizer(parameters, cls, offload_gradients=gradients,
                                                       **options)
        self.step, self.zero_grad = self.inner.step, self.inner.zero_grad
        self.param_groups = self.inner.param_groups

    @property
    def state(self):
        parts = [*self.inner.optim_dict.values(), *([self.inner.d_opt] if self.inner.d_opt else [])]
        return {p: state for part in parts for p, state in part.state.items()}


class StepsBehind:
    """lomo_optim's, which Trainer makes of the whole model (_get_lomo_optimizer), and which
    Accelerate hands the loss to (accelerator.py, lomo_backward); Accelerate never steps it."""

    def __init__(self, model, name):
        import lomo_optim
        self.inner, self.model = getattr(lomo_optim, name)(model, lr=1e-4), model
        self.param_groups = self.inner.param_groups

    def backward(self, loss):
        self.inner.fused_backward(loss, 1e-4)

    @property
    def state(self):
        kinds = {kind: getattr(self.inner, kind, {})
                 for kind in ("exp_avg_sq", "exp_avg_sq_row", "exp_avg_sq_col")}
        return {p: {kind: of[name] for kind, of in kinds.items() if name in of}
                for name, p in self.model.named_parameters()}

    def step(self):
        """It is done."""

    def zero_grad(self, set_to_none=True):
        self.inner.zero_grad(set_to_none)


def backward(optimizer, loss):
    getattr(optimizer, "backward", lambda loss: loss.backward())(loss)


def bitsandbytes_optimizer(model, which, by_trainer, parameters):
    """With what Trainer tells it: states of embeddings in fp32 (trainer.py, create_optimizer)."""
    import bitsandbytes
    import torch
    name, bits, paged = which
    where = {} if paged is None else {"is_paged": paged}
    built = getattr(bitsandbytes.optim, name)(parameters, lr=1e-4, optim_bits=bits, **where)
    if bits == 8 and by_trainer:
        manager = bitsandbytes.optim.GlobalOptimManager.get_instance()
        for module in model.modules():
            if isinstance(module, torch.nn.Embedding):
                manager.register_module_override(module, "weight", {"optim_bits": 32})
    return built


def torchao_optimizer(which, parameters):
    """With Trainer's blocks (_get_torchao_optimizer). Its steps are compiled: without a GPU as
    compiled.py says."""
    import torchao
    return getattr(torchao.optim, which)(parameters, lr=1e-4, block_size=256)


def schedule_free_optimizer(which, foreach, parameters):
    """In train mode, and in a step from the sixth on: RAdam divides by roots from there."""
    import schedulefree
    built = getattr(schedulefree, which)(parameters, lr=1e-4, foreach=foreach)
    built.train()
    for group in built.param_groups:
        group["k"] = 10
    return built


def stable_adamw(parameters):
    """As Trainer makes it; its Triton kernels are not launched without a GPU."""
    import optimi
    return optimi.StableAdamW(parameters, lr=1e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)


def grokadamw(parameters):
    """As Trainer makes it (_get_grokadamw_optimizer). Its states are the host's."""
    from grokadamw import GrokAdamW
    return GrokAdamW(parameters, lr=1e-4)


def adam_mini(model, _):
    """As its documentation says; it goes by the names of parameters."""
    import adam_mini as package
    inner = getattr(model, "module", model)
    config = inner.config.get_text_config()
    return package.Adam_mini(
        [(name, p) for name, p in inner.named_parameters() if p.requires_grad], lr=1e-4,
        dim=config.hidden_size, n_heads=config.num_attention_heads, verbose=False,
        n_kv_heads=getattr(config, "num_key_value_heads", None))


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


class NoNan:
    """torch.isnan where nothing is computed: q_galore_torch stops unless `isnan(x).sum() == 0`. It
    allocates what it would, and the answer is that."""
    of = None

    def __init__(self, of):
        self.marks = NoNan.of(of)

    def sum(self):
        self.marks = self.marks.sum()
        return self

    def __eq__(self, other):
        return bool(self.marks == other) or True


def galore_optimizer(model, kind, strategy):
    """galore_torch, as Transformers' Trainer makes it with optim_target_modules of the layers'
    matrices (attn, mlp in GaLore's own script), or q_galore_torch of the same; the bases are made
    anew in every step."""
    import torch
    torch.linalg.svd = svd_without_cusolver
    torch.cuda.synchronize = lambda *_: None
    rank = {"rank": strategy["galore_rank"] or 128, "update_proj_gap": 1, "scale": 0.25,
            "proj_type": "std"}
    if kind == "q-galore":
        import q_galore_torch
        NoNan.of, torch.isnan = torch.isnan, NoNan
        make = functools.partial(q_galore_torch.QGaLoreAdamW8bit, lr=1e-4)
        return projected(model, strategy, {**rank, **Q_GALORE}, make)
    import galore_torch
    cls = galore_torch.GaLoreAdamW8bit if kind == "galore8bit" else galore_torch.GaLoreAdamW
    options = {"lr": 1e-4} if kind == "galore8bit" else {"lr": 1e-4, "no_deprecation_warning": True}
    return projected(model, strategy, rank, functools.partial(cls, **options))


def apollo_optimizer(model, kind, strategy):
    """apollo_torch, of the same matrices; the random bases are made anew in every step."""
    import apollo_torch
    rank = {**APOLLO[kind], "update_proj_gap": 1, "proj": "random", "proj_type": "std"}
    rank["rank"] = strategy["galore_rank"] or rank["rank"]
    return projected(model, strategy, rank, functools.partial(apollo_torch.APOLLOAdamW, lr=1e-4))


def projected(model, strategy, rank, cls):
    """An optimizer of two groups: what is not projected, and the layers' matrices."""
    import torch
    inner = getattr(model, "module", model)
    ends = {id(p) for m in (inner.get_input_embeddings(), inner.get_output_embeddings())
            if m is not None for p in m.parameters()}
    ends |= {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    parameters = [p for p in model.parameters() if p.requires_grad]
    target = {id(p) for p in parameters if p.dim() == 2 and id(p) not in ends}

    def make(some):
        groups = [{"params": [p for p in some if id(p) not in target]},
                  {"params": [p for p in some if id(p) in target], **rank}]
        return cls([group for group in groups if group["params"]])
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

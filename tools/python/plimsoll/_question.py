"""What a run asks of `fit`: MODEL and options, read off the model, its wrappers and the Trainer."""
import os
from collections.abc import Mapping

from ._objects import adapters_of, config_of, inner_of

_ATTENTION = {"sdpa": "flash", "eager": "eager"}
# Adam keeps what AdamW keeps.
_OPTIMIZERS = {"AdamW": "adamw", "Adam": "adamw", "Adafactor": "adafactor"}
_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def _dtype(dtype):
    name = str(dtype).removeprefix("torch.")
    if name not in _DTYPES:
        raise ValueError(f"{name}: parameters are {', '.join(_DTYPES)}")
    return _DTYPES[name]


def shape_of(batch):
    """Sequences and tokens of a batch: of its input_ids, else of its first matrix of integers."""
    if isinstance(batch, Mapping):
        if batch.get("input_ids") is not None:
            return tuple(batch["input_ids"].shape[:2])
        values = batch.values()
    else:
        values = batch if isinstance(batch, (list, tuple)) else [batch]
    for value in values:
        if getattr(value, "ndim", 0) == 2 and not value.is_floating_point():
            return tuple(value.shape)
    return None


def _sharding(model, optimizer):
    """--zero and what goes with it, as the wrappers say it."""
    from torch.distributed import fsdp
    if isinstance(model, fsdp.FullyShardedDataParallel):
        stage = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0}.get(
            model.sharding_strategy.name)
        if stage is None:
            raise ValueError(f"sharding_strategy {model.sharding_strategy.name}: give zero= and "
                             "shard_group= to plimsoll.Watch")
        return {"zero": stage, "fsdp_version": 1}, model.mixed_precision.param_dtype
    module = getattr(fsdp, "FSDPModule", ())
    if isinstance(model, module):
        units = [m._get_fsdp_state() for m in model.modules() if isinstance(m, module)]
        groups = [u._fsdp_param_group for u in units[1:] if u._fsdp_param_group]
        keeps = groups and all(g.post_forward_mesh_info is None for g in groups)
        return {"zero": 2 if keeps else 3, "fsdp_version": 2}, units[0]._mp_policy.param_dtype
    if type(optimizer).__name__ == "ZeroRedundancyOptimizer":
        return {"zero": 1}, None
    return {}, None


def _optimizer_options(optimizer):
    inner = getattr(optimizer, "optim", None) or optimizer  # of ZeroRedundancyOptimizer
    name = type(inner).__name__
    options = dict(inner.defaults)
    if name == "SGD":
        kind = "momentum" if options.get("momentum") else "sgd"
    elif name in _OPTIMIZERS:
        kind = _OPTIMIZERS[name]
    else:
        raise ValueError(f"optimizer {name}: give optimizer= to plimsoll.Watch's options")
    impl = "fused" if options.get("fused") else \
        "for-loop" if options.get("foreach") is False else "foreach"
    return {"optimizer": kind, "optimizer_impl": impl}


def _gpu():
    """The card by its name; one that is not in the catalog is left to `gpu=`."""
    import torch

    from . import gpus
    name = torch.cuda.get_device_properties(torch.cuda.current_device()).name
    return next(({"gpu": gpu.name} for gpu in gpus() if name.removeprefix("NVIDIA ") == gpu.title), {})


def _of_trainer(trainer, model):
    arguments = trainer.args.to_dict()
    # What the batch itself says, padding and the last batch included.
    for key in ("per_device_train_batch_size", "auto_find_batch_size"):
        arguments.pop(key, None)
    return {"training_args": arguments, "param_dtype": _dtype(next(model.parameters()).dtype)}


def _of_loop(model, optimizer, given):
    import torch
    sharding, gathered = _sharding(model, optimizer)
    held, out = next(model.parameters()).dtype, dict(sharding)
    mixed = torch.is_autocast_enabled("cuda")
    compute = torch.get_autocast_dtype("cuda") if mixed else gathered or held
    if compute != held or mixed:
        out.update(precision=_dtype(compute) + "-mixed", param_dtype=_dtype(held))
    else:
        out["precision"] = _dtype(held)
    if optimizer is not None and "optimizer" not in given:
        out.update(_optimizer_options(optimizer))
    if getattr(inner_of(model), "is_gradient_checkpointing", False):
        out["recompute"] = "full"
    return out


def question(model, optimizer, trainer, batch, given):
    """MODEL and options of fit(); `given` wins. `batch`: its shape. ValueError: what the run is made
    of has no name here."""
    import torch
    given, options = dict(given), {}
    inner = inner_of(model)
    config = getattr(inner, "config", None)
    name = given.pop("model", None)
    if name is None:
        if not hasattr(config, "to_dict"):
            raise ValueError("the model has no configuration of Transformers; give model= to "
                             "plimsoll.Watch")
        name = config_of(model)
    if batch is not None:
        options["micro_batch"], options["seq_len"] = map(int, batch)
    if torch.distributed.is_initialized():
        options["gpus"] = torch.distributed.get_world_size()
        if "LOCAL_WORLD_SIZE" in os.environ:
            options["gpus_per_node"] = int(os.environ["LOCAL_WORLD_SIZE"])
    adapters = adapters_of(inner)
    if adapters is not None:
        options["peft"] = adapters
    options.update(_of_trainer(trainer, model) if trainer else
                   _of_loop(model, optimizer, given))
    attention = getattr(config, "_attn_implementation", None)
    if attention and "attention" not in given:
        if attention not in _ATTENTION:
            raise ValueError(f"attention {attention}: give attention= to plimsoll.Watch")
        options["attention"] = _ATTENTION[attention]
    options["gpu_memory"] = torch.cuda.mem_get_info()[1]
    options.update(_gpu())
    return name, {**options, **given}

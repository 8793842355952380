"""FSDP1 of torch_measure.py's workloads, as Accelerate and PEFT wrap a model, or as scripts do (KEYS)."""

import functools

import float8

# Of `stack`; only where they are not what they always were.
KEYS = ("fsdp_activation_checkpointing", "fsdp_sync_module_states", "fsdp_use_orig_params")


def checkpoint_inside(model, classes, reentrant):
    """Checkpoints inside FSDP's units, as Accelerate's activation_checkpointing puts them; reentrant ones,
    with embeddings that require a gradient, as fsdp_qlora's train.py does."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
        CheckpointImpl, apply_activation_checkpointing, checkpoint_wrapper)
    kind = CheckpointImpl.REENTRANT if reentrant else CheckpointImpl.NO_REENTRANT
    if reentrant:
        model.enable_input_require_grads()
    apply_activation_checkpointing(
        model, checkpoint_wrapper_fn=functools.partial(checkpoint_wrapper, checkpoint_impl=kind),
        check_fn=lambda module: isinstance(module, classes))


def shard(model, workload, classes, initialise, torch_dtype):
    """Every decoder layer and the root; with adapters also each leaf that trains (peft's
    fsdp_auto_wrap_policy, which the Trainer puts in the place of its own)."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import (BackwardPrefetch, CPUOffload, FullyShardedDataParallel,
                                        MixedPrecision, ShardingStrategy)
    stack, strategy = workload["stack"], workload["strategy"]

    def wraps(module, recurse, **_):
        weight = getattr(module, "weight", None)
        trains = weight is not None and weight.requires_grad and not list(module.children())
        return recurse or isinstance(module, classes) or (bool(strategy["lora"]) and trains)

    policy, mesh = None, None
    if strategy["precision"].endswith("-mixed"):
        low = torch_dtype(float8.low(strategy["precision"]))
        policy = MixedPrecision(param_dtype=low, buffer_dtype=low,
                                reduce_dtype=torch_dtype(strategy["grad_dtype"] or "fp32"))
    world, group = strategy["world_size"], strategy["shard_group"] or strategy["world_size"]
    kinds = (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP)
    if group != world:
        kinds = (ShardingStrategy.HYBRID_SHARD, ShardingStrategy._HYBRID_SHARD_ZERO2)
        mesh = init_device_mesh("cuda", (world // group, group),
                                mesh_dim_names=("replicate", "shard"))
    sharded_model = FullyShardedDataParallel(
        model, sharding_strategy=kinds[strategy["zero"] != 3], mixed_precision=policy,
        use_orig_params=stack.get("fsdp_use_orig_params", True), auto_wrap_policy=wraps,
        device_mesh=mesh, sync_module_states=stack.get("fsdp_sync_module_states", False),
        backward_prefetch=BackwardPrefetch.BACKWARD_PRE, limit_all_gathers=True,
        device_id=torch.cuda.current_device(),
        cpu_offload=CPUOffload(offload_params=True) if "params" in strategy["offload"] else None,
        param_init_fn=initialise)
    if stack.get("fsdp_activation_checkpointing"):
        checkpoint_inside(sharded_model, classes, stack.get("use_reentrant", False))
    return sharded_model

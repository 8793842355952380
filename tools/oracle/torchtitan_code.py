"""torchtitan's own Llama 3 inside its own wrappers, for torch_measure.py (stack.model_code).

Names: torchtitan@2024-03 is pytorch/torchtitan at commit 83c879f18 (28 March 2024, still `torchtrain`), torchtitan@2024-12
at 3f20451bc (26 December 2024), torchtitan@0.2.2 the package of that version; either has to be on PYTHONPATH, with the packages that it imports beside torch
and that no step needs (torchdata, tensorboard, torchao: absent ones are stood in for; 0.2.2 also needs tyro). The model,
activation checkpointing, tensor parallelism, FSDP2 and the initial values are torchtitan's; the loop is
torch_measure.py's, without clipping.
"""

import importlib
import importlib.abc
import importlib.machinery
import sys
import types

import compiled
import float8

CODES = {"torchtitan@2024-03": "torchtrain.models.llama.model",
         "torchtitan@2024-12": "torchtitan.models.llama.model",
         "torchtitan@0.2.2": "torchtitan.models.llama3.model.model"}
# Of which strategy.tp is measured, eager and in bf16: ranks are "shard" groups of so many neighbours, or "replicate"
# groups of those, as ParallelDims has them.
DIVIDED = ("torchtitan@2024-12", "torchtitan@0.2.2")
UNUSED = ("blobfile", "datasets", "tensorboard", "tiktoken", "tomli", "torchao", "torchdata", "wandb")


CHECKPOINTS = ("ops:torchtitan",)  # strategy.recompute that torchtitan alone has


class Absent(types.ModuleType):
    """A module whose every name is an empty class."""
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {})
        setattr(self, name, made)
        return made


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name.split(".", maxsplit=1)[0] in UNUSED:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Absent(spec.name)

    def exec_module(self, module):
        pass


def check(workload, error):
    """What torchtitan's trainer has no way of its own for is refused by name."""
    code, strategy = workload["stack"].get("model_code"), workload["strategy"]
    if code is None:
        if strategy["recompute"] in CHECKPOINTS:
            raise error(f"strategy.recompute: {strategy['recompute']!r} is of stack.model_code")
        return
    if strategy["recompute"] not in ("none", "full", *CHECKPOINTS) and not strategy["recompute"].startswith("nth:"):
        raise error(f"strategy.recompute: torchtitan has no {strategy['recompute']!r}")
    if workload["stack"]["compile"] in (True, "model"):
        raise error("stack.compile: torchtitan compiles each block")
    if code not in CODES:
        raise error(f"stack.model_code: {code!r} is not one of {', '.join(CODES)}")
    if workload["model"]["config"]["model_type"] != "llama":
        raise error("stack.model_code: torchtitan's Llama 3 alone is measured")
    if strategy["tp"] > 1 and (workload["stack"]["compile"] or strategy["precision"] != "bf16-mixed"):
        raise error("strategy.tp: is measured eager and in bf16-mixed")
    for key, kept in (("zero", [3]), ("precision", ["bf16-mixed", "fp8-mixed"]), ("lora", [None]), ("offload", [[]]),
                      ("attention", ["flash"]), ("loss", ["full"]), ("quantize", [None])):
        if strategy[key] not in kept:
            raise error(f"strategy.{key}: {strategy[key]!r} is not measured with torchtitan's code")


def arguments(cls, config, seq_len):
    """ModelArgs that make the config's widths: its feed-forward is rounded from a share of dim."""
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    thirds = int(2 * 4 * hidden / 3)
    args = cls(dim=hidden, n_layers=config["num_hidden_layers"], n_heads=config["num_attention_heads"],
               n_kv_heads=config.get("num_key_value_heads"), vocab_size=config["vocab_size"],
               multiple_of=1, ffn_dim_multiplier=(ffn + 0.5) / thirds)
    args.max_seq_len = seq_len
    return args


def checkpointing(kind):
    """activation_checkpoint of a job's config, the rest at its defaults in 0.2.2."""
    options = {"none": ("none", ""), "full": ("full", ""), "ops:torchtitan": ("selective", "op")}
    mode, option = options[kind] if kind in options else ("selective", kind.split(":")[1])
    return types.SimpleNamespace(
        mode=mode, selective_ac_option=option, per_op_sac_force_recompute_mm_shapes_by_fqns=[],
        early_stop=False, preserve_rng_state=True, determinism_check="default", debug=False)


def kept_by_count(policy):
    """What torch called _pt2_selective_checkpoint_context_fn_gen before 2.4."""
    from torch.utils.checkpoint import create_selective_checkpoint_contexts
    return create_selective_checkpoint_contexts(
        lambda context, op, *args, **kwargs: policy("recompute" if context.is_recompute else "forward",
                                                    op, *args, **kwargs))


def build_of_march(workload):
    """train.py of 2024-03: `pred` is the logits in fp32, which the loop has until the next ones are there."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    torch.utils.checkpoint._pt2_selective_checkpoint_context_fn_gen = kept_by_count
    parallelize = importlib.import_module("torchtrain.parallelisms.parallelize_llama")
    model_code = importlib.import_module(CODES["torchtitan@2024-03"])
    strategy, config = workload["strategy"], workload["model"]["config"]
    args = arguments(model_code.ModelArgs, config, model_code.ModelArgs.max_seq_len)
    with torch.device("meta"):
        model = model_code.Transformer(args)
    mesh = init_device_mesh("cuda", (strategy["world_size"],), mesh_dim_names=("dp",))
    model = parallelize.parallelize_llama(
        model, mesh, types.SimpleNamespace(pp_enabled=False, tp_enabled=False, dp_enabled=True),
        types.SimpleNamespace(activation_checkpoint=checkpointing(strategy["recompute"])))
    model.to_empty(device="cuda")
    torch.Tensor.erfinv_ = lambda tensor: tensor
    with torch.no_grad():
        model.init_weights()
    model.train()
    loop = {}

    def loss_of(tokens, labels):
        loop["pred"] = model(tokens)
        return torch.nn.functional.cross_entropy(loop["pred"].flatten(0, 1), labels.flatten(0, 1))

    return model, loss_of


def ranks(strategy):
    """The mesh of all ranks, and the names of its axes of data."""
    from torch.distributed.device_mesh import init_device_mesh
    data = strategy["world_size"] // strategy["tp"]
    group = strategy["shard_group"] or data
    sizes = {"replicate": data // group, "shard": group, "tp": strategy["tp"]}
    named = {name: size for name, size in sizes.items() if size > 1 or name == "shard"}
    mesh = init_device_mesh("cuda", tuple(named.values()), mesh_dim_names=tuple(named))
    return mesh, tuple(name for name in named if name != "tp")


def build(workload):
    """The sharded model, and how a batch's loss is made of it."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    sys.meta_path.append(StandIns())
    sys.modules.setdefault("torch.utils.tensorboard", Absent("torch.utils.tensorboard"))
    if workload["stack"]["model_code"] == "torchtitan@2024-03":
        return build_of_march(workload)
    strategy, config = workload["strategy"], workload["model"]["config"]
    old = workload["stack"]["model_code"] == "torchtitan@2024-12"
    if old:
        from torchtitan.models.llama.model import ModelArgs as Args, Transformer
        parallelize = importlib.import_module("torchtitan.parallelisms.parallelize_llama")
    else:
        from torch.nn.attention import SDPBackend
        from torchtitan.models.attention import ScaledDotProductAttentionWrapper
        from torchtitan.models.llama3.infra import parallelize
        from torchtitan.models.llama3.model.args import TransformerModelArgs as Args
        from torchtitan.models.llama3.model.model import Transformer
        # Without cuDNN, which it asks first and a dry device has not.
        ScaledDotProductAttentionWrapper.sdpa_backends = [SDPBackend.FLASH_ATTENTION]
    with torch.device("meta"):
        model = Transformer(arguments(Args, config, workload["batch"]["seq_len"]))
    float8.convert_torchtitan(model, strategy)
    mesh, names = ranks(strategy)
    if strategy["tp"] > 1:
        from torch.distributed.tensor.parallel import loss_parallel
        loss_parallel().__enter__()  # train_context, for the whole run
        parallelize.apply_tp(model, mesh["tp"], loss_parallel=True,
                             **({"enable_float8": False, "enable_async_tp": False} if old
                                else {"enable_float8_tensorwise_tp": False}))
    if strategy["recompute"] != "none":
        options = {} if old else {"op_sac_save_list": parallelize._op_sac_save_list}
        parallelize.apply_ac(model, checkpointing(strategy["recompute"]), **options)
    if workload["stack"]["compile"] == "block":
        compiled.compile_layers([model.layers])
    shard = parallelize.fully_shard
    if old:  # the root of torch 2.6 is never resharded, whatever it is told
        parallelize.fully_shard = lambda module, **given: shard(
            module, **{**given, **({"reshard_after_forward": None} if module is model else {})})
    parallelize.apply_fsdp(model, mesh[names if len(names) > 1 else names[0]], param_dtype=torch.bfloat16,
                           reduce_dtype={"bf16": torch.bfloat16}.get(strategy["grad_dtype"],
                                                                     torch.float32),
                           pp_enabled=False)
    parallelize.fully_shard = shard
    model.to_empty(device="cuda")
    torch.Tensor.erfinv_ = lambda tensor: tensor  # in place, and compiled while it runs: not when dry
    with torch.no_grad():
        model.init_weights(buffer_device=None)
    model.train()

    def loss_of(tokens, labels):
        """train.py: `pred` goes before the backward."""
        pred = model(tokens)
        flat = pred.flatten(0, 1).float()
        if old:
            return torch.nn.functional.cross_entropy(flat, labels.flatten(0, 1))
        loss = torch.nn.functional.cross_entropy(flat, labels.flatten(0, 1), reduction="sum",
                                                 ignore_index=-100)
        return loss / labels.numel()

    return model, loss_of

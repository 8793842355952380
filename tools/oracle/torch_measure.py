#!/usr/bin/env python3
"""What a training step really allocates in PyTorch: traces without a GPU, measurements with one.

  torch_measure.py --workload FILE --out FILE    measure one workload on the GPU
  torch_measure.py --sweep FILE --out DIR        measure a list of them, resumable
  torch_measure.py --dry-run …                   either without a GPU: PyTorch's memory, no time
  torch_measure.py --trace NAME|FILE [--out FILE]  every allocation of a step, without a GPU
  torch_measure.py --trace all --out DIR         regenerate tests/golden/traces

How the trace works without a GPU. dry_cuda.c (beside this file) is a CUDA runtime that computes
nothing: PyTorch finds one GPU, takes its CUDA branches, and asks its own caching allocator for
memory. The allocator's history therefore names every request that CUDA would see, in order:
operands, autograd's saved tensors, and the scratch that kernels ask for (FlashAttention's
dq_accum and softmax_d, cuBLAS workspaces, sort buffers), which tracing on CPU tensors would miss or
replace by what CPU kernels need (dropout noise in the compute dtype, fp32 copies inside
log_softmax). A TorchDispatchMode names the operator, the module and the autograd node around each
request. What a dry run cannot know:
  - which kernel SDPA takes on a card. On sm_90 PyTorch 2.11 prefers cuDNN's to FlashAttention; traces
    use FlashAttention (fp32: memory-efficient) unless the workload names another. cuDNN's is traced
    like the others (dry_cudnn.c): its plans are its own, for a GPU that is described to it.
  - anything outside the allocator: context, cuBLAS and NCCL internals.
  - occupancy-dependent scratch of reductions and sorts (some KiB).
  - data-dependent shapes: device memory reads as zeros; see routing.py for mixtures of experts.

One step is what transformers' Trainer does: loss = model(input_ids, labels).loss in a function that
returns only the loss, backward, optimizer step, zero_grad(set_to_none=True), use_cache off.
"""

import argparse
import contextlib
import ctypes
import functools
import gc
import hashlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from statistics import median
import activations
import adapters
import batches
import compiled
import data_parallel
import dry_host
import fsdp1
import flash_package
import flex_attention
import float8
import kept_ops
import liger
import optimizers
import other_code
import packed_base
import routing
import sdpa_kernels
import trl_head
import unsloth_kernels

HERE = os.path.dirname(os.path.abspath(__file__))
TRACE_SCHEMA = "plimsoll.trace/1"
EXIT_BAD_INPUT, EXIT_DEVICE = 2, 3


class BadInput(Exception):
    """A workload or option that cannot be: exit status 2."""


class NoDevice(Exception):
    """No GPU, or it failed: exit status 3."""


# ------------------------------------------------------------------------------------------------
# Workload: the `workload` object of plimsoll.plan/1. README.md beside this file has the table.
# ------------------------------------------------------------------------------------------------

STACK_DEFAULTS = {
    "name": "pytorch",
    "version": "2.11.0",
    "transformers_version": "5.17.0",
    "compile": False,
    "kernels": "eager",
    "fsdp_version": 2,
    **dict.fromkeys(fsdp1.KEYS),
    "fsdp_units": "layers",
    "fsdp_autocast": False,
    "optimizer_impl": "foreach",
    "sdpa_backend": "auto",
    "use_cache": False, "hold_outputs": False, "use_reentrant": None, "model_code": None,
    "allocator_conf": None, "bitsandbytes_version": None, "accelerated": None,
}
STRATEGY_DEFAULTS = {
    "zero": 0,
    "world_size": 1,
    "shard_group": None,
    "tp": 1,
    "sequence_parallel": False,
    "pp": 1,
    "pp_schedule": None,
    "virtual_stages": 1,
    "cp": 1, "ep": 1,
    "precision": "bf16-mixed",
    "param_dtype": None,
    "grad_dtype": None,
    "master_weights": None,
    "fsdp_upcast": True,
    "optimizer": "adamw",
    "optimizer_in_backward": False,
    "galore_rank": None,
    "recompute": "none",
    "attention": "flash", "loss": "full", "lora": None,
    "fp8_recipe": None, "fp8_all_gather": None,
    "quantize": None, "quant_storage": None, "kbit_prep": None, "kbit_casting": None,
    "freeze": [], "train": [], "rows": None, "data_parallel": None,
    "ddp": {"bucket_view": False, "bucket_cap_mb": 25, "wrap": None},
    "offload": [],
    "offload_to": "cpu",
}
BATCH_DEFAULTS = {"seq_len": 4096, "micro_batch": 1, "grad_accum": 1}

ACCEPTED = {
    "precision": ["fp32", "bf16-mixed", "fp16-mixed", "bf16", "fp16", "fp8-mixed"],
    "param_dtype": ["fp32", "bf16", "fp16"], "grad_dtype": [None, "fp32", "bf16", "fp16"],
    "zero": [0, 1, 2, 3], "fsdp_version": [1, 2],
    "optimizer": optimizers.NAMES,
    "attention": ["flash", "eager", "math", "flash-2", "flash-3", "cudnn", "efficient", "flex", "xformers"],
    "adapter_dtype": ["fp32", "bf16"],
    "optimizer_impl": ["foreach", "fused", "for-loop"],
    "fsdp_units": ["layers", "layers+ends", "accelerate"],
    "sdpa_backend": ["auto", "flash", "efficient", "cudnn", "math"],
    "kernels": ["eager", "liger", "fused", "unsloth"], "loss": ["full", "chunked", "fused", "tiled"],
    "compile": compiled.ACCEPTED,
    "offload": activations.ACCEPTED,
    **packed_base.ACCEPTED, **batches.ACCEPTED, **float8.ACCEPTED,
}
# Not measured: other parallelisms have no single way in plain PyTorch.
ONLY_DEFAULT = {
    "strategy": ["sequence_parallel", "pp", "pp_schedule", "virtual_stages", "cp", "ep",
                 "offload_to", "master_weights"],
    "stack": ["name"],
}


def filled(given, defaults, where):
    """defaults overlaid with given; a key that is not in the table is refused by name."""
    if not isinstance(given, dict):
        raise BadInput(f"{where}: an object is needed, not {json.dumps(given)[:60]}")
    for key in given:
        if key not in defaults:
            raise BadInput(f"{where}.{key}: unknown; known are {', '.join(sorted(defaults))}")
    return {**json.loads(json.dumps(defaults)), **given}


def accepted(value, key, where):
    if value not in ACCEPTED[key]:
        names = ", ".join(json.dumps(v) for v in ACCEPTED[key])
        raise BadInput(f"{where}.{key}: {json.dumps(value)} is not one of {names}")


def positive(value, name, least=1):
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise BadInput(f"{name}: a whole number of at least {least} is needed, not {value!r}")


def number(value, name):
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9:
        raise BadInput(f"{name}: a number is needed, not {value!r}")
    return float(value)


def normalised(workload):
    """The workload with every key of the table present, checked; the fingerprint is kept."""
    if not isinstance(workload, dict):
        raise BadInput("workload: an object is needed")
    for key in workload:
        if key not in ("fingerprint", "model", "stack", "strategy", "batch"):
            raise BadInput(f"workload.{key}: unknown")
    model = filled(workload.get("model", {}), {"name": None, "config": None}, "model")
    if not isinstance(model["config"], dict) or "model_type" not in model["config"]:
        raise BadInput("model.config: a Hugging Face config object with a model_type is needed")
    stack = filled(workload.get("stack", {}), STACK_DEFAULTS, "stack")
    strategy = filled(workload.get("strategy", {}), STRATEGY_DEFAULTS, "strategy")
    batch = batches.filled(workload.get("batch", {}), filled, BATCH_DEFAULTS)
    strategy["ddp"] = filled(strategy["ddp"] or {}, STRATEGY_DEFAULTS["ddp"], "strategy.ddp")
    if strategy["lora"] is not None:
        strategy["lora"] = adapters.filled(strategy["lora"], filled, BadInput)
        if "rank" in strategy["lora"]:
            positive(strategy["lora"]["rank"], "strategy.lora.rank")
        for key in ("alpha", "dropout"):
            if key in strategy["lora"]:
                strategy["lora"][key] = number(strategy["lora"][key], f"strategy.lora.{key}")
        accepted(strategy["lora"]["adapter_dtype"], "adapter_dtype", "strategy.lora")
    if strategy["param_dtype"] is None:
        strategy["param_dtype"] = {"bf16": "bf16", "fp16": "fp16"}.get(strategy["precision"],
                                                                       "fp32")
    packed_base.check(strategy, BadInput)
    for key, value in ACCEPTED.items():
        for where, part in (("strategy", strategy), ("stack", stack)):
            if key in part:
                accepted(part[key], key, where)
    for where, part in (("strategy", strategy), ("stack", stack)):
        defaults = STRATEGY_DEFAULTS if where == "strategy" else STACK_DEFAULTS
        for key in ONLY_DEFAULT[where]:
            if part[key] != defaults[key]:
                raise BadInput(f"{where}.{key}: {part[key]!r} is not measured by this program")
    float8.check(strategy, stack, BadInput)
    liger.check(stack["kernels"], strategy["loss"], BadInput)
    positive(strategy["world_size"], "strategy.world_size")
    data_parallel.check(strategy, BadInput)
    for key in batch:
        positive(batch[key], f"batch.{key}", 2 if key == "seq_len" else 1)
    recompute_interval(strategy["recompute"])
    other_code.check({"model": model, "stack": stack, "strategy": strategy}, BadInput)
    stack = {k: v for k, v in stack.items()
             if v is not None or k not in ("use_reentrant", "model_code", "bitsandbytes_version",
                                           "accelerated", *fsdp1.KEYS)}  # as always
    if strategy["rows"] in (None, "full"):
        del strategy["rows"]
    if strategy["data_parallel"] is None:
        del strategy["data_parallel"]
    return {"fingerprint": workload.get("fingerprint"), "model": model, "stack": stack,
            "strategy": strategy, "batch": batch}


def recompute_interval(kind):
    """0 for none and selective, k where each checkpoint covers k layers; sqrt depends on L."""
    if kept_ops.names_of(kind, BadInput):
        return 0
    if kind in ("none", "selective", "full", "sqrt", *other_code.CHECKPOINTS):
        return {"full": 1, "sqrt": None}.get(kind, 0)
    name, _, count = kind.partition(":") if isinstance(kind, str) else ("", "", "")
    if name in ("every", "block", "nth") and count.isdigit() and int(count):
        return int(count) if name == "every" else 1
    raise BadInput(f"strategy.recompute: {kind!r} is not none, selective, full, sqrt, every:K, block:N or nth:N")


def fingerprint(workload):
    """What reports/fingerprint.h computes: the first 16 hex digits of the SHA-256 of the workload
    without fingerprint and model.name, every key present, keys sorted, no spaces."""
    plain = json.loads(json.dumps(normalised(workload)))
    del plain["fingerprint"], plain["model"]["name"]
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# ------------------------------------------------------------------------------------------------
# The dry device
# ------------------------------------------------------------------------------------------------

def start_dry_cuda(capacity_bytes=150109880320, capability=(9, 0), multiprocessors=132):
    """Loads dry_cuda.c before torch is imported. Default: a Hopper of H200's size."""
    if "torch" in sys.modules:
        raise RuntimeError("the dry CUDA runtime must be loaded before torch")
    try:
        library = dry_host.compiled("dry_cuda.c", "-Wl,-soname,libcuda.so.1")
    except (OSError, subprocess.CalledProcessError) as e:
        raise NoDevice(f"the dry CUDA runtime needs a C compiler: {e}") from e
    dry = ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    data_parallel.load_no_nccl()
    dry.plimsoll_dry_gpu(b"dry sm_%d%d" % capability, ctypes.c_uint64(capacity_bytes),
                         *capability, multiprocessors)
    sdpa_kernels.load_dry_cudnn(b"dry sm_%d%d" % capability, capacity_bytes, capability, multiprocessors)
    import torch
    if not torch.version.cuda or int(torch.version.cuda.split(".")[0]) not in (12, 13):
        raise NoDevice("the dry CUDA runtime has the layouts of CUDA 12 and 13; "
                       f"torch {torch.__version__} is built for {torch.version.cuda or 'no CUDA'}")
    # What is not asked for by name is FlashAttention (see the top of this file).
    torch.backends.cuda.enable_cudnn_sdp(False)
    answer_for_the_data()
    liger.launch_no_triton()
    compiled.build_no_triton()


def managed_bytes():
    """What was asked of cudaMallocManaged so far: outside torch's allocator."""
    answer = ctypes.CDLL(None).plimsoll_dry_managed
    answer.restype = ctypes.c_uint64
    return answer()


def answer_for_the_data():
    """Transformers asks the data twice: do position_ids restart inside a row (packed sequences), is
    a padding mask all ones? They do not, it is, unless the workload's rows say otherwise
    (batches.py); a dry read of zeros always does. The operators still run. Transformers before 4.53
    asks neither."""
    try:
        from transformers import masking_utils
    except ImportError:
        return flash_package.offer_to_older()
    restarts = masking_utils.find_packed_sequence_indices
    all_ones = getattr(masking_utils, "fast_all", lambda mask: None)  # 5.0 and later

    def numbered(position_ids):
        numbers = restarts(position_ids)
        return numbers if batches.asked == "flattened" else None

    def unpadded(mask):
        all_ones(mask)
        return batches.asked != "padded"

    flash_package.offer()
    masking_utils.find_packed_sequence_indices = numbered
    masking_utils.fast_all = unpadded


# ------------------------------------------------------------------------------------------------
# Building what the workload describes
# ------------------------------------------------------------------------------------------------

def torch_dtype(name):
    import torch
    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[name]


def short_dtype(dtype):
    return {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "float64": "fp64",
            "int64": "i64", "int32": "i32", "uint64": "u64", "uint8": "u8",
            "bool": "bool"}.get(str(dtype).split(".")[-1], str(dtype).split(".")[-1])


def auto_class(config):
    """The class that Transformers makes of a config.json: classifiers by its `architectures`."""
    import transformers
    if batches.classifies(config):
        return transformers.AutoModelForSequenceClassification
    model_type = config["model_type"]
    if model_type in ("bert", "roberta"):
        return transformers.AutoModelForMaskedLM
    if model_type == "t5":
        return transformers.AutoModelForSeq2SeqLM
    return transformers.AutoModelForCausalLM


def hf_config(model, stack):
    import transformers
    # A copy: Transformers completes rope_scaling in place.
    fields = {k: v for k, v in json.loads(json.dumps(model["config"])).items()
              if k not in ("architectures", "transformers_version", "torch_dtype", "dtype")}
    config = transformers.AutoConfig.for_model(**fields)
    config.use_cache = stack["use_cache"]
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = 0
    # GenericForSequenceClassification takes one row without it.
    if batches.classifies(model["config"]) and getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = 0
    return config


def sharded(strategy):
    return strategy["zero"] >= 2


def is_layer(module, model):
    """A transformer layer: marked by its class, before Transformers 4.52 named by the model."""
    module = compiled.inside(module)
    try:
        from transformers.modeling_layers import GradientCheckpointingLayer
    except ImportError:
        return type(module).__name__ in (model._no_split_modules or [])
    return isinstance(module, GradientCheckpointingLayer)


def layer_lists(model):
    """Every ModuleList of transformer layers, encoder and decoder alike, with its path."""
    import torch
    found = []
    for path, module in model.named_modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) and all(
                is_layer(m, model) for m in module):
            found.append((path, module))
    return found


class LayerGroup:
    """Namespace for `every:K`: K layers behind one checkpoint (the model's loop sees one layer)."""

    @staticmethod
    def wrap(model, interval, reentrant):
        import torch
        from torch.utils.checkpoint import checkpoint

        class Group(torch.nn.Module):
            def __init__(self, layers):
                super().__init__()
                self.layers = torch.nn.ModuleList(layers)

            def __getattr__(self, name):
                try:
                    return super().__getattr__(name)
                except AttributeError:  # what the model's loop asks of a layer (attention_type …)
                    return getattr(super().__getattr__("layers")[0], name)

            def run(self, hidden, *args, **kwargs):
                for layer in self.layers:
                    hidden = layer(hidden, *args, **kwargs)
                return hidden

            def forward(self, hidden, *args, **kwargs):
                run = functools.partial(self.run, **kwargs)  # reentrant ones take no keywords
                return checkpoint(run, hidden, *args, use_reentrant=reentrant)

        for path, layers in layer_lists(model):
            size = interval or int((len(layers) - 1) ** 0.5) + 1  # models/decisions/layer.h
            groups = [Group(layers[i:i + size]) for i in range(0, len(layers), size)]
            parent = model.get_submodule(path.rpartition(".")[0])
            setattr(parent, path.rpartition(".")[2], torch.nn.ModuleList(groups))


def keep_some_checkpoints(model, kind):
    """Of a model whose layers are checkpoints: the first N alone stay so (block:N), or every Nth (nth:N)."""
    name, count = kind.split(":")[0], int(kind.split(":")[1])
    for _, layers in layer_lists(model):
        if count > len(layers) or not all(hasattr(layer, "gradient_checkpointing") for layer in layers):
            raise BadInput(f"strategy.recompute: {kind} of layers that are not checkpoints by themselves")
        for number, layer in enumerate(layers, 1):
            layer.gradient_checkpointing = number <= count if name == "block" else number % count == 0


def select_recompute(model, kind, options):
    interval = recompute_interval(kind)
    if kind == "none":
        return
    if kind == "full" or kind.startswith(("block:", "nth:")):
        # None: under FSDP1 it matters which kind a release takes of itself: reentrant until 5.0.
        model.gradient_checkpointing_enable(options)
        if kind != "full":
            keep_some_checkpoints(model, kind)
    elif kind == "selective":
        kept_ops.checkpoint_core_attention(model, BadInput)
    elif names := kept_ops.names_of(kind, BadInput):
        kept_ops.apply(model, names)
    else:
        if not layer_lists(model):
            raise BadInput(f"strategy.recompute: {kind} needs a model whose layers are one list")
        LayerGroup.wrap(model, interval, bool((options or {}).get("use_reentrant")))


def dtype_argument():
    """Transformers 4.56 renamed torch_dtype."""
    import transformers
    version = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    return "dtype" if version >= (4, 56) else "torch_dtype"


def build_model(workload, device):
    """The Transformers model with adapters and recompute, on device (meta before sharding)."""
    import torch
    routing.answer_the_loops()
    stack, strategy = workload["stack"], workload["strategy"]
    config = hf_config(workload["model"], stack)
    implementation = {"eager": "eager", "flash-2": "flash_attention_2",
                      "flash-3": "flash_attention_3", "flex": "flex_attention"}.get(strategy["attention"], "sdpa")
    fast = unsloth_kernels.patcher(workload) if unsloth_kernels.asked(workload) else None
    if fast:
        implementation = "eager"  # its from_pretrained's, whatever runs
    with torch.device("meta" if strategy["quantize"] else device):
        model = auto_class(workload["model"]["config"]).from_config(
            config, attn_implementation=implementation,
            **{dtype_argument(): torch_dtype(strategy["param_dtype"])})
    model = packed_base.with_packed_base(model, strategy, device)
    model.train()
    if fast:
        return unsloth_kernels.with_adapters(model, workload, fast)
    for patterns, trainable in ((strategy["freeze"], False), (strategy["train"], True)):
        for name, p in model.named_parameters():
            if any(pattern in name for pattern in patterns):
                p.requires_grad_(trainable)
    usual = sharded(strategy) and stack["fsdp_version"] == 1 and "use_reentrant" not in stack
    options = None if usual else {"use_reentrant": stack.get("use_reentrant", False)}
    model = packed_base.kbit_prepared(model, strategy, options)
    trl_head.apply(model, strategy["loss"])
    liger.apply(model, stack["kernels"], strategy["loss"])  # before every:K hides layers from it
    if not stack.get("fsdp_activation_checkpointing"):
        select_recompute(model, strategy["recompute"], options)
    if stack["compile"] == "block":
        compiled.compile_layers([layers for _, layers in layer_lists(model)])
    return packed_base.cast_behind_kbit(adapters.with_adapters(model, strategy, stack["kernels"]), strategy)


def start_process_group(world_size, rank=0):
    """One rank of world_size with no peers: collectives return at once, buffers are real."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore
    if not dist.is_initialized():
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
        # DDP gathers every rank's parameter count first; a peer that does not exist has none.
        torch.nn.parallel.distributed._verify_param_shape_across_processes = lambda *a, **k: None
    torch.cuda.set_device(0)


def shard_fsdp2(model, strategy, stack):
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
    world, group = strategy["world_size"], strategy["shard_group"] or strategy["world_size"]
    mesh = init_device_mesh("cuda", (world,)) if group == world else init_device_mesh(
        "cuda", (world // group, group), mesh_dim_names=("replicate", "shard"))
    policy = MixedPrecisionPolicy()
    if strategy["precision"].endswith("-mixed"):
        policy = MixedPrecisionPolicy(
            param_dtype=torch_dtype(float8.low(strategy["precision"])),
            reduce_dtype=torch_dtype(strategy["grad_dtype"] or "fp32"))
    options = {"mesh": mesh, "mp_policy": policy, "reshard_after_forward": strategy["zero"] == 3}
    home = "cuda"
    if "params" in strategy["offload"]:
        home, options["offload_policy"] = "cpu", CPUOffloadPolicy()
    for _, layers in layer_lists(model):
        for layer in layers:
            fully_shard(layer, **options)
    if stack["fsdp_units"] == "layers+ends":
        fully_shard(model.get_input_embeddings(), **options)
        head = model.get_output_embeddings()
        if head is not None and head.weight is not model.get_input_embeddings().weight:
            fully_shard(head, **{**options, "reshard_after_forward": False})
    elif stack["fsdp_units"] == "accelerate":
        shard_ends_as_accelerate(model, options)
    # None: the root stays unsharded between forward and backward, torch's own default.
    fully_shard(model, **{**options,
                          "reshard_after_forward": None if strategy["zero"] == 3 else False})
    model.to_empty(device=home)
    model.apply(initialised_module)
    for module in model.modules():  # as Accelerate registers them anew
        for name, buffer in module.named_buffers(recurse=False):
            module.register_buffer(name, buffer.to("cuda"), persistent=False)
    return model


def shard_ends_as_accelerate(model, options):
    """What fsdp2_prepare_model of Accelerate 1.15 (utils/fsdp_utils.py) does after the layers: the
    embedding, then a tail of final norm and head that is not resharded after forward. A tied table
    belongs to the tail and stands before the head, so that it is gathered when the forward begins."""
    from accelerate.utils.fsdp_utils import _find_final_norm
    from torch.distributed.fsdp import fully_shard
    table, head = model.get_input_embeddings(), model.get_output_embeddings()
    tied = head is not None and head.weight is table.weight
    if not tied:
        fully_shard(table, **options)
    tail = [_find_final_norm(model), table, head] if tied else [_find_final_norm(model), head]
    fully_shard([m for m in tail if m is not None], **{**options, "reshard_after_forward": False})


def initialised_module(module):
    """After to_empty: small random weights, and the buffers that rotary embeddings compute."""
    import torch
    for p in module.parameters(recurse=False):
        with torch.no_grad():
            (p.data.normal_(0, 0.02) if p.dim() > 1 else p.data.fill_(1.0))
    inv_freq = getattr(module, "inv_freq", None)
    if inv_freq is not None and hasattr(module, "config"):
        with torch.device("cpu"):
            fresh = type(module)(config=module.config)
        for name, buffer in fresh.named_buffers(recurse=False):
            getattr(module, name).copy_(buffer)


def initialised_and_tied(model):
    """A param_init_fn that gives modules which share a parameter one again, as Accelerate's does
    (utils/fsdp_utils.py, ensure_weights_retied)."""
    owners = {}
    for module in model.modules():
        for name, p in module.named_parameters(recurse=False):
            owners.setdefault(id(p), []).append((module, name))
    group_of = {(id(m), name): group for group in owners.values() for m, name in group}
    first = {}

    def initialise(module):
        names = [name for name, _ in module.named_parameters(recurse=False)]
        module.to_empty(device="cuda", recurse=False)
        initialised_module(module)
        for name in names:
            group = group_of[id(module), name]
            if len(group) > 1:
                setattr(module, name, first.setdefault(id(group), getattr(module, name)))
    return initialise


def distributed(model, workload):
    """model inside DDP or FSDP as the workload says; world size 1 without sharding is plain."""
    import torch
    stack, strategy = workload["stack"], workload["strategy"]
    if strategy["zero"] == 0 and strategy["world_size"] == 1 and not strategy["ddp"]["wrap"]:
        return model
    if data_parallel.asked(workload):
        return torch.nn.DataParallel(model)
    start_process_group(strategy["world_size"])
    if sharded(strategy):
        if stack["fsdp_version"] == 2:
            return shard_fsdp2(model, strategy, stack)
        classes = tuple({type(layer) for _, layers in layer_lists(model) for layer in layers})
        return fsdp1.shard(model, workload, classes, initialised_and_tied(model), torch_dtype)
    options = {"gradient_as_bucket_view": strategy["ddp"]["bucket_view"]}
    if strategy["ddp"]["bucket_cap_mb"] != 25:
        options["bucket_cap_mb"] = strategy["ddp"]["bucket_cap_mb"]
    replica = torch.nn.parallel.DistributedDataParallel(model, device_ids=[0], **options)
    replica.register_comm_hook(None, unanswered_all_reduce)
    return replica


def unanswered_all_reduce(_, bucket):
    """What DDP does to a bucket, without peers: the fake group's own future carries no tensor."""
    import torch
    buffer = bucket.buffer()
    buffer.div_(torch.distributed.get_world_size())
    future = torch.futures.Future(devices=[buffer.device])
    future.set_result(buffer)
    return future


class Training:
    """One rank's model, optimizer and batch; step() calls mark(phase) at each boundary."""

    def __init__(self, workload, device="cuda"):
        import torch
        self.workload, self.device = unsloth_kernels.on_its_card(workload), device
        strategy = workload["strategy"]
        build_on = "meta" if sharded(strategy) else device
        if not torch.cuda.is_available():
            raise NoDevice("torch sees no CUDA device")
        self.own_loss, self.on_host = None, contextlib.nullcontext()
        if "model_code" in workload["stack"]:
            start_process_group(strategy["world_size"])
            self.model, self.own_loss = other_code.build(workload)
            self.flops, self.vocabulary = None, workload["model"]["config"]["vocab_size"]
        else:
            inner = build_model(workload, build_on)
            self.flops = flop_counts(inner, workload)
            self.vocabulary = inner.get_input_embeddings().weight.shape[0]
            float8.convert(inner, strategy)
            self.on_host = activations.manager(inner, workload)
            self.model = distributed(inner, workload)
        if workload["stack"]["compile"] in (True, "model"):
            self.model = torch.compile(self.model)
        self.names = {id(m): clean(path) for path, m in self.model.named_modules()}
        self.optimizer = optimizers.build(self.model, workload)
        mixed = strategy["precision"].endswith("-mixed")
        uses_autocast = mixed and (not sharded(strategy) or workload["stack"]["fsdp_autocast"])
        self.autocast_dtype = torch_dtype(float8.low(strategy["precision"])) if uses_autocast \
            else None
        scaled = strategy["precision"] == "fp16-mixed"
        self.scaler = torch.amp.GradScaler(device) if scaled else None
        self.ids = torch.randint(0, self.vocabulary, batches.shape(workload), device=device)
        self.labels = batches.labels(workload, self.ids)
        self.beside = batches.beside(workload, self.ids)

    def forward(self):
        import torch
        if self.own_loss:
            with sdpa_kernels.of_forward(self.workload):
                return self.own_loss(self.ids, self.ids)
        context = torch.autocast(self.device, self.autocast_dtype) if self.autocast_dtype else \
            contextlib.nullcontext()
        if trl_head.asked(self.workload):
            return trl_head.loss(self.model, self.ids, self.labels, context, self.beside)
        with sdpa_kernels.of_forward(self.workload):
            output = batches.outputs(self.workload, context, self.model, self.ids, self.labels, self.beside)
        self.held = output if self.workload["stack"]["hold_outputs"] else None
        return output.loss.mean() if data_parallel.asked(self.workload) else output.loss

    def synchronised(self, last):
        """Gradients are exchanged with the last micro-batch only, as Accelerate does."""
        if last:
            return contextlib.nullcontext()
        if hasattr(self.model, "no_sync"):
            return self.model.no_sync()
        if hasattr(self.model, "set_requires_gradient_sync"):
            self.model.set_requires_gradient_sync(False)
        return contextlib.nullcontext()

    def step(self, mark=lambda phase: None):
        count = self.workload["batch"]["grad_accum"]
        loss_value = None
        for micro in range(count):
            last = micro == count - 1
            with self.synchronised(last), self.on_host:
                if last and count > 1 and hasattr(self.model, "set_requires_gradient_sync"):
                    self.model.set_requires_gradient_sync(True)
                mark(f"forward{micro or ''}")
                loss = self.forward()
                if count > 1:
                    loss = loss / count
                mark(f"backward{micro or ''}")
                optimizers.backward(self.optimizer,
                                    self.scaler.scale(loss) if self.scaler else loss)
                loss_value = loss.detach()
                del loss
                self.held = None
        mark("optimizer")
        if self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        float8.after_step(self.model, self.workload["strategy"])
        mark("zero_grad")
        self.optimizer.zero_grad(set_to_none=True)
        mark("end")
        return loss_value


def clean(path):
    for wrapper in ("_fsdp_wrapped_module.", "_orig_mod.", "_checkpoint_wrapped_module."):
        path = path.replace(wrapper, "")
    return path[len("module."):] if path.startswith("module.") else path


# ------------------------------------------------------------------------------------------------
# Trace
# ------------------------------------------------------------------------------------------------

class Observer:
    """Names what happens around each allocation: the operator (from a TorchDispatchMode), the
    module (forward hooks; in backward the module of the node's forward) and the autograd node."""

    def __init__(self, training):
        import torch
        from torch.utils._python_dispatch import TorchDispatchMode
        self.torch, self.names = torch, training.names
        self.parameters = {id(p): clean(n) for n, p in training.model.named_parameters()}
        self.ops = []           # (phase, module, op, node)
        self.outputs = {}       # (op index, storage address) -> (dtype, shape)
        self.module_of_node = {}
        self.stack = []
        self.phase = "build"
        # What distributed tensors of a layer run are ops of their own; of FSDP alone there are none.
        self.divided = training.workload["strategy"]["tp"] > 1
        observer = self

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                if observer.divided:
                    names = {kind.__name__ for kind in types}
                    if "FakeTensor" in names:
                        return func(*args, **(kwargs or {}))
                    if names & {"DTensor", "AsyncCollectiveTensor"}:
                        return NotImplemented
                return observer.dispatch(func, args, kwargs or {})

        self.mode = Mode()

    def enter_module(self, module, inputs):
        if id(module) in self.names:
            self.stack.append(id(module))

    def leave_module(self, module, inputs, output):
        while self.stack and self.stack[-1] != id(module):
            self.stack.pop()    # a module that an exception left (early stop of a recomputation)
        if self.stack:
            self.stack.pop()

    def place(self):
        """(phase, module, node) of what runs now."""
        node = self.torch._C._current_autograd_node()
        module = self.names.get(self.stack[-1], "") if self.stack else ""
        if node is None:
            return self.phase, module, ""
        name = node.name().split("::")[-1]
        if self.stack:
            return self.phase.replace("backward", "recompute"), module, name
        if hasattr(node, "variable"):
            return self.phase, self.parameters.get(id(node.variable), ""), name
        return self.phase, self.module_of_node.get(node._sequence_nr(), ""), name

    def dispatch(self, func, args, kwargs):
        torch = self.torch
        phase, module, node = self.place()
        if not node:
            self.module_of_node.setdefault(torch._C._autograd._get_sequence_nr() - 1, module)
        index = len(self.ops)
        self.ops.append((phase, module, str(func).replace(".default", ""), node))
        torch._C._cuda_setMemoryMetadata(str(index))
        result = func(*args, **kwargs)
        torch._C._cuda_setMemoryMetadata(f"{index}+")
        for t in result if isinstance(result, (list, tuple)) else (result,):
            self.note(index, t)
        return result

    def note(self, index, t):
        torch = self.torch
        if isinstance(t, (list, tuple)):
            for x in t:
                self.note(index, x)
        elif isinstance(t, torch.Tensor) and type(t) is torch.Tensor and t.is_cuda \
                and t.layout == torch.strided:
            address = t.untyped_storage().data_ptr()
            self.outputs.setdefault((index, address), (short_dtype(t.dtype), list(t.shape)))

    @contextlib.contextmanager
    def watching(self):
        from torch.nn.modules import module as hooks
        handles = [hooks.register_module_forward_pre_hook(self.enter_module),
                   hooks.register_module_forward_hook(self.leave_module, always_call=True)]
        try:
            with self.mode:
                yield
        finally:
            for handle in handles:
                handle.remove()


def saved_tensors(root, observer):
    """What the autograd graph behind root holds: rows (node, module, field, storage address,
    storage bytes, dtype, shape). A tensor behind a checkpoint's hook shows as what is packed; nothing
    is unpacked (`saved_tensors` of an autograd.Function would run the checkpoint's forward)."""
    import torch
    rows, seen, pending = [], set(), [root.grad_fn]
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        fields = sorted(f for f in dir(node) if f.startswith("_raw_saved_"))
        module = observer.module_of_node.get(node._sequence_nr(), "")
        for field in fields:
            try:
                value = getattr(node, field)
            except RuntimeError:
                continue
            for i, one in enumerate(value if isinstance(value, (list, tuple)) else [value]):
                data = local_of(getattr(one, "data", None))
                if isinstance(data, torch.Tensor) and data.is_cuda:
                    suffix = str(i) if isinstance(value, (list, tuple)) else ""
                    storage = data.untyped_storage()
                    rows.append((node._sequence_nr(), node.name().split("::")[-1], module,
                                 field[len("_raw_saved_"):] + suffix, storage.data_ptr(),
                                 storage.nbytes(), short_dtype(data.dtype), list(data.shape)))
        pending.extend(edge[0] for edge in node.next_functions)
    rows.sort(key=lambda r: (r[0], r[1], r[3]))
    return [r[1:] for r in rows]


def local_of(tensor):
    """This rank's part of a distributed tensor, and what a collective's result is behind its wait."""
    for inner in ("_local_tensor", "elem"):
        tensor = getattr(tensor, inner, tensor)
    return tensor


class Recorder:
    """Two training steps under observation, then the document that --trace writes."""

    def __init__(self, workload):
        import torch
        self.torch, self.workload = torch, unsloth_kernels.on_its_card(workload)
        self.boundaries = []    # (step, phase), one per mark in the allocator's history
        self.owners = []        # (boundary index, address, role, label)
        self.saved = []
        self.training = self.observer = None

    def mark(self, step, phase):
        """A boundary inside the history itself: one byte, allocated and released."""
        torch = self.torch
        torch._C._cuda_setMemoryMetadata("mark")
        torch.cuda.caching_allocator_delete(torch.cuda.caching_allocator_alloc(1))
        torch._C._cuda_setMemoryMetadata("")
        self.boundaries.append((step, phase))
        if self.observer and phase != "saved":
            self.observer.phase = phase

    def own(self, tensor, role, label):
        local = getattr(tensor, "_local_tensor", tensor)
        if hasattr(local, "qdata"):  # torchao's
            return [self.own(getattr(local, part), role, f"{label}.{part}")
                    for part in local.__tensor_flatten__()[0]]
        if isinstance(local, self.torch.Tensor) and local.is_cuda:
            self.owners.append((len(self.boundaries) - 1, local.untyped_storage().data_ptr(), role,
                                label, short_dtype(local.dtype), list(local.shape)))

    def own_model(self):
        training = self.training
        for name, p in training.model.named_parameters():
            self.own(p, "parameter", clean(name))
        for name, b in training.model.named_buffers():
            self.own(b, "buffer", clean(name))
        self.own(training.ids, "input", "input_ids")
        for name, tensor in training.beside.items():
            self.own(tensor, "input", name)
        optimizer = getattr(training.optimizer, "optim", training.optimizer)
        for p, state in optimizer.state.items():
            for key in sorted(state, key=str):
                name = self.observer.parameters.get(id(p), "")
                self.own(state[key], "optimizer", f"{key} {name}")

    def run(self):
        torch = self.torch
        strategy = self.workload["strategy"]
        # DDP replaces its buckets at the start of the second step: its third is the steady one.
        replicated = strategy["zero"] < 2 and not data_parallel.asked(self.workload) and (
            strategy["world_size"] > 1 or strategy["ddp"]["wrap"])
        steps = 3 if replicated else 2
        data_parallel.trace_one_thread(self.workload)
        gc.collect()
        gc.disable()    # releases happen where reference counts say so, the same every time
        self.start_history()
        self.mark(0, "build")
        self.training = Training(self.workload)
        self.observer = Observer(self.training)
        entries = self.observe(1, steps, started=True)
        gc.enable()
        return entries

    def start_history(self):
        self.torch.cuda.memory._record_memory_history(
            enabled="all", context=None, stacks="python", max_entries=10_000_000)

    def observe(self, first, last, started=False):
        """Steps first … last under observation; the allocator's history of them."""
        torch = self.torch
        if not started:
            self.start_history()
        inner_forward = self.training.forward
        flex_attention.out_of_modes(self.workload)
        step = 0

        def at(phase):
            self.mark(step, phase)
            if phase == "zero_grad":
                for name, p in self.training.model.named_parameters():
                    if p.grad is not None:
                        self.own(p.grad, "gradient", clean(name))

        def forward():
            loss = inner_forward()
            if step == last and self.observer.phase == "forward":
                self.mark(step, "saved")
                self.saved = saved_tensors(loss, self.observer)
            return loss

        self.training.forward = forward
        with self.observer.watching():
            for step in range(first, last + 1):
                self.training.step(at)
        self.training.forward = inner_forward
        self.own_model()
        entries = torch.cuda.memory._snapshot()["device_traces"][0]
        torch.cuda.memory._record_memory_history(enabled=None)
        return entries


def intervals(entries, initial=()):
    """(allocations, positions of the marks). `initial`: rows that were live before.

    Allocations and releases are numbered in order; an allocation has born, dies (null: still
    there), bytes as requested, address, and the tag of the operator that asked and of the one that
    let go (N: inside operator N, N+: after it)."""
    allocations, marks, position, marker = list(initial), [], 0, None
    live = {row["address"]: row for row in allocations}
    for e in entries:
        if e["action"] == "alloc" and e["user_metadata"] == "mark":
            marks.append(position)
            marker = e["addr"]
        elif e["action"] == "alloc":
            row = {"born": position, "dies": None, "bytes": e["size"], "address": e["addr"],
                   "asked": e["user_metadata"], "released": None, "stream": e["stream"]}
            live[e["addr"]] = row
            allocations.append(row)
            position += 1
        elif e["action"] == "free_requested" and e["addr"] == marker:
            marker = None
        elif e["action"] == "free_requested":
            row = live.pop(e["addr"])
            row["dies"], row["released"] = position, e["user_metadata"]
            position += 1
    order_releases(allocations, marks)
    return allocations, marks + [position]


def order_releases(allocations, marks):
    """Releases that follow each other without anything between change nothing by their order, and
    some have none (autocast's cache is a hash map over addresses): oldest allocation first."""
    released = {a["dies"]: a for a in allocations if a["dies"] is not None}
    run = []
    for position in sorted(released) + [None]:
        together = run and position is not None and position == run[-1] + 1 and \
            position not in marks and \
            released[position]["released"] == released[run[-1]]["released"]
        if run and not together:
            rows = sorted((released[p] for p in run), key=lambda a: a["born"])
            for p, row in zip(run, rows):
                row["dies"] = p
            run = []
        run.append(position)


def block_bytes(size):
    """What the caching allocator hands out for a request: multiples of 512 bytes
    (c10/cuda/CUDACachingAllocator.cpp, round_size). memory_allocated() counts these."""
    return max(512, (size + 511) // 512 * 512)


def phase_table(allocations, marks, boundaries):
    """Per phase the bytes live at its begin and end, and the highest between, as requested and as
    blocks of 512 bytes; peak_at is the number of the allocation event that reached it."""
    change, rows, live, blocks = {}, [], 0, 0
    for a in allocations:
        if a["born"] < 0:
            live += a["bytes"]
            blocks += block_bytes(a["bytes"])
        else:
            change[a["born"]] = a["bytes"]
        if a["dies"] is not None:
            change[a["dies"]] = -a["bytes"]
    for (step, phase), begin, end in zip(boundaries, marks, marks[1:]):
        row = {"step": step, "phase": phase, "begin": begin, "end": end, "begin_bytes": live,
               "peak_bytes": live, "peak_at": begin, "peak_block_bytes": blocks}
        for position in range(begin, end):
            delta = change[position]
            live += delta
            blocks += block_bytes(delta) if delta > 0 else -block_bytes(-delta)
            if live > row["peak_bytes"]:
                row["peak_bytes"], row["peak_at"] = live, position
            row["peak_block_bytes"] = max(row["peak_block_bytes"], blocks)
        row["end_bytes"] = live
        rows.append(row)
    return rows


class Names:
    """Strings by index, in order of first use."""

    def __init__(self):
        self.index = {}

    def __call__(self, text):
        return self.index.setdefault(text, len(self.index))

    def list(self):
        return list(self.index)


def assign_owners(allocations, marks, owners):
    """Sets role, label, dtype and shape on the allocations that hold model state."""
    for boundary, address, role, label, dtype, shape in owners:
        at = marks[boundary] if role == "gradient" else marks[-1]
        for a in allocations:
            if a["address"] <= address < a["address"] + max(a["bytes"], 1) and a["born"] < at and (
                    a["dies"] is None or a["dies"] >= at):
                if "role" in a and label not in a["label"].split(", "):
                    a["label"] += ", " + label
                elif "role" not in a:
                    a.update({"dtype": dtype, "shape": shape, **a, "role": role, "label": label})


def trace_document(name, recorder, entries):
    observer = recorder.observer
    allocations, marks = intervals(entries)
    boundaries = recorder.boundaries
    phases = phase_table(allocations, marks, boundaries)
    for a in allocations:
        if a["asked"].isdigit():
            found = observer.outputs.get((int(a["asked"]), a["address"]))
            if found:
                a["dtype"], a["shape"] = found
    assign_owners(allocations, marks, recorder.owners)
    last = max(step for step, _ in boundaries)
    begin = next(row["begin"] for row in phases if row["step"] == last)
    modules, operators, nodes, dtypes, ops, op_index = (Names(), Names(), Names(), Names(), [], {})
    streams = {0: 0}

    def op_of(tag):
        number = tag.rstrip("+")
        if not number:
            return None
        if number not in op_index:
            phase, module, op, node = observer.ops[int(number)]
            op_index[number] = len(ops)
            ops.append([phase, modules(module), operators(op), nodes(node)])
        return op_index[number]

    initial, rows, row_of = [], [], {}
    for a in allocations:
        if a["dies"] is not None and a["dies"] < begin:
            continue
        shape = [dtypes(a["dtype"]), a["shape"]] if "dtype" in a else [None, None]
        if a["born"] < begin:
            op = observer.ops[int(a["asked"].rstrip("+"))][2] if a["asked"].rstrip("+") else ""
            kept = "buffer kept by " if "dtype" in a else "scratch kept by "
            role = a.get("role", kept + op if op else "other")
            initial.append([a["dies"], a["bytes"], *shape, role, a.get("label", "")])
        else:
            row_of[id(a)] = len(rows)
            freed = op_of(a["released"]) if a["dies"] is not None else None
            rows.append([a["born"], a["dies"], a["bytes"], *shape, op_of(a["asked"]), freed,
                         streams.setdefault(a["stream"], len(streams)), a.get("role", ""),
                         a.get("label", "")])
    saved_at = marks[max(i for i, b in enumerate(boundaries) if b == (last, "saved"))]
    saved = []
    for node, module, field, address, bytes_, dtype, shape in recorder.saved:
        owner = next((a for a in allocations if a["address"] <= address < a["address"] +
                      max(1, a["bytes"]) and a["born"] < saved_at and
                      (a["dies"] is None or a["dies"] >= saved_at)), None)
        where = row_of.get(id(owner)) if owner else None
        state = owner.get("label", "") if owner and where is None else ""
        saved.append([nodes(node), modules(module), field, where, state, bytes_, dtypes(dtype),
                      shape])
    return {"schema": TRACE_SCHEMA, "name": name, "versions": versions(recorder.workload),
            "workload": recorder.workload, "phases": phases, "initial": initial, "ops": ops,
            "allocations": rows, "saved": saved,
            "names": {"modules": modules.list(), "operators": operators.list(),
                      "nodes": nodes.list(), "dtypes": dtypes.list()}}


def versions(workload=None):
    import importlib.metadata as metadata
    import torch
    found = {"torch": torch.__version__, "cuda": torch.version.cuda}
    packs = ("bitsandbytes",) * packed_base.needs_bitsandbytes(workload)
    packs += unsloth_kernels.PACKAGES * bool(workload and unsloth_kernels.asked(workload))
    for package in ("transformers", "accelerate", "peft") + packs + optimizers.packages(workload):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def to_text(document):
    """One key per line, and one row per line inside the long lists: diffs stay readable."""
    lines = []
    for key, value in document.items():
        if isinstance(value, list) and value and isinstance(value[0], (list, dict)):
            body = ",\n".join(json.dumps(row, separators=(",", ":")) for row in value)
            lines.append(f"{json.dumps(key)}:[\n{body}\n]")
        else:
            lines.append(f"{json.dumps(key)}:{json.dumps(value, separators=(',', ':'))}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


# ------------------------------------------------------------------------------------------------
# Measurement: plimsoll.measurement/1 (reports/schema/plimsoll.measurement-1.json)
# ------------------------------------------------------------------------------------------------

MEASUREMENT_SCHEMA = "plimsoll.measurement/1"
VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "CUDA_MODULE_LOADING",
             "CUBLAS_WORKSPACE_CONFIG", "CUBLASLT_WORKSPACE_SIZE", "CUDA_VISIBLE_DEVICES",
             "CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS", "TORCH_CUDNN_SDPA_PREFERRED",
             "NCCL_NVLS_ENABLE", "NCCL_MAX_CTAS", "OMP_NUM_THREADS")
# Dense peak FLOP/s by name and dtype, from NVIDIA's data sheets (sparsity excluded). fp32 is that
# of the CUDA cores: PyTorch leaves TF32 off for matrix products.
PEAKS = [("H200", {"bf16": 989.4e12, "fp16": 989.4e12, "fp32": 66.9e12}),
         ("H100 PCIe", {"bf16": 756e12, "fp16": 756e12, "fp32": 51.2e12}),
         ("H100 NVL", {"bf16": 835e12, "fp16": 835e12, "fp32": 60e12}),
         ("H100", {"bf16": 989.4e12, "fp16": 989.4e12, "fp32": 66.9e12}),
         ("B200", {"bf16": 2250e12, "fp16": 2250e12, "fp32": 80e12}),
         ("A100", {"bf16": 312e12, "fp16": 312e12, "fp32": 19.5e12}),
         ("L40S", {"bf16": 362e12, "fp16": 362e12, "fp32": 91.6e12}),
         ("L4", {"bf16": 121e12, "fp16": 121e12, "fp32": 30.3e12}),
         ("A10", {"bf16": 125e12, "fp16": 125e12, "fp32": 31.2e12})]


def peak_flops(device_name, precision):
    """FLOP/s, or null for a GPU that is not in the table: never a guess."""
    dtype = precision.split("-")[0]
    return next((rates[dtype] for name, rates in PEAKS if name in device_name), None)


def smi(fields, lines=1):
    """nvidia-smi's answers as strings, [] where there is no nvidia-smi."""
    command = ["nvidia-smi", "--query-gpu=" + ",".join(fields), "--format=csv,noheader,nounits"]
    try:
        out = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [row for row in out.splitlines() if row.strip()]
    return [cell.strip() for cell in rows[0].split(",")] if rows else []


def to_number(text):
    try:
        return float(text)
    except (TypeError, ValueError):
        return None


class ClockWatch:
    """SM clock, power and temperature by nvidia-smi every 200 ms while the timed steps run."""

    FIELDS = ["clocks.sm", "clocks.mem", "power.draw", "temperature.gpu"]

    def __enter__(self):
        self.process = None
        with contextlib.suppress(OSError):
            self.process = subprocess.Popen(
                ["nvidia-smi", "--query-gpu=" + ",".join(self.FIELDS),
                 "--format=csv,noheader,nounits", "-lms", "200"],
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        return self

    def __exit__(self, *_):
        rows = []
        if self.process:
            self.process.terminate()
            out, _ = self.process.communicate()
            rows = [[to_number(c) for c in line.split(",")] for line in out.splitlines()]
        rows = [r for r in rows if len(r) == len(self.FIELDS)]

        def middle(i):
            found = [r[i] for r in rows if r[i] is not None]
            return median(found) if found else None

        self.found = {"samples": len(rows), "sm_clock_mhz": middle(0),
                      "memory_clock_mhz": middle(1), "power_watts": middle(2),
                      "temperature_c": middle(3)}


def environment(dry):
    import torch
    properties = torch.cuda.get_device_properties(0)
    free, total = torch.cuda.mem_get_info()
    asked = ["driver_version", "memory.total", "clocks.max.sm", "power.limit"]
    told = [None] * 4 if dry else (smi(asked) + [None] * 4)[:4]
    megabytes = to_number(told[1])
    return {"device": {"name": properties.name,
                       "capability": f"{properties.major}.{properties.minor}",
                       "multiprocessors": properties.multi_processor_count,
                       "capacity_bytes": total,
                       "smi_capacity_bytes": int(megabytes) << 20 if megabytes else None,
                       "in_use_before_model_bytes": None if dry else total - free,
                       "driver": told[0], "max_sm_clock_mhz": to_number(told[2]),
                       "power_limit_watts": to_number(told[3])},
            "versions": {**versions(), "python": sys.version.split()[0]},
            "variables": {k: os.environ[k] for k in VARIABLES if k in os.environ}}


def bytes_of(tensors):
    """Bytes of the distinct CUDA storages behind tensors, as the allocator was asked for them."""
    found = {}
    for t in tensors:
        t = getattr(t, "_local_tensor", t)
        if hasattr(t, "untyped_storage") and t.is_cuda:
            storage = t.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())


def optimizer_tensors(optimizer):
    inner = getattr(optimizer, "optim", optimizer)
    return [v for state in inner.state.values() for v in state.values()]


def states(training):
    return {"parameters_bytes": bytes_of(training.model.parameters()),
            "gradients_bytes": bytes_of(p.grad for p in training.model.parameters()
                                        if p.grad is not None),
            "optimizer_bytes": bytes_of(optimizer_tensors(training.optimizer))}


class Phases:
    """Allocator statistics between marks. Reading them costs nothing on the device."""

    def __init__(self, dry):
        self.dry, self.rows, self.open = dry, [], None

    def mark(self, step, phase):
        import torch
        stats = torch.cuda.memory_stats()
        if self.open:
            free, total = torch.cuda.mem_get_info()
            self.rows.append({
                "step": self.open[0], "phase": self.open[1],
                "peak_bytes": stats["allocated_bytes.all.peak"],
                "requested_peak_bytes": stats["requested_bytes.all.peak"],
                "end_bytes": stats["allocated_bytes.all.current"],
                "reserved_bytes": stats["reserved_bytes.all.peak"],
                "device_bytes": None if self.dry else total - free})
        torch.cuda.reset_peak_memory_stats()
        self.open = (step, phase) if phase != "end" else None

    def of_step(self, step):
        rows = [r for r in self.rows if r["step"] == step]
        device = [r["device_bytes"] for r in rows if r["device_bytes"] is not None]
        return {"peak_bytes": max(r["peak_bytes"] for r in rows),
                "resident_bytes": rows[-1]["end_bytes"],
                "reserved_bytes": max(r["reserved_bytes"] for r in rows),
                "device_bytes": max(device) if device else None} if rows else None


# Bytes: sm_90 and later; before; cuBLASLt's own where it is not shared (CublasHandlePool.cpp).
CUBLAS_WORKSPACES = (33554432, 8519680, 1048576)
# Operators whose outputs are buffers of a collective.
COLLECTIVE = re.compile(r"^(fsdp|c10d|_c10d_functional)[.:]|all_gather|reduce_scatter")


def category(allocation, operator, forward_phase, peak_phase, training):
    """One of CATEGORIES. What lives between steps and belongs to nobody is a cuBLAS workspace, or
    in DDP a gradient bucket (its `.grad`s are elsewhere without bucket views)."""
    role = allocation.get("role", "")
    if role in ("parameter", "buffer"):
        return "parameters_bytes"
    if role == "gradient":
        return "gradients_bytes"
    if role == "optimizer":
        return "optimizer_bytes"
    if "dtype" not in allocation and allocation["dies"] is None:
        bucket = hasattr(training.model, "reducer") and allocation["born"] < 0 and \
            allocation["bytes"] not in CUBLAS_WORKSPACES
        return "communication_bytes" if bucket else "workspace_bytes"
    if COLLECTIVE.search(operator):
        return "communication_bytes"
    shape = allocation.get("shape") or []
    if len(shape) > 1 and shape[-1] == training.vocabulary:
        return "logits_bytes"
    if forward_phase and (peak_phase == "backward" or role == "input"):
        return "activations_bytes"
    return "temporaries_bytes"


CATEGORIES = ("parameters_bytes", "gradients_bytes", "optimizer_bytes", "activations_bytes",
              "logits_bytes", "temporaries_bytes", "communication_bytes", "workspace_bytes")


def module_high_waters(allocations, phases, observer, deepest=4):
    """Per phase and module (its first `deepest` names) the most bytes live while it ran."""
    step = max(p["step"] for p in phases)
    first = next(p["begin"] for p in phases if p["step"] == step)
    live = sum(a["bytes"] for a in allocations if a["born"] < first and (
        a["dies"] is None or a["dies"] >= first))
    events = sorted([(a["born"], a["bytes"], a["asked"]) for a in allocations
                     if a["born"] >= first] +
                    [(a["dies"], -a["bytes"], a["released"]) for a in allocations
                     if a["dies"] is not None and a["dies"] >= first])
    found = {}
    for _, delta, tag in events:
        live += delta
        if not tag.rstrip("+").isdigit():
            continue
        phase, module, _, _ = observer.ops[int(tag.rstrip("+"))]
        parts = module.split(".")
        for depth in range(1, min(len(parts), deepest) + 1):
            key = (phase, ".".join(parts[:depth]))
            high = max(live, found.get(key, (0, 0))[0])
            found[key] = (high, live)
    return [{"phase": phase, "module": module, "high_water_bytes": high, "end_bytes": end}
            for (phase, module), (high, end) in found.items() if module]


def observed_step(training):
    """One more step under observation: {modules, at_peak, peak_bytes}. Blocks that are live before
    it come from the allocator's snapshot, by address."""
    import torch
    recorder = Recorder(training.workload)
    recorder.training, recorder.observer = training, Observer(training)
    segments = torch.cuda.memory._snapshot()["segments"]
    initial = [{"born": -1, "dies": None, "bytes": block["requested_size"],
                "address": block["address"], "asked": "", "released": None, "stream": 0}
               for segment in segments for block in segment["blocks"]
               if block["state"] == "active_allocated"]
    entries = recorder.observe(1, 1)
    allocations, marks = intervals(entries, initial)
    phases = phase_table(allocations, marks, recorder.boundaries)
    for a in allocations:
        if a["asked"].isdigit():
            shape = recorder.observer.outputs.get((int(a["asked"]), a["address"]))
            if shape:
                a["dtype"], a["shape"] = shape
    assign_owners(allocations, marks, recorder.owners)
    top = max(phases, key=lambda p: p["peak_bytes"])
    forward_end = next(p["end"] for p in phases if p["phase"] == "forward")
    sums = dict.fromkeys(CATEGORIES, 0)
    for a in allocations:
        if a["born"] <= top["peak_at"] and (a["dies"] is None or a["dies"] > top["peak_at"]):
            number_ = a["asked"].rstrip("+")
            operator = recorder.observer.ops[int(number_)][2] if number_.isdigit() else ""
            sums[category(a, operator, 0 <= a["born"] < forward_end, top["phase"],
                          training)] += a["bytes"]
    tag = next((a["asked"] for a in allocations if a["born"] == top["peak_at"]), "")
    module = recorder.observer.ops[int(tag)][1] if tag.isdigit() else ""
    return {"requested_peak_bytes": top["peak_bytes"], "phase": top["phase"], "where": module,
            "at_peak": sums, "modules": module_high_waters(allocations, phases, recorder.observer)}


def flop_counts(model, workload):
    """Model FLOPs of one rank's step: tokens · (6 N + 3 L a (d_qk + d_v) s), N the parameters of
    matrix products (experts: those of top-k; frozen ones count 4); `full` doubles the attention
    term (PaLM, appendix B). None where the attention's shape is not plain."""
    config = model.config
    matrix = frozen = 0
    for path, module in model.named_modules():
        kind = type(module).__name__
        for name, p in module.named_parameters(recurse=False):
            active = p.numel()
            if p.dim() == 3 and "expert" in path:
                active = active * config.num_experts_per_tok // p.shape[0]
            elif not (p.dim() == 2 and (kind in ("Linear", "Conv1D") or "Router" in kind)):
                continue
            matrix += active
            frozen += 0 if p.requires_grad else active
    batch = workload["batch"]
    tokens = batch["seq_len"] * batch["micro_batch"] * batch["grad_accum"]
    layers = getattr(config, "num_hidden_layers", None)
    heads = getattr(config, "num_attention_heads", None)
    if not layers or not heads or config.model_type in ("t5", "bert", "roberta"):
        return None
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    windows = [batch["seq_len"]] * layers
    window = getattr(config, "sliding_window", None)
    if window and getattr(config, "use_sliding_window", True):
        kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * layers
        windows = [min(s, window) if "sliding" in k else s for s, k in zip(windows, kinds)]
    per_token = 6.0 * matrix - 2.0 * frozen
    attention = sum(3.0 * heads * 2 * width * s for s in windows)
    return {"tokens": tokens, "causal": tokens * (per_token + attention),
            "full": tokens * (per_token + 2 * attention)}


ALLOCATOR_KEYS = ("allocated_bytes.all.current", "allocated_bytes.all.peak",
                  "requested_bytes.all.current", "requested_bytes.all.peak",
                  "active_bytes.all.current", "active_bytes.all.peak",
                  "reserved_bytes.all.current", "reserved_bytes.all.peak",
                  "inactive_split_bytes.all.current", "inactive_split_bytes.all.peak",
                  "segment.all.current", "segment.all.peak", "allocation.all.allocated",
                  "num_alloc_retries", "num_ooms", "num_device_alloc", "num_device_free")


class Measurement:
    """One workload on one device; document() is the plimsoll.measurement/1."""

    def __init__(self, workload, dry, seconds=6.0, most_steps=20, observe=True, snapshot=None):
        self.workload, self.dry = workload, dry
        self.seconds, self.most_steps = seconds, most_steps
        self.observe, self.snapshot = observe, snapshot
        self.training = self.flops = self.environment = None
        self.phases, self.at = Phases(dry), (0, "build")
        self.steps, self.seen, self.states, self.stats = [], None, None, {}
        self.peaks, self.clocks, self.oom, self.timed = [], None, None, []
        self.outcome, self.error = "completed", None
        self.times = {}

    def run(self):
        import torch
        began = time.monotonic()
        conf = self.workload["stack"]["allocator_conf"]
        if conf:
            torch.cuda.memory._set_allocator_settings(conf)
        torch.cuda.init()
        self.environment = environment(self.dry)
        # Asked when the allocator gives up, before the exception unwinds what was live.
        torch._C._cuda_attach_out_of_memory_observer(self.ran_out)
        try:
            self.measure(began)
        except torch.OutOfMemoryError as e:
            self.outcome = "out_of_memory"
            self.error = {"kind": "out_of_memory",
                          "message": str(e).split("If reserved")[0][:500], **(self.oom or {})}
        return self.document()

    def ran_out(self, device, tried, device_total, device_free):
        self.oom = self.describe_oom(tried)

    def mark(self, step, phase):
        self.at = (step, phase)
        self.phases.mark(step, phase)
        if phase == "zero_grad" and step == 2:
            self.states = states(self.training)

    def measure(self, began):
        import torch
        torch.cuda.reset_peak_memory_stats()
        self.mark(0, "build")
        self.training = Training(self.workload)
        self.flops = self.training.flops
        self.times["build_seconds"] = time.monotonic() - began
        for step in (1, 2):     # the first is lazy in many ways: states, workspaces, buckets
            loss = self.training.step(lambda phase: self.mark(step, phase))
            self.steps.append({"step": step, "loss": self.value_of(loss), "timed": False,
                               "seconds": None})
        del loss
        self.time_steps()
        if self.observe and not self.workload["stack"]["compile"]:
            self.at = (len(self.steps) + 1, "observed")
            self.seen = observed_step(self.training)
        if self.snapshot:
            write_atomically(self.snapshot, json.dumps(snapshot_of(), separators=(",", ":")))

    def value_of(self, loss):
        value = loss.item()
        return value if value == value and abs(value) != float("inf") else None

    def time_steps(self):
        """Steps without marks, timed by events on the stream; at least 3, then until `seconds`."""
        import torch
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        began = time.monotonic()
        first = torch.cuda.Event(enable_timing=True)
        events, loss = [first], None
        with (contextlib.nullcontext() if self.dry else ClockWatch()) as watch:
            first.record()
            count = 1 if self.dry else self.most_steps
            for index in range(count):
                if index >= 3 and time.monotonic() - began > self.seconds:
                    break
                self.at = (len(self.steps) + index + 1, "timed")
                loss = None
                loss = self.training.step()
                event = torch.cuda.Event(enable_timing=True)
                event.record()
                events.append(event)
                if index == 1:      # do not run the host far ahead of a slow device
                    torch.cuda.synchronize()
            torch.cuda.synchronize()
        self.clocks = None if self.dry else watch.found
        stats = torch.cuda.memory_stats()
        for before, after in zip(events, events[1:]):
            seconds = None if self.dry else before.elapsed_time(after) / 1000
            self.steps.append({"step": len(self.steps) + 1, "loss": None, "timed": not self.dry,
                               "seconds": seconds})
        self.steps[-1]["loss"] = self.value_of(loss)
        self.stats = {k: stats.get(k) for k in ALLOCATOR_KEYS}

    def describe_oom(self, tried):
        import torch
        stats = torch.cuda.memory_stats()
        free, total = torch.cuda.mem_get_info()
        sizes = {}
        for segment in torch.cuda.memory._snapshot()["segments"]:
            for block in segment["blocks"]:
                if block["state"] == "active_allocated":
                    size = block["requested_size"]
                    sizes[size] = sizes.get(size, 0) + 1
        largest = [{"bytes": size, "count": sizes[size]}
                   for size in sorted(sizes, key=lambda n: -n * sizes[n])[:12]]
        return {"step": self.at[0], "phase": self.at[1], "tried_bytes": tried,
                "live": {"allocated_bytes": stats.get("allocated_bytes.all.current", 0),
                         "requested_bytes": stats.get("requested_bytes.all.current", 0),
                         "reserved_bytes": stats.get("reserved_bytes.all.current", 0),
                         "device_bytes": None if self.dry else total - free,
                         "states": states(self.training) if self.training else None,
                         "largest": largest}}

    def times_of(self):
        timed = [s["seconds"] for s in self.steps if s["timed"]]
        if not timed:
            return None
        middle = median(timed)
        peak = peak_flops(self.environment["device"]["name"],
                          self.workload["strategy"]["precision"])
        found = {"step_seconds": middle, "mad_seconds": median([abs(t - middle) for t in timed]),
                 "timed_steps": len(timed), "peak_flops": peak, "communication": "absent" if
                 self.workload["strategy"]["world_size"] > 1 else "none"}
        tokens = self.workload["batch"]
        tokens = tokens["seq_len"] * tokens["micro_batch"] * tokens["grad_accum"]
        found["tokens_per_second"] = tokens / middle
        flops = self.flops
        found["model_flops_per_step"] = flops["causal"] if flops else None
        for key, part in (("mfu", "causal"), ("mfu_full_attention", "full")):
            found[key] = flops[part] / middle / peak if flops and peak else None
        return found

    def document(self):
        complete = {r["step"] for r in self.phases.rows if r["phase"] == "zero_grad"}
        first = self.phases.of_step(1) if 1 in complete else None
        last = self.phases.of_step(2) if self.outcome == "completed" else None
        if last:
            last["peak_bytes"] = max(last["peak_bytes"], self.stats["allocated_bytes.all.peak"])
            last["reserved_bytes"] = max(last["reserved_bytes"],
                                         self.stats["reserved_bytes.all.peak"])
        rank = {"rank": 0, **(last or dict.fromkeys(
            ("peak_bytes", "resident_bytes", "reserved_bytes", "device_bytes")))}
        rank["states"] = self.states
        rank["at_peak"] = self.seen["at_peak"] if self.seen else None
        rank["peak"] = {k: self.seen[k] for k in ("phase", "where", "requested_peak_bytes")} \
            if self.seen else None
        rank["first_step"] = first
        rank["phases"] = self.phases.rows
        rank["modules"] = self.seen["modules"] if self.seen else []
        rank["allocator"] = self.stats
        return {"schema": MEASUREMENT_SCHEMA,
                "tool": {"name": "torch_measure.py", "version": TOOL_VERSION},
                "kind": "dry-run" if self.dry else "gpu", "measured_at": now(),
                "workload": {**self.workload, "fingerprint": self.workload["fingerprint"] or
                             fingerprint(self.workload)},
                "environment": self.environment, "outcome": self.outcome, "error": self.error,
                "ranks": [rank], "steps": self.steps, "time": self.times_of(),
                "clocks": self.clocks, "build_seconds": self.times.get("build_seconds")}


TOOL_VERSION = "1"


def now():
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def snapshot_of():
    """The allocator's segments and blocks, without addresses' owners: what a viewer needs."""
    import torch
    return [{"address": s["address"], "bytes": s["total_size"], "stream": s["stream"],
             "pool": s["segment_type"],
             "blocks": [{"bytes": b["size"], "requested_bytes": b.get("requested_size", 0),
                         "state": b["state"]} for b in s["blocks"]]}
            for s in torch.cuda.memory._snapshot()["segments"]]


def failed_document(workload, outcome, message, dry, seconds=None):
    """A measurement of a run that did not come back: killed at its time limit, or crashed."""
    rank = {"rank": 0, **dict.fromkeys(("peak_bytes", "resident_bytes", "reserved_bytes",
                                        "device_bytes", "states", "at_peak", "peak", "first_step")),
            "phases": [], "modules": [], "allocator": {}}
    return {"schema": MEASUREMENT_SCHEMA,
            "tool": {"name": "torch_measure.py", "version": TOOL_VERSION},
            "kind": "dry-run" if dry else "gpu", "measured_at": now(),
            "workload": {**workload,
                         "fingerprint": workload["fingerprint"] or fingerprint(workload)},
            "environment": None, "outcome": outcome,
            "error": {"kind": outcome, "message": message[-2000:], "step": None, "phase": None,
                      "tried_bytes": None, "live": None},
            "ranks": [rank], "steps": [], "time": None, "clocks": None, "build_seconds": seconds}


# ------------------------------------------------------------------------------------------------
# Trace cases (trace_cases.json) and commands
# ------------------------------------------------------------------------------------------------

def trace_cases():
    """name -> workload, for every committed trace."""
    with open(os.path.join(HERE, "trace_cases.json")) as f:
        data = json.load(f)
    cases = {}
    for group in data["sets"]:
        for family in group["families"]:
            for size in "ab":
                for variant in group[size]:
                    parts = json.loads(json.dumps(data["variants"][variant]))
                    lora = parts.get("strategy", {}).get("lora") or {}
                    if lora.get("targets") == "q_proj,v_proj":
                        lora["targets"] = data["query_and_value"].get(family, "q_proj,v_proj")
                    model = {"name": f"{family}-{size}", "config": data["families"][family][size]}
                    batch = {**data["batches"][size], **parts.get("batch", {})}
                    cases[f"{family}-{size}-{variant}"] = normalised(
                        {"model": model, "stack": parts.get("stack", {}),
                         "strategy": parts.get("strategy", {}), "batch": batch})
    return cases


def trace_summary(document):
    """One line of SUMMARY.md. Bytes as requested; cuBLAS workspaces (a constant of the GPU) are
    left out. `saved` is what layer 1 adds to autograd's saved tensors, per token, parameters
    excluded; `held` is all that the forward leaves behind (checkpointed inputs and weight copies
    too)."""
    batch = document["workload"]["batch"]
    tokens = batch["seq_len"] * batch["micro_batch"]
    modules = document["names"]["modules"]
    saved = ({}, {})
    for node, module, field, row, state, size, dtype, shape in document["saved"]:
        layer = re.search(r"(?:layers|h|block|layer)\.(\d+)(\.|$)", modules[module])
        if row is not None and layer and layer[1] in "01":
            saved[int(layer[1])][row] = size
    own = sum(size for row, size in saved[1].items() if row not in saved[0])
    workspace = sum(row[1] for row in document["initial"] if row[4].startswith("scratch"))
    last = max(row["step"] for row in document["phases"])
    rows = [row for row in document["phases"] if row["step"] == last]
    peaks = {}
    for row in rows:
        phase = row["phase"].rstrip("0123456789")
        peaks[phase] = max(peaks.get(phase, 0), row["peak_bytes"] - workspace)
    resident = rows[0]["begin_bytes"] - workspace
    held = next(row["begin_bytes"] for row in rows if row["phase"] == "saved")
    held -= workspace + resident
    return [document["name"], f"{own / tokens:,.1f}", f"{held:,}", f"{resident:,}",
            f"{peaks['forward']:,}", f"{peaks['backward']:,}", f"{peaks['optimizer']:,}"]


def summarise(folder):
    rows = []
    for file in sorted(os.listdir(folder)):
        if file.endswith(".json"):
            with open(os.path.join(folder, file)) as f:
                document = json.load(f)
            if document.get("schema") == TRACE_SCHEMA:
                rows.append(trace_summary(document))
                made_with = document["versions"]
    head = ["trace", "saved B/token, layer 1", "held after forward", "resident", "forward peak",
            "backward peak", "optimizer peak"]
    lines = ["# Traces", "",
             "Made by `tools/oracle/torch_measure.py --summary tests/golden/traces`; format in "
             "`tools/oracle/README.md`. Bytes of step 2 as requested from the allocator, cuBLAS "
             "workspaces left out. Versions: " +
             ", ".join(f"{k} {v}" for k, v in made_with.items()) + ".", "",
             "| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    write_atomically(os.path.join(folder, "SUMMARY.md"), "\n".join(lines) + "\n")


# ------------------------------------------------------------------------------------------------
# Sweeps
# ------------------------------------------------------------------------------------------------

SWEEP_SCHEMA = "plimsoll.sweep/1"
FILE_BYTES = 8 << 20    # a results file is closed beyond this


def merged(base, over):
    """over on top of base, objects merged key by key."""
    result = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if both else value
    return result


def read_sweep(path):
    """The points of a plimsoll.sweep/1, most informative first: (id, seconds, workload)."""
    document = read_json(path)
    if document.get("schema") != SWEEP_SCHEMA:
        raise BadInput(f"{path}: schema is {document.get('schema')!r}, not {SWEEP_SCHEMA!r}")
    points, seen = [], set()
    order = sorted(range(len(document["points"])),
                   key=lambda i: (document["points"][i].get("priority", 0), i))
    for i in order:
        point = document["points"][i]
        name = point.get("id")
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9._-]+", name) or name in seen:
            raise BadInput(f"{path}: point {i}: id {name!r} is missing, repeated or has odd "
                           "letters")
        seen.add(name)
        model = point.get("model")
        if model not in document["models"]:
            raise BadInput(f"{path}: point {name}: no model is called {model!r}")
        workload = merged(document.get("defaults", {}), {k: point[k] for k in (
            "stack", "strategy", "batch") if k in point})
        workload["model"] = {"name": model, "config": document["models"][model]}
        try:
            checked = normalised(workload)
        except BadInput as e:
            raise BadInput(f"{path}: point {name}: {e}") from e
        points.append((name, point.get("seconds", document.get("seconds", 60)), checked))
    return points


class Results:
    """Measurements as lines of results-N.jsonl in one folder: few files, appended and flushed one
    by one, so that a run that is cut off loses only the point it was at."""

    def __init__(self, folder):
        self.folder = folder
        os.makedirs(folder, exist_ok=True)
        self.done = {}      # (id, fingerprint) -> outcome
        for line in self.lines():
            self.done[line["id"], line["workload"]["fingerprint"]] = line["outcome"]

    def files(self):
        names = [n for n in os.listdir(self.folder) if re.fullmatch(r"results-\d+\.jsonl", n)]
        return sorted(names, key=lambda n: int(n[8:-6]))

    def lines(self):
        for name in self.files():
            with open(os.path.join(self.folder, name)) as f:
                for text in f:
                    with contextlib.suppress(ValueError):   # a line cut off by a kill
                        yield json.loads(text)

    def append(self, document):
        names = self.files()
        path = os.path.join(self.folder, names[-1] if names else "results-1.jsonl")
        if names and os.path.getsize(path) > FILE_BYTES:
            path = os.path.join(self.folder, f"results-{int(names[-1][8:-6]) + 1}.jsonl")
        text = json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n"
        if os.path.exists(path) and not ends_with_newline(path):
            text = "\n" + text
        with open(path, "a") as f:
            f.write(text)
            f.flush()
            os.fsync(f.fileno())
        self.done[document["id"], document["workload"]["fingerprint"]] = document["outcome"]


def ends_with_newline(path):
    return pathlib.Path(path).read_bytes()[-1:] in (b"", b"\n")


def pending(points, done, again):
    """Points to run: those without a result; with `again` also those that failed or timed out."""
    return [(name, seconds, workload) for name, seconds, workload in points
            if done.get((name, fingerprint(workload))) is None or
            (again and done[name, fingerprint(workload)] in ("failed", "timed_out"))]


def measured(workload, options):
    """What the child process does: measures and writes options.out."""
    document = Measurement(workload, options.dry_run, seconds=options.seconds,
                           most_steps=options.steps, observe=not options.no_observe,
                           snapshot=options.snapshot).run()
    write_atomically(options.out, json.dumps(document, indent=1, allow_nan=False) + "\n")


def run_point(name, workload, limit, options, isolation):
    """(document, isolation that worked). The child's own messages stay in the document if it
    fails."""
    with tempfile.TemporaryDirectory() as folder:
        out, log = os.path.join(folder, "out.json"), os.path.join(folder, "log")
        child_options = argparse.Namespace(**{**vars(options), "out": out, "snapshot": None})

        def child():
            with open(log, "w") as f:
                os.dup2(f.fileno(), 2)
            measured(workload, child_options)

        if isolation == "fork":
            status, took = in_child(child, limit)
        else:
            status, took = in_process(workload, out, log, limit, options)
        text = pathlib.Path(log).read_text(errors="replace") if os.path.exists(log) else ""
        if status == 0 and os.path.exists(out):
            with open(out) as f:
                return json.load(f), isolation
    if isolation == "fork" and not options.dry_run and (
            status == EXIT_DEVICE or "Cannot re-initialize CUDA in forked" in text or
            "CUDA error: initialization error" in text):
        return run_point(name, workload, limit, options, "spawn")
    if status is None:
        outcome, message = "timed_out", f"killed after {took:.0f} s; {text}"
    else:
        outcome, message = "failed", f"exit status {status}; {text}"
    return failed_document(workload, outcome, message, options.dry_run, took), isolation


def in_process(workload, out, log, limit, options):
    """As in_child, with a new interpreter."""
    path = out + ".workload"
    write_atomically(path, json.dumps(workload))
    command = [sys.executable, os.path.abspath(__file__), "--workload", path, "--out", out,
               "--seconds", str(options.seconds), "--steps", str(options.steps)]
    command += ["--dry-run"] * options.dry_run + ["--no-observe"] * options.no_observe
    started = time.monotonic()
    with open(log, "w") as f:
        child = subprocess.Popen(command, stderr=f, stdout=f, start_new_session=True)
        try:
            status = child.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            end_session(child.pid)
            child.wait()
    return status, time.monotonic() - started


def line_of(document):
    rank, outcome = document["ranks"][0], document["outcome"]
    peak = rank["peak_bytes"]
    seconds = (document["time"] or {}).get("step_seconds")
    return " ".join([outcome] + ([f"peak {peak / 2**30:.2f} GiB"] if peak else []) +
                    ([f"step {seconds * 1000:.1f} ms"] if seconds else []) +
                    ([document["error"]["message"][-120:].replace("\n", " ")]
                     if outcome in ("failed", "timed_out") else []))


def run_sweep(options):
    points = read_sweep(options.sweep)
    if options.only:
        points = [p for p in points if options.only in p[0]]
    results = Results(options.out)
    todo = pending(points, results.done, options.again)
    # The card that a dry run plays, where the list is for one of another size than the default's.
    prepare(options.dry_run, **{k: v for k, v in read_json(options.sweep).items()
                                if k == "capacity_bytes"})
    began, isolation, costs = time.monotonic(), options.isolation, []
    for index, (name, limit, workload) in enumerate(todo):
        left = options.budget - (time.monotonic() - began)
        if left < (median(costs) if costs else 10):
            print(f"budget spent: {len(todo) - index} points left", file=sys.stderr)
            break
        started = time.monotonic()
        document, isolation = run_point(name, workload, min(limit, left), options, isolation)
        costs.append(time.monotonic() - started)
        results.append({"id": name, **document})
        print(f"[{index + 1}/{len(todo)}] {name} {costs[-1]:.1f} s: {line_of(document)}",
              file=sys.stderr, flush=True)


def digest(folder):
    """The figures of a sweep without its timelines: what tests compare plans with."""
    points, made_with, device = [], None, None
    for d in Results(folder).lines():
        if d["outcome"] in ("failed", "timed_out"):
            continue
        rank, live = d["ranks"][0], (d["error"] or {}).get("live")
        steady = [r for r in rank["phases"] if r["step"] == 2]
        points.append({
            "id": d["id"], "kind": d["kind"], "outcome": d["outcome"],
            "workload": {**d["workload"], "model": {"name": d["workload"]["model"]["name"]}},
            **{k: rank[k] for k in ("peak_bytes", "resident_bytes", "reserved_bytes", "states",
                                    "peak", "at_peak", "first_step")},
            "phases": [[r["phase"], r["peak_bytes"], r["requested_peak_bytes"], r["end_bytes"]]
                       for r in steady] if d["outcome"] == "completed" else [],
            "allocation_retries": rank["allocator"].get("num_alloc_retries"),
            "out_of_memory": live and {"step": d["error"]["step"], "phase": d["error"]["phase"],
                                       "tried_bytes": d["error"]["tried_bytes"],
                                       "allocated_bytes": live["allocated_bytes"],
                                       "reserved_bytes": live["reserved_bytes"]}})
        made_with, device = d["environment"]["versions"], d["environment"]["device"]
    made_with.pop("python", None)
    return {"schema": "plimsoll.sweep_digest/1", "versions": made_with,
            "device": {k: device[k] for k in ("name", "capacity_bytes")},
            "points": sorted(points, key=lambda p: p["id"])}


def prepare(dry, **card):
    """Imports once, before any fork; the parent asks NVML about the GPU, never CUDA."""
    if dry:
        start_dry_cuda(**card)
    else:
        os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
        if not smi(["name"]):
            raise NoDevice("no GPU: nvidia-smi finds none (--dry-run shows what PyTorch would "
                           "allocate, --trace in which order)")
        import torch  # noqa: F401
    import transformers  # noqa: F401


def run_workload(options):
    workload = read_workload(options.workload)
    if not options.out:
        raise BadInput("--workload: --out FILE is needed")
    prepare(options.dry_run)
    measured(workload, options)


# ------------------------------------------------------------------------------------------------
# Commands
# ------------------------------------------------------------------------------------------------

def trace_to_text(name, workload):
    recorder = Recorder(workload)
    entries = recorder.run()
    return to_text(trace_document(name, recorder, entries))


def write_atomically(path, text):
    with tempfile.NamedTemporaryFile("w", dir=os.path.dirname(path) or ".", delete=False) as f:
        f.write(text)
    os.chmod(f.name, 0o644)
    os.replace(f.name, path)


def in_child(work, seconds=None):
    """Runs work() in a forked process; (exit status or None if it was killed, seconds it took).

    A process each keeps process groups, cuBLAS workspaces, contexts and caches of one case out of
    the next; a fork keeps the imports. The parent must not have initialised CUDA. The child leads a
    session of its own, so that what it started ends with it."""
    sys.stdout.flush()
    sys.stderr.flush()
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        os.setsid()
        status = 70
        try:
            status = work() or 0
        except (BadInput, NoDevice) as e:
            print(f"torch_measure.py: {e}", file=sys.stderr)
            status = EXIT_BAD_INPUT if isinstance(e, BadInput) else EXIT_DEVICE
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    try:
        while True:
            done, status = os.waitpid(child, os.WNOHANG)
            took = time.monotonic() - started
            if done:
                end_session(child)
                return os.waitstatus_to_exitcode(status), took
            if seconds is not None and took > seconds:
                end_session(child)
                os.waitpid(child, 0)
                return None, took
            time.sleep(0.02)
    except BaseException:
        end_session(child)
        raise


def end_session(leader):
    """Ends what is left of a child's session (an nvidia-smi that watched the clocks, compilers)."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def run_trace(options):
    cases = trace_cases()
    if options.trace == "all":
        if not options.out:
            raise BadInput("--trace all: --out DIRECTORY is needed")
        os.makedirs(options.out, exist_ok=True)
        start_dry_cuda()
        wanted = [n for n in cases if any(part in n for part in (options.only or "").split(","))]
        for i, name in enumerate(wanted):
            path = os.path.join(options.out, name + ".json")
            status, took = in_child(
                lambda: write_atomically(path, trace_to_text(name, cases[name])))
            print(f"[{i + 1}/{len(wanted)}] {name} {took:.1f} s", file=sys.stderr)
            if status != 0:
                raise RuntimeError(f"{name}: exit status {status}")
        return
    if options.trace in cases:
        name, workload = options.trace, cases[options.trace]
    elif os.path.exists(options.trace):
        name = os.path.splitext(os.path.basename(options.trace))[0]
        workload = read_workload(options.trace)
    else:
        raise BadInput(f"--trace: no case and no file is called {options.trace!r} (--list-traces)")
    start_dry_cuda()
    text = trace_to_text(name, workload)
    if options.out:
        write_atomically(options.out, text)
    else:
        sys.stdout.write(text)


def read_json(path):
    try:
        with open(path) as f:
            document = json.load(f)
    except (OSError, ValueError) as e:
        raise BadInput(f"{path}: {e}") from e
    if not isinstance(document, dict):
        raise BadInput(f"{path}: an object is needed")
    return document


def read_workload(path):
    """The workload of a plan or of a measurement, or the object itself."""
    document = read_json(path)
    return normalised(document.get("workload", document))


def parser():
    p = argparse.ArgumentParser(
        description=__doc__.split("\n")[0],
        epilog="example: torch_measure.py --sweep sweeps/first20.json --out results --budget 1200")
    what = p.add_mutually_exclusive_group(required=True)
    what.add_argument("--workload", metavar="FILE", help="measure one workload (or a plan's)")
    what.add_argument("--sweep", metavar="FILE", help="measure a list, each in its own process")
    what.add_argument("--trace", metavar="NAME|FILE|all", help="record allocations without a GPU")
    what.add_argument("--list-traces", action="store_true")
    what.add_argument("--digest", metavar="DIR", help="the figures of a sweep's results, in short")
    what.add_argument("--summary", metavar="DIR", help="write DIR/SUMMARY.md from its traces")
    p.add_argument("--out", metavar="PATH", help="file, or folder for --sweep and --trace all")
    p.add_argument("--only", metavar="TEXT", help="cases or points whose name has TEXT (a trace's: one of TEXT,TEXT)")
    p.add_argument("--dry-run", action="store_true",
                   help="measure on a CUDA runtime that computes nothing: memory only, no evidence")
    p.add_argument("--seconds", type=float, default=6.0, help="of timed steps (6)")
    p.add_argument("--steps", type=int, default=20, help="timed steps at most (20), at least 3")
    p.add_argument("--no-observe", action="store_true", help="skip the step that names modules")
    p.add_argument("--snapshot", metavar="FILE", help="the allocator's segments and blocks")
    p.add_argument("--budget", type=float, default=1200, help="seconds for the whole sweep (1200)")
    p.add_argument("--again", action="store_true", help="repeat points that failed or timed out")
    p.add_argument("--isolation", choices=["fork", "spawn"], default="fork",
                   help="fork keeps the imports (default; falls back to spawn)")
    return p


def with_one_hash_seed():
    """Begins again with strings hashed one way: Gemma 3 makes rotary tables in a set's order."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def main(arguments=None):
    options = parser().parse_args(arguments)
    if options.trace and arguments is None:
        with_one_hash_seed()
    try:
        if options.list_traces:
            print("\n".join(trace_cases()))
        elif options.trace:
            run_trace(options)
        elif options.summary:
            summarise(options.summary)
        elif options.digest:
            if not options.out:
                raise BadInput("--digest: --out FILE is needed")
            write_atomically(options.out, to_text(digest(options.digest)))
        elif options.sweep:
            if not options.out:
                raise BadInput("--sweep: --out FOLDER is needed")
            run_sweep(options)
        else:
            run_workload(options)
    except BadInput as e:
        print(f"torch_measure.py: {e}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except NoDevice as e:
        print(f"torch_measure.py: {e}", file=sys.stderr)
        return EXIT_DEVICE
    return 0


if __name__ == "__main__":
    sys.exit(main())

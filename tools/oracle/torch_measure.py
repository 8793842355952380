#!/usr/bin/env python3
"""What a training step really allocates in PyTorch: traces without a GPU, measurements with one.

  torch_measure.py --trace NAME [--out FILE]     record one of the built-in trace cases (no GPU)
  torch_measure.py --trace all --out DIR         regenerate tests/golden/traces
  torch_measure.py --trace FILE.json             record the workload in FILE.json
  torch_measure.py --list-traces

How the trace works without a GPU. dry_cuda.c (beside this file) is a CUDA runtime that computes
nothing: PyTorch finds one GPU, takes its CUDA branches, and asks its own caching allocator for
memory. The allocator's history therefore names every request that CUDA would see, in order:
operands, autograd's saved tensors, and the scratch that kernels ask for (FlashAttention's
dq_accum and softmax_d, cuBLAS workspaces, sort buffers), which tracing on CPU tensors would miss or
replace by what CPU kernels need (dropout noise in the compute dtype, fp32 copies inside
log_softmax). A TorchDispatchMode names the operator, the module and the autograd node around each
request. What a dry run cannot know:
  - cuDNN attention. On sm_90 PyTorch 2.11 prefers it to FlashAttention for SDPA; building its plan
    needs a device. Traces use FlashAttention (fp32: memory-efficient). cuDNN saves the same
    (q, k, v, out, logsumexp fp32 [b, heads, s, 1], seed and offset) and adds its own workspace.
  - anything outside the allocator: context, cuBLAS and NCCL internals.
  - occupancy-dependent scratch of reductions and sorts (some KiB).
  - data-dependent shapes: device memory reads as zeros (all tokens are token 0 to a kernel), so
    routing in mixture-of-experts models is what the operator makes of zeros.

One step is what transformers' Trainer does: loss = model(input_ids, labels).loss in a function that
returns only the loss, backward, optimizer step, zero_grad(set_to_none=True), use_cache off.
"""

import argparse
import contextlib
import ctypes
import gc
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback

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
    "version": None,
    "transformers_version": None,
    "compile": False,
    "kernels": "eager",
    "fsdp_version": 2,
    "fsdp_units": "layers",
    "fsdp_autocast": False,
    "optimizer_impl": "foreach",
    "sdpa_backend": "auto",
    "use_cache": False,
    "hold_outputs": False,
    "allocator_conf": None,
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
    "cp": 1,
    "ep": 1,
    "precision": "bf16-mixed",
    "param_dtype": None,
    "grad_dtype": None,
    "master_weights": None,
    "fsdp_upcast": True,
    "optimizer": "adamw",
    "optimizer_in_backward": False,
    "galore_rank": None,
    "recompute": "none",
    "attention": "flash",
    "loss": "full",
    "lora": None,
    "quantize": None,
    "quant_storage": None,
    "kbit_prep": None,
    "freeze": [],
    "train": [],
    "ddp": {"bucket_view": False, "bucket_cap_mb": 25, "wrap": None},
    "offload": [],
    "offload_to": "cpu",
}
LORA_DEFAULTS = {"rank": 8, "alpha": 16, "targets": "all-linear", "dropout": 0.0,
                 "adapter_dtype": "fp32"}
BATCH_DEFAULTS = {"seq_len": 4096, "micro_batch": 1, "grad_accum": 1}

ACCEPTED = {
    "precision": ["fp32", "bf16-mixed", "fp16-mixed", "bf16", "fp16"],
    "param_dtype": ["fp32", "bf16", "fp16"],
    "grad_dtype": [None, "fp32", "bf16", "fp16"],
    "zero": [0, 1, 2, 3],
    "optimizer": ["adamw", "sgd", "momentum", "adafactor", "muon", "adam8bit", "paged-adam8bit"],
    "attention": ["flash", "eager", "math"],
    "loss": ["full", "fused"],
    "quantize": [None, "nf4", "nf4-dq", "int8"],
    "optimizer_impl": ["foreach", "fused", "for-loop"],
    "fsdp_version": [1, 2],
    "fsdp_units": ["layers", "layers+ends"],
    "kernels": ["eager", "liger"],
    "sdpa_backend": ["auto", "flash", "efficient", "cudnn", "math"],
    "adapter_dtype": ["fp32", "bf16"],
}
# Options of the contract that plain PyTorch with Transformers has no single way of doing.
ONLY_DEFAULT = ["tp", "sequence_parallel", "pp", "pp_schedule", "virtual_stages", "cp", "ep",
                "optimizer_in_backward", "galore_rank", "offload", "offload_to", "quant_storage"]


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
    batch = filled(workload.get("batch", {}), BATCH_DEFAULTS, "batch")
    strategy["ddp"] = filled(strategy["ddp"] or {}, STRATEGY_DEFAULTS["ddp"], "strategy.ddp")
    if strategy["lora"] is not None:
        strategy["lora"] = filled(strategy["lora"], LORA_DEFAULTS, "strategy.lora")
        positive(strategy["lora"]["rank"], "strategy.lora.rank")
        accepted(strategy["lora"]["adapter_dtype"], "adapter_dtype", "strategy.lora")
    if strategy["param_dtype"] is None:
        strategy["param_dtype"] = {"bf16": "bf16", "fp16": "fp16"}.get(strategy["precision"], "fp32")
    for key in ("precision", "param_dtype", "grad_dtype", "zero", "optimizer", "attention", "loss",
                "quantize"):
        accepted(strategy[key], key, "strategy")
    for key in ("optimizer_impl", "fsdp_version", "fsdp_units", "kernels", "sdpa_backend"):
        accepted(stack[key], key, "stack")
    if stack["name"] != "pytorch":
        raise BadInput(f"stack.name: {stack['name']!r}; this program measures pytorch only")
    for key in ONLY_DEFAULT:
        if strategy[key] != STRATEGY_DEFAULTS[key]:
            raise BadInput(f"strategy.{key}: {strategy[key]!r} is not measured by this program")
    positive(strategy["world_size"], "strategy.world_size")
    for key in BATCH_DEFAULTS:
        positive(batch[key], f"batch.{key}", 2 if key == "seq_len" else 1)
    recompute_interval(strategy["recompute"])
    return {"fingerprint": workload.get("fingerprint"), "model": model, "stack": stack,
            "strategy": strategy, "batch": batch}


def recompute_interval(kind):
    """0 for none and selective, k where each checkpoint covers k layers; sqrt depends on L."""
    if kind in ("none", "selective"):
        return 0
    if kind == "full":
        return 1
    if kind == "sqrt":
        return None
    if isinstance(kind, str) and kind.startswith("every:") and kind[6:].isdigit() and int(kind[6:]):
        return int(kind[6:])
    raise BadInput(f"strategy.recompute: {kind!r} is not none, selective, full, sqrt or every:K")


def fingerprint(workload):
    """16 hex digits: SHA-256 of the normalised workload without its fingerprint, as JSON with
    sorted keys and no spaces. Used only where the input brings none (lists written by hand)."""
    plain = {k: v for k, v in normalised(workload).items() if k != "fingerprint"}
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# ------------------------------------------------------------------------------------------------
# The dry device
# ------------------------------------------------------------------------------------------------

def start_dry_cuda(capacity_bytes=150109880320, capability=(9, 0), multiprocessors=132):
    """Loads dry_cuda.c before torch is imported. Default: a Hopper of H200's size."""
    if "torch" in sys.modules:
        raise RuntimeError("the dry CUDA runtime must be loaded before torch")
    source = os.path.join(HERE, "dry_cuda.c")
    with open(source, "rb") as f:
        digest = hashlib.sha256(f.read()).hexdigest()[:12]
    folder = os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")),
                          "plimsoll")
    os.makedirs(folder, exist_ok=True)
    library = os.path.join(folder, f"dry_cuda_{digest}.so")
    if not os.path.exists(library):
        with tempfile.TemporaryDirectory(dir=folder) as tmp:
            built = os.path.join(tmp, "dry_cuda.so")
            command = [os.environ.get("CC", "cc"), "-O1", "-shared", "-fPIC",
                       "-Wl,-soname,libcuda.so.1", source, "-o", built]
            try:
                subprocess.run(command, check=True)
            except (OSError, subprocess.CalledProcessError) as e:
                raise NoDevice(f"the dry CUDA runtime needs a C compiler: {e}") from e
            os.replace(built, library)
    dry = ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    dry.plimsoll_dry_gpu(b"dry sm_%d%d" % capability, ctypes.c_uint64(capacity_bytes),
                         *capability, multiprocessors)
    import torch
    if not torch.version.cuda or int(torch.version.cuda.split(".")[0]) != 13:
        raise NoDevice(f"the dry CUDA runtime has the layouts of CUDA 13; torch {torch.__version__} "
                       f"is built for {torch.version.cuda or 'no CUDA'}")
    # A dry plan for cuDNN attention cannot be built (see the top of this file).
    torch.backends.cuda.enable_cudnn_sdp(False)
    answer_for_the_data()


def answer_for_the_data():
    """Transformers asks the data twice: do position_ids restart inside a row (packed sequences), is
    a padding mask all ones? They do not, it is; a dry read of zeros says otherwise. The operators
    still run."""
    from transformers import masking_utils
    restarts, all_ones = masking_utils.find_packed_sequence_indices, masking_utils.fast_all

    def no_restart(position_ids):
        restarts(position_ids)

    def unpadded(mask):
        all_ones(mask)
        return True

    masking_utils.find_packed_sequence_indices = no_restart
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


def auto_class(model_type):
    import transformers
    if model_type in ("bert", "roberta"):
        return transformers.AutoModelForMaskedLM
    if model_type == "t5":
        return transformers.AutoModelForSeq2SeqLM
    return transformers.AutoModelForCausalLM


def hf_config(model, stack):
    import transformers
    fields = {k: v for k, v in model["config"].items()
              if k not in ("architectures", "transformers_version", "torch_dtype", "dtype")}
    config = transformers.AutoConfig.for_model(**fields)
    config.use_cache = stack["use_cache"]
    return config


def sharded(strategy):
    return strategy["zero"] >= 2


def layer_lists(model):
    """Every ModuleList of transformer layers, encoder and decoder alike, with its path."""
    import torch
    from transformers.modeling_layers import GradientCheckpointingLayer
    found = []
    for path, module in model.named_modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) and all(
                isinstance(m, GradientCheckpointingLayer) for m in module):
            found.append((path, module))
    return found


class LayerGroup:
    """Namespace for `every:K`: K layers behind one checkpoint (the model's loop sees one layer)."""

    @staticmethod
    def wrap(model, interval):
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
                return checkpoint(self.run, hidden, *args, use_reentrant=False, **kwargs)

        for path, layers in layer_lists(model):
            size = interval or max(1, round(len(layers) ** 0.5))
            groups = [Group(layers[i:i + size]) for i in range(0, len(layers), size)]
            parent = model.get_submodule(path.rpartition(".")[0])
            setattr(parent, path.rpartition(".")[2], torch.nn.ModuleList(groups))
            for attribute in ("num_hidden_layers",):
                if getattr(parent, "config", None) is not None and hasattr(parent.config, attribute):
                    setattr(parent.config, attribute, len(groups))


def select_recompute(model, kind):
    interval = recompute_interval(kind)
    if kind == "none":
        return
    if kind == "full":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    elif kind == "selective":
        checkpoint_core_attention(model)
    else:
        if not layer_lists(model):
            raise BadInput(f"strategy.recompute: {kind} needs a model whose layers are one list")
        LayerGroup.wrap(model, interval)


def checkpoint_core_attention(model):
    """Selective recompute of Korthikanti et al. 2022: the core attention, nothing else."""
    from torch.utils.checkpoint import checkpoint
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    import importlib
    name = model.config._attn_implementation
    module = importlib.import_module(type(model).__module__)
    inner = getattr(module, "eager_attention_forward", None) if name == "eager" \
        else ALL_ATTENTION_FUNCTIONS[name]
    if inner is None:
        raise BadInput("strategy.recompute: selective needs a model with Transformers' attention "
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


def with_lora(model, lora):
    import peft
    targets = lora["targets"]
    if targets == "attention":
        targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
    elif isinstance(targets, str) and targets != "all-linear":
        targets = targets.split(",")
    config = peft.LoraConfig(r=lora["rank"], lora_alpha=lora["alpha"], target_modules=targets,
                             lora_dropout=lora["dropout"], task_type=None)
    return peft.get_peft_model(model, config,
                               autocast_adapter_dtype=lora["adapter_dtype"] == "fp32")


def build_model(workload, device):
    """The Transformers model with adapters and recompute, on device (meta if it will be sharded)."""
    import torch
    stack, strategy = workload["stack"], workload["strategy"]
    config = hf_config(workload["model"], stack)
    implementation = "eager" if strategy["attention"] == "eager" else "sdpa"
    with torch.device(device):
        model = auto_class(config.model_type).from_config(
            config, dtype=torch_dtype(strategy["param_dtype"]), attn_implementation=implementation)
    model.train()
    for patterns, trainable in ((strategy["freeze"], False), (strategy["train"], True)):
        for name, p in model.named_parameters():
            if any(pattern in name for pattern in patterns):
                p.requires_grad_(trainable)
    select_recompute(model, strategy["recompute"])
    if strategy["lora"]:
        model = with_lora(model, strategy["lora"])
    return model


def start_process_group(world_size):
    """Rank 0 of world_size with no peers: collectives return at once, buffers are real."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore
    if not dist.is_initialized():
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
        # DDP gathers every rank's parameter count first; a peer that does not exist has none.
        torch.nn.parallel.distributed._verify_param_shape_across_processes = lambda *a, **k: None
    torch.cuda.set_device(0)


def shard_fsdp2(model, strategy, stack):
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    world, group = strategy["world_size"], strategy["shard_group"] or strategy["world_size"]
    mesh = init_device_mesh("cuda", (world,)) if group == world else init_device_mesh(
        "cuda", (world // group, group), mesh_dim_names=("replicate", "shard"))
    policy = MixedPrecisionPolicy()
    if strategy["precision"].endswith("-mixed"):
        policy = MixedPrecisionPolicy(
            param_dtype=torch_dtype(strategy["precision"].split("-")[0]),
            reduce_dtype=torch_dtype(strategy["grad_dtype"] or "fp32"))
    options = {"mesh": mesh, "mp_policy": policy, "reshard_after_forward": strategy["zero"] == 3}
    for _, layers in layer_lists(model):
        for layer in layers:
            fully_shard(layer, **options)
    if stack["fsdp_units"] == "layers+ends":
        fully_shard(model.get_input_embeddings(), **options)
        head = model.get_output_embeddings()
        if head is not None and head.weight is not model.get_input_embeddings().weight:
            fully_shard(head, **{**options, "reshard_after_forward": False})
    # None: the root stays unsharded between forward and backward, torch's own default.
    fully_shard(model, **{**options,
                          "reshard_after_forward": None if strategy["zero"] == 3 else False})
    model.to_empty(device="cuda")
    model.apply(initialised_module)
    return model


def initialised_module(module):
    """After to_empty: small random weights, and the buffers that rotary embeddings compute."""
    import torch
    for p in module.parameters(recurse=False):
        with torch.no_grad():
            (p.data.normal_(0, 0.02) if p.dim() > 1 else p.data.fill_(1.0))
    inv_freq = getattr(module, "inv_freq", None)
    if inv_freq is not None and hasattr(module, "config"):
        with torch.device("cpu"):
            fresh = type(module)(module.config)
        for name, buffer in fresh.named_buffers(recurse=False):
            getattr(module, name).copy_(buffer)


def shard_fsdp1(model, strategy):
    import functools
    import torch
    from torch.distributed.fsdp import (BackwardPrefetch, FullyShardedDataParallel, MixedPrecision,
                                        ShardingStrategy)
    from torch.distributed.fsdp.wrap import _module_wrap_policy
    classes = {type(layer) for _, layers in layer_lists(model) for layer in layers}
    policy = None
    if strategy["precision"].endswith("-mixed"):
        low = torch_dtype(strategy["precision"].split("-")[0])
        policy = MixedPrecision(param_dtype=low, buffer_dtype=low,
                                reduce_dtype=torch_dtype(strategy["grad_dtype"] or "fp32"))
    kind = ShardingStrategy.FULL_SHARD if strategy["zero"] == 3 else ShardingStrategy.SHARD_GRAD_OP
    return FullyShardedDataParallel(
        model, sharding_strategy=kind, mixed_precision=policy, use_orig_params=True,
        auto_wrap_policy=functools.partial(_module_wrap_policy, module_classes=classes),
        backward_prefetch=BackwardPrefetch.BACKWARD_PRE, limit_all_gathers=True,
        device_id=torch.cuda.current_device(),
        param_init_fn=lambda m: (m.to_empty(device="cuda", recurse=False), initialised_module(m)))


def distributed(model, workload):
    """model inside DDP or FSDP as the workload says; world size 1 without sharding is plain."""
    import torch
    stack, strategy = workload["stack"], workload["strategy"]
    if strategy["zero"] == 0 and strategy["world_size"] == 1 and not strategy["ddp"]["wrap"]:
        return model
    start_process_group(strategy["world_size"])
    if sharded(strategy):
        if stack["fsdp_version"] == 2:
            return shard_fsdp2(model, strategy, stack)
        return shard_fsdp1(model, strategy)
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


def build_optimizer(model, workload):
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
               "adafactor": (torch.optim.Adafactor, {"lr": 1e-4, "foreach": how.get("foreach", False)}),
               "muon": (torch.optim.Muon, {"lr": 1e-4})}
    if kind.endswith("adam8bit"):
        import bitsandbytes
        name = "PagedAdamW8bit" if kind.startswith("paged") else "AdamW8bit"
        return getattr(bitsandbytes.optim, name)(parameters, lr=1e-4)
    if kind == "muon" and any(p.dim() != 2 for p in parameters):
        raise BadInput("strategy.optimizer: torch.optim.Muon takes matrices only; freeze the rest")
    cls, options = classes[kind]
    if strategy["zero"] == 1:
        from torch.distributed.optim import ZeroRedundancyOptimizer
        return ZeroRedundancyOptimizer(parameters, optimizer_class=cls, **options)
    return cls(parameters, **options)


class Training:
    """One rank's model, optimizer and batch; step() calls mark(phase) at each boundary."""

    def __init__(self, workload, device="cuda"):
        import torch
        self.workload, self.device = workload, device
        strategy, batch = workload["strategy"], workload["batch"]
        build_on = "meta" if sharded(strategy) else device
        inner = build_model(workload, build_on)
        self.vocabulary = inner.get_input_embeddings().weight.shape[0]
        self.model = distributed(inner, workload)
        self.names = {id(m): clean(path) for path, m in self.model.named_modules()}
        self.optimizer = build_optimizer(self.model, workload)
        mixed = strategy["precision"].endswith("-mixed")
        uses_autocast = mixed and (not sharded(strategy) or workload["stack"]["fsdp_autocast"])
        self.autocast_dtype = torch_dtype(strategy["precision"].split("-")[0]) if uses_autocast \
            else None
        self.scaler = torch.amp.GradScaler(device) if strategy["precision"] == "fp16-mixed" else None
        shape = (batch["micro_batch"], batch["seq_len"])
        self.ids = torch.randint(0, self.vocabulary, shape, device=device)

    def forward(self):
        import torch
        context = torch.autocast(self.device, self.autocast_dtype) if self.autocast_dtype else \
            contextlib.nullcontext()
        with context, self.attention_backend():
            output = self.model(input_ids=self.ids, labels=self.ids)
        self.held = output if self.workload["stack"]["hold_outputs"] else None
        return output.loss

    def attention_backend(self):
        from torch.nn.attention import SDPBackend, sdpa_kernel
        name = self.workload["stack"]["sdpa_backend"]
        if self.workload["strategy"]["attention"] == "math":
            name = "math"
        kinds = {"flash": SDPBackend.FLASH_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION,
                 "cudnn": SDPBackend.CUDNN_ATTENTION, "math": SDPBackend.MATH}
        return sdpa_kernel(kinds[name]) if name in kinds else contextlib.nullcontext()

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
            with self.synchronised(last):
                if last and count > 1 and hasattr(self.model, "set_requires_gradient_sync"):
                    self.model.set_requires_gradient_sync(True)
                mark(f"forward{micro or ''}")
                loss = self.forward()
                if count > 1:
                    loss = loss / count
                mark(f"backward{micro or ''}")
                (self.scaler.scale(loss) if self.scaler else loss).backward()
                loss_value = loss.detach()
                del loss
                self.held = None
        mark("optimizer")
        if self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        mark("zero_grad")
        self.optimizer.zero_grad(set_to_none=True)
        mark("end")
        return loss_value


def clean(path):
    for wrapper in ("_fsdp_wrapped_module.", "_orig_mod."):
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
        observer = self

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
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
    storage bytes, dtype, shape). A tensor behind a checkpoint's hook shows as what is packed."""
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
                data = getattr(one, "data", None)
                if isinstance(data, torch.Tensor) and data.is_cuda:
                    suffix = str(i) if isinstance(value, (list, tuple)) else ""
                    storage = data.untyped_storage()
                    rows.append((node._sequence_nr(), node.name().split("::")[-1], module,
                                 field[len("_raw_saved_"):] + suffix, storage.data_ptr(),
                                 storage.nbytes(), short_dtype(data.dtype), list(data.shape)))
        for t in getattr(node, "saved_tensors", ()) or ():
            if isinstance(t, torch.Tensor) and t.is_cuda:
                storage = t.untyped_storage()
                rows.append((node._sequence_nr(), node.name().split("::")[-1], module, "saved",
                             storage.data_ptr(), storage.nbytes(), short_dtype(t.dtype),
                             list(t.shape)))
        pending.extend(edge[0] for edge in node.next_functions)
    rows.sort(key=lambda r: (r[0], r[1], r[3]))
    return [r[1:] for r in rows]


class Recorder:
    """Two training steps under observation, then the document that --trace writes."""

    def __init__(self, workload):
        import torch
        self.torch, self.workload = torch, workload
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
        optimizer = getattr(training.optimizer, "optim", training.optimizer)
        for p, state in optimizer.state.items():
            for key in sorted(state, key=str):
                self.own(state[key], "optimizer", f"{key} {self.observer.parameters.get(id(p), '')}")

    def run(self):
        torch = self.torch
        strategy = self.workload["strategy"]
        # DDP replaces its buckets at the start of the second step: its third is the steady one.
        replicated = strategy["zero"] < 2 and (strategy["world_size"] > 1 or strategy["ddp"]["wrap"])
        steps = 3 if replicated else 2
        gc.collect()
        gc.disable()    # releases happen where reference counts say so, the same every time
        torch.cuda.memory._record_memory_history(enabled="all", context=None, stacks="python",
                                                 max_entries=10_000_000)
        self.mark(0, "build")
        self.training = Training(self.workload)
        self.observer = Observer(self.training)
        inner_forward = self.training.forward
        step = 0

        def at(phase):
            self.mark(step, phase)
            if phase == "zero_grad":
                for name, p in self.training.model.named_parameters():
                    if p.grad is not None:
                        self.own(p.grad, "gradient", clean(name))

        def forward():
            loss = inner_forward()
            if step == steps and self.observer.phase == "forward":
                self.mark(step, "saved")
                self.saved = saved_tensors(loss, self.observer)
            return loss

        self.training.forward = forward
        with self.observer.watching():
            for step in range(1, steps + 1):
                self.training.step(at)
        self.own_model()
        entries = torch.cuda.memory._snapshot()["device_traces"][0]
        torch.cuda.memory._record_memory_history(enabled=None)
        gc.enable()
        return entries


def intervals(entries):
    """(allocations, positions of the marks). Allocations and releases are numbered in order; an
    allocation has born, dies (null: still there), bytes as requested, address, and the tag of the
    operator that asked and of the one that let go (N: inside operator N, N+: after it)."""
    allocations, live, marks, position, marker = [], {}, [], 0, None
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
    change = {}
    for a in allocations:
        change[a["born"]] = a["bytes"]
        if a["dies"] is not None:
            change[a["dies"]] = -a["bytes"]
    rows, live, blocks = [], 0, 0
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
    return {"schema": TRACE_SCHEMA, "name": name, "versions": versions(),
            "workload": recorder.workload, "phases": phases, "initial": initial, "ops": ops,
            "allocations": rows, "saved": saved,
            "names": {"modules": modules.list(), "operators": operators.list(),
                      "nodes": nodes.list(), "dtypes": dtypes.list()}}


def versions():
    import importlib.metadata as metadata
    import torch
    found = {"torch": torch.__version__, "cuda": torch.version.cuda}
    for package in ("transformers", "accelerate", "peft", "bitsandbytes"):
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
    """One line of SUMMARY.md. Bytes as requested; cuBLAS workspaces (a constant of the GPU) are left
    out. `saved` is what layer 1 adds to autograd's saved tensors, per token, parameters excluded;
    `held` is all that the forward leaves behind (checkpointed inputs and weight copies too)."""
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
    held = next(row["begin_bytes"] for row in rows if row["phase"] == "saved") - workspace - resident
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
    head = ["trace", "saved B/token, layer 1", "held after forward", "resident", "forward peak", "backward peak",
            "optimizer peak"]
    lines = ["# Traces", "",
             "Made by `tools/oracle/torch_measure.py --summary tests/golden/traces`; format in "
             "`tools/oracle/README.md`. Bytes of step 2 as requested from the allocator, cuBLAS "
             "workspaces left out. Versions: " +
             ", ".join(f"{k} {v}" for k, v in made_with.items()) + ".", "",
             "| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    write_atomically(os.path.join(folder, "SUMMARY.md"), "\n".join(lines) + "\n")


def trace_to_text(name, workload):
    recorder = Recorder(workload)
    entries = recorder.run()
    return to_text(trace_document(name, recorder, entries))


def write_atomically(path, text):
    with tempfile.NamedTemporaryFile("w", dir=os.path.dirname(path) or ".", delete=False) as f:
        f.write(text)
    os.replace(f.name, path)


def in_child(work, seconds=None):
    """Runs work() in a forked process; (exit status or None if it was killed, seconds it took).

    A process each keeps process groups, cuBLAS workspaces, contexts and caches of one case out of
    the next; a fork keeps the imports. The parent must not have initialised CUDA."""
    sys.stdout.flush()
    sys.stderr.flush()
    started = time.monotonic()
    child = os.fork()
    if child == 0:
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
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        took = time.monotonic() - started
        if done:
            return os.waitstatus_to_exitcode(status), took
        if seconds is not None and took > seconds:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None, took
        time.sleep(0.02)


def run_trace(options):
    cases = trace_cases()
    if options.trace == "all":
        if not options.out:
            raise BadInput("--trace all: --out DIRECTORY is needed")
        os.makedirs(options.out, exist_ok=True)
        start_dry_cuda()
        wanted = [n for n in cases if not options.only or options.only in n]
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


def read_workload(path):
    """The workload of a plan, of a sweep point, or the object itself."""
    try:
        with open(path) as f:
            document = json.load(f)
    except (OSError, ValueError) as e:
        raise BadInput(f"{path}: {e}") from e
    if isinstance(document, dict) and "workload" in document:
        document = document["workload"]
    return normalised(document)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trace", metavar="NAME|FILE|all", help="record without a GPU")
    parser.add_argument("--only", metavar="TEXT", help="with --trace all: cases whose name has TEXT")
    parser.add_argument("--list-traces", action="store_true")
    parser.add_argument("--summary", metavar="DIR", help="write DIR/SUMMARY.md from its traces")
    parser.add_argument("--out", metavar="PATH", help="where the result goes (default: stdout)")
    options = parser.parse_args(arguments)
    try:
        if options.list_traces:
            print("\n".join(trace_cases()))
        elif options.trace:
            run_trace(options)
        elif options.summary:
            summarise(options.summary)
        else:
            parser.error("say --trace, --summary or --list-traces")
    except BadInput as e:
        print(f"torch_measure.py: {e}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except NoDevice as e:
        print(f"torch_measure.py: {e}", file=sys.stderr)
        return EXIT_DEVICE
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Training steps of the real DeepSpeed engine through PyTorch's own allocator, without a GPU.

  deepspeed_measure.py --out tests/golden/deepspeed_runs.json [--only TEXT]
  deepspeed_measure.py --cases deepspeed_draw.json --out tests/golden/deepspeed_draw.json
  deepspeed_measure.py --cases deepspeed_block_draw.json --out tests/golden/deepspeed_block_draw.json
  deepspeed_measure.py --cases deepspeed_nth_draw.json --out tests/golden/deepspeed_nth_draw.json
  deepspeed_measure.py --cases deepspeed_liger_cases.json --out tests/golden/deepspeed_liger.json
  deepspeed_measure.py --cases deepspeed_round_robin_cases.json --out tests/golden/deepspeed_round_robin.json
  deepspeed_measure.py --cases deepspeed_bucket_cases.json --out tests/golden/deepspeed_buckets.json
  deepspeed_measure.py --cases deepspeed_held_cases.json --out tests/golden/deepspeed_held.json
  and so with deepspeed_held_draw.json, deepspeed_reentrant_draw.json
  deepspeed_measure.py --cases deepspeed_nvme_cases.json --out tests/golden/deepspeed_nvme.json
  deepspeed_measure.py --cases deepspeed_packed_cases.json --out tests/golden/deepspeed_packed.json
  deepspeed_measure.py --cases deepspeed_packed_draw.json --out tests/golden/deepspeed_packed_draw.json
  and so with deepspeed_packed_zero3_cases.json and deepspeed_packed_zero3_draw.json
  deepspeed_measure.py --cases deepspeed_bitsandbytes_cases.json --out tests/golden/deepspeed_bitsandbytes.json
  deepspeed_measure.py --cases deepspeed_bitsandbytes_draw.json --out tests/golden/deepspeed_bitsandbytes_draw.json
  deepspeed_measure.py --cases deepspeed_tiled_cases.json --out tests/golden/deepspeed_tiled.json
  deepspeed_measure.py --cases deepspeed_tiled_draw.json --out tests/golden/deepspeed_tiled_draw.json
  and so with deepspeed_rows_cases.json, deepspeed_rows_draw.json, deepspeed_peft_cases.json, deepspeed_peft_draw.json;
  with transformers 4.57.6 deepspeed_releases_cases.json, deepspeed_releases_draw.json
  deepspeed_measure.py --history NAME [--least BYTES]     every allocation of one case's last step
  deepspeed_measure.py --start NAME [--least BYTES]       every allocation before its first step

Each workload of deepspeed_cases.json runs three steps under deepspeed.initialize() on the dry CUDA
runtime of torch_measure.py: one rank of a group without peers (torch's fake process group), so
partitions, buckets, hooks, gathers and the allocator are DeepSpeed's and PyTorch's own, and nothing
is computed or sent. FusedAdam's kernel, which allocates nothing, does nothing. Recorded is the
third step, a steady one: per phase the bytes requested at its end and at most; over the step what
the allocator counts and reserves; and what the engine's objects say about partitions. Of a case that
offloads to files (nvme_files.py) also the bytes of locked buffers and of the files; one that the
engine refuses has its message instead.
"""

import argparse
import contextlib
import functools
import importlib.metadata as metadata
import json
import logging
import os
import sys

import adapters
import apart
import batches
import dry_host
import liger
import nvme_files
import optimizers
import packed_base
import trl_head

HERE = os.path.dirname(os.path.abspath(__file__))
CATALOG = os.path.join(HERE, "..", "..", "models", "specs", "models")
CAPACITY = 1 << 42  # 4 TiB: nothing is refused
KEPT = []
KERNELS = {"flash": "sdpa", "flash-2": "flash_attention_2"}


def read_cases(name):
    with open(os.path.join(HERE, name), encoding="utf-8") as f:
        return json.load(f)


def model_config(model):
    if isinstance(model, dict):
        return model
    with open(os.path.join(CATALOG, model + ".json"), encoding="utf-8") as f:
        return json.load(f)["config"]


def load():
    """The dry runtime must be loaded before torch, the accelerator named before DeepSpeed."""
    os.environ["DS_ACCELERATOR"] = "cuda"
    sys.path.insert(0, HERE)
    import torch_measure
    torch_measure.start_dry_cuda(capacity_bytes=CAPACITY)
    if dry_host.has_dry_host():
        KEPT.append(dry_host.skip_host_arithmetic())
    logging.disable(logging.INFO)
    import transformers  # noqa: F401  (each case runs in a fork; peft makes a context)
    from deepspeed.ops.adam import fused_adam
    from deepspeed.ops.lion import fused_lion

    class NoKernel:
        def multi_tensor_adam(self, *_):
            pass

        multi_tensor_lion = multi_tensor_adam

    class NoHostKernel:
        def create_adam(self, *_):
            pass

        destroy_adam = adam_update = create_adam

    from deepspeed.ops.adam import cpu_adam
    cpu_adam.CPUAdamBuilder.load = lambda self, verbose=True: NoHostKernel()
    fused_adam.FusedAdamBuilder.load = lambda self, verbose=False: NoKernel()
    fused_lion.FusedLionBuilder.load = lambda self, verbose=False: NoKernel()
    nvme_files.install()
    # ZeRO-3 asks whether all ranks see the same modules; rank 0, which is not there, has no answer.
    from deepspeed.runtime.zero import partition_parameters, partitioned_param_coordinator, stage3
    for module in (partition_parameters, partitioned_param_coordinator, stage3):
        module.assert_ints_same_as_other_ranks = lambda ints: None


def start(world, rank):
    """One rank of a group without peers."""
    os.environ.update({"LOCAL_RANK": "0", "RANK": str(rank), "WORLD_SIZE": str(world),
                       "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"})
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    torch.cuda.set_device(0)


def offloads(case):
    return any(key.startswith("offload") for key in case["workload"]["stack"].get("deepspeed", {}))


def to_files(case):
    zero = case["workload"]["stack"].get("deepspeed", {})
    return any(isinstance(part, dict) and part.get("device") == "nvme" for part in zero.values())


def ds_config(case):
    workload = case["workload"]
    strategy, batch = workload["strategy"], workload["batch"]
    zero = {"stage": strategy["zero"], **workload["stack"].get("deepspeed", {})}
    config = {"train_micro_batch_size_per_gpu": batch["micro_batch"],
              "gradient_accumulation_steps": batch["grad_accum"], "zero_optimization": zero,
              "gradient_clipping": 1.0}
    for part in ("optimizer", "param"):
        if "offload_" + part in zero:
            zero["offload_" + part] = {"device": "cpu", **zero["offload_" + part]}
            if zero["offload_" + part]["device"] == "nvme":
                zero["offload_" + part]["nvme_path"] = nvme_files.folder()
    kind = strategy.get("precision", "bf16-mixed")
    if kind == "bf16-mixed":
        config["bf16"] = {"enabled": True}
    elif kind == "bf16":
        config["bf16"] = {"enabled": True, "bf16_master_weights_and_grads": True,
                          "bf16_optimizer_states": True}
    elif kind == "fp16-mixed":
        config["fp16"] = {"enabled": True}
    if strategy.get("grad_dtype"):
        config["data_types"] = {"grad_accum_dtype": strategy["grad_dtype"]}
    torch_adam = workload["stack"].get("optimizer_impl", "fused") != "fused"
    if strategy.get("optimizer", "adamw") == "adamw":
        config["optimizer"] = {"type": "AdamW", "params": {"torch_adam": True} if torch_adam else {}}
    elif strategy["optimizer"] == "lion":
        config["optimizer"] = {"type": "Lion", "params": {}}
    elif strategy["optimizer"] in optimizers.BITSANDBYTES:  # the Trainer's own (integrations/deepspeed.py)
        config["zero_allow_untested_optimizer"] = True
    else:
        config["optimizer"] = {"type": "SGD", "params": {"lr": 0.1}}
        config["zero_allow_untested_optimizer"] = True
    return config


def build(case, config):
    import deepspeed
    import torch
    import torch_measure
    workload = case["workload"]
    strategy = workload["strategy"]
    hf = torch_measure.hf_config({"config": model_config(workload["model"])}, {"use_cache": False})
    if strategy["zero"] == 3:  # from_config, and no checkpoint, zeroes its row, which is sharded
        hf.pad_token_id = None
    packed = strategy.get("quantize")
    loaded = strategy.get("param_dtype") if packed else None  # else the engine casts it, whatever it is
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[
        loaded or strategy.get("precision", "bf16-mixed").split("-")[0]]
    # transformers 5.17, modeling_utils.py, get_init_context: no zero.Init around a packed base.
    inside = torch.device("meta") if packed else \
        deepspeed.zero.Init(config_dict_or_path=config) if strategy["zero"] == 3 else \
        torch.device("cuda")
    attention = strategy.get("attention", "sdpa")
    with inside:
        model = torch_measure.auto_class(model_config(workload["model"])).from_config(
            hf, dtype=dtype, attn_implementation=KERNELS.get(attention, attention))
    if packed:
        asked = {"precision": "bf16-mixed", "quant_storage": None, "kbit_prep": None,
                 "recompute": "none", **strategy}
        model = packed_base.with_packed_base(model, asked, "cuda")
        options = {"use_reentrant": workload["stack"].get("use_reentrant", False)}
        model = packed_base.kbit_prepared(model, asked, options)
    model.train()
    trl_head.apply(model, strategy.get("loss", "full"))
    recompute = (strategy.get("recompute", "none"),
                 {"use_reentrant": workload["stack"].get("use_reentrant", False)})
    # Before 5.0 it is PEFT that asks the embedding for a gradient, where checkpoints are on already.
    before_5 = "transformers_version" in workload["stack"]
    if before_5:
        torch_measure.select_recompute(model, *recompute)
    if strategy.get("lora"):
        lora = {"rank": 8, "alpha": 16.0, "targets": "all-linear", "dropout": 0.0,
                "adapter_dtype": "fp32", **strategy["lora"]}
        model = adapters.with_lora(model, lora)
    liger.apply(model, workload["stack"].get("kernels", "eager"), strategy.get("loss", "full"))
    if not before_5:
        torch_measure.select_recompute(model, *recompute)
    trained = [p for p in model.parameters() if p.requires_grad]
    which = optimizers.BITSANDBYTES.get(strategy.get("optimizer"))
    own = {"optimizer": optimizers.bitsandbytes_optimizer(model, which, True, trained)} if which \
        else {"model_parameters": trained}
    engine, _, _, _ = deepspeed.initialize(model=model, config=config, **own)
    return engine, hf


def facts(optimizer):
    """What the engine's own objects say: sizes in elements."""
    out = {"wrapper": type(optimizer).__name__}
    if hasattr(optimizer, "params_in_partition"):
        out["partition"] = [int(n) for n in optimizer.partition_size]
        out["aligned"] = [t.numel() for t in optimizer.bit16_groups_flat]
        out["whole_in_partition"] = [sum(p.numel() for p in group)
                                     for group in optimizer.params_in_partition]
        out["pieces_in_partition"] = [len(group) for group in optimizer.params_in_partition]
    if hasattr(optimizer, "fp16_partitioned_groups_flat_numel"):
        out["sub_groups"] = [int(n) for n in optimizer.fp16_partitioned_groups_flat_numel]
        out["persistent"] = sum(p.ds_numel for p in optimizer.persistent_parameters)
        out["lp_buffer"] = sum(b.numel() for b in getattr(optimizer, "lp_param_buffer", None) or [])\
            if isinstance(getattr(optimizer, "lp_param_buffer", None), list) else \
            getattr(optimizer, "lp_param_buffer", None) is not None and \
            int(optimizer.lp_param_buffer.numel())
        out["grad_buffer"] = int(optimizer.grad_partitions_flat_buffer.numel())
    return out


class Steps:
    def __init__(self, case):
        import torch
        self.torch = torch
        world = case["workload"]["strategy"].get("world_size", 8)
        self.engine, hf = build(case, ds_config(case))
        workload = case["workload"]
        batch = workload["batch"]
        self.count = batch["grad_accum"]
        self.ids = torch.randint(0, hf.vocab_size, batches.shape(workload), device="cuda")
        self.beside = batches.beside(workload, self.ids)
        self.world, self.phases = world, []
        self.tiled = case["workload"]["strategy"].get("loss") == "tiled"

    def mark(self, name):
        stats = self.torch.cuda.memory_stats()
        self.phases.append({"phase": name, "end_bytes": stats["requested_bytes.all.current"],
                            "peak_bytes": stats["requested_bytes.all.peak"]})
        self.allocated = max(self.allocated, stats["allocated_bytes.all.peak"])
        self.torch.cuda.reset_peak_memory_stats()

    def step(self):
        self.phases, self.allocated = [], 0
        self.torch.cuda.reset_peak_memory_stats()
        for micro in range(self.count):
            suffix = str(micro) if micro else ""
            loss = trl_head.loss(self.engine, self.ids, self.ids, contextlib.nullcontext(), self.beside) \
                if self.tiled else self.engine(input_ids=self.ids, labels=self.ids, **self.beside).loss
            self.mark("forward" + suffix)
            self.engine.backward(loss)
            self.mark("backward" + suffix)
            del loss
            self.engine.step()
        self.mark("step")


def run_here(case):
    import deepspeed
    import torch
    import torch_measure
    import transformers
    workload = case["workload"]
    start(workload["strategy"].get("world_size", 8), case.get("rank", 0))
    asked = workload["stack"].get("transformers_version", transformers.__version__)
    if asked != transformers.__version__:
        raise ValueError(f"{case['name']} is of transformers {asked}, {transformers.__version__} is installed")
    versions = {"deepspeed": deepspeed.__version__, "torch": torch.__version__,
                "transformers": transformers.__version__}
    strategy = workload["strategy"]
    if strategy.get("quantize") or strategy.get("optimizer") in optimizers.BITSANDBYTES:
        versions |= {name: metadata.version(name) for name in ("bitsandbytes", "peft")}
    if strategy.get("loss") == "tiled":
        versions |= {name: metadata.version(name) for name in ("bitsandbytes", "peft", "trl")}
    try:
        steps = Steps(case)
        for _ in range(3):
            resident = torch.cuda.memory_stats()["requested_bytes.all.current"]
            steps.step()
    except AssertionError as refused:
        if not to_files(case):
            raise
        nvme_files.used()
        return {"case": case["name"], "rank": case.get("rank", 0), "workload": workload,
                "refused": str(refused), "versions": versions}
    managed = torch_measure.managed_bytes()
    host = dry_host.host_bytes(nvme_files.is_locked)
    if to_files(case):
        host.update(nvme_files.used())
    return {"case": case["name"], "rank": case.get("rank", 0), "workload": workload,
            "resident_bytes": resident, "phases": steps.phases,
            "peak_bytes": max(p["peak_bytes"] for p in steps.phases),
            "allocated_bytes": steps.allocated,
            "reserved_bytes": torch.cuda.max_memory_reserved(),
            **({"managed_bytes": managed} if managed else {}),
            "host": host, "engine": facts(steps.engine.optimizer), "versions": versions}


def print_events(events, least):
    live = 0
    for event in events:
        if event["action"] not in ("alloc", "free_completed", "segment_alloc", "segment_free"):
            continue
        if event["action"].startswith("segment"):
            if event["size"] >= least:
                print("S+" if event["action"] == "segment_alloc" else "S-", event["size"])
            continue
        size = (event["size"] + 511) // 512 * 512
        live += size if event["action"] == "alloc" else -size
        if event["size"] < least:
            continue
        frames = [f for f in event.get("frames", []) if "/torch/" not in f["filename"]]
        where = " < ".join(f"{os.path.basename(f['filename'])}:{f['line']}:{f['name']}"
                           for f in frames[:3])
        print("+" if event["action"] == "alloc" else "-", event["size"], "live", live, where)


def history(case, least, start_only=False):
    workload = case["workload"]
    start(workload["strategy"].get("world_size", 8), case.get("rank", 0))
    import torch
    record = functools.partial(torch.cuda.memory._record_memory_history, enabled="all",
                               context="alloc", stacks="python", max_entries=10_000_000)
    if start_only:
        record()
    steps = Steps(case)
    if not start_only:
        steps.step(), steps.step()
        record()
        steps.step()
    print_events(torch.cuda.memory._snapshot()["device_traces"][0], least)
    print("reserved", torch.cuda.memory_reserved(), json.dumps(steps.phases))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--out")
    parser.add_argument("--cases", default="deepspeed_cases.json")
    parser.add_argument("--only", default="")
    parser.add_argument("--history")
    parser.add_argument("--start")
    parser.add_argument("--least", type=int, default=1 << 20)
    options = parser.parse_args()
    cases = read_cases(options.cases)
    if any(offloads(case) for case in cases):
        dry_host.with_dry_host()
    load()
    if options.history or options.start:
        name = options.history or options.start
        history(next(c for c in cases if c["name"] == name), options.least, bool(options.start))
        return 0
    cases = [c for c in cases if options.only in c["name"]]
    results = []
    for result in apart.run_apart(run_here, cases):
        results.append(result)
        print(result["case"], result.get("peak_bytes", result.get("refused", result.get("error"))),
              file=sys.stderr)
        if options.out:
            write([r for r in results if "error" not in r], options.out)
    return 1 if any("error" in r for r in results) else 0


def write(results, name):
    versions = results[0]["versions"] if results else {}
    text = json.dumps({"schema": "plimsoll.deepspeed_runs/1", "versions": versions}, indent=1)[:-2]
    runs = ({key: value for key, value in r.items() if key != "versions"} for r in results)
    text += ',\n "runs": [\n  ' + ",\n  ".join(json.dumps(r) for r in runs) + "\n ]\n}\n"
    with open(name + ".part", "w", encoding="utf-8") as f:
        f.write(text)
    os.replace(name + ".part", name)


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""What an exported plan allocates when its owner runs it: Transformers' Trainer, without a GPU.

  export_runs.py --out tests/golden/export_runs.json [--only TEXT]
  export_runs.py --history NAME [--least BYTES]     every allocation of one case's last step

For each case of export_cases.json and export_run_cases.json: a plan by `plimsoll fit` for a small
model of the same architecture, its snippet by `plimsoll export --to transformers`, and that snippet
executed as it stands, on the dry CUDA runtime of torch_measure.py: one rank of a group without
peers. Only this is put in the place of something else: from_pretrained makes random weights of the
plan's configuration, the data are tokens 0, each node says that it has its GPUs, and Liger's Triton
kernels, which allocate nothing, are not launched. Recorded is the third step, from on_step_begin to
on_step_end: what was requested and what the allocator counted (torch.cuda.max_memory_allocated()).

The dry device is of sm_80, where SDPA takes FlashAttention, so plans are made for an A100.
Cases with --loss fused need the package liger_kernel (0.8.5).
"""

import argparse
import copy
import json
import logging
import os
import pathlib
import subprocess
import sys
import tempfile
import traceback

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
STEPS = 3
SMALL = {"num_hidden_layers": 5, "n_layer": 5, "hidden_size": 512, "n_embd": 512,
         "intermediate_size": 1536, "num_attention_heads": 8, "n_head": 8, "head_dim": 64,
         "num_key_value_heads": 2, "vocab_size": 32000}


class Measured(Exception):
    """The step that counts is over."""


def small_config(name):
    config = json.loads((ROOT / "models/specs/models" / (name + ".json")).read_text())["config"]
    return {key: SMALL.get(key, value) for key, value in config.items()}


def load():
    """Once, before any fork: the dry runtime before torch. Not peft, whose bitsandbytes starts CUDA."""
    os.environ["DS_ACCELERATOR"] = "cuda"
    sys.path.insert(0, str(HERE))
    import torch_measure
    torch_measure.start_dry_cuda(capacity_bytes=1 << 42, capability=(8, 0), multiprocessors=108)
    logging.disable(logging.WARNING)
    import accelerate  # noqa: F401
    import transformers  # noqa: F401
    from deepspeed.ops.adam import fused_adam

    class NoKernel:
        def multi_tensor_adam(self, *_):
            pass

    fused_adam.FusedAdamBuilder.load = lambda self, verbose=False: NoKernel()


def start(world, node):
    """One rank of a group without peers, as torchrun would have started it."""
    if world == 1:
        return
    os.environ.update({"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": str(world),
                       "LOCAL_WORLD_SIZE": str(min(world, node)), "MASTER_ADDR": "localhost",
                       "MASTER_PORT": "29500"})
    import torch
    import torch_measure
    from transformers import trainer  # noqa: F401  (what it imports asks each device)
    torch_measure.start_process_group(world)
    torch.cuda.device_count = lambda: min(world, node)  # HYBRID_SHARD's groups
    made = torch.nn.parallel.DistributedDataParallel.__init__

    def init(self, *args, **kwargs):
        made(self, *args, **kwargs)
        self.register_comm_hook(None, torch_measure.unanswered_all_reduce)

    torch.nn.parallel.DistributedDataParallel.__init__ = init


def random_weights(config):
    """from_pretrained without a download."""
    import transformers
    fields = {k: v for k, v in copy.deepcopy(config).items()
              if k not in ("architectures", "transformers_version", "torch_dtype", "dtype")}

    def from_pretrained(_, dtype, attn_implementation):
        return transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(**fields), dtype=dtype,
            attn_implementation=attn_implementation)

    transformers.AutoModelForCausalLM.from_pretrained = staticmethod(from_pretrained)


def without_triton():
    import importlib.metadata as metadata
    import liger
    liger.launch_no_triton()
    return {"liger_kernel": metadata.version("liger_kernel")}


def data(length):
    import torch

    class Tokens(torch.utils.data.Dataset):
        def __len__(self):
            return 1 << 14

        def __getitem__(self, _):
            return {name: torch.zeros(length, dtype=torch.int64)
                    for name in ("input_ids", "labels", "attention_mask")}

    return Tokens()


def watched(trainer, record):
    """Figures of the third step; `record` sees the allocator's history of it."""
    import torch
    import transformers
    out = {}

    def requested(what):
        return torch.cuda.memory_stats()["requested_bytes.all." + what]

    class Watch(transformers.TrainerCallback):
        def on_step_begin(self, arguments, state, control, **_):
            if state.global_step + 1 == STEPS:
                torch.cuda.reset_peak_memory_stats()
                record.begin()

        def on_pre_optimizer_step(self, arguments, state, control, **_):
            out["backward_bytes"] = requested("peak")

        def on_step_end(self, arguments, state, control, **_):
            if state.global_step == STEPS:
                record.end()
                out.update(requested_bytes=requested("peak"), resident_bytes=requested("current"),
                           allocated_bytes=torch.cuda.max_memory_allocated(),
                           reserved_bytes=torch.cuda.max_memory_reserved())
                raise Measured

    trainer.add_callback(Watch())
    try:
        trainer.train()
    except Measured:
        return out


class History:
    def __init__(self, least=None):
        self.least = least

    def begin(self):
        if self.least is not None:
            import torch
            torch.cuda.memory._record_memory_history(enabled="all", context="alloc", stacks="python",
                                                     max_entries=10_000_000)

    def end(self):
        if self.least is not None:
            import deepspeed_measure
            import torch
            deepspeed_measure.print_events(
                torch.cuda.memory._snapshot()["device_traces"][0], self.least)


def run_here(plan, snippet, least=None):
    workload = plan["workload"]
    cluster = plan["environment"]["cluster"]
    start(workload["strategy"]["world_size"], cluster["gpus_per_node"])
    random_weights(workload["model"]["config"])
    made_with = without_triton() if "liger" in snippet else {}
    scope = {"__name__": "snippet"}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        exec(compile(snippet, "snippet", "exec"), scope)  # our own program's output
        arguments = scope["arguments"]  # what concerns the host alone
        arguments.max_steps, arguments.save_strategy = STEPS + 1, "no"
        arguments.report_to, arguments.disable_tqdm = [], True
        return {**watched(scope["trainer"](data(workload["batch"]["seq_len"])), History(least)),
                **made_with}


def run_apart(plan, snippet, least=None):
    """In a fork of this process, which has imported everything and made no context."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            result = run_here(plan, snippet, least)
        except BaseException as error:  # whatever it is belongs into the table
            traceback.print_exc()
            result = {"error": repr(error)}
        with os.fdopen(writer, "w") as out:
            json.dump(result, out)
        sys.stdout.flush()
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else {"error": "died"}


def cases():
    """Name, model and options; plans of stack plimsoll are not run by others."""
    exported = [{"name": c["name"], "model": c["fit"][0], "fit": c["fit"][1:]}
                for c in json.loads((HERE / "export_cases.json").read_text())
                if "--stack plimsoll" not in " ".join(c["fit"])]
    return exported + json.loads((HERE / "export_run_cases.json").read_text())


def planned(case, plimsoll):
    """The plan of the small model, and its snippet."""
    def ask(words, stdin=""):
        done = subprocess.run([plimsoll, *words], input=stdin, capture_output=True, text=True,
                              timeout=60)
        if done.returncode not in (0, 1) or not done.stdout:
            raise RuntimeError(" ".join(words) + ": " + done.stderr.strip())
        return done.stdout

    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "config.json"
        path.write_text(json.dumps(small_config(case["model"])))
        plan = json.loads(ask(["fit", str(path), *case["fit"], "--gpu", "a100-80gb",
                               "--json", "-"]))
    snippet = ask(["export", "-", "--to", "transformers", "--quiet"], json.dumps(plan))
    plan["workload"]["model"]["name"] = "small-" + case["model"]  # recorded: no path of this run
    return plan, snippet


def versions():
    import importlib.metadata as metadata
    import torch
    return {"torch": torch.__version__, **{name: metadata.version(name) for name in (
        "transformers", "accelerate", "peft", "deepspeed")}}


def document(results, made_with):
    text = json.dumps({"schema": "plimsoll.export_runs/1", "versions": made_with}, indent=1)[:-2]
    return text + ',\n "runs": [\n  ' + ",\n  ".join(
        json.dumps(r, sort_keys=True) for r in results) + "\n ]\n}\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--out")
    parser.add_argument("--plimsoll", default=str(ROOT / "build" / "tools" / "plimsoll"))
    parser.add_argument("--only", default="")
    parser.add_argument("--history")
    parser.add_argument("--least", type=int, default=1 << 20)
    options = parser.parse_args()
    load()
    chosen = [c for c in cases() if c["name"] == options.history or not options.history and any(
        part in c["name"] for part in options.only.split(","))]
    good, failed = [], 0
    for case in chosen:
        plan, snippet = planned(case, options.plimsoll)
        result = run_apart(plan, snippet, options.least if options.history else None)
        if "error" in result:
            failed += 1
            print(case["name"], result["error"], file=sys.stderr)
            continue
        print(f"{case['name']}: planned {plan['peak_bytes']}, allocated "
              f"{result['allocated_bytes']} "
              f"({100 * (result['allocated_bytes'] / plan['peak_bytes'] - 1):+.2f} %)",
              file=sys.stderr, flush=True)
        good.append({"case": case["name"], **result, "plan": {
            "schema": plan["schema"], "workload": plan["workload"],
            "environment": {"cluster": plan["environment"]["cluster"]}}})
    if options.out:
        part = pathlib.Path(options.out + ".part")
        part.write_text(document(good, versions()))
        part.replace(options.out)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""What PyTorch and DeepSpeed send in one training step, message by message, without a GPU.

  messages.py --out tests/golden/messages.json [--only TEXT]
  messages.py --cases message_torchtitan_cases.json --only 0.2.2 --out FILE    (needs that torchtitan on PYTHONPATH;
                                              tests/golden/messages_torchtitan.json has both releases' runs)

Each workload of message_cases.json runs three steps on the dry CUDA runtime of torch_measure.py, as
rank 0 of a group without peers (torch's fake process group). A dispatch mode sees each collective
of the third step as it is handed to the group: its kind, the bytes of its whole array, the ranks of
its group. DDP's buckets are seen by its communication hook. Scalars (overflow flags, norms) are
left out: an array of at most 8 bytes for each rank.
"""

import argparse
import collections
import json
import os
import sys

import apart
import deepspeed_measure

HERE = os.path.dirname(os.path.abspath(__file__))
KINDS = {"allgather_": "all_gather", "_allgather_base_": "all_gather",
         "allgather_into_tensor_coalesced_": "all_gather",
         "_reduce_scatter_base_": "reduce_scatter", "reduce_scatter_": "reduce_scatter",
         "reduce_scatter_tensor_coalesced_": "reduce_scatter",
         "allreduce_": "all_reduce", "allreduce_coalesced_": "all_reduce",
         "broadcast_": "broadcast"}
FUNCTIONAL = {"all_gather_into_tensor": "all_gather", "reduce_scatter_tensor": "reduce_scatter",
              "all_reduce": "all_reduce"}  # of distributed tensors
SCALAR = 8


class Recorder:
    def __init__(self):
        import torch
        from torch.utils._python_dispatch import TorchDispatchMode
        self.torch, self.seen = torch, collections.Counter()
        recorder = self

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                if {kind.__name__ for kind in types} & {"DTensor", "AsyncCollectiveTensor"}:
                    return NotImplemented  # runs as ops of its own
                space, _, name = func.name().partition("::")
                if space == "c10d":
                    recorder.collective(name, args)
                elif space == "_c10d_functional" and name in FUNCTIONAL:
                    recorder.functional(name, args)
                return func(*args, **(kwargs or {}))

        self.mode = Mode()

    def collective(self, name, args):
        if name == "barrier":
            return
        group = next(a for a in args if isinstance(a, self.torch.ScriptObject))
        # The largest tensor is the whole array; a rank's piece is smaller.
        size = max(t.numel() * t.element_size() for t in tensors_in(args, self.torch.Tensor))
        self.note(KINDS[name], size, self.torch.distributed.ProcessGroup.unbox(group).size())

    def functional(self, name, args):
        from torch.distributed.distributed_c10d import _resolve_process_group
        ranks = _resolve_process_group(args[-1]).size()
        whole = args[0].numel() * args[0].element_size()
        self.note(FUNCTIONAL[name], whole * (ranks if name.startswith("all_gather") else 1), ranks)

    def note(self, kind, size, ranks):
        if size > SCALAR:
            self.seen[kind, size, ranks] += 1

    def rows(self):
        return [{"kind": kind, "count": count, "array_bytes": size, "group": ranks}
                for (kind, size, ranks), count in sorted(self.seen.items())]


def tensors_in(value, kind):
    if isinstance(value, kind):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item, kind)


def watch_ddp(recorder):
    """DDP's all-reduces go to its hook (torch_measure.unanswered_all_reduce)."""
    import torch
    import torch_measure
    answer = torch_measure.unanswered_all_reduce

    def unanswered_all_reduce(_, bucket):
        buffer = bucket.buffer()
        recorder.note("all_reduce", buffer.numel() * buffer.element_size(),
                      torch.distributed.get_world_size())
        return answer(_, bucket)

    torch_measure.unanswered_all_reduce = unanswered_all_reduce


def run_here(case):
    import torch_measure
    recorder = Recorder()
    workload = case["workload"]
    if case["stack"] == "deepspeed":
        deepspeed_measure.start(workload["strategy"]["world_size"], 0)
        steps = deepspeed_measure.Steps(case)
    else:
        workload = torch_measure.normalised(workload)
        watch_ddp(recorder)
        steps = torch_measure.Training(workload)
    steps.step()
    steps.step()
    recorder.seen.clear()
    with recorder.mode:
        steps.step()
    import deepspeed
    return {"case": case["name"], "stack": case["stack"], "workload": workload,
            "messages": recorder.rows(),
            "versions": {**torch_measure.versions(), "deepspeed": deepspeed.__version__}}


def read_cases(name):
    """Cases with the model that they name, and what all have in common."""
    with open(os.path.join(HERE, name), encoding="utf-8") as f:
        document = json.load(f)
    for case in document["cases"]:
        model = document["models"][case.get("model", "llama")]
        own = case.get("stack", "pytorch") == "deepspeed"
        strategy = {"world_size": 3, **case["strategy"]}
        yield {"name": case["name"], "stack": case.get("stack", "pytorch"), "rank": 0,
               "workload": {"model": model if own else {"name": "tiny", "config": model},
                            "stack": case.get("options", {}), "strategy": strategy,
                            "batch": case.get("batch") or
                            {"seq_len": 64, "micro_batch": 1, "grad_accum": 3}}}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--out")
    parser.add_argument("--only", default="")
    parser.add_argument("--cases", default="message_cases.json")
    options = parser.parse_args()
    deepspeed_measure.load()
    cases = [c for c in read_cases(options.cases) if options.only in c["name"]]
    results = []
    for result in apart.run_apart(run_here, cases):
        print(result["case"], result.get("messages", result.get("error")), file=sys.stderr)
        results.append(result)
    good = [r for r in results if "error" not in r]
    versions = good[0]["versions"] if good else {}
    for result in good:
        del result["versions"]
    text = json.dumps({"schema": "plimsoll.messages/1", "versions": versions}, indent=1)[:-2]
    text += ',\n "runs": [\n  ' + ",\n  ".join(json.dumps(r) for r in good) + "\n ]\n}\n"
    if options.out:
        with open(options.out + ".part", "w", encoding="utf-8") as f:
            f.write(text)
        os.replace(options.out + ".part", options.out)
    return 0 if len(good) == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""How long the host takes to issue a step: PyTorch's dispatcher, Transformers' Python, FSDP's and DeepSpeed's hooks.

  host_times.py --out A.json [--only TEXT]
  host_times.py --cases host_times_fresh_cases.json --out tests/golden/host_times_fresh.json
  host_times.py --middle A.json B.json C.json --out tests/golden/host_times.json

Each workload of host_times_cases.json trains on the dry CUDA runtime (torch_measure.py), where a kernel costs nothing,
with 8 and with 24 layers, so narrow that the host does nothing but ask. Recorded is the processor's time for a layer's
forward and backward (with what is run again) and its part of the optimizer: a sixteenth of the difference, of the least
of many steps that both take in turns; of several runs each case's middle one, by the time of a small kernel beside it,
which says how fast the processor was meanwhile. The driver's own time for a launch and NCCL's for a message are not in
it: a GPU's host needs a little more. The fresh cases were asked when the plan's figures had been settled.
"""
import argparse
import importlib.metadata as metadata
import json
import os
import platform
import sys
import time

import apart

HERE = os.path.dirname(os.path.abspath(__file__))
DEPTHS = (8, 24)
STEPS = 30


def workload_of(case, layers):
    layer_key = "n_layer" if case["config"]["model_type"] == "gpt2" else "num_hidden_layers"
    config = {**case["config"], layer_key: layers}
    return {"model": config if case.get("deepspeed") else {"name": case["name"], "config": config},
            "batch": {"seq_len": 128, "micro_batch": 1, "grad_accum": 1},
            "strategy": case["strategy"], "stack": case.get("stack", {})}


def training(case, layers):
    """What has a step(mark)."""
    import torch_measure
    workload = workload_of(case, layers)
    if not case.get("deepspeed"):
        return torch_measure.Training(torch_measure.normalised(workload))
    import deepspeed_measure
    import torch.distributed
    if not torch.distributed.is_initialized():
        deepspeed_measure.start(workload["strategy"]["world_size"], 0)
    steps = deepspeed_measure.Steps({"name": case["name"], "workload": workload})

    class Marked:
        @staticmethod
        def step(mark):
            mark("forward")
            loss = steps.engine(input_ids=steps.ids, labels=steps.ids).loss
            mark("backward")
            steps.engine.backward(loss)
            mark("optimizer")
            steps.engine.step()
            mark("end")
    return Marked


def reference():
    """Seconds of the processor for a thousand small kernels: the same in every case, if nothing slows the machine."""
    import torch
    small = torch.ones(64, device="cuda")
    began = time.process_time()
    for _ in range(1000):
        small.add(small)
    return time.process_time() - began


def least_seconds(case):
    """Of each phase of a step, of few and of many layers in turns; of the reference beside them."""
    both = [training(case, layers) for layers in DEPTHS]
    least = [{} for _ in both]
    beside = []
    for _ in range(STEPS):
        beside.append(reference())
        for it, of in zip(both, least):
            marks = []
            it.step(lambda phase: marks.append((phase, time.process_time())))
            for (phase, began), (_, ended) in zip(marks, marks[1:]):
                of[phase] = min(of.get(phase, ended - began), ended - began)
    return {"few": least[0], "many": least[1], "reference": min(beside)}


def row_of(case, answer):
    """Microseconds of a layer, by phase, and of the whole step of each depth."""
    if "error" in answer:
        raise RuntimeError(f"{case['name']}: {answer['error']}")
    few, many, more = answer["few"], answer["many"], DEPTHS[1] - DEPTHS[0]
    layer = {phase: round(1e6 * (many[phase] - few[phase]) / more) for phase in ("forward", "backward", "optimizer")}
    step = {str(depth): round(1e6 * sum(of.values())) for depth, of in zip(DEPTHS, (few, many))}
    workload = workload_of(case, DEPTHS[-1])
    if not case.get("deepspeed"):
        import torch_measure
        workload = torch_measure.normalised(workload)
    return {"name": case["name"], "stack": "deepspeed" if case.get("deepspeed") else "pytorch",
            "workload": workload, "layer_microseconds": layer, "step_microseconds": step,
            "reference_microseconds": round(1e3 * answer["reference"], 2)}


def processor():
    with open("/proc/cpuinfo", encoding="utf-8") as info:
        names = [line.partition(":")[2].strip() for line in info if line.startswith("model name")]
    return names[0] if names else platform.processor()


def by_reference(row):
    layer = row["layer_microseconds"]
    return (layer["forward"] + layer["backward"]) / row["reference_microseconds"]


def middle_of(paths):
    documents = []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            documents.append(json.load(file))
    rows = zip(*(document["cases"] for document in documents), strict=True)
    return {**documents[0], "cases": [sorted(same, key=by_reference)[len(same) // 2] for same in rows]}


def write(document, path):
    head = {key: value for key, value in document.items() if key != "cases"}
    lines = ",\n".join("  " + json.dumps(row) for row in document["cases"])
    with open(path, "w", encoding="utf-8") as file:
        file.write(json.dumps(head)[:-1] + ', "cases": [\n' + lines + "\n]}\n")


def main():
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--out", required=True)
    asked.add_argument("--only", default="")
    asked.add_argument("--cases", default="host_times_cases.json", help="beside this program")
    asked.add_argument("--middle", nargs="+", default=[], metavar="FILE")
    options = asked.parse_args()
    if options.middle:
        return write(middle_of(options.middle), options.out)
    with open(os.path.join(HERE, options.cases), encoding="utf-8") as file:
        cases = [case for case in json.load(file) if options.only in case["name"]]
    sys.path.insert(0, HERE)
    import deepspeed_measure
    deepspeed_measure.load()
    rows = []
    for case in cases:
        rows.append(row_of(case, *apart.run_apart(least_seconds, [case])))
        print(case["name"], rows[-1]["layer_microseconds"], rows[-1]["reference_microseconds"], file=sys.stderr,
              flush=True)
    versions = {name: metadata.version(name) for name in ("torch", "transformers", "peft", "bitsandbytes", "deepspeed")}
    write({"processor": processor(), "versions": versions, "depths": list(DEPTHS), "cases": rows}, options.out)
    return None


if __name__ == "__main__":
    main()

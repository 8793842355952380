#!/usr/bin/env python3
"""Full-size training steps through PyTorch's own allocator, without a GPU.

  dry_runs.py --out tests/golden/dry_runs.json [--cases FILE] [--only TEXT,TEXT] [--jobs N]

Each workload of dry_runs_cases.json (or of FILE: dry_runs_settings_cases.json has settings of the
allocator and held outputs, tests/golden/dry_runs_settings.json) runs three steps on the dry CUDA runtime of torch_measure.py:
every kernel launch does nothing, every allocation goes through torch's caching allocator. So
`torch.cuda.max_memory_allocated()` and `max_memory_reserved()` are those of a real run, for models
of any size; what a dry run cannot know is listed at the top of torch_measure.py (SDPA runs
FlashAttention, there is no context and no NCCL). Recorded is the third step, a steady one.
With another Transformers (4.45 and later) the figures are that release's.
"""

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
CATALOG = os.path.join(HERE, "..", "..", "models", "specs", "models")
CAPACITY = 1 << 42  # 4 TiB: nothing is refused


def model_config(name):
    with open(os.path.join(CATALOG, name + ".json"), encoding="utf-8") as f:
        return json.load(f)["config"]


def workload_of(case):
    return {"model": {"name": case["model"], "config": model_config(case["model"])},
            "stack": case.get("stack", {}), "strategy": case.get("strategy", {}),
            "batch": case["batch"]}


def run_here(case):
    """In a process of its own: the dry runtime must be loaded before torch."""
    sys.path.insert(0, HERE)
    import torch_measure
    workload = workload_of(case)
    if workload["stack"].get("allocator_conf"):
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = workload["stack"]["allocator_conf"]
    torch_measure.start_dry_cuda(capacity_bytes=CAPACITY)
    import torch
    import transformers
    workload["stack"] = {**workload["stack"], "transformers_version": transformers.__version__}
    workload = torch_measure.normalised(workload)
    if workload["strategy"]["world_size"] > 1:
        torch_measure.start_process_group(workload["strategy"]["world_size"])
    training = torch_measure.Training(workload)
    for _ in range(3):
        torch.cuda.reset_peak_memory_stats()
        training.step()
    return {"case": case["name"], "workload": workload,
            "peak_bytes": torch.cuda.max_memory_allocated(),
            "reserved_bytes": torch.cuda.max_memory_reserved(),
            "resident_bytes": torch.cuda.memory_allocated(),
            "versions": torch_measure.versions()}


def run_apart(case):
    done = subprocess.run([sys.executable, os.path.abspath(__file__), "--case", json.dumps(case)],
                          capture_output=True, text=True, timeout=1200)
    if done.returncode != 0:
        return {"case": case["name"], "error": done.stderr.strip().splitlines()[-1:]}
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--out")
    parser.add_argument("--cases", default=os.path.join(HERE, "dry_runs_cases.json"))
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(run_here(json.loads(options.case))))
        return 0
    with open(options.cases, encoding="utf-8") as f:
        cases = [c for c in json.load(f) if any(part in c["name"] for part in options.only.split(","))]
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        results = []
        for result in pool.map(run_apart, cases):
            print(result["case"], result.get("peak_bytes", result.get("error")), file=sys.stderr)
            results.append(result)
    good = [r for r in results if "error" not in r]
    versions = good[0].pop("versions") if good else {}
    for r in good[1:]:
        r.pop("versions")
    for r in good:
        r["workload"]["model"].pop("config")  # the catalog has it
    text = json.dumps({"schema": "plimsoll.dry_runs/1", "versions": versions}, indent=1)[:-2]
    text += ',\n "runs": [\n  ' + ",\n  ".join(json.dumps(r, sort_keys=True) for r in good) + "\n ]\n}\n"
    if options.out:
        with open(options.out + ".part", "w", encoding="utf-8") as f:
            f.write(text)
        os.replace(options.out + ".part", options.out)
    return 0 if len(good) == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Out-of-memory messages of PyTorch itself, without a GPU.

  oom_runs.py --out tests/golden/oom_runs.json [--cases FILE] [--only TEXT,TEXT]

Each case of oom_cases.json is a workload of dry_runs.py on a card of `capacity_bytes`: it is built, and steps are
run, until torch's own caching allocator finds no room. Recorded are its message, the step (-1: while it is built),
whether in the forward, the backward or the optimizer, and the innermost lines that ran. `words` is the same workload
for `plimsoll oom`, `tensor` what those lines make, as a plan names it: read off them by hand.
"""

import argparse
import json
import os
import sys
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
FRAMES = 3


def phase_of(frames, step):
    names = [frame.name for frame in frames]
    if step < 0:
        return "build"
    if "backward" in names:
        return "backward"
    return "optimizer" if any(name == "_use_grad" for name in names) else "forward"


def line_of(frame):
    """The last folder and the file, the function and its text."""
    folder, name = os.path.split(frame.filename)
    return f"{os.path.basename(folder)}/{name} {frame.name}: {frame.line}"


def run_here(case):
    import dry_runs
    import torch
    import torch_measure
    import transformers
    workload = dry_runs.workload_of(case)
    if workload["stack"].get("allocator_conf"):  # read when the allocator is first used
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = workload["stack"]["allocator_conf"]
    workload["stack"] = {**workload["stack"], "transformers_version": transformers.__version__}
    workload = torch_measure.normalised(workload)
    if workload["strategy"]["world_size"] > 1:
        torch_measure.start_process_group(workload["strategy"]["world_size"], 0)
    step = -1
    try:
        training = torch_measure.Training(workload)
        for step in range(3):
            training.step()
    except torch.OutOfMemoryError as error:
        frames = traceback.extract_tb(error.__traceback__)
        return {"case": case["name"], "capacity_bytes": case["capacity_bytes"], "words": case["words"],
                "message": str(error), "step": step, "phase": phase_of(frames, step),
                "lines": [line_of(frame) for frame in frames[-FRAMES:]], "tensor": case["tensor"],
                "versions": torch_measure.versions()}
    raise SystemExit(f"{case['name']}: {case['capacity_bytes']} bytes are enough")


def run(case):
    """In a process of its own: the runtime's capacity is set once."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        status = 1
        try:
            import torch_measure
            torch_measure.start_dry_cuda(capacity_bytes=case["capacity_bytes"])
            answer = run_here(case)
            with os.fdopen(writer, "w", encoding="utf-8") as f:
                json.dump(answer, f)
            status = 0
        except BaseException:
            traceback.print_exc()
        os._exit(status)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as f:
        text = f.read()
    if os.waitpid(child, 0)[1] != 0:
        raise SystemExit(f"{case['name']}: failed")
    return json.loads(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--cases", default=os.path.join(HERE, "oom_cases.json"))
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    sys.path.insert(0, HERE)
    with open(options.cases, encoding="utf-8") as f:
        cases = json.load(f)["cases"]
    wanted = options.only.split(",")
    runs = [run(case) for case in cases if any(text in case["name"] for text in wanted)]
    if not runs:
        raise SystemExit(f"--only {options.only}: no such case")
    with open(options.out, "w", encoding="utf-8") as f:
        versions = [run.pop("versions") for run in runs]
        json.dump({"schema": "plimsoll.oom_runs/1", "versions": versions[0], "runs": runs}, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()

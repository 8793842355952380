#!/usr/bin/env python3
"""Snapshots of torch's allocator as users take them, without a GPU.

  snapshots.py --plimsoll BUILD/tools/plimsoll --out tests/golden/snapshots [--only TEXT]

Each case of snapshot_cases.json is a plan of `plimsoll fit` (a small model and `words`) whose workload
trains some steps on the dry CUDA runtime, between torch.cuda.memory._record_memory_history() and
_dump_snapshot(): from before the model is built, or from step `record_from` on. `fault`: what the loop does
that no plan has. Beside each snapshot stands what torch's counters said of the last step.

The committed pickles are what _dump_snapshot() wrote, shortened: of each stack the lines of Python and what
names operators and autograd nodes, file names from the package on, no times. `plimsoll compare` is held
against them.
"""

import argparse
import gzip
import json
import os
import pickle
import re
import shlex
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
STEPS = 4
MOST_FRAMES = 16
MODELS = {
    "gpt2": {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 2, "n_embd": 128,
             "n_head": 4, "n_positions": 128, "vocab_size": 2000},
    "llama": {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256,
              "intermediate_size": 704, "num_hidden_layers": 3, "num_attention_heads": 8,
              "num_key_value_heads": 4, "vocab_size": 4000, "max_position_embeddings": 512},
}


def plan_of(case, program, folder):
    config, plan = (os.path.join(folder, name) for name in ("config.json", "plan.json"))
    with open(config, "w", encoding="utf-8") as f:
        json.dump(MODELS[case["model"]], f)
    subprocess.run([program, "fit", config, "--gpu", "h200", "--quiet", "--json", plan,
                    *shlex.split(case["words"])], check=True)
    with open(plan, encoding="utf-8") as f:
        return json.load(f)


def train(training, case, kept):
    """A user's loop: one step, with the case's fault."""
    import torch
    if case.get("fault") == "keeps the logits of each step":
        loss = logits = None
        with torch.autocast("cuda", training.autocast_dtype):
            output = training.model(input_ids=training.ids, labels=training.ids)
        loss, logits = output.loss, output.logits
        del output
        loss.backward()
        training.optimizer.step()
        training.optimizer.zero_grad()
        kept.append(logits.detach())
        return
    training.step()
    if case.get("fault") == "keeps a tensor of each step":  # as large as the residual stream
        kept.append(torch.zeros(1, training.ids.shape[1], 256, dtype=torch.bfloat16, device="cuda"))


def shortened_name(path):
    """From the package on; of the user's own files the last part."""
    for mark in ("site-packages/", "lib/python3"):
        if mark in path:
            return mark + path.split(mark, 1)[1]
    return os.path.basename(path)


class Shortener:
    """Frames that are equal stay one object, as in what torch writes."""

    OPERATOR = re.compile(r"at::_ops::\w+::\w+|torch::autograd::[\w:]+::apply\(|torch::autograd::Engine::thread_\w+")

    def __init__(self):
        self.frames, self.lists = {}, {}

    def frame(self, frame):
        python = frame["filename"].endswith(".py")
        found = self.OPERATOR.match(frame["name"])
        if not python and not found:
            return None
        key = (frame["name"] if python else found.group(0),
               shortened_name(frame["filename"]) if python else "??", frame["line"] if python else 0)
        return self.frames.setdefault(key, {"name": key[0], "filename": key[1], "line": key[2]})

    def stack(self, frames):
        out = [kept for kept in map(self.frame, frames) if kept]
        own = [f for f in out[MOST_FRAMES:] if "/" not in f["filename"] and f["filename"] != "??"]
        out = out[:MOST_FRAMES] + own
        return self.lists.setdefault(tuple(map(id, out)), out)

    def entry(self, entry):
        out = {key: value for key, value in entry.items() if key not in ("time_us", "user_metadata")}
        if "frames" in out:
            out["frames"] = self.stack(out["frames"])
        return out

    def snapshot(self, snapshot):
        return {**snapshot, "external_annotations": [],
                "segments": [{**self.entry(segment), "blocks": [self.entry(b) for b in segment["blocks"]]}
                             for segment in snapshot["segments"]],
                "device_traces": [[self.entry(e) for e in trace] for trace in snapshot["device_traces"]]}


def run_here(case, options):
    import torch
    import torch_measure
    with tempfile.TemporaryDirectory() as folder:
        plan = plan_of(case, options.plimsoll, folder)
        workload = torch_measure.normalised(plan["workload"])
        if workload["strategy"]["world_size"] > 1:
            torch_measure.start_process_group(workload["strategy"]["world_size"], 0)
        record = lambda: torch.cuda.memory._record_memory_history(stacks=case.get("stacks", "all"))  # noqa: E731
        if not case.get("record_from"):
            record()
        training, kept = torch_measure.Training(workload), []
        for step in range(STEPS):
            if step and step == case.get("record_from"):
                record()
            torch.cuda.reset_peak_memory_stats()
            train(training, case, kept)
        counters = {"allocated_bytes": torch.cuda.max_memory_allocated(),
                    "reserved_bytes": torch.cuda.max_memory_reserved()}
        path = os.path.join(folder, "snapshot.pickle")
        torch.cuda.memory._dump_snapshot(path)
        with open(path, "rb") as f:
            raw = f.read()
        text = pickle.dumps(Shortener().snapshot(pickle.loads(raw)))
    with open(os.path.join(options.out, case["name"] + ".pickle.gz"), "wb") as f:
        f.write(gzip.compress(text, 9, mtime=0))
    return {"case": case["name"], "model": MODELS[case["model"]], "words": case["words"],
            "fault": case.get("fault"), **counters, "as_dumped_bytes": len(raw),
            "versions": torch_measure.versions(workload)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plimsoll", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    options.plimsoll, options.out = os.path.abspath(options.plimsoll), os.path.abspath(options.out)
    os.makedirs(options.out, exist_ok=True)
    sys.path.insert(0, HERE)
    import apart
    import torch_measure
    torch_measure.start_dry_cuda()
    with open(os.path.join(HERE, "snapshot_cases.json"), encoding="utf-8") as f:
        cases = [case for case in json.load(f)["cases"] if options.only in case["name"]]
    if not cases:
        raise SystemExit(f"--only {options.only}: no such case")
    runs = list(apart.run_apart(lambda case: run_here(case, options), cases))
    for run in runs:
        if "error" in run:
            raise SystemExit(f"{run['case']}: {run['error']}")
    versions = [run.pop("versions") for run in runs]
    with open(os.path.join(options.out, "runs.json"), "w", encoding="utf-8") as f:
        json.dump({"schema": "plimsoll.snapshots/1", "versions": versions[0], "runs": runs}, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()

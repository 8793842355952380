#!/usr/bin/env python3
"""What torch's own caching allocator reserves for drawn requests, under each setting.

Writes tests/golden/allocator_histories.json. The requests go straight to the allocator
(torch.cuda.caching_allocator_alloc) on the CUDA runtime that computes nothing, so segments, splits,
roundings, pages of expandable segments and what is given back near the capacity are torch's own.

    allocator_histories.py --out tests/golden/allocator_histories.json [--only TEXT]
"""
import argparse
import json
import os
import random
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
SETTINGS = [
    None,
    "expandable_segments:True",
    "max_split_size_mb:32",
    "max_split_size_mb:128",
    "max_split_size_mb:64,max_non_split_rounding_mb:40",
    "roundup_power2_divisions:8",
    "roundup_power2_divisions:[8:1,64:2,256:4,>:16]",
    "roundup_power2_divisions:2,max_split_size_mb:64",
    "expandable_segments:True,roundup_power2_divisions:4",
    "garbage_collection_threshold:0.6",
    "backend:native,release_lock_on_cudamalloc:True,pinned_num_register_threads:4",
]
CAPACITIES = [8 << 30, 1200 << 20]  # plenty; near the end again and again
STEPS = 700
MIB = 1 << 20


def requests():
    """Requests of many sizes on two streams, and releases of what is held: [bytes, stream], or
    [number of the request]. Weights towards what is held keep it at some hundreds of MiB."""
    draw = random.Random(20)
    steps, held, total, sizes = [], [], 0, []
    while len(steps) < STEPS:
        if held and draw.random() < (0.35 if total < 500 * MIB else 0.62):
            number = held.pop(draw.randrange(len(held)))
            total -= sizes[number]
            steps.append([number])
            continue
        kind = draw.random()
        if kind < 0.3:
            size = draw.randrange(1, 2 * MIB)
        elif kind < 0.6:
            size = draw.randrange(MIB, 24 * MIB)
        elif kind < 0.75:
            size = draw.choice([1, 2, 8, 10, 16, 20, 32, 64, 128]) * MIB
        else:
            size = draw.randrange(16 * MIB, 200 * MIB)
        held.append(len(sizes))
        sizes.append(size)
        total += size
        steps.append([size, draw.randrange(4) // 3])
    return steps


def history(conf, capacity):
    if conf is not None:
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = conf
    sys.path.insert(0, HERE)
    import torch_measure
    torch_measure.start_dry_cuda(capacity_bytes=capacity)
    import torch
    side = torch.cuda.Stream()
    streams = [torch.cuda.default_stream().cuda_stream, side.cuda_stream]
    pointers, reserved, allocated = [], [], []
    for step in requests():
        if len(step) == 1:
            if pointers[step[0]] is not None:
                torch.cuda.caching_allocator_delete(pointers[step[0]])
        else:
            try:
                pointers.append(torch.cuda.caching_allocator_alloc(step[0], 0, streams[step[1]]))
            except torch.OutOfMemoryError:
                pointers.append(None)
        reserved.append(torch.cuda.memory_reserved() // MIB)
        allocated.append(torch.cuda.memory_allocated() // 512)
    stats = torch.cuda.memory_stats()
    return {"torch": torch.__version__, "retries": stats["num_alloc_retries"],
            "refused": pointers.count(None), "reserved_mib": reserved,
            "allocated_blocks_of_512": allocated}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out")
    parser.add_argument("--only", default="", help="settings with this text")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)  # setting, capacity
    args = parser.parse_args()
    if args.one:
        print(json.dumps(history(json.loads(args.one[0]), int(args.one[1]))))
        return
    runs, version = [], None
    for conf in (c for c in SETTINGS if args.only in (c or "")):
        for capacity in CAPACITIES:
            done = subprocess.run([sys.executable, __file__, "--one", json.dumps(conf),
                                   str(capacity)], capture_output=True, text=True)
            if done.returncode != 0:
                sys.exit(f"{conf}: {done.stderr[-2000:]}")
            run = json.loads(done.stdout.splitlines()[-1])
            version = run.pop("torch")
            runs.append({"allocator_conf": conf, "capacity_bytes": capacity, **run})
            print(conf, capacity, run["retries"], run["refused"], max(run["reserved_mib"]),
                  file=sys.stderr)
    document = {"schema": "plimsoll.allocator_histories/1", "torch": version,
                "requests": requests(), "runs": runs}
    text = json.dumps(document, separators=(",", ":"))
    for key in ('"requests":', '"runs":', '{"allocator_conf"', '"reserved_mib":',
                '"allocated_blocks_of_512":'):
        text = text.replace(key, "\n" + key)
    with open(args.out, "w") as out:
        out.write(text + "\n")


if __name__ == "__main__":
    main()

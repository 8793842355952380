#!/usr/bin/env python3
"""What galore_torch 1.0 makes of small matrices on the CPU, for tests/runtime.

    galore_goldens.py tests/golden/galore.json

Five steps of its AdamW for each matrix: the gradients, and the weights behind the last step. All steps
are in the basis of the first (update_proj_gap 200). The sign of a vector of a basis is its library's
choice, and changes nothing while the basis stays. No weight decay: galore_torch decays behind its update.
"""
import importlib.metadata
import json
import sys

import torch
from galore_torch import GaLoreAdamW

torch.manual_seed(20240608)
torch.set_num_threads(1)
STEPS, RATE, EPS = 5, 2.0 ** -6, 1e-8
# Rows, columns, rank: to the right, to the left, square, and a rank of the whole matrix.
MATRICES = [(6, 4, 2), (4, 7, 2), (5, 5, 3), (9, 3, 8), (33, 20, 8)]


def floats(x):
    """Nine digits, which say an fp32 number exactly."""
    return [float("%.9g" % v) for v in x.flatten()]


def draw(*shape):
    """Multiples of 1/64 below 4."""
    return torch.randint(-255, 256, shape).float() / 64


def case(rows, columns, rank):
    weight = torch.nn.Parameter(draw(rows, columns))
    before = floats(weight.detach())
    group = {"params": [weight], "rank": rank, "update_proj_gap": 200, "scale": 0.25, "proj_type": "std"}
    optimizer = GaLoreAdamW([group], lr=RATE, betas=(0.9, 0.999), eps=EPS, weight_decay=0,
                            no_deprecation_warning=True)
    gradients = []
    for _ in range(STEPS):
        weight.grad = draw(rows, columns)
        gradients.append(floats(weight.grad))
        optimizer.step()
    return {"rows": rows, "columns": columns, "rank": rank, "before": before, "gradients": gradients,
            "after": floats(weight.detach())}


def main(path):
    versions = {p: importlib.metadata.version(p) for p in ("torch", "galore-torch")}
    with open(path, "w") as file:
        json.dump({"versions": versions, "learning_rate": RATE, "eps": EPS,
                   "cases": [case(*m) for m in MATRICES]}, file)
        file.write("\n")


if __name__ == "__main__":
    main(sys.argv[1])

#!/usr/bin/env python3
"""In which order the modules of a model pass DeepSpeed's hooks in one step under ZeRO-3, and what they gather.

  deepspeed_modules.py --out tests/golden/deepspeed_modules.json [--only TEXT]

Each case of deepspeed_module_cases.json runs three steps of the real engine as deepspeed_measure.py
does. Recorded are the calls of fetch_sub_module in the third: in the forward, then from the first of
a backward on; each with the numbers of the module's own parameters (as named_parameters() counts
them), the layer that it is of or -1, and how many calls come before the module is released, or -1 where
it never is; and what is gathered together: behind how many calls, ahead of the module that needs it or
not, and the numbers of the parameters.
"""

import argparse
import json
import re
import sys

import apart
import deepspeed_measure

LAYER = re.compile(r"(?:^|\.)(?:layers?|h)\.(\d+)(?:$|\.)")


def watched(coordinator, log):
    """Notes who is fetched and released, and what is gathered then."""
    from deepspeed.runtime.zero import partitioned_param_coordinator as module
    fetch, release = coordinator.fetch_sub_module, coordinator.release_sub_module

    def fetches(self, of, forward):
        own = module.iter_params(of, recurse=module.z3_leaf_module(of))
        log.append(["forward" if forward else "backward", of, list(own)])
        return fetch(self, of, forward)

    def releases(self, of, forward=False):
        log.append(["release", of, []])
        return release(self, of, forward)

    name = "_PartitionedParameterCoordinator__all_gather_params_"
    gather = getattr(coordinator, name)

    def gathers(self, params, forward, quantize=False):
        missing = [p for p in params if p.ds_status == module.ZeroParamStatus.NOT_AVAILABLE]
        if missing:
            log.append(["gather", None, missing])
        return gather(self, params, forward, quantize)

    coordinator.fetch_sub_module, coordinator.release_sub_module = fetches, releases
    setattr(coordinator, name, gathers)


def told(log, names, numbers):
    """The calls: [pass, parameters, layer, calls inside]; the gathers: [calls before, whether ahead,
    parameters]. What runs again within its own backward is released before that."""
    out, backward, opened, gathers = [], False, {}, []
    for what, of, own in log:
        if what == "gather":
            parameters = [numbers[id(p)] for p in own]
            gathers.append([len(out), not set(parameters) <= set(out[-1][1]), parameters])
            continue
        if what == "release":
            if opened.get(id(of)):
                begun = opened[id(of)].pop()
                out[begun][3] = len(out) - begun - 1
            continue
        backward = backward or what == "backward"
        layer = LAYER.search(names[id(of)])
        opened.setdefault(id(of), []).append(len(out))
        out.append(["backward" if backward else "forward", [numbers[id(p)] for p in own],
                    int(layer.group(1)) if layer else -1, -1])
    return out, gathers


def run_here(case):
    import deepspeed
    import torch
    import transformers
    from deepspeed.runtime.zero.partitioned_param_coordinator import \
        PartitionedParameterCoordinator
    deepspeed_measure.start(case["workload"]["strategy"]["world_size"], 0)
    log = []
    watched(PartitionedParameterCoordinator, log)
    steps = deepspeed_measure.Steps(case)
    for _ in range(3):
        log.clear()
        steps.step()
    model = steps.engine.module
    names = {id(of): name for name, of in model.named_modules()}
    numbers = {id(p): i for i, p in enumerate(model.parameters())}
    steps, gathers = told(log, names, numbers)
    return {"case": case["name"], "workload": case["workload"],
            "parameters": [p.ds_numel for p in model.parameters()],
            "bytes": [p.dtype.itemsize for p in model.parameters()],
            "steps": steps, "gathers": gathers,
            "versions": {"deepspeed": deepspeed.__version__, "torch": torch.__version__,
                         "transformers": transformers.__version__}}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    cases = [c for c in deepspeed_measure.read_cases("deepspeed_module_cases.json")
             if options.only in c["name"]]
    deepspeed_measure.load()
    results = []
    for result in apart.run_apart(run_here, cases):
        print(result["case"], result.get("error", len(result.get("steps", []))), file=sys.stderr)
        results.append(result)
    versions = [r.pop("versions", {}) for r in results]
    with open(options.out, "w", encoding="utf-8") as f:
        f.write(f'{{"versions": {json.dumps(versions[0])}, "runs": [\n' +
                ",\n".join(json.dumps(r) for r in results) + "\n]}\n")
    return 1 if any("error" in r for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())

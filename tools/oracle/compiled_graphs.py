#!/usr/bin/env python3
"""What torch.compile keeps of a layer for its backward, without a GPU.

  compiled_graphs.py --out tests/golden/compiled_saved.json [--cases FILE] [--only TEXT,TEXT] [--joint]

Each case is a workload as dry_runs.py reads them, of two layers of a catalog's model or of a config, whose
layers are compiled one by one (stack.compile "block") by aot_eager_decomp_partition's means: AOTAutograd,
Inductor's decompositions, min_cut_rematerialization_partition. A step on the dry CUDA runtime traces them.
Recorded is for each distinct graph what its forward hands to its backward beside parameters: the op that
made it (of a view, too), dtype, shape; `input`: it is the layer's own. --joint: the graphs as well, on
standard error.
"""

import argparse
import json
import os
import sys

import apart
import dry_runs


def described(node, static):
    value = node.meta["val"]
    op = "input" if node.op == "placeholder" else getattr(node.target, "__name__", str(node.target))
    return [op.split(".")[0], str(value.dtype)[6:], list(value.shape)]


def show(joint, saved):
    for node in joint.graph.nodes:
        value = node.meta.get("val")
        parts = value if isinstance(value, (tuple, list)) else [value]
        shapes = [f"{str(v.dtype)[6:]}{list(v.shape)}" for v in parts if hasattr(v, "dtype")]
        print("*" if node.name in saved else " ", node.name, node.target,
              [str(n) for n in node.all_input_nodes], shapes, node.meta.get("recompute", ""),
              file=sys.stderr)


def recorder(graphs, joint_too):
    from functorch.compile import min_cut_rematerialization_partition
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.aot_autograd import make_boxed_func
    from torch._inductor.compile_fx import select_decomp_table

    def partition(joint, inputs, *, num_fwd_outputs, static_lifetime_input_indices=None, **_):
        forward, backward = min_cut_rematerialization_partition(
            joint, inputs, compiler="inductor", num_fwd_outputs=num_fwd_outputs,
            static_lifetime_input_indices=static_lifetime_input_indices)
        static = {n.name for i, n in enumerate(joint.graph.find_nodes(op="placeholder"))
                  if i in (static_lifetime_input_indices or [])}
        kept = next(iter(forward.graph.find_nodes(op="output"))).args[0][num_fwd_outputs:]
        if joint_too:
            show(joint, {n.name for n in kept})
        graphs.append([described(n, static) for n in kept if n.name not in static])
        return forward, backward

    def as_it_is(graph, _):
        return make_boxed_func(graph.forward)

    return aot_autograd(fw_compiler=as_it_is, bw_compiler=as_it_is, partition_fn=partition,
                        decompositions=select_decomp_table)


def run_here(case, joint_too):
    import compiled
    import torch_measure
    case = {**case, "stack": {**case.get("stack", {}), "compile": "block"}}
    workload = dry_runs.workload_of(case)
    config = dict(workload["model"]["config"])
    for key in ("num_hidden_layers", "n_layer", "num_layers", "n_layers"):
        if key in config:
            config[key] = 2
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][:2]
    workload["model"] = {**workload["model"], "config": config}
    graphs, layers = [], compiled.compile_layers
    compiled.compile_layers = lambda lists: layers(lists, recorder(graphs, joint_too))
    workload = torch_measure.normalised(workload)
    if workload["strategy"]["world_size"] > 1:
        torch_measure.start_process_group(workload["strategy"]["world_size"], 0)
    torch_measure.Training(workload).step()
    return {"case": case["name"], "workload": workload, "graphs": graphs}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--out")
    parser.add_argument("--cases", default="compiled_cases.json")
    parser.add_argument("--only", default="")
    parser.add_argument("--joint", action="store_true")
    options = parser.parse_args()
    with open(os.path.join(dry_runs.HERE, options.cases), encoding="utf-8") as f:
        cases = [c for c in json.load(f) if any(p in c["name"] for p in options.only.split(","))]
    dry_runs.load()
    results = list(apart.run_apart(lambda case: run_here(case, options.joint), cases))
    for result in results:
        if "error" in result:
            print(result, file=sys.stderr)
        elif isinstance(next((c["model"] for c in cases if c["name"] == result["case"])), str):
            result["workload"]["model"].pop("config")  # the catalog has it
    good = [r for r in results if "error" not in r]
    import torch
    import transformers
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    text = json.dumps({"schema": "plimsoll.compiled_saved/1", "versions": versions}, indent=1)[:-2]
    text += ',\n "runs": [\n  ' + ",\n  ".join(json.dumps(r, sort_keys=True) for r in good) + "\n ]\n}\n"
    if options.out:
        with open(options.out, "w", encoding="utf-8") as f:
            f.write(text)
    else:
        for r in good:
            print(r["case"], *r["graphs"], sep="\n  ")
    return 0 if len(good) == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""What torch's min-cut partitioner saves of drawn joint graphs, without a GPU.

  partitions.py --out tests/golden/partitions.json [--count N] [--seed N]

Each graph is drawn: inputs (some of them parameters), a forward of every kind of node that the partitioner tells
apart, tangents, a backward that reads both; a few have chains of more than a hundred fusible nodes. Its nodes are
aten's ops, of which only the kind matters, with tensors on "meta" of drawn sizes, so that nothing is computed; what
is saved is torch._functorch.partitioners' own answer. A graph that has none (an infinite cut) is drawn again.

A node: [kind, operands, bytes, 1 for a parameter, "save" or "recompute" of a checkpoint's policy]; what is written as
"saved" are numbers of nodes.
"""

import argparse
import json
import operator
import random

KINDS = {"fusible": 8, "view": 3, "random": 1, "concatenate": 1, "opaque": 3, "tuple": 1, "statistics": 1}
SIZES = (8, 16, 24, 64, 100, 256, 1000, 4096)


class Draw:
    """One joint graph as lists."""

    def __init__(self, random_, chain):
        self.r, self.nodes, self.chain = random_, [], chain
        self.inputs = [self.add("input", [], parameter=self.r.random() < 0.3) for _ in range(self.r.randint(1, 4))]
        self.policies = self.r.random() < 0.25
        forward = list(self.inputs)
        for _ in range(self.r.randint(3, 16)):
            forward += self.some(forward, policies=self.policies)
        for _ in range(chain):
            forward.append(self.add("fusible", [forward[-1]], 64))
            if self.r.random() < 0.02:
                forward += self.some(forward[-3:])
        self.results = self.r.sample(forward[len(self.inputs):][-4:], self.r.randint(1, 2))
        self.results += [n for n in forward if self.nodes[n][0] == "random" and n not in self.results]
        tangents = [self.add("tangent", []) for _ in self.results]
        backward = list(tangents)
        for _ in range(self.r.randint(2, 12)):
            backward += self.some(backward, beside=forward)
        self.gradients = [self.r.choice(backward[len(tangents):] + self.r.sample(forward, 1) * (self.r.random() < 0.1))
                          if self.r.random() < 0.8 else None for _ in self.inputs]

    def add(self, kind, operands, size=0, parameter=False, policy=""):
        self.nodes.append([kind, operands, size or self.r.choice(SIZES), int(parameter), policy])
        return len(self.nodes) - 1

    def some(self, before, beside=(), policies=False):
        """A drawn node that reads one of these at least; of several results: and who takes them out."""
        kind = self.r.choices(list(KINDS), list(KINDS.values()))[0]
        if kind == "random" and (beside or policies):
            kind = "fusible"
        is_value = lambda n: self.nodes[n][0] not in ("tuple", "statistics")
        near = [n for n in before if is_value(n)]
        operands = [self.r.choice(near[-4:] if self.r.random() < 0.6 else near)]
        while kind not in ("view", "random", "statistics") and self.r.random() < 0.55 and len(operands) < 4:
            operands.append(self.r.choice([n for n in beside or before if is_value(n)]))
        policy = self.r.choice(["", "save", "recompute"]) if policies else ""
        made = [self.add(kind, operands, policy=policy)]
        if kind in ("tuple", "statistics"):
            for _ in range(self.r.randint(1, 2)):
                made.append(self.add("element", [made[0]], policy=policy))
            self.nodes[made[0]][2] = sum(self.nodes[n][2] for n in made[1:])
        return made


def graph_of(draw):
    import torch
    from torch.fx import Graph, GraphModule
    from torch.utils.checkpoint import CheckpointPolicy
    aten = torch.ops.aten
    ops = {"fusible": aten.mul.Tensor, "view": aten.view.default, "random": aten.rand_like.default,
           "concatenate": aten.cat.default, "opaque": aten.mm.default, "statistics": aten.var_mean.correction,
           "tuple": aten.topk.default, "element": operator.getitem}
    policies = {"save": CheckpointPolicy.MUST_SAVE, "recompute": CheckpointPolicy.MUST_RECOMPUTE}

    def tensor(size):
        return torch.empty(size, dtype=torch.uint8, device="meta")

    graph, made = Graph(), []
    for number, (kind, operands, size, _, policy) in enumerate(draw.nodes):
        read = [made[n] for n in operands]
        if kind in ("input", "tangent"):
            made.append(graph.placeholder(f"{'primals' if kind == 'input' else 'tangents'}_{number}"))
        else:
            arguments = (read, 0) if kind == "concatenate" else (read[0], 0) if kind == "element" else tuple(read)
            made.append(graph.call_function(ops[kind], arguments))
        made[-1].name = made[-1].name if kind in ("input", "tangent") else f"node_{number}"
        parts = [tensor(draw.nodes[n][2]) for n in range(number + 1, len(draw.nodes))
                 if draw.nodes[n][0] == "element" and draw.nodes[n][1] == [number]]
        made[-1].meta["val"] = tuple(parts) if kind in ("tuple", "statistics") else tensor(size)
        if policy:
            made[-1].meta["recompute"] = policies[policy]
    results = [made[n] for n in draw.results] + [None if n is None else made[n] for n in draw.gradients]
    output = graph.output(tuple(results))
    output.meta["desc"] = [None] * len(results)
    for number, node in enumerate(made):
        node.meta["number"] = number
    return GraphModule(torch.nn.Module(), graph)


def saved_of(draw):
    """(numbers of the nodes that are alive, of those that are saved)."""
    from torch._functorch import partitioners
    joint = graph_of(draw)
    # A placeholder stays though nobody reads it.
    joint.graph.eliminate_dead_code()
    static = [i for i, n in enumerate(draw.inputs) if draw.nodes[n][3]]
    info = partitioners.classify_nodes(joint, static, len(draw.results))
    for node in reversed(joint.graph.nodes):
        if node.op == "output":
            node.dist_from_bw = int(1e9)
        elif not info.is_required_fw(node):
            node.dist_from_bw = 0
        else:
            node.dist_from_bw = min([int(1e9), *(user.dist_from_bw + 1 for user in node.users)])
    saved = partitioners.choose_saved_values_set(joint.graph, info)
    forward, backward = partitioners._extract_fwd_bwd_modules(
        joint, saved, [], num_fwd_outputs=len(draw.results), static_lifetime_input_nodes=info.static_lifetime_input_nodes)
    kept = forward.graph.find_nodes(op="output")[0].args[0][len(draw.results):]
    # What a kept node of the backward is called there is what it is called in the joint graph. A random one that
    # nobody reads stays in torch's graph as well.
    numbers = {n.name: n.meta["number"] for n in joint.graph.nodes if n.op != "output"}
    read, again = set(backward.graph.output_node().all_input_nodes), []
    for node in reversed(backward.graph.nodes):
        if node in read and node.op == "call_function":
            again.append(numbers[node.name])
            read.update(node.all_input_nodes)
    return [n.meta["number"] for n in joint.graph.nodes if n.op != "output"], sorted(numbers[n.name] for n in kept), again


def written(draw):
    alive, saved, backward = saved_of(draw)
    place = {n: i for i, n in enumerate(alive)}
    nodes = [[kind, [place[o] for o in operands], size, parameter, policy]
             for kind, operands, size, parameter, policy in (draw.nodes[n] for n in alive)]
    return {"nodes": nodes, "results": [place[n] for n in draw.results],
            "gradients": [-1 if n is None else place[n] for n in draw.gradients],
            "saved": [place[n] for n in saved], "backward": sorted(place[n] for n in backward)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--count", type=int, default=160)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    import torch
    drawing, graphs, skipped = random.Random(options.seed), [], 0
    while len(graphs) < options.count:
        draw = Draw(drawing, drawing.randint(95, 125) if len(graphs) % 20 == 19 else 0)
        if all(n is None for n in draw.gradients):
            continue
        try:
            graphs.append(written(draw))
        except RuntimeError as e:
            if "failed to partition" not in str(e):
                raise
            skipped += 1
    with open(options.out, "w", encoding="utf-8") as f:
        f.write(json.dumps({"schema": "plimsoll.partitions/1", "versions": {"torch": torch.__version__}})[:-1])
        f.write(', "graphs": [\n' + ",\n".join(json.dumps(g) for g in graphs) + "\n]}\n")
    print(f"{len(graphs)} graphs, {skipped} without an answer")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

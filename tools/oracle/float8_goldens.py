#!/usr/bin/env python3
"""What torch and torchao make of small matrices in 8 bits on the CPU, for tests/kernels.

    float8_goldens.py tests/golden

kernels/float8.json:

codes: what each of the 256 codes of either format stands for (null: not a number). casts: numbers in fp32, the
scale that torchao's recipe "tensorwise" finds for them, and the codes (float8_utils.py: tensor_to_scale,
to_fp8_saturated). linears: y, and the gradients of x and of the weight, of torchao's Float8Linear of that recipe,
whose products it computes from the codes in fp32 (emulate: no tensor cores); numbers in bf16.

numerics/qwen2-float8: a model as numerics_goldens.py makes them, whose widths are multiples of 16, and logits,
loss and gradients of a step in fp32, in bf16, and (fp8.) in bf16 with its layers' linears converted by torchao.
"""
import json
import pathlib
import struct
import sys

import torch
import torchao
from torchao.float8 import convert_to_float8_training
from torchao.float8.config import Float8LinearConfig, ScalingGranularity
from torchao.float8.float8_linear import Float8Linear
from torchao.float8.float8_utils import tensor_to_scale, to_fp8_saturated

import numerics_goldens
from numerics_models import MODELS

torch.manual_seed(20261126)
torch.set_num_threads(1)
FORMATS = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}


def bits(values):
    return [struct.unpack("<I", struct.pack("<f", v))[0] for v in values]


def codes(dtype):
    every = torch.arange(256, dtype=torch.uint8).view(dtype).float().tolist()
    return [None if v != v or abs(v) == float("inf") else v for v in every]


def cast(x, name):
    dtype = FORMATS[name]
    scale = tensor_to_scale(x, dtype, scaling_granularity=ScalingGranularity.TENSORWISE)
    made = to_fp8_saturated(x.float() * scale, dtype)
    return {"to": name, "x": bits(x.float().tolist()), "scale": bits([scale.item()])[0],
            "codes": made.view(torch.uint8).tolist()}


def awkward(name):
    """Numbers whose scale is 1: halfway between two codes, next to that, below the least, up to the largest."""
    known = [v for v in codes(FORMATS[name]) if v is not None]
    ordered = sorted(set(abs(v) for v in known))
    halves = [(a + b) / 2 for a, b in zip(ordered, ordered[1:])]
    near = torch.tensor(halves)
    up, down = torch.nextafter(near, near + 1e30), torch.nextafter(near, near - 1e30)
    return torch.cat([torch.tensor(known), near, -near, up, down, -up, -down, torch.tensor([1e-30, -1e-30, 0.0])])


def linear(tokens, inner, outer, spread):
    layer = torch.nn.Linear(inner, outer, bias=False, dtype=torch.bfloat16)
    layer.weight.data = (torch.randn(outer, inner) * 0.05).bfloat16()
    made = Float8Linear.from_float(layer, Float8LinearConfig(emulate=True))
    x = (torch.randn(tokens, inner) * spread).bfloat16().requires_grad_()
    d_y = (torch.randn(tokens, outer) * 1e-3).bfloat16()
    y = made(x)
    y.backward(d_y)
    def flat(t):
        return {"shape": list(t.shape), "values": t.detach().float().flatten().tolist()}
    return {"in": {"x": flat(x), "weight": flat(layer.weight), "d_y": flat(d_y)},
            "out": {"y": flat(y), "d_x": flat(x.grad), "d_weight": flat(made.weight.grad)}}


def step_of_model(folder):
    config = {**MODELS["qwen2"]["config"], "intermediate_size": 64}
    model = numerics_goldens.make_model(dict(config))
    ids, targets = numerics_goldens.make_batches(config["vocab_size"])
    found = {"ids": ids, "targets": targets}

    def converted():
        half = numerics_goldens.clone(model, torch.bfloat16)
        return convert_to_float8_training(half, config=Float8LinearConfig(emulate=True),
                                          module_filter_fn=lambda _, name: name != "lm_head")

    for name, made in (("fp32", numerics_goldens.clone(model, torch.float32)),
                       ("bf16", numerics_goldens.clone(model, torch.bfloat16)), ("fp8", converted())):
        step = numerics_goldens.one_step(made, ids[0], targets[0])
        found.update({f"{name}.{key}": value for key, value in step.items()})
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    numerics_goldens.save_weights(model, {"stored": torch.bfloat16}, folder)
    numerics_goldens.save(found, folder / "goldens.safetensors", by="tools/oracle/float8_goldens.py",
                          torchao=torchao.__version__.split("+")[0])


def write_kernels(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    golden = {
        "versions": {"torch": torch.__version__.split("+")[0], "torchao": torchao.__version__.split("+")[0]},
        "codes": {name: codes(dtype) for name, dtype in FORMATS.items()},
        "casts": [cast(x, name) for name in FORMATS
                  for x in (awkward(name), torch.randn(97) * 3, torch.randn(33).bfloat16() * 1e-6,
                            torch.zeros(5), torch.tensor([1e30, -2.5e29, 3.0]))],
        "linears": [linear(16, 32, 48, 1.0), linear(48, 16, 16, 30.0)],
    }
    with open(path, "w") as file:
        json.dump(golden, file, separators=(",", ":"))
        file.write("\n")


root = pathlib.Path(sys.argv[1])
write_kernels(root / "kernels" / "float8.json")
step_of_model(root / "numerics" / "qwen2-float8")

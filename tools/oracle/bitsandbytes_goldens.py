#!/usr/bin/env python3
"""What bitsandbytes makes of small inputs on the CPU, for tests/kernels.

    bitsandbytes_goldens.py tests/golden/kernels

optimizers_8bit.json: the two maps of 8 bits, and ten steps of AdamW8bit and Lion8bit: weights, and every
byte and scale of the states.

packed_weights.json: NF4 weights, with and without double quantization: bytes, scales, and the weights
dequantized again (all by the portable backend; scales that are doubly quantized have a mean that sums
exactly in any order, because PyTorch's order is the processor's).

int8_weights.json: matrices in LLM.int8()'s bytes with a scale for each row, and dequantized again.

The optimizers are bitsandbytes' own (optim/, backends/cpu/ops.py). Codes are looked up by its portable
`quantize_blockwise` (backends/default/ops.py), which takes the nearest one as its CUDA kernels do. The
compiled library of the CPU takes them from a table of 65,536 cells instead (csrc/cpu_ops.cpp, 0.50), each
2 / 65,535 wide: none of them is 0, so that a gradient of 0 makes a moment that is not, and the lowest
codes of the map are never used.
"""
import json
import os
import pathlib
import sys

# Every operation rounds by itself: what is compiled may join a product and a sum.
os.environ["TORCHDYNAMO_DISABLE"] = "1"

import bitsandbytes
import torch
from bitsandbytes import functional
from bitsandbytes.backends.cpu import ops as cpu

torch.manual_seed(20240608)
torch.set_num_threads(1)
COUNT, STEPS = 777, 10  # three blocks of 256 and 9 elements
# 1 - beta is the same number in Python's doubles and in fp32, which CUDA's kernels compute it in.
BETAS = (0.875, 0.96875)

PORTABLE = torch._C.DispatchKeySet(torch._C.DispatchKey.CompositeExplicitAutograd)


def quantize_blockwise(values, code, blocksize):
    return torch.ops.bitsandbytes.quantize_blockwise.default.redispatch(PORTABLE, values, code,
                                                                        blocksize)


def quantize_into(values, code, absmax, out, blocksize):
    codes, scales = quantize_blockwise(values, code, blocksize)
    out.copy_(codes)
    absmax.copy_(scales)


def floats(x):
    """Nine digits, which say an fp32 number exactly."""
    return [float("%.9g" % v) for v in x.flatten()]


def draw(*shape):
    """Multiples of 1/64 below 4, of which some are small and some are 0."""
    x = (torch.randn(shape) * 64).round().clamp(-255, 255) / 64
    return x * 2.0 ** torch.randint(-12, 1, shape)


def optimizers():
    kinds = {
        "adam8bit": lambda p: bitsandbytes.optim.AdamW8bit(
            p, lr=0.01, betas=BETAS, eps=1e-8, weight_decay=0.1, min_8bit_size=1),
        "lion8bit": lambda p: bitsandbytes.optim.Lion8bit(
            p, lr=0.01, betas=BETAS, weight_decay=0.1, min_8bit_size=1)}
    cpu._quant_blockwise_fp32_direct = quantize_into
    start, grads = draw(COUNT), draw(STEPS, COUNT)
    document = {"count": COUNT, "weight": floats(start), "gradients": floats(grads),
                "signed_map": floats(functional.create_dynamic_map(signed=True)),
                "unsigned_map": floats(functional.create_dynamic_map(signed=False))}
    for kind, make in kinds.items():
        weight = torch.nn.Parameter(start.clone())
        optimizer = make([weight])
        for gradient in grads:
            weight.grad = gradient.clone()
            optimizer.step()
        state = optimizer.state[weight]
        document[kind] = {"weight": floats(weight.detach())}
        for name in ("state1", "state2"):
            if name not in state:
                continue
            assert state[name].dtype == torch.uint8
            document[kind][name] = state[name].tolist()
            document[kind]["absmax" + name[-1]] = floats(state["absmax" + name[-1]])
    return document


def packed_weights():
    """Whole blocks, a last block that is not full, an odd count, blocks of 0, and more than 256 blocks."""
    cases = []
    for count, exact in ((64, True), (64 * 257 + 32, True), (777, False), (65, False)):
        weight = torch.randn(count) * 0.02
        if exact:
            weight = (torch.randn(count) * 2).round().clamp(-15, 15) / 4
        if count == 777:
            weight[64:128] = 0
        if count == 65:
            weight[64] = 0
        portable = {name: getattr(torch.ops.bitsandbytes, name).default
                    for name in ("quantize_4bit", "quantize_blockwise", "dequantize_4bit",
                                 "dequantize_blockwise")}
        codes, scales = portable["quantize_4bit"].redispatch(PORTABLE, weight, 64, "nf4", torch.uint8)
        def back(absmax, dtype):
            return portable["dequantize_4bit"].redispatch(PORTABLE, codes, absmax, 64, "nf4", [count],
                                                          dtype)
        case = {"weight": floats(weight), "codes": codes.flatten().tolist(), "scales": floats(scales)}
        if count < 1000:
            case |= {"dequantized": floats(back(scales, torch.float32)),
                     "dequantized_bf16": floats(back(scales, torch.bfloat16).float())}
        if exact:
            offset = scales.mean()  # functional.py, quantize_4bit
            code = functional.create_dynamic_map(signed=True)
            absmax, state = portable["quantize_blockwise"].redispatch(PORTABLE, scales - offset, code, 256)
            again = portable["dequantize_blockwise"].redispatch(PORTABLE, absmax, state, code, 256,
                                                                torch.float32) + offset
            case |= {"double": {"offset": floats(offset)[0], "codes": absmax.tolist(),
                                "scales": floats(state), "each": floats(again)}}
            if count < 1000:
                case["double"]["dequantized"] = floats(back(again, torch.float32))
        cases.append(case)
    return {"nf4": floats(functional.get_4bit_type("nf4", device="cpu")), "cases": cases}


def int8_weights():
    """Normal rows, a row of zeros, values half-way between codes, and rows of other sizes."""
    halves = torch.tensor([[127, 0.5, 1.5, -2.5, 63.5], [-2, 1, 0.25, 0, 2]])
    cases = []
    for weight in (torch.randn(7, 33) * 0.02, torch.cat([torch.randn(2, 8), torch.zeros(1, 8)]), halves,
                   torch.randn(3, 64) * torch.tensor([[1e-4], [1.0], [300.0]])):
        codes, scales, outliers = torch.ops.bitsandbytes.int8_vectorwise_quant.default.redispatch(
            PORTABLE, weight.clone(), 0.0)
        assert outliers is None
        back = torch.ops.bitsandbytes.int8_vectorwise_dequant.default.redispatch(PORTABLE, codes, scales)
        cases.append({"row": weight.shape[1], "weight": floats(weight), "codes": codes.flatten().tolist(),
                      "scales": floats(scales), "dequantized": floats(back),
                      "dequantized_bf16": floats(back.to(torch.bfloat16).float())})
    return {"cases": cases}


def main(arguments):
    folder = pathlib.Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    for name, document in (("optimizers_8bit", optimizers()), ("packed_weights", packed_weights()),
                           ("int8_weights", int8_weights())):
        document = {"made_by": "tools/oracle/bitsandbytes_goldens.py",
                    "bitsandbytes": bitsandbytes.__version__, **document}
        text = json.dumps(document, separators=(",", ":"))
        (folder / f"{name}.json").write_text(text + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""An AWQ base (strategy.quantize "awq"): 4 bits, groups of 128, zero points, under PEFT's AwqLoraLinear. Before
Transformers 5 it is AutoAWQ's WQLinear_GEMM with its Triton kernels (autoawq 0.2.9), from then on gptqmodel's
AwqGEMMLinear, which backend "auto_trainable" picks (7.3.4 was read for Transformers 5.17, 7.7.0 for those that it
asks for). Their sources on PYTHONPATH. Triton's kernels are not launched (liger.launch_no_triton); gptqmodel's CUDA
products are what its gemm_cuda_gen.cu allocates. The packages' own __init__ files, which import much that no step needs,
do not run."""

import importlib
import sys

from bare_packages import bare

BITS, GROUP, SPLITS = 4, 128, 8


def autoawq_linear(module):
    bare("awq", "awq.modules", "awq.modules.linear", "awq.modules.triton", "awq.utils")
    of = importlib.import_module("awq.modules.linear.gemm").WQLinear_GEMM
    sys.modules["awq.modules.linear"].WQLinear_GEMM = of  # PEFT's dispatch_awq asks for it there
    return of(BITS, GROUP, module.in_features, module.out_features, module.bias is not None, "cuda")


def gptqmodel_linear(module):
    import torch
    bare("gptqmodel", "gptqmodel.models")
    sys.modules["gptqmodel"].DEBUG_ON = False
    source = importlib.import_module("gptqmodel.nn_modules.qlinear.gemm_awq")

    def dequantized(qweight, scales, *_):
        return torch.empty(qweight.shape[0], qweight.shape[1] * 8, dtype=scales.dtype, device=scales.device)

    def product(x, qweight, *_, **__):
        """launch_gemm_forward_cuda_fp32_reduce: a partial result for each of the splits, then their sum."""
        parts = torch.empty(SPLITS, x.shape[0], qweight.shape[1] * 8, dtype=torch.float32, device=x.device)
        return torch.empty(parts.shape[1:], dtype=x.dtype, device=x.device)

    source.awq_dequantize_weights, source.awq_gemm_forward = dequantized, product
    source.awq_runtime_available = lambda: True  # it would compile its extension
    with torch.device("cuda"):
        made = source.AwqGEMMLinear(
            bits=BITS, group_size=GROUP, sym=False, desc_act=False, in_features=module.in_features,
            out_features=module.out_features, bias=module.bias is not None, register_buffers=True)
    made.requires_grad_(False)
    return made


def version():
    import importlib.metadata as metadata
    import transformers
    name = "autoawq" if int(transformers.__version__.split(".", maxsplit=1)[0]) < 5 else "gptqmodel"
    return {name: metadata.version(name)}


def config(stored):
    """What from_pretrained is told, and what a checkpoint says of itself (`stored`)."""
    import transformers
    said = {"bits": BITS, "group_size": GROUP, "zero_point": True, "version": "gemm"}
    if stored:
        return {"quant_method": "awq", **said}
    before_5 = int(transformers.__version__.split(".", maxsplit=1)[0]) < 5
    return transformers.AwqConfig(**said, **({} if before_5 else {"backend": "auto_trainable"}))


def stored_tensors(name, shape):
    """What a checkpoint has of a linear's weight (WQLinear_GEMM's buffers): name, dtype, shape, bytes."""
    out, inputs = shape
    of, groups = name[:-len("weight")], inputs // GROUP
    return [(of + "qweight", "I32", [inputs, out // 8], inputs * out // 2),
            (of + "qzeros", "I32", [groups, out // 8], groups * out // 2),
            (of + "scales", "F16", [groups, out], groups * out * 2)]


def before_loading():
    """The package as from_pretrained imports it."""
    import transformers
    if int(transformers.__version__.split(".", maxsplit=1)[0]) < 5:
        bare("awq", "awq.modules", "awq.modules.linear", "awq.modules.triton", "awq.utils")
        sys.modules["awq.modules.linear"].WQLinear_GEMM = \
            importlib.import_module("awq.modules.linear.gemm").WQLinear_GEMM
        return
    bare("gptqmodel", "gptqmodel.models", "gptqmodel.looper")
    sys.modules["gptqmodel"].DEBUG_ON = False
    linears = "gptqmodel.nn_modules.qlinear"
    importlib.import_module(f"{linears}.gemm_awq").awq_runtime_available = lambda: True
    # These do not train and are not what is picked; asked whether they could, they compile themselves.
    for file, name in (("machete_awq", "machete"), ("exllamav2_awq", "exllamav2_awq")):
        module = importlib.import_module(f"{linears}.{file}")
        setattr(module, f"{name}_runtime_available", lambda: False)
        setattr(module, f"{name}_runtime_error", lambda: "not built")


def replace(model):
    """Every linear module but the head, as Transformers replaces them (integrations/awq.py)."""
    import torch
    import transformers
    before_5 = int(transformers.__version__.split(".", maxsplit=1)[0]) < 5
    new = autoawq_linear if before_5 else gptqmodel_linear
    for name, module in list(model.named_modules()):
        if type(module) is torch.nn.Linear and module is not model.get_output_embeddings():
            parent, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(parent), leaf, new(module))

"""A GPTQ base as fms-acceleration has it (strategy.quantize "gptq"): its QuantLinear with triton v2 kernels,
4 bits, groups of 128, under PEFT's GPTQLoraLinear. Sources of that release on PYTHONPATH (commit 876e2ed was
read: plugins/accelerated-peft/src); its Triton kernels are not launched (liger.launch_no_triton).
Its packages' own __init__ files, which import much that no step needs, do not run."""

import importlib
import os
import sys
import types

LINEAR = "fms_acceleration_peft.gptqmodel.nn_modules.qlinear.qlinear_tritonv2"
BITS, GROUP = 4, 128


def quant_linear():
    for name in (LINEAR.split(".")[0], *(".".join(LINEAR.split(".")[:n]) for n in (2, 3))):
        if name in sys.modules:
            continue
        tail = name.replace(".", os.sep)
        paths = [os.path.join(p, tail) for p in sys.path if os.path.isdir(os.path.join(p, tail))]
        if not paths:
            raise ImportError(f"{name}: plugins/accelerated-peft/src of fms-acceleration is not on PYTHONPATH")
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = paths
    return importlib.import_module(LINEAR).QuantLinear


def replace(model, kept):
    """Every linear module but those of `kept`, as a checkpoint's loader makes them."""
    import torch
    from transformers.quantizers.quantizers_utils import should_convert_module
    made = quant_linear()
    for name, module in list(model.named_modules()):
        if type(module) is torch.nn.Linear and should_convert_module(name, kept):
            with torch.device("cuda"):
                new = made(BITS, GROUP, module.in_features, module.out_features,
                           module.bias is not None)
            model.set_submodule(name, new)
    adapt(made)


def adapt(linear):
    """PEFT makes GPTQLoraLinear where the package gptqmodel has the class (dispatch_gptq); fms-acceleration
    does so for its own (gptqmodel/utils/peft.py, GPTQLoraModel)."""
    from peft.tuners.lora import model
    from peft.tuners.lora.gptq import GPTQLoraLinear

    def dispatch(target, adapter_name, config, **kwargs):
        if not isinstance(target, linear):
            return None
        new = GPTQLoraLinear(target, adapter_name, config=config, **kwargs)
        target.qweight = target.qweight
        return new

    model.dispatch_gptq = dispatch

"""A GPTQ base as fms-acceleration has it (strategy.quantize "gptq", "gptq-row"): its QuantLinear with triton v2
kernels, 4 bits, groups of 128 or whole rows, under PEFT's GPTQLoraLinear. Sources of that release on PYTHONPATH (commit 876e2ed was
read: plugins/accelerated-peft/src); its Triton kernels are not launched (liger.launch_no_triton).
Its packages' own __init__ files, which import much that no step needs, do not run."""

import importlib
import types

from bare_packages import bare

LINEAR = "fms_acceleration_peft.gptqmodel.nn_modules.qlinear.qlinear_tritonv2"
BITS, GROUPS = 4, {"gptq": 128, "gptq-row": -1}


def quant_linear():
    bare(LINEAR.split(".")[0], *(".".join(LINEAR.split(".")[:n]) for n in (2, 3)))
    return importlib.import_module(LINEAR).QuantLinear


def replace(model, kind):
    """Every linear module but the head and the routers of mixtures, as a checkpoint's loader makes them
    (gptqmodel/models: MixtralGPTQ's layer_modules name no gate)."""
    import torch
    made = quant_linear()
    for name, module in list(model.named_modules()):
        if type(module) is torch.nn.Linear and module is not model.get_output_embeddings() \
                and name.rsplit(".", 1)[-1] != "gate":
            with torch.device("cuda"):
                new = made(BITS, GROUPS[kind], module.in_features, module.out_features,
                           module.bias is not None)
            parent, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(parent), leaf, new)
    adapt(made)


def adapt(linear):
    """PEFT makes GPTQLoraLinear (before 0.17: QuantLinear) where the package gptqmodel has the class
    (dispatch_gptq); fms-acceleration does so for its own (gptqmodel/utils/peft.py, GPTQLoraModel)."""
    from peft.tuners.lora import gptq, model
    adapted = getattr(gptq, "GPTQLoraLinear", None) or gptq.QuantLinear

    def dispatch(target, adapter_name, **kwargs):
        if not isinstance(target, linear):
            return None
        if adapted.__name__ == "QuantLinear":
            kwargs.pop("lora_config")
        new = adapted(target, adapter_name, **kwargs)
        target.qweight = target.qweight
        return new

    model.dispatch_gptq = dispatch

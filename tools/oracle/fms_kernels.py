"""fms-acceleration's kernels (stack.kernels "fused"): its plugin fused-ops-and-kernels patches a model that
exists. Sources of that release on PYTHONPATH (commit 876e2ed was read: plugins/framework/src,
plugins/fused-ops-and-kernels/src, and plugins/accelerated-peft/src for GPTQ); its Triton kernels are not launched
(liger.launch_no_triton). What it allocates around them is Python's.
Its packages' own __init__ files, which import every plugin and family, do not run."""

import importlib
import sys
import types

from bare_packages import bare

PATCHER = "fms_acceleration.model_patcher"
RULES = "fms_acceleration_foak.models"
FAMILIES = ("llama", "mistral", "granite", "mixtral", "gpt_bigcode")


def apply(model, kernels, loss, quantize):
    """What FastKernelsAccelerationPlugin.augmentation registers (framework_plugin_fast_kernels.py) and
    AccelerationFramework.get_callbacks_and_ready_for_train applies: after PEFT has put its adapters in. Adapters
    are fused where the base is packed."""
    if kernels != "fused":
        return
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    family = base.config.model_type
    if family not in FAMILIES:
        raise ValueError(f"stack.kernels: no rules of fms-acceleration for {family}")
    bare("fms_acceleration", "fms_acceleration_foak", RULES,
         "fms_acceleration_foak.fused_ops", "fms_acceleration_foak.kernels")
    answer_bitsandbytes()
    patcher = importlib.import_module(PATCHER)
    rules = importlib.import_module(f"{RULES}.{family}")
    of_base = "auto_gptq" if quantize in ("gptq", "gptq-row") else "bitsandbytes"
    arguments = () if family in ("mixtral", "gpt_bigcode") else (base.config,)
    terms = {"rms", "rope"} | ({"fused-lce"} if loss == "fused" else {"cross-ent", "custom-loss"})
    terms |= {"qkvo", "mlp"} if quantize else set()
    kept = importlib.import_module("fms_acceleration_foak.utils").filter_mp_rules(
        rules.get_mp_rules(of_base, *arguments), terms)
    patcher.ModelPatcher.rules = {}
    for rule in kept:
        patcher.ModelPatcher.register(rule)
    patcher.ModelPatcher.patch(model)
    seen = {entry.rule_id for entry in patcher.ModelPatcher.history}
    print("fms-acceleration:", ", ".join(sorted(seen)), file=sys.stderr)


def answer_bitsandbytes():
    """Of 0.43.3, which that release asks for: a name of Transformers' that says it is there, and kernels that are
    called without a stream."""
    from transformers.utils import import_utils
    if not hasattr(import_utils, "_bitsandbytes_available"):
        import_utils._bitsandbytes_available = True
    lora = importlib.import_module("fms_acceleration_foak.fused_ops.unsloth_lora.utils")
    for name in [name for name in vars(lora) if name.startswith("cdequantize_blockwise")]:
        kernel = getattr(lora, name)
        if not isinstance(kernel, types.FunctionType):
            setattr(lora, name, streamed(kernel))


def streamed(kernel):
    def called(*arguments):
        return kernel(*arguments, None)
    return called

"""A base whose linears are packed (strategy.quantize), as Transformers and PEFT make it with bitsandbytes,
or fms-acceleration with GPTQ (fms_gptq.py); or AWQ (awq_base.py)."""

import awq_base
import fms_gptq
import optimizers

ACCEPTED = {
    "quantize": [None, "nf4", "nf4-dq", "fp4", "int8", "gptq", "gptq-row", "torchao-int8", "hqq",
                 "awq"],
    "quant_storage": [None, "uint8", "bf16", "fp16", "fp32"],
    "kbit_prep": [None, False, True],
    "kbit_casting": [None, True],
}


READ = "0.50.2"  # of bitsandbytes: what a workload is of that names no other
REPLACED = ("torchao-int8", "hqq")
WITHOUT_BITSANDBYTES = (*fms_gptq.GROUPS, "awq", *REPLACED)


def check(strategy, bad_input):
    if strategy["quantize"] and not strategy["lora"]:
        raise bad_input("strategy.quantize: a packed base is frozen; adapters are trained (lora)")
    if not strategy["kbit_casting"]:
        del strategy["kbit_casting"]
    elif not strategy["kbit_prep"] or strategy["precision"] != "bf16-mixed":
        raise bad_input("strategy.kbit_casting: TRL casts a prepared base (kbit_prep) where bf16 is on")


def needs_bitsandbytes(workload):
    strategy = (workload or {}).get("strategy", {})
    return bool(strategy.get("quantize") not in (None, *WITHOUT_BITSANDBYTES) or strategy.get("optimizer", "").endswith("8bit"))


def release(workload):
    """stack.bitsandbytes_version: absent for the one that is read where nothing is said."""
    import importlib.metadata as metadata
    steps = workload["strategy"].get("optimizer") in (*optimizers.BITSANDBYTES, "q-galore")
    runs = steps or needs_bitsandbytes(workload)
    installed = metadata.version("bitsandbytes") if runs else READ
    return {} if installed == READ else {"bitsandbytes_version": installed}


def packed(module, weight, on_meta):
    """The replaced module's weight, of a weight that is loaded to the GPU for that."""
    import torch
    from transformers.pytorch_utils import Conv1D
    if issubclass(module.source_cls, Conv1D):
        weight = weight.T
    parts = {k: v for k, v in module.weight.__dict__.items() if k not in ("CB", "SCB")}
    loaded = torch.empty_like(weight, device="cuda")
    of = type(module.weight)
    if of.__name__ == "Int8Params" or not hasattr(module.weight, "quant_storage"):  # of 4 bits: since 0.43.0
        loaded = loaded.cpu()
    made = of(loaded, **{**parts, "requires_grad": False}).to("cuda")
    if on_meta:
        made = of(made.data.to("meta"), **{**made.__dict__, "requires_grad": False})
    return made


def with_packed_base(model, strategy, device):
    """What Transformers makes of BitsAndBytesConfig while it loads (integrations/bitsandbytes.py):
    the modules it replaces, weight by weight; the model comes on meta. What FSDP shards
    stays there (device meta), and not a packed weight's scales and tables."""
    if not strategy["quantize"]:
        return model
    if strategy["quantize"] in REPLACED:
        return replaced_linears(model, strategy)
    if strategy["quantize"] in fms_gptq.GROUPS:
        return with_buffers(model, "gptq", lambda: fms_gptq.replace(model, strategy["quantize"]))
    if strategy["quantize"] == "awq":
        return with_buffers(model, "awq", lambda: awq_base.replace(model))
    import bitsandbytes
    import torch
    import transformers
    from torch_measure import initialised_module, torch_dtype
    from transformers.integrations.bitsandbytes import replace_with_bnb_linear
    try:
        from transformers.quantizers.base import get_keys_to_not_convert
    except ImportError:  # before 5.0
        from transformers.integrations.bitsandbytes import get_keys_to_not_convert
    kind = strategy["quantize"]
    storage = strategy["quant_storage"] or "uint8"
    compute = strategy["precision"].split("-")[0]
    config = transformers.BitsAndBytesConfig(load_in_8bit=True) if kind == "int8" else \
        transformers.BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type=kind[:3],
            bnb_4bit_use_double_quant=kind.endswith("-dq"),
            bnb_4bit_compute_dtype=torch_dtype(compute),
            bnb_4bit_quant_storage=torch.uint8 if storage == "uint8" else torch_dtype(storage))
    linears = dict(model.named_modules())
    replace_with_bnb_linear(model, get_keys_to_not_convert(model), quantization_config=config)
    made = {}  # tied parameters are one
    for name, module in model.named_modules():
        if isinstance(module, (bitsandbytes.nn.Linear4bit, bitsandbytes.nn.Linear8bitLt)):
            module.weight = packed(module, linears[name].weight, device == "meta")
            module.bias = linears[name].bias
        if device != "meta":
            load(module, made)
            if name not in linears or linears[name] is module:
                initialised_module(module)
    if kind == "int8":
        model.is_loaded_in_8bit = True
    else:
        model.is_loaded_in_4bit = True
    model.is_quantized = True
    return model


def load(module, made):
    """What is on meta comes to the GPU; `made`: by the parameter that it was."""
    import torch
    for key, p in list(module.named_parameters(recurse=False)):
        if p.is_meta:
            new = torch.nn.Parameter(torch.empty_like(p, device="cuda"))
            setattr(module, key, made.setdefault(id(p), new))
    for key, buffer in module.named_buffers(recurse=False):
        setattr(module, key, torch.empty_like(buffer, device="cuda"))


def with_buffers(model, method, replace):
    """Linears that hold packed values in buffers, as checkpoints of `method` are loaded."""
    from torch_measure import initialised_module
    made = {}
    plain = set(model.modules())
    replace()
    for module in model.modules():
        if module in plain:
            load(module, made)
            initialised_module(module)
    model.is_loaded_in_4bit = True
    model.quantization_method = method
    return model


def replaced_linears(model, strategy):
    """torchao's Int8WeightOnlyConfig (transformers 5.17, integrations/torchao.py) and hqq's HQQLinear of 4 bits in
    groups of 64 (HqqConfig's own; integrations/hqq.py, until 4.55): every linear module but the head."""
    import torch
    from torch_measure import initialised_module
    made = {}
    for name, module in list(model.named_modules()):
        load(module, made)
        initialised_module(module)
        if type(module) is not torch.nn.Linear or module is model.get_output_embeddings():
            continue
        if strategy["quantize"] == "torchao-int8":
            from torchao.quantization import Int8WeightOnlyConfig, quantize_
            quantize_(module, Int8WeightOnlyConfig())
        else:
            from hqq.core.quantize import BaseQuantizeConfig, HQQLinear
            new = HQQLinear(module, BaseQuantizeConfig(nbits=4, group_size=64, axis=1),
                            compute_dtype=module.weight.dtype, device="cuda")
            new.bias = None if new.bias is None else torch.nn.Parameter(new.bias)
            parent, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(parent), leaf, new)
    for p in model.parameters():
        p.requires_grad_(False)
    model.quantization_method = strategy["quantize"].split("-")[0]
    model.is_quantized = True
    return model


def kbit_prepared(model, strategy, options):
    if not strategy["kbit_prep"]:
        return model
    import peft
    return peft.prepare_model_for_kbit_training(
        model, use_gradient_checkpointing=strategy["recompute"] == "full",
        gradient_checkpointing_kwargs=options)


def cast_behind_kbit(model, strategy):
    """What TRL's trainers do to a 4-bit base with adapters where bf16 is on (trl 0.24, trainer/utils.py,
    peft_module_casting_to_bf16): norms stay in fp32, tables and the head go back to bf16."""
    if not strategy.get("kbit_casting"):
        return model
    import torch
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.LayerNorm) or "norm" in name:
            module.to(torch.float32)
        elif any(part in name for part in ("lm_head", "embed_tokens", "wte", "wpe")):
            if getattr(module, "weight", None) is not None and module.weight.dtype == torch.float32:
                module.to(torch.bfloat16)
    return model

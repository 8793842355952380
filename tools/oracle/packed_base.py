"""A base whose linears are packed (strategy.quantize), as Transformers and PEFT make it with bitsandbytes."""

ACCEPTED = {
    "quantize": [None, "nf4", "nf4-dq", "fp4", "int8"],
    "quant_storage": [None, "uint8", "bf16", "fp16", "fp32"],
    "kbit_prep": [None, False, True],
}


def check(strategy, bad_input):
    if strategy["quantize"] and not strategy["lora"]:
        raise bad_input("strategy.quantize: a packed base is frozen; adapters are trained (lora)")


def needs_bitsandbytes(workload):
    strategy = (workload or {}).get("strategy", {})
    return bool(strategy.get("quantize") or strategy.get("optimizer", "").endswith("8bit"))


def with_packed_base(model, strategy, torch_dtype):
    """What Transformers makes of BitsAndBytesConfig while it loads (integrations/bitsandbytes.py):
    the modules it replaces, weight by weight. A model on meta keeps packed weights there, but for
    their scales and tables, which FSDP does not shard; each weight is quantized alone."""
    if not strategy["quantize"]:
        return model
    import bitsandbytes
    import torch
    import transformers
    from transformers.integrations.bitsandbytes import replace_with_bnb_linear
    from transformers.pytorch_utils import Conv1D
    from transformers.quantizers.base import get_keys_to_not_convert
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
    replace_with_bnb_linear(model, get_keys_to_not_convert(model), config)
    for name, module in model.named_modules():
        if not isinstance(module, (bitsandbytes.nn.Linear4bit, bitsandbytes.nn.Linear8bitLt)):
            continue
        weight, module.bias = linears[name].weight.data, linears[name].bias
        linears[name].weight = None
        if issubclass(module.source_cls, Conv1D):
            weight = weight.T
        parts = {k: v for k, v in module.weight.__dict__.items() if k not in ("CB", "SCB")}
        there = torch.empty_like(weight, device="cuda") if weight.is_meta else weight
        made = type(module.weight)
        packed = made(there.cpu() if kind == "int8" else there,
                      **{**parts, "requires_grad": False}).to("cuda")
        if weight.is_meta:
            packed = made(packed.data.to("meta"), **{**packed.__dict__, "requires_grad": False})
        module.weight = packed
        if module.bias is not None:
            module.bias.requires_grad_(False)
    linears.clear()
    if kind == "int8":
        model.is_loaded_in_8bit = True
    else:
        model.is_loaded_in_4bit = True
    model.is_quantized = True
    return model


def kbit_prepared(model, strategy, options):
    if not strategy["kbit_prep"]:
        return model
    import peft
    return peft.prepare_model_for_kbit_training(
        model, use_gradient_checkpointing=strategy["recompute"] == "full",
        gradient_checkpointing_kwargs=options)

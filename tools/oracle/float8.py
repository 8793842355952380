"""Linears in float8 (strategy.precision fp8-mixed), as torchao 0.18 trains them, for torch_measure.py.

Of Transformers' models as Accelerate 1.15 converts one (utils/ao.py: every linear but the first and the last whose
widths divide by 16; its own config, which pads, where the recipe is tensorwise); of torchtitan's as its
converter does (components/quantization/float8.py: all but `output`).
"""

RECIPES = ["tensorwise", "rowwise", "rowwise_with_gw_hp"]
KEYS = ("fp8_recipe", "fp8_all_gather")
ACCEPTED = {"fp8_recipe": [None, *RECIPES], "fp8_all_gather": [None, False, True]}


def is_asked(strategy):
    return strategy["precision"] == "fp8-mixed"


def low(precision):
    """What autocast or FSDP's policy computes in."""
    return "bf16" if precision == "fp8-mixed" else precision.split("-")[0]


def check(strategy, stack, error):
    """Fills what fp8-mixed needs, and refuses it where torchao has no way."""
    if not is_asked(strategy):
        for key in KEYS:
            if strategy[key] is not None:
                raise error(f"strategy.{key}: of strategy.precision fp8-mixed")
            del strategy[key]
        return
    strategy["fp8_recipe"] = strategy["fp8_recipe"] or "tensorwise"
    strategy["fp8_all_gather"] = bool(strategy["fp8_all_gather"])
    if strategy["fp8_all_gather"] and (
            strategy["zero"] < 2 or stack["fsdp_version"] != 2 or strategy["fp8_recipe"] != "tensorwise"):
        raise error("strategy.fp8_all_gather: FSDP2 and the recipe tensorwise are needed")
    for key, kept in (("lora", None), ("quantize", None)):
        if strategy[key] != kept:
            raise error(f"strategy.{key}: not measured with fp8-mixed")


def config_of(strategy, pads):
    import torch
    from torchao.float8 import Float8LinearConfig
    if strategy["fp8_recipe"] != "tensorwise":
        if torch.cuda.get_device_name().startswith("dry"):
            torch.exp2 = torch.exp  # compiled while it runs: not when dry
        return Float8LinearConfig.from_recipe_name(strategy["fp8_recipe"])
    return Float8LinearConfig(pad_inner_dim=pads,
                              enable_fsdp_float8_all_gather=strategy["fp8_all_gather"])


def convert(model, strategy):
    """A model of Transformers."""
    if is_asked(strategy):
        from accelerate.utils.ao import convert_model_to_fp8_ao
        convert_model_to_fp8_ao(model, config=config_of(strategy, pads=True))


def convert_torchtitan(model, strategy):
    if is_asked(strategy):
        import torch
        from torchao.float8 import convert_to_float8_training

        def wanted(module, name):
            return isinstance(module, torch.nn.Linear) and name != "output" and all(
                width % 16 == 0 for width in module.weight.shape)

        convert_to_float8_training(model, config=config_of(strategy, pads=False), module_filter_fn=wanted)


def after_step(model, strategy):
    """The hook that Accelerate and torchtitan put behind the optimizer's step."""
    if is_asked(strategy) and strategy["fp8_all_gather"]:
        from torchao.float8 import precompute_float8_dynamic_scale_for_fsdp
        precompute_float8_dynamic_scale_for_fsdp(model)

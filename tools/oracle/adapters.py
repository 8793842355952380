"""PEFT's adapters of torch_measure.py's workloads, by `strategy.lora.kind` (absent: lora). Keys beyond
the usual ones of a kind stand only where they are said."""

import fms_kernels

USUAL = {
    "lora": {"rank": 8, "alpha": 16.0, "targets": "all-linear", "dropout": 0.0,
             "adapter_dtype": "fp32"},
    "ia3": {"targets": "all-linear", "adapter_dtype": "fp32"},
    "vera": {"rank": 256, "targets": "all-linear", "dropout": 0.0, "adapter_dtype": "fp32"},
    "prompt-tuning": {"virtual_tokens": 20, "adapter_dtype": "fp32"},
    "p-tuning": {"virtual_tokens": 20, "encoder_hidden": None, "adapter_dtype": "fp32"},
    "prefix-tuning": {"virtual_tokens": 20, "encoder_hidden": None, "adapter_dtype": "fp32"},
}
FURTHER = {
    "lora": {"modules_to_save": str, "lora_bias": bool, "use_dora": bool, "target_parameters": str,
             "adapters": int},
    "ia3": {"feedforward": str, "modules_to_save": str},
    "vera": {"modules_to_save": str},
    "prompt-tuning": {}, "p-tuning": {}, "prefix-tuning": {},
}


def filled(given, fill, bad_input):
    """`given` with every usual key of its kind; `fill` overlays defaults and refuses other keys."""
    kind = given.get("kind", "lora")
    if kind not in USUAL:
        raise bad_input(f"strategy.lora.kind: {kind!r} is not one of {', '.join(USUAL)}")
    further = {key: value for key, value in given.items() if key in FURTHER[kind]}
    for key, value in further.items():
        if not isinstance(value, FURTHER[kind][key]) or (not value and key != "feedforward"):
            raise bad_input(f"strategy.lora.{key}: {value!r} is no {FURTHER[kind][key].__name__} "
                            "that asks for it")
    usual = {key: value for key, value in given.items() if key not in further and key != "kind"}
    named = {} if kind == "lora" else {"kind": kind}
    return {**fill(usual, USUAL[kind], "strategy.lora"), **further, **named}


def names_of(text):
    return [name for name in text.split(",") if name]


def targets_of(lora):
    targets = lora["targets"]
    if targets == "attention":
        return ["q_proj", "k_proj", "v_proj", "o_proj"]
    return names_of(targets) if targets != "all-linear" else targets


def further_of(lora):
    """Keys beyond the usual ones, under PEFT's names."""
    further = {key: lora[key] for key in FURTHER[lora.get("kind", "lora")] if key in lora}
    further.pop("adapters", None)
    for key in ("modules_to_save", "target_parameters"):
        if key in further:
            further[key] = names_of(further[key])
    if lora.get("kind") == "ia3":
        further["feedforward_modules"] = names_of(further.pop("feedforward", ""))
    return further


def lora_config(lora):
    import peft
    return peft.LoraConfig(r=lora["rank"], lora_alpha=lora["alpha"],
                           target_modules=targets_of(lora), lora_dropout=lora["dropout"],
                           task_type=None, **further_of(lora))


def ia3_config(lora):
    import peft
    return peft.IA3Config(target_modules=targets_of(lora), task_type=None, **further_of(lora))


def vera_config(lora):
    import peft
    return peft.VeraConfig(r=lora["rank"], target_modules=targets_of(lora),
                           vera_dropout=lora["dropout"], task_type=None, **further_of(lora))


def prompt_config(lora):
    import peft
    return peft.PromptTuningConfig(num_virtual_tokens=lora["virtual_tokens"],
                                   task_type="CAUSAL_LM")


def p_tuning_config(lora):
    import peft
    return peft.PromptEncoderConfig(num_virtual_tokens=lora["virtual_tokens"],
                                    encoder_hidden_size=lora["encoder_hidden"],
                                    task_type="CAUSAL_LM")


def prefix_config(lora):
    import peft
    return peft.PrefixTuningConfig(num_virtual_tokens=lora["virtual_tokens"],
                                   encoder_hidden_size=lora["encoder_hidden"],
                                   prefix_projection=lora["encoder_hidden"] is not None,
                                   task_type="CAUSAL_LM")


def with_adapters(model, strategy, kernels):
    if strategy["lora"]:
        model = with_lora(model, strategy["lora"])
    fms_kernels.apply(model, kernels, strategy["loss"], strategy["quantize"])  # fuses adapters, too
    return model


def with_lora(model, lora):
    import peft
    make = {"lora": lora_config, "ia3": ia3_config, "vera": vera_config,
            "prompt-tuning": prompt_config, "p-tuning": p_tuning_config, "prefix-tuning": prefix_config}
    config = make[lora.get("kind", "lora")](lora)
    upcast = {"autocast_adapter_dtype": lora["adapter_dtype"] == "fp32"}
    model = peft.get_peft_model(model, config, **upcast)
    for i in range(1, lora.get("adapters", 1)):  # beside the first, which alone is trained
        model.add_adapter(f"adapter{i}", config, **upcast)
    return model

"""PEFT's adapters of torch_measure.py's workloads. Keys of `strategy.lora` beyond the usual ones stand
only where they are said."""

FURTHER = {"modules_to_save": str, "lora_bias": bool, "use_dora": bool}


def check(lora, bad_input):
    for key, kind in FURTHER.items():
        if key in lora and (not isinstance(lora[key], kind) or not lora[key]):
            raise bad_input(f"strategy.lora.{key}: {lora[key]!r} is no {kind.__name__} that asks "
                            "for it")


def with_adapters(model, lora):
    import peft
    targets = lora["targets"]
    if targets == "attention":
        targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
    elif isinstance(targets, str) and targets != "all-linear":
        targets = targets.split(",")
    further = {key: lora[key] for key in FURTHER if key in lora}
    if "modules_to_save" in further:
        further["modules_to_save"] = further["modules_to_save"].split(",")
    config = peft.LoraConfig(r=lora["rank"], lora_alpha=lora["alpha"], target_modules=targets,
                             lora_dropout=lora["dropout"], task_type=None, **further)
    return peft.get_peft_model(model, config,
                               autocast_adapter_dtype=lora["adapter_dtype"] == "fp32")

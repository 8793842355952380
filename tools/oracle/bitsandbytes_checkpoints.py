#!/usr/bin/env python3
"""What Transformers saves of a small Llama whose linears bitsandbytes has packed, on the CPU.

    bitsandbytes_checkpoints.py tests/golden/bitsandbytes_checkpoints

A folder for each packing (config.json, model.safetensors), and `plain`, of which all are made. nf4-dq-bf16 holds its
bytes in bf16 (bnb_4bit_quant_storage), as FSDP-QLoRA does.

    bitsandbytes_checkpoints.py --check PACKED MERGED ADAPTER --alpha A

says whether Transformers reads what `plimsoll run --save-packed` wrote, and whether PEFT's merge_and_unload into the
unpacked base gives what `--save-merged` wrote, but for the order in which products are summed.
"""
import argparse
import pathlib
import sys

import bitsandbytes
import torch
import transformers
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

NF4 = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": torch.bfloat16}
DOUBLE = {**NF4, "bnb_4bit_use_double_quant": True}
PACKINGS = {"nf4": NF4, "nf4-dq": DOUBLE, "nf4-dq-bf16": {**DOUBLE, "bnb_4bit_quant_storage": torch.bfloat16},
            "int8": {"load_in_8bit": True}}


def write(folder):
    torch.manual_seed(20261128)
    config = LlamaConfig(vocab_size=96, hidden_size=64, intermediate_size=192, num_hidden_layers=1, num_attention_heads=4,
                         num_key_value_heads=2, max_position_embeddings=64, dtype=torch.bfloat16)
    plain = folder / "plain"
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(plain)
    for name, packing in PACKINGS.items():
        model = AutoModelForCausalLM.from_pretrained(plain, quantization_config=BitsAndBytesConfig(**packing),
                                                     device_map="cpu", dtype=torch.bfloat16)
        model.save_pretrained(folder / name)
    for one in folder.glob("*/generation_config.json"):
        one.unlink()
    (folder / "versions.txt").write_text(f"transformers {transformers.__version__}, bitsandbytes "
                                         f"{bitsandbytes.__version__}, torch {torch.__version__}\n")


def unpacked(module):
    if isinstance(module, bitsandbytes.nn.Linear4bit):
        return bitsandbytes.functional.dequantize_4bit(module.weight.data, module.weight.quant_state)
    return module.weight.data.float() * module.weight.SCB.view(-1, 1) / 127


def check(packed, merged, adapter, alpha):
    import peft
    from safetensors.torch import load_file
    held = AutoModelForCausalLM.from_pretrained(packed, device_map="cpu")
    linears = {name: module for name, module in held.named_modules()
               if isinstance(module, (bitsandbytes.nn.Linear4bit, bitsandbytes.nn.Linear8bitLt))}
    ours = AutoModelForCausalLM.from_pretrained(merged, device_map="cpu", dtype=torch.bfloat16)
    base = AutoModelForCausalLM.from_pretrained(merged, device_map="cpu", dtype=torch.bfloat16)
    for name, module in linears.items():
        base.get_submodule(name).weight.data = unpacked(module).to(torch.bfloat16)
    values = load_file(adapter / "adapter_model.safetensors")
    rank = next(v.shape[0] for k, v in values.items() if "lora_A" in k)
    model = peft.get_peft_model(base, peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules="all-linear"))
    peft.set_peft_model_state_dict(model, values)
    theirs = model.merge_and_unload().state_dict()
    differ = sum(int((v != theirs[k]).sum()) for k, v in ours.state_dict().items())
    largest = max(float((v.float() - theirs[k].float()).abs().max()) for k, v in ours.state_dict().items())
    elements = sum(v.numel() for v in theirs.values())
    print(f"{len(linears)} packed linears; of {elements} merged values {differ} differ, by at most {largest:.2g}")
    return 0 if linears and differ <= elements // 1000 else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=pathlib.Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--alpha", type=float, default=16)
    given = parser.parse_args()
    if given.check:
        return check(*given.folders, given.alpha)
    return write(*given.folders)


if __name__ == "__main__":
    sys.exit(main())

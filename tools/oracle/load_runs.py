#!/usr/bin/env python3
"""What loading a model takes on the device, before its first step, without a GPU.

  load_runs.py --out tests/golden/load_runs_VERSION.json [--cases FILE] [--only TEXT,TEXT] [--jobs N]
  load_runs.py --draw SEED --count N [--merge] --out FILE  cases that are drawn by that number
  load_runs.py --history NAME [--cases FILE]     every block of one case, in order

FILE is load_runs_cases.json of this folder where nothing is said.

Each case is what a user's script does: Transformers' from_pretrained of a checkpoint on disk (a safetensors
file of the right size that is one hole: it reads as zeros and takes no room), with BitsAndBytesConfig or
without; PEFT's prepare_model_for_kbit_training where kbit_prep is said; get_peft_model; and the Trainer's
model.to("cuda") of what is still on the host. On the dry CUDA runtime of torch_measure.py every allocation
goes through torch's caching allocator, so the figures after each of these stages are those of a real run.

"load": `device_map` null (the release's own: the host, and with bitsandbytes the GPU) or "auto"; the
checkpoint's dtype is `checkpoint_dtype` of the case (the config's own where absent). `mxfp4`: gpt-oss's experts
are packed in the checkpoint, as they are published, and unpacked while they are loaded
(Mxfp4Config(dequantize=True)). `packed`: the checkpoint is bitsandbytes' own, as save_pretrained writes a model that
was packed (QuantState.as_dict, Linear8bitLt._save_to_state_dict); what says how is read as it would be, but the
device has zeros, so the answer is put in its place; of AWQ's checkpoints gptqmodel's
sources (autoawq's with Transformers 4), and what they import, are needed on PYTHONPATH.
`merge`: the adapter is trained and on disk (its dtype is the adapters'); PeftModel.from_pretrained and
merge_and_unload take the places of the stages behind from_pretrained.
"""

import argparse
import json
import os
import random
import sys
import tempfile

import apart
import awq_base
import dry_runs

HERE = os.path.dirname(os.path.abspath(__file__))
STAGES = ("from_pretrained", "kbit_prep", "adapters", "to_device")
MERGES = ("from_pretrained", "load_adapter", "merge")
SAFETENSORS = {"fp32": "F32", "bf16": "BF16", "fp16": "F16"}
FAMILIES = ["llama", "mistral", "qwen2", "qwen3"]
BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


def workload_of(case):
    import torch_measure
    import transformers
    workload = dry_runs.workload_of({"batch": {"seq_len": 512}, **case})
    workload["stack"] = {**workload["stack"], "transformers_version": transformers.__version__}
    config = workload["model"]["config"]
    own = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}[
        config.get("torch_dtype") or config.get("dtype") or "float32"]
    return torch_measure.normalised(workload), {"device_map": None, "checkpoint_dtype": own, **case.get("load", {})}


def stored_tensors(name, shape, dtype, mxfp4):
    """What a checkpoint has of one parameter: name, dtype, shape, bytes. MXFP4 are two values a byte, 32 to a scale
    of a byte, along what the model has as its second axis (transformers, integrations/mxfp4.py)."""
    if not mxfp4 or not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
        size = BYTES[dtype]
        for n in shape:
            size *= n
        return [(name, SAFETENSORS[dtype], shape, size)]
    experts, inputs, outputs = shape
    groups = experts * outputs * inputs // 32
    return [(name + "_blocks", "U8", [experts, outputs, inputs // 32, 16], groups * 16),
            (name + "_scales", "U8", [experts, outputs, inputs // 32], groups)]


def packed_tensors(name, shape, kind):
    """What a packed checkpoint has of a linear's weight."""
    if kind == "awq":
        return awq_base.stored_tensors(name, shape)
    out, values = shape[0], shape[0] * shape[1]
    if kind == "int8":
        return [(name, "I8", list(shape), values), (name[:-len("weight")] + "SCB", "F32", [out], 4 * out),
                (name + "_format", "U8", [], 1)]
    blocks = -(-values // 64)
    tensors = [(name, "U8", [values // 2, 1], values // 2), (name + ".quant_map", "F32", [16], 64),
               (f"{name}.quant_state.bitsandbytes__{kind[:3]}", "U8", [180], 180)]
    if not kind.endswith("-dq"):
        return tensors + [(name + ".absmax", "F32", [blocks], 4 * blocks)]
    nested = -(-blocks // 256)
    return tensors + [(name + ".absmax", "U8", [blocks], blocks), (name + ".nested_quant_map", "F32", [256], 1024),
                      (name + ".nested_absmax", "F32", [nested], 4 * nested)]


def stored_state(kind):
    state = {"quant_type": kind[:3], "blocksize": 64, "dtype": "bfloat16", "shape": None}
    nested = {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.05}
    return {**state, **(nested if kind.endswith("-dq") else {})}


def config_of(strategy, stored=False):
    """Of what packs, or has packed."""
    if strategy["quantize"] == "awq":
        return awq_base.config(stored)
    return bitsandbytes_config(strategy).to_dict() if stored else bitsandbytes_config(strategy)


def bitsandbytes_config(strategy):
    import torch
    import torch_measure
    import transformers
    kind = strategy["quantize"]
    if kind == "int8":
        return transformers.BitsAndBytesConfig(load_in_8bit=True)
    storage = strategy["quant_storage"] or "uint8"
    return transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type=kind[:3], bnb_4bit_use_double_quant=kind.endswith("-dq"),
        bnb_4bit_compute_dtype=torch_measure.torch_dtype(strategy["precision"].split("-")[0]),
        bnb_4bit_quant_storage=torch.uint8 if storage == "uint8" else torch_measure.torch_dtype(storage))


def write_checkpoint(folder, workload, dtype, mxfp4=False, packed=False):
    """config.json and one safetensors file, whose tensors are a hole."""
    import torch
    import torch_measure
    config = torch_measure.hf_config(workload["model"], workload["stack"])
    with torch.device("meta"):
        model = torch_measure.auto_class(workload["model"]["config"]).from_config(config)
    config.architectures = [type(model).__name__]
    setattr(config, torch_measure.dtype_argument(), torch_measure.torch_dtype(dtype))
    if mxfp4:
        config.quantization_config = {"quant_method": "mxfp4", "modules_to_not_convert": [
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}
    kind = workload["strategy"]["quantize"] if packed else None
    linears = set()
    if kind:
        config.quantization_config = config_of(workload["strategy"], stored=True)
        linears = {name + ".weight" for name, module in model.named_modules()
                   if type(module) is torch.nn.Linear and module is not model.get_output_embeddings()}
    config.save_pretrained(folder)
    tied = set(getattr(model, "all_tied_weights_keys", None) or getattr(model, "_tied_weights_keys", None) or ())
    kept = {name for name, _ in model.named_parameters()}  # a tied one once
    tensors = []
    for name, tensor in sorted(model.state_dict().items()):
        if name not in kept or (name in tied and config.tie_word_embeddings):
            continue
        tensors += packed_tensors(name, tensor.shape, kind) if name in linears else \
            stored_tensors(name, list(tensor.shape), dtype, mxfp4)
    write_hole(os.path.join(folder, "model.safetensors"), tensors)


def from_pretrained(folder, workload, load):
    import torch
    import torch_measure
    import transformers
    strategy = workload["strategy"]
    kind, arguments = strategy["quantize"], {}
    if load["device_map"]:
        arguments["device_map"] = load["device_map"]
    if load.get("mxfp4"):
        arguments["quantization_config"] = transformers.Mxfp4Config(dequantize=True)
    if kind == "awq":
        awq_base.before_loading()
        arguments["quantization_config"] = config_of(strategy)
    elif kind and load.get("packed"):
        import bitsandbytes.functional as functional
        functional.unpack_tensor_to_dict = lambda data: data.cpu() is not None and stored_state(kind)
    elif kind:
        arguments["quantization_config"] = config_of(strategy)
    arguments[torch_measure.dtype_argument()] = torch_measure.torch_dtype(strategy["param_dtype"])
    of = torch_measure.auto_class(workload["model"]["config"])
    return of.from_pretrained(folder, **arguments)


def write_adapter(folder, workload):
    """What save_pretrained of a trained adapter writes; its tensors are a hole."""
    import adapters
    import peft
    import torch
    import torch_measure
    lora = workload["strategy"]["lora"]
    config = torch_measure.hf_config(workload["model"], workload["stack"])
    with torch.device("meta"):
        model = torch_measure.auto_class(workload["model"]["config"]).from_config(config)
        model = adapters.with_lora(model, lora)
    model.peft_config["default"].save_pretrained(folder)
    shapes = {name: list(tensor.shape) for name, tensor in peft.get_peft_model_state_dict(model).items()}
    write_hole(os.path.join(folder, "adapter_model.safetensors"), [
        stored for name, shape in sorted(shapes.items())
        for stored in stored_tensors(name, shape, lora["adapter_dtype"], False)])


def write_hole(path, tensors):
    """A safetensors file of these (name, dtype, shape, bytes), which reads as zeros and takes no room."""
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, element, shape, size in tensors:
        header[name] = {"dtype": element, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        f.truncate(8 + len(text) + end)


def merging(workload, load, folder):
    """The model after each stage of a script that merges: the base, the adapter on it, the two as one."""
    import peft
    lora = workload["strategy"]["lora"]
    model = from_pretrained(folder, workload, load)
    for module in model.modules():
        state = getattr(getattr(module, "weight", None), "quant_state", None)
        if state is not None and state.shape is None:  # the checkpoint's text, which is zeros, would say it
            state.shape = (module.out_features, module.in_features)
    yield model
    with tempfile.TemporaryDirectory() as adapter:
        write_adapter(adapter, workload)
        model = peft.PeftModel.from_pretrained(model, adapter,
                                               autocast_adapter_dtype=lora["adapter_dtype"] == "fp32")
    yield model
    model = model.merge_and_unload()
    yield model


def stages(workload, load, folder):
    """The model after each stage."""
    import adapters
    import packed_base
    strategy, stack = workload["strategy"], workload["stack"]
    model = from_pretrained(folder, workload, load)
    yield model
    model = packed_base.kbit_prepared(model, strategy, {"use_reentrant": False})
    yield model
    model = adapters.with_adapters(model, strategy, stack["kernels"])
    yield model
    if strategy["quantize"] in (None, "awq"):  # Trainer, place_model_on_device
        model = model.to("cuda")
    yield model


def run_here(case):
    import gc
    import torch
    import torch_measure
    workload, load = workload_of(case)
    if workload["stack"].get("allocator_conf"):
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = workload["stack"]["allocator_conf"]
    torch.zeros(0, device="cuda")
    result = {"case": case["name"], "workload": workload, "load": load, "stages": {}}
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(folder, workload, load["checkpoint_dtype"], load.get("mxfp4", False), load.get("packed", False))
        if case.get("history"):
            torch.cuda.memory._record_memory_history(max_entries=1 << 20, stacks="python")
        made = (merging if load.get("merge") else stages)(workload, load, folder)
        for name in MERGES if load.get("merge") else STAGES:
            torch.cuda.reset_peak_memory_stats()
            model = next(made)
            gc.collect()
            result["stages"][name] = {
                "peak_bytes": torch.cuda.max_memory_allocated(),
                "reserved_bytes": torch.cuda.max_memory_reserved(),
                "resident_bytes": torch.cuda.memory_allocated(),
                "cached_bytes": torch.cuda.memory_reserved()}
    if case.get("history"):
        print_history(torch.cuda.memory._snapshot())
    del model
    result["versions"] = torch_measure.versions(workload)
    if workload["strategy"]["quantize"] == "awq":
        result["versions"].update(awq_base.version())
    return result


def drawn_case(seed, number, merge=False):
    """Shapes that no catalog has, and every setting that a load depends on."""
    draw = random.Random(seed * 1000 + number)
    head_dim, heads = draw.choice([32, 64, 80, 128]), draw.choice([4, 8, 12, 16, 24])
    hidden = head_dim * heads
    family = draw.choice(FAMILIES)
    config = {"model_type": family, "hidden_size": hidden,
              "intermediate_size": 64 * draw.randint(hidden // 64, hidden // 16),
              "num_hidden_layers": draw.randint(2, 14), "num_attention_heads": heads,
              "num_key_value_heads": draw.choice([n for n in (1, 2, 4, heads) if heads % n == 0]),
              "head_dim": head_dim, "vocab_size": draw.choice([5003, 32000, 50257, 128256, 151936]),
              "tie_word_embeddings": draw.random() < 0.5, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
              "rope_theta": 10000.0, "hidden_act": "silu",
              "torch_dtype": draw.choice(["bfloat16", "float16", "float32"])}
    kind = draw.choice([None, None, "nf4", "nf4-dq", "nf4-dq", "fp4", "int8", "int8"])
    precision = draw.choice(["bf16-mixed", "bf16-mixed", "fp16-mixed", "bf16"])
    low = precision.split("-", maxsplit=1)[0]
    mixed = precision.endswith("mixed")
    strategy = {"precision": precision, "param_dtype": draw.choice([low, low, "fp32"]) if mixed else low}
    if kind or draw.random() < 0.5:
        strategy["lora"] = {"rank": draw.choice([4, 8, 16, 64]),
                            "targets": draw.choice(["all-linear", "q_proj,v_proj", "down_proj"]),
                            "adapter_dtype": draw.choice(["fp32", "fp32", "bf16"]) if low == "bf16" else "fp32"}
    if kind:
        strategy.update(quantize=kind, kbit_prep=mixed and draw.random() < 0.6)
    load = {"device_map": draw.choice([None, "auto"])} if not kind else {}
    if merge:  # what was trained has an adapter, and nothing is prepared for training
        strategy.setdefault("lora", {"rank": 8, "adapter_dtype": "fp32"})
        strategy.pop("kbit_prep", None)
        load = {"merge": True, **({} if kind else {"device_map": "auto"})}
    return {"name": f"drawn-{seed}-{number:03}", "model": {"name": f"drawn-{seed}-{number:03}", "config": config},
            "strategy": strategy, "load": load}


def print_history(snapshot):
    for event in snapshot["device_traces"][0]:
        frames = [f"{os.path.basename(f['filename'])}:{f['line']}:{f['name']}" for f in event.get("frames", [])[:7]]
        print(event["action"], event["size"], hex(event["addr"]), " < ".join(frames), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--out")
    parser.add_argument("--cases", default="load_runs_cases.json")
    parser.add_argument("--only", default="")
    parser.add_argument("--draw", type=int, default=None)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--merge", action="store_true")
    parser.add_argument("--history")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    if options.draw is not None:
        cases = [drawn_case(options.draw, n, options.merge) for n in range(options.count)]
    else:
        with open(os.path.join(HERE, options.cases), encoding="utf-8") as f:
            cases = json.load(f)
    cases = [c for c in cases if any(part in c["name"] for part in options.only.split(","))]
    if options.history:
        cases = [{**c, "history": True} for c in cases if c["name"] in options.history.split(",")]
    dry_runs.load()
    results = []
    for result in apart.run_apart(run_here, cases, options.jobs):
        print(result["case"], result.get("stages", result.get("error")), file=sys.stderr)
        results.append(result)
    good = [r for r in results if "error" not in r]
    versions = good[0].pop("versions") if good else {}
    for r in good[1:]:
        r.pop("versions")
    for r in good:
        if os.path.exists(os.path.join(dry_runs.CATALOG, r["workload"]["model"]["name"] + ".json")):
            r["workload"]["model"].pop("config")  # the catalog has it
    text = json.dumps({"schema": "plimsoll.load_runs/1", "versions": versions}, indent=1)[:-2]
    text += ',\n "runs": [\n  ' + ",\n  ".join(json.dumps(r, sort_keys=True) for r in good) + "\n ]\n}\n"
    if options.out:
        with open(options.out + ".part", "w", encoding="utf-8") as f:
            f.write(text)
        os.replace(options.out + ".part", options.out)
    return 0 if len(good) == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())

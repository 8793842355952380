#!/usr/bin/env python3
"""What `plimsoll export` writes, loaded by the programs that it is for.

  check_exports.py --out tests/golden/exports [--plimsoll build/tools/plimsoll] [--only TEXT]

For each case of export_cases.json: a plan by `plimsoll fit`, its exports, and each of them loaded by
its owner: deepspeed.runtime.config.DeepSpeedConfig; Accelerate's launcher (the file's keys must be
the launcher's own options, and its environment must give the plugin that the plan describes);
transformers.TrainingArguments and peft.LoraConfig, by executing the snippet on a tiny model of the
plan's architecture; torchrun's parser for the batch script. What was accepted goes to --out: the plan's workload, and its exports. Nothing is
written for a case that an owner refuses, and the status is 1.

Needs torch, transformers, accelerate, peft, deepspeed (DS_BUILD_OPS=0) and liger_kernel, and no GPU.
What the snippets then allocate is export_runs.py's matter.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SUFFIX = {"deepspeed": "json", "accelerate": "yaml", "transformers": "py", "slurm": "sh"}


def ask(plimsoll, words, stdin=""):
    done = subprocess.run([plimsoll, *words], input=stdin, capture_output=True, text=True,
                          timeout=60)
    if done.returncode not in (0, 1) or not done.stdout:
        raise RuntimeError(" ".join(words) + ": " + done.stderr.strip())
    return done.stdout


def require(condition, what):
    if not condition:
        raise AssertionError(what)


def check_deepspeed(text, plan):
    from deepspeed.runtime.config import DeepSpeedConfig
    given = json.loads(text)
    config = DeepSpeedConfig(json.loads(text))
    batch = plan["workload"]["batch"]
    require(config.train_micro_batch_size_per_gpu == batch["micro_batch"], "micro batch")
    require(config.gradient_accumulation_steps == batch["grad_accum"], "accumulation")
    require(config.zero_optimization_stage == plan["workload"]["strategy"]["zero"], "stage")
    zero = config.zero_config
    for key, value in given["zero_optimization"].items():
        name = key.removeprefix("stage3_")
        read = getattr(zero, name)
        if isinstance(value, dict):
            read = {part: getattr(read, part) for part in value}
            if "nvme_path" in read:
                read["nvme_path"] = str(read["nvme_path"])
        require(read == value, key)
    known = {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
             "bf16", "fp16", "data_types", "optimizer", "zero_optimization",
             "zero_allow_untested_optimizer"}
    require(set(given) <= known, f"keys {set(given) - known}")


def check_accelerate(path, plan):
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_multi_gpu_env
    config = load_config_from_file(str(path))
    parser = launch_command_parser()
    args = parser.parse_args(["--config_file", str(path), "train.py"])
    args.nondefault = set()
    options = vars(parser.parse_args(["train.py"]))
    sections = {**config.fsdp_config, **config.deepspeed_config, **config.parallelism_config}
    unknown = [key for key in sections if key not in options]
    require(not unknown, f"no options of the launcher: {unknown}")
    args, _, _ = _validate_launch_command(args)
    workload = plan["workload"]
    require(int(args.num_processes) == workload["strategy"]["world_size"], "num_processes")
    if args.use_fsdp:
        os.environ.update(prepare_multi_gpu_env(args))
        from accelerate.utils import FullyShardedDataParallelPlugin
        plugin = FullyShardedDataParallelPlugin()
        strategy, stack = workload["strategy"], workload["stack"]
        require(plugin.fsdp_version == stack.get("fsdp_version", 2), "fsdp_version")
        wanted = stack["name"] != "pytorch" or strategy["zero"] == 3
        if plugin.fsdp_version == 2:
            require(plugin.reshard_after_forward == wanted, "reshard_after_forward")
        else:
            check_fsdp1(plugin, strategy)
        require(plugin.activation_checkpointing == (workload["strategy"]["recompute"] == "full"),
                "activation_checkpointing")
        group = workload["strategy"]["shard_group"]
        if group and plugin.fsdp_version == 2:
            require(os.environ["PARALLELISM_CONFIG_DP_SHARD_SIZE"] == str(group), "shard size")


def check_fsdp1(plugin, strategy):
    from torch.distributed.fsdp import BackwardPrefetch, ShardingStrategy
    kinds = {(3, False): ShardingStrategy.FULL_SHARD, (2, False): ShardingStrategy.SHARD_GRAD_OP,
             (3, True): ShardingStrategy.HYBRID_SHARD,
             (2, True): ShardingStrategy._HYBRID_SHARD_ZERO2}
    wanted = kinds[strategy["zero"], bool(strategy["shard_group"])]
    require(plugin.sharding_strategy == wanted, f"sharding_strategy {plugin.sharding_strategy}")
    require(plugin.backward_prefetch == BackwardPrefetch.BACKWARD_PRE, "backward_prefetch")
    require(plugin.use_orig_params and not plugin.forward_prefetch, "use_orig_params")


def check_transformers(text, plan, folder):
    import torch
    import transformers
    config = plan["workload"]["model"]["config"]
    small = {"num_hidden_layers": 1, "n_layer": 1, "hidden_size": 64, "n_embd": 64,
             "intermediate_size": 64, "num_attention_heads": 4, "n_head": 4, "head_dim": 16,
             "num_key_value_heads": 2, "vocab_size": 128}
    tiny = transformers.AutoConfig.for_model(
        **{key: small.get(key, value) for key, value in config.items()})
    made = []

    def from_pretrained(name, dtype, attn_implementation, quantization_config=None, device_map=None):
        made.append((name, dtype))
        check_packing(quantization_config, device_map, plan["workload"]["strategy"])
        return transformers.AutoModelForCausalLM.from_config(
            tiny, dtype=dtype, attn_implementation=attn_implementation)

    transformers.AutoModelForCausalLM.from_pretrained = staticmethod(from_pretrained)
    os.chdir(folder)
    scope = {}
    exec(compile(text, "snippet", "exec"), scope)  # our own program's output
    arguments, model = scope["arguments"], scope["model"]
    workload = plan["workload"]
    require(len(made) == 1, "one model is loaded")
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    require(made[0][1] == dtype[workload["strategy"]["param_dtype"]], "dtype")
    require(arguments.per_device_train_batch_size == workload["batch"]["micro_batch"], "micro batch")
    require(arguments.gradient_accumulation_steps == workload["batch"]["grad_accum"], "accumulation")
    if workload["strategy"]["lora"]:
        check_adapters(model, workload["strategy"]["lora"], dtype)


def check_packing(config, device_map, strategy):
    """A base that bitsandbytes packs in 4 bits."""
    kind = strategy.get("quantize")
    require((config is not None) == bool(kind), "a base is packed")
    if not kind:
        return
    require(config.load_in_4bit and config.bnb_4bit_quant_type == kind[:3], "quant_type")
    require(config.bnb_4bit_use_double_quant == kind.endswith("-dq"), "double quantization")
    require(device_map == {"": 0}, "each rank's own GPU")


def check_adapters(model, lora, dtypes):
    """The config that PEFT holds, and the dtype of what it trains."""
    peft = model.peft_config["default"]
    kind = lora.get("kind", "lora")
    require(peft.peft_type.lower().replace("_", "-") == kind, "kind")

    def names(key):
        return sorted(filter(None, lora.get(key, "").split(",")))

    require(sorted(peft.modules_to_save or []) == names("modules_to_save"), "modules to save")
    if kind == "lora":
        require((peft.r, peft.lora_alpha, peft.lora_dropout) ==
                (lora["rank"], lora["alpha"], lora["dropout"]), "LoRA")
        require((peft.lora_bias, peft.use_dora) ==
                (lora.get("lora_bias", False), lora.get("use_dora", False)), "lora_bias, use_dora")
        require(sorted(peft.target_parameters or []) == names("target_parameters"), "parameters")
    if kind == "ia3":
        require(sorted(peft.feedforward_modules) == names("feedforward"), "feed-forward modules")
    if kind == "vera":
        require((peft.r, peft.vera_dropout) == (lora["rank"], lora["dropout"]), "VeRA")
    if "virtual_tokens" in lora:
        require(peft.num_virtual_tokens == lora["virtual_tokens"], "virtual tokens")
        width = lora.get("encoder_hidden")
        require(width is None or peft.encoder_hidden_size == width, "encoder")
        require(kind != "prefix-tuning" or peft.prefix_projection == (width is not None), "projection")
    part = {"lora": "lora_A", "ia3": "ia3_l", "vera": "vera_lambda"}.get(kind, "prompt_encoder")
    adapters = {p.dtype for n, p in model.named_parameters() if part in n}
    require(adapters == {dtypes[lora["adapter_dtype"]]}, f"adapters {adapters}")


def check_slurm(text, plan):
    """There is no Slurm here: the shell reads it, torchrun's own parser its options."""
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, timeout=10)
    require(done.returncode == 0, "bash: " + done.stderr)
    import shlex
    from torch.distributed.run import get_args_parser
    line = text.split("srun torchrun ")[1].replace("\\\n", " ")
    args = get_args_parser().parse_args(shlex.split(line))
    ranks = int(args.nnodes) * int(args.nproc_per_node)
    require(ranks == plan["workload"]["strategy"]["world_size"], f"{ranks} ranks")


def check_case(plan, texts, folder):
    """In a process of its own: environment variables and process groups belong to it."""
    sys.path.insert(0, str(HERE))
    import torch_measure
    os.environ.update({"DS_ACCELERATOR": "cuda", "LOCAL_RANK": "0", "RANK": "0",
                       "WORLD_SIZE": str(plan["workload"]["strategy"]["world_size"]),
                       "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"})
    torch_measure.start_dry_cuda()
    torch_measure.start_process_group(plan["workload"]["strategy"]["world_size"])
    import deepspeed
    deepspeed.init_distributed(dist_init_required=False)
    check_deepspeed(texts["deepspeed"], plan)
    check_slurm(texts["slurm"], plan)
    yaml = pathlib.Path(folder) / "config.yaml"
    yaml.write_text(texts["accelerate"])
    (pathlib.Path(folder) / "ds_config.json").write_text(texts["deepspeed"])
    before = dict(os.environ)
    check_accelerate(yaml, plan)
    os.environ.clear()
    os.environ.update(before)
    check_transformers(texts["transformers"], plan, folder)


def versions():
    import importlib.metadata as metadata
    return {name: metadata.version(name) for name in
            ("deepspeed", "accelerate", "transformers", "peft", "torch")}


def run_case(case, plimsoll):
    plan = json.loads(ask(plimsoll, ["fit", *case["fit"], "--gpu", "h100", "--json", "-"]))
    document = json.dumps(plan)
    texts = {to: ask(plimsoll, ["export", "-", "--to", to, "--quiet", "--json", "-"], document)
             for to in SUFFIX}
    texts = {to: json.loads(text)["text"] for to, text in texts.items()}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([sys.executable, __file__, "--check", folder],
                              input=json.dumps([plan, texts]), capture_output=True, text=True,
                              timeout=600)
    lines = done.stderr.strip().splitlines()
    return plan, texts, "" if done.returncode == 0 else lines[-1] if lines else "died"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--out")
    parser.add_argument("--plimsoll", default=str(ROOT / "build" / "tools" / "plimsoll"))
    parser.add_argument("--only", default="")
    parser.add_argument("--check", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.check:
        check_case(*json.load(sys.stdin), options.check)
        return 0
    refused = 0
    for case in json.loads((HERE / "export_cases.json").read_text()):
        if options.only not in case["name"]:
            continue
        plan, texts, complaint = run_case(case, options.plimsoll)
        print(case["name"], complaint or "accepted", file=sys.stderr)
        refused += bool(complaint)
        if complaint or not options.out:
            continue
        folder = pathlib.Path(options.out)
        folder.mkdir(parents=True, exist_ok=True)
        kept = {"schema": plan["schema"], "accepted_by": versions(), "workload": plan["workload"],
                "environment": {"cluster": plan["environment"]["cluster"]}}
        (folder / f"{case['name']}.plan.json").write_text(json.dumps(kept, indent=1) + "\n")
        for to, text in texts.items():
            (folder / f"{case['name']}.{to}.{SUFFIX[to]}").write_text(text)
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())

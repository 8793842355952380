#!/usr/bin/env python3
"""Full-size training steps through PyTorch's own allocator, without a GPU.

  dry_runs.py --out tests/golden/dry_runs.json [--cases FILE] [--only TEXT,TEXT] [--jobs N]

FILE, of this folder:
  dry_runs_cases.json            tests/golden/dry_runs.json
  dry_runs_settings_cases.json   tests/golden/dry_runs_settings.json: settings of the allocator, held outputs
  dry_runs_optimizers_cases.json tests/golden/dry_runs_optimizers.json: steps that are not torch.optim's
  dry_runs_q_galore_cases.json   tests/golden/dry_runs_q_galore.json: q-galore-torch 1.0, torch 2.4.1, Transformers
                                 4.45.2, PEFT 0.13.2, bitsandbytes 0.43.3 (later ones stop its step), the last ten drawn
  dry_runs_families_cases.json   tests/golden/dry_runs_families.json: decoders that are not Llama's or GPT-2's, BERT
  dry_runs_mixtures_cases.json   tests/golden/dry_runs_mixtures_VERSION.json: with that release of Transformers
  dry_runs_gptq_mixtures_cases.json tests/golden/dry_runs_gptq_mixtures.json: Transformers 4.48.1, PEFT 0.13.2,
                                 torch 2.4.1, fms-acceleration's plugins on PYTHONPATH
  dry_runs_torchao_cases.json    tests/golden/dry_runs_torchao.json: torchao's Int8WeightOnlyConfig
  dry_runs_hqq_cases.json        tests/golden/dry_runs_hqq.json: HQQ, with Transformers 4.48.3 and hqq 0.2.8
  dry_runs_awq_cases.json        tests/golden/dry_runs_awq.json: AWQ, with gptqmodel; _4.57.json: autoawq, _5.23.json
  dry_runs_packed_cases.json     tests/golden/dry_runs_packed.json: packed bases (bitsandbytes)
  dry_runs_bitsandbytes_cases.json tests/golden/dry_runs_bitsandbytes_VERSION.json: with that release of it;
                                 dry_runs_bitsandbytes_draw.json likewise, drawn
  dry_runs_peft_cases.json       tests/golden/dry_runs_peft.json: adapters with more than A and B
  dry_runs_prefix_cases.json     tests/golden/dry_runs_prefix.json: prefix tuning; dry_runs_prefix_draw.json: drawn
  dry_runs_offload_cases.json    tests/golden/dry_runs_offload.json: FSDP's parameters on the host
  dry_runs_activations_cases.json tests/golden/dry_runs_activations.json: activations on the host (TRL's)
  dry_runs_host_optimizer_cases.json tests/golden/dry_runs_host_optimizer.json: torchao's optimizer on the host;
                                 dry_runs_host_optimizer_draw.json likewise, drawn
  dry_runs_data_parallel_cases.json tests/golden/dry_runs_data_parallel.json: nn.DataParallel, all GPUs in one process;
                                 dry_runs_data_parallel_draw.json likewise, drawn
  dry_runs_fsdp1_cases.json      tests/golden/dry_runs_fsdp1.json: FSDP1 as scripts wrap, torch 2.4.1, Transformers 4.45.2
  dry_runs_torchtitan_cases.json tests/golden/dry_runs_torchtitan.json: torchtitan's own code, one release a run
  dry_runs_tensor_parallel_cases.json tests/golden/dry_runs_tensor_parallel.json: with its tensor parallelism;
                                 dry_runs_tensor_parallel_draw.json likewise, drawn
  dry_runs_torchtune_cases.json  tests/golden/dry_runs_torchtune.json: torchtune's own code
  dry_runs_torchtune_draw.json   tests/golden/dry_runs_torchtune_draw.json: the same, drawn
  dry_runs_litgpt_cases.json     tests/golden/dry_runs_litgpt.json: LitGPT's own code
  dry_runs_litgpt_draw.json      tests/golden/dry_runs_litgpt_draw.json: the same, drawn
  dry_runs_litgpt_0.3_cases.json tests/golden/dry_runs_litgpt_0.3.json: its code of April 2024, lightning
                                 2.3.0.dev20240328; _0.4_cases.json: of September 2024, lightning 2.4.0; both with
                                 torch 2.4.1, Transformers 4.45.2, bitsandbytes 0.42; _0.3_draw.json, _0.4_draw.json
  dry_runs_gpt_oss_cases.json    tests/golden/dry_runs_gpt_oss.json; dry_runs_gpt_oss_draw.json likewise, drawn
  dry_runs_block_draw.json       tests/golden/dry_runs_block_draw.json: checkpoints around the first layers, drawn
  dry_runs_reentrant_draw.json   tests/golden/dry_runs_reentrant_draw.json: behind reentrant checkpoints, drawn
  dry_runs_compiled_draw.json    tests/golden/dry_runs_compiled_draw.json: compiled, checkpoints around some, drawn
                                 (torchtitan's of December 2024 on PYTHONPATH)
  dry_runs_tiled_draw.json       tests/golden/dry_runs_tiled_draw.json: TRL's head of tiles, drawn
  dry_runs_nth_draw.json         tests/golden/dry_runs_nth_draw.json: around every Nth, drawn (torchtitan's, one release a run)
  dry_runs_liger_cases.json      tests/golden/dry_runs_liger.json: with Liger's kernels
  dry_runs_float8_cases.json     tests/golden/dry_runs_float8.json: linears in float8 (torchao)
  dry_runs_float8_draw.json      tests/golden/dry_runs_float8_draw.json: the same, drawn
  dry_runs_attention_cases.json  tests/golden/dry_runs_attention.json: SDPA's kernels by name; dry_runs_attention_draw.json: drawn
  dry_runs_classifier_cases.json tests/golden/dry_runs_classifier.json: classifiers of sequences in the head's place;
                                 dry_runs_classifier_draw.json likewise, drawn
  dry_runs_flex_cases.json       tests/golden/dry_runs_flex.json: flex_attention; dry_runs_flex_draw.json: drawn
  dry_runs_drawn_cases.json      tests/golden/dry_runs_drawn.json: drawn over families and options
  dry_runs_unsloth_cases.json    tests/golden/dry_runs_unsloth.json: with Unsloth (its packages on PYTHONPATH)
  dry_runs_unsloth_draw.json     tests/golden/dry_runs_unsloth_draw.json: with it, drawn
  dry_runs_xformers_cases.json   tests/golden/dry_runs_xformers.json: with Unsloth, xformers its attention (also on
                                 PYTHONPATH); dry_runs_xformers_draw.json likewise, drawn
  dry_runs_liger_draw.json       tests/golden/dry_runs_liger_draw.json: with them, drawn
  rank_cases.json                tests/golden/rank_runs.json: several ranks of uneven worlds

Each workload, on each of its "ranks" (rank 0), runs three steps on the dry CUDA runtime of torch_measure.py:
every kernel launch does nothing, every allocation goes through torch's caching allocator. So
`torch.cuda.max_memory_allocated()` and `max_memory_reserved()` are those of a real run, for models
of any size; what a dry run cannot know is listed at the top of torch_measure.py (SDPA runs
FlashAttention unless told otherwise, there is no context and no NCCL). Recorded is the third step, a steady one.
With another Transformers (4.45 and later) or PyTorch (2.4 and later) the figures are that release's
(tests/golden/dry_runs_transformers_*.json, dry_runs_torch_*.json).
"""

import argparse
import json
import os
import sys

import apart
import data_parallel
import dry_host
import packed_base

HERE = os.path.dirname(os.path.abspath(__file__))
CATALOG = os.path.join(HERE, "..", "..", "models", "specs", "models")
CAPACITY = 1 << 42  # 4 TiB: nothing is refused
KEPT = []


def model_config(name):
    with open(os.path.join(CATALOG, name + ".json"), encoding="utf-8") as f:
        return json.load(f)["config"]


def classifier(config):
    from transformers.models.auto import modeling_auto
    names = modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES
    return {**config, "architectures": [names[config["model_type"]]]}


def workload_of(case):
    model = case["model"]
    if isinstance(model, str):
        model = {"name": model, "config": model_config(model)}
    if case.get("task") == "classification":
        model = {"name": model["name"] + "-classifier", "config": classifier(model["config"])}
    return {"model": model,
            "stack": case.get("stack", {}), "strategy": case.get("strategy", {}),
            "batch": case["batch"]}


def load():
    """The dry runtime must be loaded before torch; each case runs in a fork of this process, which
    has imported everything and made no context."""
    sys.path.insert(0, HERE)
    import torch_measure
    torch_measure.start_dry_cuda(capacity_bytes=CAPACITY)
    if dry_host.has_dry_host():
        KEPT.append(dry_host.skip_host_arithmetic())
    import torch  # noqa: F401
    import transformers  # noqa: F401


def run_here(case):
    import torch
    import torch_measure
    import transformers
    workload = workload_of(case)
    if workload["stack"].get("allocator_conf"):  # read when the allocator is first used
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = workload["stack"]["allocator_conf"]
    workload["stack"] = {**workload["stack"], "version": torch.__version__.split("+")[0],
                         "transformers_version": transformers.__version__,
                         **packed_base.release(workload)}
    workload = torch_measure.normalised(workload)
    data_parallel.see_gpus(workload)
    if workload["strategy"]["world_size"] > 1 and not data_parallel.asked(workload):
        torch_measure.start_process_group(workload["strategy"]["world_size"], case["rank"])
    training = torch_measure.Training(workload)
    for _ in range(3):
        for device in range(torch.cuda.device_count()):
            torch.cuda.reset_peak_memory_stats(device)
        training.step()
    managed = torch_measure.managed_bytes()
    own = {"rank": case["rank"], "optimizer_bytes": optimizer_bytes(training.optimizer)}
    return {"case": case["name"], **(own if "ranks" in case else {}), "workload": workload,
            "peak_bytes": torch.cuda.max_memory_allocated(),
            "reserved_bytes": torch.cuda.max_memory_reserved(),
            "resident_bytes": torch.cuda.memory_allocated(),
            **({"managed_bytes": managed} if managed else {}),
            **({"other_gpus": data_parallel.other_peaks(workload)} if data_parallel.asked(workload) else {}),
            **({"host": dry_host.host_bytes()} if workload["strategy"]["offload"] else {}),
            "versions": torch_measure.versions(workload)}


def optimizer_bytes(optimizer):
    """What its states take on the device: this rank's parts, as requested. A projector is an object with tensors of
    its own, and tables of what 8 bits mean are many parameters' one."""
    import torch
    inner = getattr(optimizer, "optim", optimizer)  # ZeroRedundancyOptimizer's own
    values = [value for state in inner.state.values() for value in state.values()]
    values += [own for value in values if hasattr(value, "ortho_matrix") for own in vars(value).values()]
    tensors = {id(value): getattr(value, "_local_tensor", value) for value in values}.values()
    return sum(t.numel() * t.element_size() for t in tensors if torch.is_tensor(t) and t.is_cuda)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--out")
    parser.add_argument("--cases", default="dry_runs_cases.json")
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    with open(os.path.join(HERE, options.cases), encoding="utf-8") as f:
        cases = [{**c, "rank": rank} for c in json.load(f) for rank in c.get("ranks", [0])
                 if any(part in c["name"] for part in options.only.split(","))]
    if any(c.get("strategy", {}).get("offload") for c in cases):
        dry_host.with_dry_host()
    load()
    results = []
    for result in apart.run_apart(run_here, cases, options.jobs):
        print(result["case"], result.get("rank", ""), result.get("peak_bytes", result.get("error")),
              file=sys.stderr)
        results.append(result)
    good = [r for r in results if "error" not in r]
    versions = good[0].pop("versions") if good else {}
    for r in good[1:]:
        r.pop("versions")
    for r in good:
        if os.path.exists(os.path.join(CATALOG, r["workload"]["model"]["name"] + ".json")):
            r["workload"]["model"].pop("config")  # the catalog has it
    text = json.dumps({"schema": "plimsoll.dry_runs/1", "versions": versions}, indent=1)[:-2]
    text += ',\n "runs": [\n  ' + ",\n  ".join(json.dumps(r, sort_keys=True) for r in good) + "\n ]\n}\n"
    if options.out:
        with open(options.out + ".part", "w", encoding="utf-8") as f:
            f.write(text)
        os.replace(options.out + ".part", options.out)
    return 0 if len(good) == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())

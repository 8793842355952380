#!/usr/bin/env python3
"""Parameter tables of Transformers, as golden files for tests/models/parameter_tables_test.cpp.

Builds each model on the meta device (no memory, no download) and writes the name and shape of every
tensor, folded into patterns with ranges. Run it with Transformers 4, whose modules still have the
names of the checkpoints (5 fuses and renames experts while loading):

    python tools/oracle/parameter_tables.py catalog            # models/specs/models/*.json
    python tools/oracle/parameter_tables.py small              # tools/oracle/small_configs.json
    python tools/oracle/parameter_tables.py counts             # under Transformers 5: counts agree?
    python tools/oracle/parameter_tables.py defaults           # under Transformers 5: configs of sizes alone
    python tools/oracle/parameter_tables.py classes            # under Transformers 5: each class's own sizes

A row is [name, shape, ranges, flags]; a range is [first, count, step]. Flags: "linear" is a
torch.nn.Linear or Conv1D that PEFT's "all-linear" adapts, "conv1d" a weight stored [in, out],
"head" the output embedding, "embedding" a torch.nn.Embedding, "tied" the second name of a tensor,
"fixed" one without a gradient. The first name of a tied tensor is the first one in module order.
"""
import argparse
import collections
import copy
import json
import pathlib
import re
import sys

import torch
import transformers

try:
    from transformers.modeling_utils import no_init_weights
except ImportError:  # Transformers 5
    from transformers.initialization import no_init_weights
from transformers.pytorch_utils import Conv1D

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "parameters"
NOT_IN_TRANSFORMERS = {"internlm2"}
# Names of a config's sizes, as the families call them, and small values. All else is the class's default.
SIZES = {("hidden_size", "n_embd", "n_embed", "d_model"): 384,
         ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers"): 3,
         ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"): 32,
         ("vocab_size",): 51001, ("intermediate_size",): 344,
         ("num_local_experts", "num_experts", "n_routed_experts"): 16, ("moe_intermediate_size",): 72}


def build(config: dict):
    fields = {k: v for k, v in copy.deepcopy(config).items() if k not in ("torch_dtype", "dtype")}
    parsed = transformers.AutoConfig.for_model(**fields)
    name = (config.get("architectures") or [None])[0]
    cls = getattr(transformers, name.replace("MPT", "Mpt") if name else "", None)
    if cls is None:
        sys.exit(f"{config['model_type']}: Transformers has no class {name}")
    with torch.device("meta"), no_init_weights():
        model = cls(parsed)
    model.tie_weights()
    return model


def flags_of(model) -> dict:
    """Module name -> flags of its weight, as PEFT's all-linear sees it."""
    head = model.get_output_embeddings()
    flags = collections.defaultdict(list)
    for name, module in model.named_modules(remove_duplicate=False):
        if module is head:
            flags[name].append("head")
        elif isinstance(module, (torch.nn.Linear, Conv1D)):
            flags[name].append("linear")
        elif isinstance(module, torch.nn.Embedding):
            flags[name].append("embedding")
        if isinstance(module, Conv1D):
            flags[name].append("conv1d")
    return flags


def tensors_of(model) -> list:
    modules, seen, out = flags_of(model), {}, []
    persistent = set(model.state_dict().keys())
    parameters = list(model.named_parameters(remove_duplicate=False))
    buffers = [(n, b) for n, b in model.named_buffers() if n in persistent]
    for name, tensor in parameters + buffers:
        module, _, leaf = name.rpartition(".")
        flags = list(modules[module]) if leaf == "weight" else []
        if id(tensor) in seen:
            flags.append("tied")
        seen[id(tensor)] = name
        if not tensor.requires_grad:
            flags.append("fixed")
        out.append((name, list(tensor.shape), flags))
    return out


def progressions(numbers: list) -> list:
    ranges = []
    for n in numbers:
        if ranges:
            first, count, step = ranges[-1]
            step = n - first if count == 1 else step
            if n == first + count * step:
                ranges[-1] = [first, count + 1, step]
                continue
        ranges.append([n, 1, 1])
    return ranges


def ranges_of(indices: list) -> list:
    """Index tuples -> products of ranges, outermost first."""
    if not indices[0]:
        return [[]]
    by_rest = collections.defaultdict(list)
    inner = collections.defaultdict(list)
    for index in indices:
        inner[index[0]].append(index[1:])
    for first, rest in inner.items():
        by_rest[tuple(sorted(rest))].append(first)
    out = []
    for rest, firsts in by_rest.items():
        for outer in progressions(sorted(firsts)):
            out += [[outer, *r] for r in ranges_of(list(rest))]
    return out


def fold(tensors: list) -> list:
    groups = collections.OrderedDict()
    for name, shape, flags in tensors:
        pattern = re.sub(r"(?<=\.)\d+(?=\.)", "{}", name)
        numbers = tuple(int(n) for n in re.findall(r"(?<=\.)\d+(?=\.)", name))
        groups.setdefault((pattern, tuple(shape), tuple(flags)), []).append(numbers)
    return [[pattern, list(shape), ranges, list(flags)]
            for (pattern, shape, flags), numbers in groups.items()
            for ranges in ranges_of(numbers)]


def count_of(tensors: list) -> int:
    return sum(torch.Size(shape).numel() for _, shape, flags in tensors if "tied" not in flags)


def table(config: dict) -> dict:
    model = build(config)
    tensors = tensors_of(model)
    return {"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0],
            "parameters": count_of(tensors), "rows": fold(tensors)}


def dump(document: dict, indent: str = "") -> str:
    """JSON with one row a line."""
    head = json.dumps({k: v for k, v in document.items() if k != "rows"})[:-1]
    rows = ",\n".join(f"{indent} " + json.dumps(row) for row in document["rows"])
    return f'{head}, "rows": [\n{rows}\n{indent}]}}'


def write_catalog(names: list) -> None:
    for path in sorted((ROOT / "models" / "specs" / "models").glob("*.json")):
        entry = json.loads(path.read_text())
        if entry["config"]["model_type"] in NOT_IN_TRANSFORMERS or (names and path.stem not in names):
            continue
        document = table(entry["config"])
        (GOLDEN / path.name).write_text(dump(document) + "\n")
        published = entry["parameters"]
        differs = "" if published in (None, document["parameters"]) else f" published {published}"
        print(f"{path.stem}: {document['parameters']}{differs}", flush=True)


def write_small(names: list) -> None:
    configs = json.loads((ROOT / "tools" / "oracle" / "small_configs.json").read_text())
    tables = [f'"{name}": ' + dump({"config": config, **table(config)}, " ")
              for name, config in configs.items()]
    (ROOT / "tests" / "golden" / "small_parameter_tables.json").write_text(
        "{\n" + ",\n".join(tables) + "\n}\n")
    print(f"{len(tables)} tables")


def goldens() -> dict:
    """Name -> (config, parameters) of every golden table."""
    small = json.loads((ROOT / "tests" / "golden" / "small_parameter_tables.json").read_text())
    out = {name: (golden["config"], golden["parameters"]) for name, golden in small.items()}
    for path in sorted(GOLDEN.glob("*.json")):
        entry = json.loads((ROOT / "models" / "specs" / "models" / path.name).read_text())
        out[path.stem] = (entry["config"], json.loads(path.read_text())["parameters"])
    return out


def check_counts(names: list) -> None:
    """Do the golden counts hold in this version of Transformers as well?"""
    differ = 0
    for name, (config, expected) in goldens().items():
        if names and name not in names:
            continue
        try:
            found = count_of(tensors_of(build(config)))
        except Exception as error:  # an option that this version has dropped
            found = f"{type(error).__name__}: {str(error)[:200]}"
        if found != expected:
            differ += 1
            print(f"{name}: golden {expected}, Transformers {transformers.__version__}: {found}")
    print(f"{differ} differ")


def sizes_of(model_type: str) -> dict:
    """The sizes that a class's config has, under the names in which it is written."""
    fields = transformers.AutoConfig.for_model(model_type).to_dict()
    config = {"model_type": model_type}
    for names, value in SIZES.items():
        name = next((n for n in reversed(names) if n in fields), None)
        if name is not None:
            config[name] = value
    if model_type == "gpt_neo":  # a list of as many entries as layers: [[["global", "local"], 12]]
        config["num_layers"] = 24
    return config


def facts_of(config) -> dict:
    """What a config says of its numbers, under one name in all families; null: it has no such field."""
    fields = config.to_dict()

    def first(*names):
        return next((fields[name] for name in names if name in fields), None)

    rope = fields.get("rope_parameters") or {}
    return {"positions": first("max_position_embeddings", "n_positions", "max_seq_len", "max_target_positions"),
            "norm_eps": first("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps"),
            "theta": rope.get("rope_theta"), "deviation": first("initializer_range")}


def families(names: list) -> list:
    all_of_them = sorted(p.stem for p in (ROOT / "models" / "families").glob("*.cpp"))
    return [name for name in all_of_them if name not in NOT_IN_TRANSFORMERS and (not names or name in names)]


def class_of(parsed) -> str:
    """The class that is trained with a config."""
    auto = transformers.models.auto.modeling_auto
    kinds = (auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING, auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
             auto.MODEL_FOR_CAUSAL_LM_MAPPING, auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING)
    if parsed.model_type in ("bert", "roberta"):
        kinds = (auto.MODEL_FOR_MASKED_LM_MAPPING,)
    return next(mapping[type(parsed)] for mapping in kinds if type(parsed) in mapping).__name__


def write_classes(names: list) -> None:
    """The sizes of a class's own config: a config.json that names none is refused, and the table behind it is this."""
    rows = []
    for model_type in families(names):
        parsed = transformers.AutoConfig.for_model(model_type)
        config = {"model_type": model_type, "architectures": [class_of(parsed)]}
        heads = [getattr(parsed, n, None) for n in ("num_attention_heads", "encoder_attention_heads")]
        rows.append(json.dumps({"config": config, "parameters": count_of(tensors_of(build(config))),
                                "heads": next((n for n in heads if n is not None), None),
                                "experts_per_token": getattr(parsed, "num_experts_per_tok", None)}))
        print(rows[-1], flush=True)
    (ROOT / "tests" / "golden" / "class_defaults.json").write_text("[\n" + ",\n".join(rows) + "\n]\n")


def write_defaults(names: list) -> None:
    rows = []
    for model_type in families(names):
        config = sizes_of(model_type)
        parsed = transformers.AutoConfig.for_model(**config)
        config["architectures"] = [class_of(parsed)]
        rows.append(json.dumps({"config": config, "parameters": count_of(tensors_of(build(config))),
                                **facts_of(parsed)}))
        print(rows[-1], flush=True)
    (ROOT / "tests" / "golden" / "default_fields.json").write_text("[\n" + ",\n".join(rows) + "\n]\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["catalog", "small", "counts", "defaults", "classes"])
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    {"catalog": write_catalog, "small": write_small, "counts": check_counts,
     "defaults": write_defaults, "classes": write_classes}[arguments.what](
        arguments.names)


if __name__ == "__main__":
    main()

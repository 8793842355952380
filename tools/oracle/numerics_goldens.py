#!/usr/bin/env python3
"""Tiny random models of each family and what Transformers, PyTorch and PEFT make of them on the CPU,
for tests/runtime.

    numerics_goldens.py tests/golden/numerics [NAME ...]

Each folder is a model as one downloads it (config.json and safetensors, so it can be given to the
program as MODEL) and goldens.safetensors; tests/golden/numerics/README.md says what is in that. All
weights are exact in bf16 and fp16, so fp32 and bf16 results are of one and the same model. The fp64
column that the program prints is how far PyTorch's own fp32 (bf16) result is from the same step in
fp64: no other implementation can be expected to come nearer to it than that.
"""
import json
import pathlib
import sys

import peft
import torch
import transformers
from safetensors.torch import save_file

from numerics_models import ADAPTERS, MODELS

TEXT = pathlib.Path(__file__).resolve().parents[2] / "runtime" / "io" / "shipped_text.txt"
STEPS, SEQUENCES, LENGTH = 10, 2, 24
IGNORED = -100
ADAMW = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-5, "weight_decay": 0.1}

EMBEDDINGS = ["model.embed_tokens.weight", "model.decoder.embed_tokens.weight",
              "model.decoder.embed_positions.weight", "transformer.wte.weight", "transformer.wpe.weight",
              "gpt_neox.embed_in.weight"]


def in_checkpoint(model, name, tensor):
    """(name, tensor) as save_pretrained writes a parameter: single experts, names of the hub."""
    kind = model.config.model_type
    if kind == "gpt_neox":
        return [(name.replace("lm_head.", "embed_out."), tensor)]
    if kind == "mixtral":
        name = name.replace(".mlp.", ".block_sparse_moe.")
    gate, up, down = (("w1", "w3", "w2") if kind == "mixtral" else
                      ("gate_proj", "up_proj", "down_proj"))
    stack, _, what = name.rpartition(".")
    if not stack.endswith(".experts"):
        return [(name, tensor)]
    parts = []
    for e, matrix in enumerate(tensor):
        halves = zip((gate, up), matrix.chunk(2)) if what == "gate_up_proj" else [(down, matrix)]
        parts += [(f"{stack}.{e}.{module}.weight", part.clone()) for module, part in halves]
    return parts


def make_model(config, seed=None):
    torch.manual_seed(sum(map(ord, config["model_type"])) if seed is None else seed)
    known = transformers.AutoConfig.for_model(**config)
    known._experts_implementation = "eager"
    # SDPA has no caps.
    known._attn_implementation = "eager" if "attn_logit_softcapping" in config else "sdpa"
    model = transformers.AutoModelForCausalLM.from_config(known, dtype=torch.float32)
    # Wider than the usual 0.02, or attention would be uniform and its gradients rounding errors;
    # not much wider, or bf16's roundings would grow from layer to layer.
    # Gemma's norms add 1 of their own; what is twice as wide makes sharper scores than bf16 can follow.
    middle = 0 if config["model_type"] in ("gemma2", "gemma3_text") else 1
    with torch.no_grad():
        for name, p in model.named_parameters():
            near_one = p.dim() == 1 and name.endswith("weight")
            wide = 0.05 if p.dim() == 1 else 0.3 if name in EMBEDDINGS else 0.11
            p.copy_(torch.randn(p.shape) * wide + (middle if near_one else 0))
            p.copy_(p.bfloat16().half().bfloat16())  # below fp16's smallest: gone
            assert torch.equal(p, p.half().float()) and torch.equal(p, p.bfloat16().float())
    return model.train()


def make_batches(vocab):
    """ids and targets int32 [steps, sequences, length]: targets are the next tokens; the last of the
    second sequence is ignored, and so is the first half of it in step 1."""
    text = torch.randint(0, vocab, (STEPS, SEQUENCES, LENGTH + 1))
    ids, targets = text[..., :-1].clone(), text[..., 1:].clone()
    targets[:, 1, -1] = IGNORED
    targets[1, 1, :LENGTH // 2] = IGNORED
    return ids.int(), targets.int()


def loss_of(model, ids, targets):
    out = model(input_ids=ids.long(), labels=targets.long(), shift_labels=targets.long(),
                use_cache=False)
    return out.logits, out.loss


def one_step(model, ids, targets):
    """Logits, loss and gradients of one batch, gradients cleared afterwards."""
    model.zero_grad(set_to_none=True)
    logits, loss = loss_of(model, ids, targets)
    loss.backward()
    found = {"logits": logits.detach().clone(), "loss": loss.detach().float().reshape(1)}
    for name, p in model.named_parameters():
        if p.requires_grad:
            for part, gradient in in_checkpoint(model, name, p.grad.clone()):
                found["grad." + part] = gradient
    model.zero_grad(set_to_none=True)
    return found


def ten_steps(model, ids, targets):
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, **ADAMW, foreach=False)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model, ids[step], targets[step])[1]
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().float())
    found = {"losses": torch.stack(losses)}
    for name, p in model.named_parameters():
        if p.requires_grad:
            for part, weight in in_checkpoint(model, name, p.detach().clone()):
                found["after10." + part] = weight
    return found


def text_losses(model):
    """The loss before each of ten steps of torch's own AdamW on the text that ships with the program:
    bytes as ids, two sequences a step, one after another."""
    text = torch.frombuffer(bytearray(TEXT.read_bytes()), dtype=torch.uint8).int()
    optimizer, losses = torch.optim.AdamW(model.parameters(), foreach=False), []
    for step in range(STEPS):
        first = step * SEQUENCES * LENGTH
        part = text[first:first + SEQUENCES * LENGTH + 1]
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model, part[:-1].view(SEQUENCES, LENGTH),
                       part[1:].view(SEQUENCES, LENGTH))[1]
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().float())
    return {"text.losses": torch.stack(losses)}


def deviation(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-300)).item()


def deviations(name, precision, found, exact):
    """Of each result from fp64's; the worst of each kind is printed."""
    worst, all_of_them = {}, {}
    for key, value in found.items():
        kind, far = key.split(".")[0], deviation(value, exact[key])
        all_of_them[f"deviation.{precision}.{key}"] = torch.tensor([far], dtype=torch.float32)
        worst[kind] = max(worst.get(kind, (0, "")), (far, key))
    for kind, (far, key) in worst.items():
        print(f"{name} {precision} {kind}: {far:.1e} from fp64 ({key})")
    return all_of_them


def clone(model, dtype):
    """A model of the same weights: steps must not change the one that is saved."""
    copy = type(model)(model.config)
    copy.load_state_dict(model.state_dict())
    copy.tie_weights()
    return copy.to(dtype).train()


def golden_results(name, make, ids, targets):
    """`make(dtype)`: a new model of the same weights."""
    exact = one_step(make(torch.float64), ids[0], targets[0])
    exact.update(ten_steps(make(torch.float64), ids, targets))
    exact.update(text_losses(make(torch.float64)))
    single = one_step(make(torch.float32), ids[0], targets[0])
    single.update(ten_steps(make(torch.float32), ids, targets))
    single.update(text_losses(make(torch.float32)))
    half = one_step(make(torch.bfloat16), ids[0], targets[0])
    goldens = {"ids": ids, "targets": targets}
    goldens.update(deviations(name, "fp32", single, exact))
    goldens.update(deviations(name, "bf16", half, exact))
    goldens.update({"fp32." + key: value for key, value in single.items()})
    goldens.update({"bf16." + key: value for key, value in half.items()})
    return goldens


def save(tensors, path, **also):
    # One key: the library writes several in an order that changes from run to run.
    facts = json.dumps({"by": "tools/oracle/numerics_goldens.py", "torch": torch.__version__,
                        "transformers": transformers.__version__, "peft": peft.__version__,
                        "adamw": ADAMW, **also})
    save_file({k: v.contiguous() for k, v in tensors.items()}, path, metadata={"made": facts})
    path.chmod(0o644)


def save_plain(tensors, path):
    save_file(tensors, path, metadata={"format": "pt"})
    path.chmod(0o644)


def save_weights(model, entry, folder):
    """As save_pretrained names and ties them: a tied head is left out."""
    weights = {part: weight for name, p in model.named_parameters()
               for part, weight in in_checkpoint(model, name, p.detach().to(entry["stored"]))}
    shards = entry.get("shards", 1)
    if shards == 1:
        save_plain(weights, folder / "model.safetensors")
        return
    where = {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = dict(list(weights.items())[i::shards])
        save_plain(part, folder / file)
        where.update({name: file for name in part})
    size = sum(w.numel() * w.element_size() for w in weights.values())
    index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(where.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def write_model(name, entry, root):
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    model = make_model(dict(entry["config"]), entry.get("seed"))
    ids, targets = make_batches(entry["config"]["vocab_size"])
    (folder / "config.json").write_text(json.dumps(entry["config"], indent=1) + "\n")
    save_weights(model, entry, folder)
    save(golden_results(name, lambda dtype: clone(model, dtype), ids, targets),
         folder / "goldens.safetensors")


def adapted(base, entry, weights, dtype):
    options = {k: v for k, v in entry.items() if k != "base"}
    config = peft.LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0, **options)
    model = peft.get_peft_model(clone(base, dtype), config)
    if weights:
        peft.set_peft_model_state_dict(model, weights)
    # PEFT keeps the adapters of a 16-bit model in fp32; fp64 is only for us.
    return (model.to(dtype) if dtype == torch.float64 else model).train()


def plain(found):
    """PEFT's module names as its adapter file has them."""
    return {key.replace(".default.weight", ".weight"): value for key, value in found.items()}


def write_adapter(name, entry, root):
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    base = make_model(dict(MODELS[entry["base"]]["config"]))
    ids, targets = make_batches(MODELS[entry["base"]]["config"]["vocab_size"])
    torch.manual_seed(31)
    first = adapted(base, entry, None, torch.float32)
    weights = {key: torch.randn(value.shape) * (0.06 if ".lora_B." in key else 0.2)
               for key, value in peft.get_peft_model_state_dict(first).items()}
    goldens = golden_results(
        name, lambda dtype: adapted(base, entry, weights, dtype), ids, targets)
    goldens = plain(goldens)
    merged = adapted(base, entry, weights, torch.float32).merge_and_unload()
    before = dict(base.named_parameters())
    for key, value in merged.named_parameters():
        if not torch.equal(value, before[key]):
            goldens["fp32.merged." + key] = value.detach()
    save(goldens, folder / "goldens.safetensors")
    save_plain(weights, folder / "adapter_model.safetensors")
    config = first.peft_config["default"]
    facts = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": config.r,
             "lora_alpha": config.lora_alpha, "lora_dropout": 0.0, "bias": "none",
             "fan_in_fan_out": config.fan_in_fan_out,
             "target_modules": sorted(config.target_modules)}
    (folder / "adapter_config.json").write_text(json.dumps(facts, indent=1) + "\n")


def main(arguments):
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    root, names = pathlib.Path(arguments[0]), arguments[1:]
    for name, entry in MODELS.items():
        if not names or name in names:
            write_model(name, entry, root)
    for name, entry in ADAPTERS.items():
        if not names or name in names:
            write_adapter(name, entry, root)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

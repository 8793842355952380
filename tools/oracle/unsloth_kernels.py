"""Unsloth (stack.kernels "unsloth"): the package itself, 2025.11.6 with unsloth_zoo 2025.11.6, Transformers 4.57.2 and
PEFT 0.18.0 (all on PYTHONPATH, with what they import; no flash_attn, and xformers where it is what attention runs,
xformers_package.py). from_pretrained is taken in its
parts, as a model here is not loaded from a checkpoint; get_peft_model, and all that a step runs, is the package's. Its
Triton kernels are not launched (liger.launch_no_triton); its loss is compiled by Inductor as it is (compiled.py)."""

import functools
import os
import tempfile
import types

import flash_package
import xformers_package

PACKAGES = ("unsloth", "unsloth_zoo")
CLASSES = {"llama": "FastLlamaModel", "mistral": "FastMistralModel", "qwen2": "FastQwen2Model",
           "qwen3": "FastQwen3Model"}
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def asked(workload):
    return workload["stack"]["kernels"] == "unsloth"


def on_its_card(workload):
    """The workload, for whose attention the dry device is what it asks for."""
    xformers_package.take_card(workload)
    return workload


@functools.cache
def package():
    """Imported once. It looks for libcuda in the linker's cache (and calls ldconfig where there is none) and for a
    network, and writes TRL's trainers anew to a folder."""
    os.environ.update(TRANSFORMERS_OFFLINE="1", UNSLOTH_DISABLE_STATISTICS="1")
    os.environ.setdefault("UNSLOTH_COMPILE_LOCATION", os.path.join(tempfile.gettempdir(), "unsloth_compiled_cache"))
    from triton.backends.nvidia import driver
    driver.libcuda_dirs = lambda: ()
    xformers_package.offer()
    import unsloth
    loss_out_of_modes()
    return unsloth


def loss_out_of_modes():
    """A trace's observer is a dispatch mode, in which torch.compile runs nothing that is compiled."""
    from torch.utils._python_dispatch import _disable_current_modes
    from unsloth_zoo.fused_losses import cross_entropy_loss
    of = cross_entropy_loss.UnslothFusedLoss
    forward = of.forward

    @functools.wraps(forward)
    def compiled(*arguments):
        with _disable_current_modes():
            return forward(*arguments)

    of.forward = staticmethod(compiled)


def patcher(workload):
    """The package's class for the family, its forward methods put in place (pre_patch)."""
    package()
    family = workload["model"]["config"]["model_type"]
    if family not in CLASSES:
        raise ValueError(f"stack.kernels: Unsloth's {family} is not run here")
    module = __import__(f"unsloth.models.{family}", fromlist=[CLASSES[family]])
    of = getattr(module, CLASSES[family])
    of.pre_patch()
    if workload["strategy"]["attention"] == "xformers" and not xformers_package.found():
        raise ValueError("strategy.attention: Unsloth found no xformers (on PYTHONPATH)")
    if workload["strategy"]["attention"] == "flash-2":  # as where the package is installed
        for name in ("llama", "mistral", "qwen3"):
            inside = __import__(f"unsloth.models.{name}", fromlist=["x"])
            inside.HAS_FLASH_ATTENTION = True
            inside.flash_attn_func = flash_package.flash_attn_func
        without_mask()
    return of


def without_mask():
    """Mistral's causal mask is a name of xformers, which the package requires; where that is not there, a square that
    flash_attn does not read."""
    from unsloth.models import mistral
    named = types.SimpleNamespace(LowerTriangularMask=lambda: None)
    mistral.HAS_XFORMERS, mistral.xformers = True, types.SimpleNamespace(attn_bias=named)


def trainer_is_patched():
    """from_pretrained writes Trainer's loop anew, and get_peft_model asks whether it did; no Trainer runs here."""
    from transformers import trainer
    trainer.Trainer._inner_training_loop.__name__ = "_fast_inner_training_loop"


def with_adapters(model, workload, of):
    """What from_pretrained does behind AutoModelForCausalLM's, then get_peft_model."""
    import torch
    from unsloth.models import llama
    strategy, lora = workload["strategy"], workload["strategy"]["lora"]
    for module in (model, model.model):
        module.config.dtype = model.get_input_embeddings().weight.dtype  # as from_pretrained leaves it
    model, _ = of.post_patch(model, None)
    for layer in model.model.layers:
        layer.self_attn.apply_qkv = llama.original_apply_qkv
        layer.self_attn.apply_o = llama.original_apply_o
        layer.self_attn.rotary_emb = model.model.rotary_emb
    trainer_is_patched()
    for module in model.modules():
        module.max_seq_length = workload["batch"]["seq_len"]
    model._saved_temp_tokenizer = types.SimpleNamespace(padding_side="right")
    checkpoints = strategy["recompute"] == "full"
    if "activations" in strategy["offload"]:
        checkpoints = "unsloth"
    targets = TARGETS if lora["targets"] == "all-linear" else lora["targets"].split(",")
    model = of.get_peft_model(model, r=lora["rank"], lora_alpha=lora["alpha"], target_modules=targets,
                              lora_dropout=lora["dropout"], use_gradient_checkpointing=checkpoints)
    model.for_training(use_gradient_checkpointing=bool(checkpoints))
    return model

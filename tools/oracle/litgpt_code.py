"""LitGPT's own GPT inside Fabric, as its fine-tuning scripts run it, for torch_measure.py (stack.model_code).

litgpt@0.5.13 is the package of that version, which has to be on PYTHONPATH with what it imports
(lightning 2.6.6 was used, lightning-utilities, torchmetrics, jsonargparse); so are 0.4.13 and 0.3.0 (of
2024: lightning 2.4.0 and 2.3.0.dev20240328, bitsandbytes 0.42). The model, its adapters,
Fabric's precision, the packed base and the loss are LitGPT's, as finetune/full.py, finetune/lora.py
and finetune/lora_legacy.py build and call them; the loop is torch_measure.py's. Its variable `logits`
stays until the next forward has returned, as here. What is not: the sums of losses and token counts
that it logs (a few bytes), validation, samples.

Adapters of merged queries, keys and values are grouped convolutions, which cuDNN plans on a device:
here they make what aten/src/ATen/native/cudnn/ConvShared.cpp and Convolution.cpp make, in the memory
format that those choose, and no workspace.
"""

import functools
import gc

CODES = ("litgpt@0.3.0", "litgpt@0.4.13", "litgpt@0.5.13")
ATTENTION = {"q_proj": "lora_query", "k_proj": "lora_key", "v_proj": "lora_value", "o_proj": "lora_projection"}
MLP = ("gate_proj", "up_proj", "down_proj")
PACKED = {"nf4": "nf4", "nf4-dq": "nf4-dq", "fp4": "fp4"}


def adapted(lora, error):
    """finetune/lora.py's switches, of PEFT's names; targets that are none are all linears but the head."""
    targets = [*ATTENTION, *MLP] if lora["targets"] == "all-linear" else lora["targets"].split(",")
    in_mlp = [name for name in MLP if name in targets]
    if set(targets) - {*ATTENTION, *MLP, "lm_head"} or len(in_mlp) not in (0, 3):
        raise error(f"strategy.lora.targets: LitGPT adapts q_proj, k_proj, v_proj, o_proj, lm_head, and all "
                    f"of the MLP or none of it, not {lora['targets']!r}")
    switches = {own: name in targets for name, own in ATTENTION.items()}
    return {**switches, "lora_mlp": bool(in_mlp), "lora_head": "lm_head" in targets}


def check(workload, error):
    """What LitGPT's scripts have no way of their own for, or was not measured, is refused by name."""
    stack, strategy = workload["stack"], workload["strategy"]
    code, config = stack["model_code"], workload["model"]["config"]
    if code not in CODES:
        raise error(f"stack.model_code: {code!r} is not one of {', '.join(CODES)}")
    if config["model_type"] not in ("llama", "mistral"):
        raise error("stack.model_code: LitGPT's Llama and Mistral alone are measured")
    lora = strategy["lora"]
    for key, kept in (("zero", [0]), ("world_size", [1]), ("precision", ["bf16"]), ("param_dtype", ["bf16"]),
                      ("offload", [[]]), ("attention", ["flash"]), ("loss", ["chunked"] if lora else ["full"]),
                      ("quantize", [None, *PACKED]), ("recompute", ["none"]), ("kbit_prep", [None, False])):
        if strategy[key] not in kept:
            raise error(f"strategy.{key}: {strategy[key]!r} is not measured with LitGPT's code")
    if stack["compile"]:
        raise error("stack.compile: not measured with LitGPT's code")
    if lora is not None:
        adapted(lora, error)
        if lora["adapter_dtype"] != "bf16":
            raise error("strategy.lora.adapter_dtype: LitGPT's adapters have the model's dtype, bf16")


def config_of(workload, config_class):
    """litgpt/config.py's, of the same sizes."""
    config, lora = workload["model"]["config"], workload["strategy"]["lora"]
    sizes = {"name": "", "block_size": config["max_position_embeddings"], "vocab_size": config["vocab_size"],
             "padded_vocab_size": config["vocab_size"], "n_layer": config["num_hidden_layers"],
             "n_head": config["num_attention_heads"], "n_embd": config["hidden_size"],
             "n_query_groups": config.get("num_key_value_heads") or config["num_attention_heads"],
             "rotary_percentage": 1.0, "parallel_residual": False, "bias": False, "norm_class_name": "RMSNorm",
             "mlp_class_name": "LLaMAMLP", "intermediate_size": config["intermediate_size"]}
    if config.get("head_dim"):
        sizes["head_size"] = config["head_dim"]
    if lora is None:
        return config_class(**sizes)
    return config_class(**sizes, lora_r=lora["rank"], lora_alpha=lora["alpha"], lora_dropout=lora["dropout"],
                        **adapted(lora, ValueError))


@functools.cache
def convolutions_without_cudnn():
    """What cuDNN's convolutions allocate but their workspace; the library that holds them stays."""
    import torch
    from torch._prims_common import suggest_memory_format
    library = torch.library.Library("aten", "IMPL")

    def layout(x, weight):
        """ConvUtils.h, cudnn_conv_suggest_memory_format."""
        last = torch.channels_last in (suggest_memory_format(x), suggest_memory_format(weight))
        return torch.channels_last if last else torch.contiguous_format

    def forward(x, weight, padding, stride, dilation, groups, benchmark, deterministic, allow_tf32):
        shape = (x.shape[0], weight.shape[0], x.shape[2], x.shape[3])
        return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=layout(x, weight))

    def backward(d_out, x, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, mask):
        """Convolution.cpp, convolution_backward: of one axis, which becomes the second of two."""
        d_out, x, weight = (t.unsqueeze(2) for t in (d_out, x, weight))
        how = layout(x, weight)
        d_out, x = d_out.contiguous(memory_format=how), x.contiguous(memory_format=how)
        d_x = torch.empty_like(x, memory_format=how).squeeze(2) if mask[0] else None
        d_weight = torch.empty_like(weight, memory_format=how).squeeze(2) if mask[1] else None
        return d_x, d_weight, None

    library.impl("cudnn_convolution", forward, "CUDA")
    library.impl("convolution_backward", backward, "CUDA")
    return library


def fabric_of(workload):
    import lightning as L
    import torch
    from lightning.fabric.plugins import BitsandbytesPrecision
    quantize = workload["strategy"]["quantize"]
    if quantize:
        return L.Fabric(accelerator="cuda", devices=1,
                        plugins=BitsandbytesPrecision(PACKED[quantize], torch.bfloat16))
    return L.Fabric(accelerator="cuda", devices=1, precision="bf16-true")


def swap_embedding(model):
    """finetune/lora.py, main: behind the optimizer, whose parameters it is none of. Returns what main()
    has a name for as long as it trains."""
    import torch
    from bitsandbytes.nn import StableEmbedding
    old = model.transformer.wte
    model.transformer.wte = StableEmbedding(old.num_embeddings, old.embedding_dim)
    with torch.no_grad():
        model.transformer.wte.weight.copy_(old.weight)
    model.transformer.wte = model.transformer.wte.to(device=old.weight.device, dtype=old.weight.dtype)
    return old


def build(workload):
    """The model, and how a batch's loss is made of it."""
    from litgpt.utils import chunked_cross_entropy
    strategy, length = workload["strategy"], workload["batch"]["seq_len"]
    code = workload["stack"]["model_code"]
    fabric = fabric_of(workload)
    convolutions_without_cudnn()
    if strategy["lora"] is None:
        from litgpt.config import Config
        from litgpt.model import GPT
        with fabric.init_module():
            model = GPT(config_of(workload, Config))
    else:
        from litgpt.lora import GPT, Config, mark_only_lora_as_trainable
        with fabric.init_module():
            model = GPT(config_of(workload, Config))
        mark_only_lora_as_trainable(model)
    model = fabric.setup_module(model)
    gc.collect()  # LoRA's classes make the modules of the plain ones first; packed ones refer to themselves
    loop = {}

    def begin(labels):
        if strategy["quantize"] and code == CODES[-1]:
            loop["old_embedding"] = swap_embedding(model)
        model.max_seq_length = length
        loop["targets"] = labels

    def loss_of(tokens, labels):
        """fit()'s; what it names stays until the next iteration names it."""
        if "targets" not in loop:
            begin(labels)
        if strategy["lora"] is None:
            loop["logits"] = model(tokens)
            return chunked_cross_entropy(loop["logits"][..., :-1, :], loop["targets"][..., 1:])
        loop["logits"] = model(tokens, lm_head_chunk_size=128)
        loop["logits"][-1] = loop["logits"][-1][..., :-1, :]
        return chunked_cross_entropy(loop["logits"], loop["targets"][..., 1:])

    return model, loss_of

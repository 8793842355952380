"""torchtune's own Llama inside its own recipes' wrappers, for torch_measure.py (stack.model_code).

torchtune@0.6.1 is the package of that version, which has to be on PYTHONPATH with what it imports
(torchao 0.10.0 was used, omegaconf, torchdata, tiktoken, blobfile, sentencepiece, kagglehub, pillow).
The model, its adapters, checkpoints, FSDP2's units and the loss are torchtune's, as
full_finetune_single_device, full_finetune_distributed, lora_finetune_single_device and
lora_finetune_distributed build and call them; the loop is torch_measure.py's, without clipping and
without the scaling of gradients, which is done in place.
"""

CODES = ("torchtune@0.6.1",)
ATTENTION = {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "o_proj": "output_proj"}
MLP = ("gate_proj", "up_proj", "down_proj")


def adapted(lora, error):
    """lora_attn_modules and apply_lora_to_mlp, of PEFT's names."""
    targets = [*ATTENTION, *MLP] if lora["targets"] == "all-linear" else lora["targets"].split(",")
    attention = [own for name, own in ATTENTION.items() if name in targets]
    in_mlp = [name for name in MLP if name in targets]
    if set(targets) - {*ATTENTION, *MLP} or not attention or len(in_mlp) not in (0, 3):
        raise error(f"strategy.lora.targets: torchtune adapts modules of the attention, and all of the "
                    f"MLP or none of it, not {lora['targets']!r}")
    return attention, bool(in_mlp)


def check(workload, error):
    """What torchtune's recipes have no way of their own for, or was not measured, is refused by name."""
    stack, strategy = workload["stack"], workload["strategy"]
    code, config = stack["model_code"], workload["model"]["config"]
    if code not in CODES:
        raise error(f"stack.model_code: {code!r} is not one of {', '.join(CODES)}")
    if config["model_type"] not in ("llama", "mistral"):
        raise error("stack.model_code: torchtune's Llama and Mistral alone are measured")
    for key, kept in (("zero", [0, 3]), ("precision", ["bf16"]), ("param_dtype", ["bf16"]),
                      ("offload", [[]]), ("attention", ["flash"]), ("loss", ["full", "chunked"]),
                      ("quantize", [None]), ("recompute", ["none", "full"]), ("shard_group", [None])):
        if strategy[key] not in kept:
            raise error(f"strategy.{key}: {strategy[key]!r} is not measured with torchtune's code")
    if strategy["zero"] == 0 and strategy["world_size"] > 1:
        raise error("strategy.zero: torchtune has no DDP")
    if stack["compile"]:
        raise error("stack.compile: not measured with torchtune's code")
    if strategy["lora"] is not None:
        adapted(strategy["lora"], error)
        if strategy["lora"]["adapter_dtype"] != "bf16":
            raise error("strategy.lora.adapter_dtype: torchtune's adapters have the model's dtype, bf16")


def model_of(workload):
    """The decoder by torchtune's builder of Llama 3.2, which has a switch for the tied head; those of
    Llama 2, 3 and 3.1 and of Mistral make the same modules of other defaults."""
    from torchtune.models.llama3_2._component_builders import llama3_2, lora_llama3_2
    config, lora = workload["model"]["config"], workload["strategy"]["lora"]
    sizes = {"vocab_size": config["vocab_size"], "num_layers": config["num_hidden_layers"],
             "num_heads": config["num_attention_heads"], "embed_dim": config["hidden_size"],
             "num_kv_heads": config.get("num_key_value_heads") or config["num_attention_heads"],
             "intermediate_dim": config["intermediate_size"],
             "max_seq_len": config["max_position_embeddings"],
             "tie_word_embeddings": bool(config.get("tie_word_embeddings"))}
    if lora is None:
        return llama3_2(**sizes)
    attention, in_mlp = adapted(lora, ValueError)
    return lora_llama3_2(attention, in_mlp, **sizes, lora_rank=lora["rank"], lora_alpha=lora["alpha"],
                         lora_dropout=lora["dropout"])


def sharded_units(workload):
    """custom_sharded_layers. `layers`: as the recipes' configs have it, of Llama 3's vocabulary where it
    is trained whole and the head is its own (llama3_1/8B_full.yaml and the like)."""
    config, strategy = workload["model"]["config"], workload["strategy"]
    by_config = (config["vocab_size"] >= 128256 and not config.get("tie_word_embeddings")
                 and strategy["lora"] is None)
    ends = by_config or workload["stack"]["fsdp_units"] == "layers+ends"
    return ["tok_embeddings", "output"] if ends else None


def shard(model, workload):
    """As full_finetune_distributed does, with torch 2.6's root, which is never resharded after the
    forward, whatever it is told."""
    import functools
    from torch.distributed.device_mesh import init_device_mesh
    from torchtune import training
    from torchtune.training import _distributed
    own = _distributed.fully_shard
    _distributed.fully_shard = lambda module, **given: own(
        module, **{**given, **({"reshard_after_forward": None} if module is model else {})})
    conditions = [functools.partial(training.get_shard_conditions,
                                    names_to_match=sharded_units(workload))]
    training.shard_model(model=model, shard_conditions=conditions, cpu_offload=False,
                         reshard_after_forward=True,
                         dp_mesh=init_device_mesh("cuda", (workload["strategy"]["world_size"],)))
    _distributed.fully_shard = own


def build(workload):
    """The model, and how a batch's loss is made of it."""
    import torch
    from torchtune import modules, training
    from torchtune.modules.loss import CEWithChunkedOutputLoss
    from torchtune.modules.peft import get_adapter_params, set_trainable_params
    strategy = workload["strategy"]
    shards = strategy["zero"] == 3
    with training.set_default_dtype(torch.bfloat16), torch.device("meta" if shards else "cuda"):
        model = model_of(workload)
    if strategy["lora"] is not None:
        set_trainable_params(model, get_adapter_params(model))
    if strategy["recompute"] == "full":
        training.set_activation_checkpointing(
            model, auto_wrap_policy={modules.TransformerSelfAttentionLayer})
    if shards:
        shard(model, workload)
        model.to_empty(device="cuda")
        with training.set_default_dtype(torch.bfloat16), torch.device("cuda"):
            for module in model.modules():
                if hasattr(module, "rope_init"):
                    module.rope_init()
    chunked = strategy["loss"] == "chunked"
    loss_fn = CEWithChunkedOutputLoss() if chunked else torch.nn.CrossEntropyLoss(ignore_index=-100)
    if chunked:
        model.set_num_output_chunks(loss_fn.num_output_chunks)
    ignored = torch.full((workload["batch"]["micro_batch"], 1), loss_fn.ignore_index, device="cuda")

    def loss_of(tokens, labels):
        """The recipes' _loss_step."""
        logits = model(tokens)
        labels = torch.hstack((labels[..., 1:], ignored[: labels.shape[0]]))
        if not isinstance(logits, list):
            labels = labels.reshape(-1)
            logits = logits.reshape(-1, logits.size(-1))
        loss = loss_fn(logits, labels)
        del logits
        return loss

    return model, loss_of

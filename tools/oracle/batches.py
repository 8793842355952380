"""What the rows of a batch hold (`strategy.rows` of a workload), as data collators make them.

full       each row is seq_len tokens (the key is absent)
padded     an attention mask says that some of them are padding (DataCollatorWithPadding and its
           kin); of `batch.real_tokens` they are none (absent: as many as there are)
flattened  the micro-batch's samples are one row, and position_ids begin anew with each
           (DataCollatorWithFlattening, TRL's padding_free)

Device memory reads as zeros: what Transformers asks the data is answered by what was asked for
(torch_measure.py, answer_for_the_data; flash_package.py).
"""

import data_parallel

ACCEPTED = {"rows": [None, "full", "padded", "flattened"]}
OPTIONAL = ("real_tokens",)  # of `batch`
# Of the batch that was made last:
asked = "full"  # pylint: disable=invalid-name
longest = real_tokens = samples = 0  # pylint: disable=invalid-name


def filled(batch, with_defaults, defaults):
    """`batch` with every key that it always has, and those of OPTIONAL that it says."""
    further = {k: v for k, v in batch.items() if k in OPTIONAL} if isinstance(batch, dict) else {}
    usual = {k: v for k, v in batch.items() if k not in further} if further else batch
    return {**with_defaults(usual, defaults, "batch"), **further}


def shape(workload):
    rows = workload["batch"]["micro_batch"] * data_parallel.rows(workload)
    length = workload["batch"]["seq_len"]
    return (1, rows * length) if workload["strategy"].get("rows") == "flattened" else (rows, length)


def classifies(config):
    """Whether a config.json is of a classifier of sequences."""
    return any(name.endswith("ForSequenceClassification") for name in config.get("architectures") or [])


def labels(workload, ids):
    """Of each token what is asked of it, or of each row its class."""
    return ids[:, 0].clone() if classifies(workload["model"]["config"]) else ids


def beside(workload, ids):
    """What a batch brings beside input_ids and labels."""
    global asked, longest, real_tokens, samples  # pylint: disable=global-statement
    import torch
    asked, batch = workload["strategy"].get("rows") or "full", workload["batch"]
    longest, samples = batch["seq_len"], batch["micro_batch"]
    real_tokens = batch.get("real_tokens", ids.numel())
    if asked == "padded":
        return {"attention_mask": torch.ones_like(ids)}
    if asked == "flattened":
        # Made there: what is copied to the dry device stays in its memory, and would be read again.
        positions = torch.arange(ids.numel(), device=ids.device).remainder_(longest)
        return {"position_ids": positions.view_as(ids)}
    return {}


def outputs(workload, context, model, ids, asked_of, beside):
    """What a model returns under `context`. `stack.accelerated`: what of it has 16 bits is made fp32, as Accelerate
    does behind autocast (Accelerator.prepare_model, ConvertOutputsToFp32)."""
    def returned():
        with context:
            return model(input_ids=ids, labels=asked_of, **beside)
    if not workload["stack"].get("accelerated"):
        return returned()
    from accelerate.utils import convert_to_fp32
    return convert_to_fp32(returned())

"""Activations on the host (`strategy.offload` "activations"): TRL's OffloadActivations around each
micro-batch's forward and backward, as its trainers' training_step has it.

Needs trl on PYTHONPATH (1.16.0 was read); of it nothing but that module is imported.
"""

import contextlib
import sys

import optimizers

ACCEPTED = [[], ["params"], ["activations"], ["optimizer"], ["optimizer", "activations"],
            ["optimizer", "gradients"], ["optimizer", "activations", "gradients"]]


def uses_bitsandbytes(strategy):
    return strategy["quantize"] is not None or strategy["optimizer"] in optimizers.BITSANDBYTES


def manager(model, workload):
    """What one micro-batch runs in."""
    if "activations" not in workload["strategy"]["offload"] or workload["stack"]["kernels"] == "unsloth":
        return contextlib.nullcontext()
    from trl.models.activation_offloading import get_act_offloading_ctx_manager
    # TRL empties the cache before each micro-batch where it is imported, which PEFT does wherever it
    # is installed: here only for who uses it.
    if not uses_bitsandbytes(workload["strategy"]):
        sys.modules.pop("bitsandbytes", None)
    return get_act_offloading_ctx_manager(model=model)

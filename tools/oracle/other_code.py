"""Models that are not Transformers' (stack.model_code), for torch_measure.py: which module has which."""

import torchtitan_code
import torchtune_code

CHECKPOINTS = torchtitan_code.CHECKPOINTS  # strategy.recompute that torchtitan alone has


def module_of(code):
    return torchtune_code if code is not None and code.startswith("torchtune@") else torchtitan_code


def check(workload, error):
    code = workload["stack"].get("model_code")
    if code is None and workload["strategy"]["loss"] == "chunked":
        raise error("strategy.loss: 'chunked' is of torchtune's stack.model_code")
    if code is not None and code.startswith("torchtune@"):
        if workload["strategy"]["recompute"] in CHECKPOINTS:
            raise error(f"strategy.recompute: torchtune has no {workload['strategy']['recompute']!r}")
    module_of(code).check(workload, error)


def build(workload):
    return module_of(workload["stack"]["model_code"]).build(workload)

"""Models that are not Transformers' (stack.model_code), for torch_measure.py: which module has which."""

import litgpt_code
import torchtitan_code
import torchtune_code

CHECKPOINTS = torchtitan_code.CHECKPOINTS  # strategy.recompute that torchtitan alone has


def module_of(code):
    by_name = {"torchtune": torchtune_code, "litgpt": litgpt_code}
    return by_name.get(code.split("@")[0] if code else None, torchtitan_code)


def check(workload, error):
    code = workload["stack"].get("model_code")
    if code is None and workload["strategy"]["loss"] == "chunked":
        raise error("strategy.loss: 'chunked' is of torchtune's and LitGPT's stack.model_code")
    if workload["strategy"]["tp"] != 1 and code not in torchtitan_code.DIVIDED:
        raise error(f"strategy.tp: {workload['strategy']['tp']!r} is not measured by this program but of "
                    f"stack.model_code {', '.join(torchtitan_code.DIVIDED)}")
    if module_of(code) is not torchtitan_code and workload["strategy"]["recompute"] in CHECKPOINTS:
        raise error(f"strategy.recompute: {code} has no {workload['strategy']['recompute']!r}")
    module_of(code).check(workload, error)


def build(workload):
    return module_of(workload["stack"]["model_code"]).build(workload)

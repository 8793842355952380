"""How many tokens visit each expert where the model's code asks (Transformers before 5.0).

Its mixtures loop over the experts, and read from the device which of them are visited and by how
many tokens. A dry device reads as zeros: nobody would be visited. Here the reads are answered: of
T tokens with k visits each, expert e of E gets (T k + e) / E, rounded down, so that all visits
are shared as evenly as they can be.
"""

import ctypes
import functools
import inspect

CLASSES = [("mixtral", "MixtralSparseMoeBlock"), ("qwen3_moe", "Qwen3MoeSparseMoeBlock")]


def visits(tokens, each, experts):
    return [(tokens * each + e) // experts for e in range(experts)]


def reads(counts, skips_unvisited):
    """What the loop reads, in its order: how many experts are visited; of each its number and its
    tokens. Before 4.53 it runs over all of them, and reads the tokens alone."""
    if not skips_unvisited:
        return counts
    visited = [e for e, count in enumerate(counts) if count > 0]
    return [len(visited)] + [n for e in visited for n in (e, counts[e])]


def answered(forward, skips_unvisited):
    @functools.wraps(forward)
    def wrapped(self, hidden_states, *rest, **named):
        tokens = hidden_states.numel() // hidden_states.shape[-1]
        numbers = reads(visits(tokens, self.top_k, self.num_experts), skips_unvisited)
        dry = ctypes.CDLL(None)
        dry.plimsoll_dry_answer((ctypes.c_int64 * len(numbers))(*numbers), len(numbers))
        result = forward(self, hidden_states, *rest, **named)
        unasked = dry.plimsoll_dry_unasked()
        if unasked:
            raise RuntimeError(f"{type(self).__name__} left {unasked} of {len(numbers)} reads")
        return result

    @functools.wraps(wrapped)
    def cleared(*rest, **named):
        try:  # a recomputation leaves in the middle
            return wrapped(*rest, **named)
        finally:
            ctypes.CDLL(None).plimsoll_dry_answer(None, 0)

    return cleared


@functools.cache
def answer_the_loops():
    """Once a process, and where a dry device is; importing the models' code may start CUDA."""
    import importlib
    if not hasattr(ctypes.CDLL(None), "plimsoll_dry_answer"):
        return
    for module, name in CLASSES:
        try:
            block = getattr(importlib.import_module(
                f"transformers.models.{module}.modeling_{module}"), name)
        except (ImportError, AttributeError):
            continue
        source = inspect.getsource(block.forward)
        if "torch.where(" in source:
            block.forward = answered(block.forward, ".nonzero()" in source)

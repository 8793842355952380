"""torch.nn.DataParallel, for torch_measure.py (`strategy.data_parallel` "dp"): one process, a thread for each of
`world_size` GPUs, of which the first has the parameters' own copy, the optimizer and what is gathered.

Transformers' Trainer takes it of itself where a script is started by plain `python` and sees several GPUs. Its batch is
micro_batch rows for each; what it returns is one loss for each. It does not call Accelerate's prepare() on a model that is
wrapped so (trainer.py, use_accelerator_prepare): no autocast is on, whatever `bf16` says.

Each GPU's backward has a thread of its own, and blocks go back in the order in which these come to it: which of them the
next request takes, and so what is not split, is chance, in a run on GPUs too. The same run made twice has differed by
0.05 % of its peak; what it requests has not.
"""

import ctypes

import dry_host


def asked(workload):
    return workload["strategy"].get("data_parallel") == "dp"


def check(strategy, error):
    if strategy["data_parallel"] is None:
        return
    if strategy["data_parallel"] != "dp":
        raise error(f"strategy.data_parallel: {strategy['data_parallel']!r} is not \"dp\"")
    if strategy["world_size"] < 2 or strategy["zero"] or strategy["precision"].endswith("-mixed"):
        raise error('strategy.data_parallel: "dp" is of several GPUs, zero 0 and no autocast')


def see_gpus(workload):
    """Before the process first uses CUDA: as many dry devices as are asked for."""
    ctypes.CDLL(None).plimsoll_dry_devices(workload["strategy"]["world_size"] if asked(workload) else 1)


def load_no_nccl():
    """Before torch is imported: NCCL within one process, which sends nothing."""
    ctypes.CDLL(dry_host.compiled("dry_nccl.c"), mode=ctypes.RTLD_GLOBAL)


def rows(workload):
    """How many GPUs share the batch."""
    return workload["strategy"]["world_size"] if asked(workload) else 1


def trace_one_thread(workload):
    """For a trace, which sees what runs in its own thread alone."""
    see_gpus(workload)
    from torch.nn.parallel import DataParallel
    DataParallel.parallel_apply = lambda _, replicas, inputs, kwargs: one_by_one(
        replicas, inputs, kwargs, range(len(replicas)))


def one_by_one(modules, inputs, kwargs, devices):
    import torch
    out = []
    for module, args, named, device in zip(modules, inputs, kwargs, devices):
        with torch.cuda.device(device):
            out.append(module(*args, **named))
    return out


def other_peaks(workload):
    """Of the other GPUs, first of them first: peak, reserved and resident bytes."""
    import torch
    return [{"peak_bytes": torch.cuda.max_memory_allocated(i), "reserved_bytes": torch.cuda.max_memory_reserved(i),
             "resident_bytes": torch.cuda.memory_allocated(i)} for i in range(1, rows(workload))]

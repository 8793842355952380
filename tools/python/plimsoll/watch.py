"""A run watched: predicted before its first step, measured while it trains."""
import contextlib
import json
import os
import platform
import statistics
import time
import warnings

from ._question import question, shape_of

_GIB = 1 << 30
# As tools/oracle/torch_measure.py records them.
_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "CUDA_MODULE_LOADING",
              "CUBLAS_WORKSPACE_CONFIG", "CUBLASLT_WORKSPACE_SIZE", "CUDA_VISIBLE_DEVICES",
              "CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS", "TORCH_CUDNN_SDPA_PREFERRED",
              "NCCL_NVLS_ENABLE", "NCCL_MAX_CTAS", "OMP_NUM_THREADS")


class WillNotFit(UserWarning):
    """The step that begins now needs more than the card has."""


def _gib(count):
    return f"{count / _GIB:.2f} GiB"


def _local(tensor):
    return getattr(tensor, "_local_tensor", tensor)  # of a DTensor this rank's part


def _bytes_of(tensors):
    """Of the distinct storages on the device."""
    found = {}
    for tensor in map(_local, tensors):
        if hasattr(tensor, "untyped_storage") and tensor.is_cuda:
            storage = tensor.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())


class Watch:
    """Watches a Trainer, or a loop of your own:

        with plimsoll.Watch(trainer):
            trainer.train()

        with plimsoll.Watch(model, optimizer) as watch:
            for batch in loader:
                with watch.step(batch):
                    ...  # forward, backward, optimizer, in any of their forms

    Under autocast `backward` belongs behind the block, as torch's documentation asks: within it
    the 16-bit copies of all weights live until backward has ended, which is not what is planned
    (a model of 4 million parameters reserved 14 % more).

    Before the first step it predicts, from the model's and PEFT's configuration, TrainingArguments,
    wrappers and the batch; options of `fit` that are given win. A batch of another shape is
    predicted too. Where more is needed than the card has, it warns (WillNotFit) before the step.
    The first `steps` steps are measured at each phase; for that torch's peak counters are reset.
    Each rank writes `out`, a plimsoll.measurement/1 for `plimsoll compare` and
    `tools/evidence import`; `kind` is "dry-run" on a device that computes nothing.

    plan, measurement and comparison are the documents, None until there are such.
    """

    def __init__(self, what, optimizer=None, *, out="plimsoll-{rank}.json", steps=3, kind="gpu",
                 quiet=False, **options):
        self.plan = self.measurement = self.comparison = None
        self._trainer = what if hasattr(what, "training_step") else None
        self._model = None if self._trainer else what
        self._optimizer = optimizer
        if steps < 2:
            raise ValueError(f"steps={steps}: at least 2, for the first is not like the others")
        self._out, self._most, self._kind, self._quiet = out, steps, kind, quiet
        self._options = options
        self._plans, self._hooks, self._rows, self._steps = {}, [], [], []
        self._states, self._open, self._stepped, self._micro = None, None, False, 0
        self._device, self._first_reading, self._losses = None, None, []
        self._batch = self._first = None  # shapes: of the batch that runs, of the one that is measured
        self._odd = False  # a batch of the step that is open has another shape
        self._depth = 0  # of steps: hooks outside of one belong to an evaluation

    # A run -------------------------------------------------------------------------------------

    def __enter__(self):
        import torch
        from torch.optim.optimizer import (register_optimizer_step_post_hook,
                                           register_optimizer_step_pre_hook)
        if not torch.cuda.is_available():
            raise RuntimeError("plimsoll.Watch measures CUDA's memory, and torch finds no GPU")
        self._device = torch.cuda.current_device()
        self._hooks += [register_optimizer_step_pre_hook(self._before_optimizer),
                        register_optimizer_step_post_hook(self._after_optimizer)]
        if self._trainer:
            self._wrap_training_step()
        else:
            self._hook_model(self._model)
        return self

    def __exit__(self, kind, error, _):
        import torch
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        if self._trainer:
            del self._trainer.training_step  # the class's own is back
        ran_out = kind is not None and issubclass(kind, torch.OutOfMemoryError)
        if ran_out and not self._steps:
            self.plan = self._plans.get(self._batch)
        elif ran_out:  # what was measured before it is whole, and of another shape perhaps
            number = len(self._steps) + 1
            ran_out = not self._odd
            self._rows = [row for row in self._rows if ran_out or row["step"] != number]
        else:
            self._close_step()
        if self.plan is not None and (ran_out or self._steps):
            self._write(self._error_of(error) if ran_out else None)
        return False

    @contextlib.contextmanager
    def step(self, batch):
        """Around what is done with one batch: a micro-batch, where gradients are accumulated."""
        self._begin(batch)
        try:
            yield
        finally:
            self._depth -= 1

    def _wrap_training_step(self):
        inner = self._trainer.training_step

        def training_step(model, inputs, *arguments, **named):
            if self._model is None:
                self._model = model
                self._hook_model(model)
            self._begin(inputs)
            try:
                loss = inner(model, inputs, *arguments, **named)
            finally:
                self._depth -= 1
            if self._measuring():
                self._losses.append(float(loss))
            return loss

        self._trainer.training_step = training_step

    def _hook_model(self, model):
        self._hooks += [model.register_forward_pre_hook(self._before_forward, prepend=True),
                        model.register_forward_hook(self._after_forward)]

    def _begin(self, batch):
        if self._stepped:
            self._close_step()
        self._depth += 1
        self._batch = shape_of(batch)
        self._first = self._first or self._batch
        self._odd = self._odd or self._batch != self._first
        if self._trainer:
            self._predict()
        if self._measuring():
            self._mark("forward" + (str(self._micro) if self._micro else ""))

    # Hooks -------------------------------------------------------------------------------------

    def _before_forward(self, *_):
        if self._depth and not self._trainer:  # now autocast is on, if it will be
            self._predict()

    def _after_forward(self, *_):
        if self._depth and self._measuring():
            self._mark("backward" + (str(self._micro) if self._micro else ""))
            self._micro += 1

    def _before_optimizer(self, optimizer, *_):
        if self._open is None or not self._measuring():
            return
        parameters = list(self._model.parameters())
        self._states = {"parameters_bytes": _bytes_of(parameters),
                        "gradients_bytes": _bytes_of(p.grad for p in parameters
                                                     if p.grad is not None)}
        self._mark("optimizer")

    def _after_optimizer(self, optimizer, *_):
        self._stepped = True
        if self._open is None or not self._measuring():
            return
        kept = [value for state in optimizer.state.values() if isinstance(state, dict)
                for value in state.values()]
        self._states["optimizer_bytes"] = _bytes_of(kept)
        self._mark("zero_grad")

    # Measuring ---------------------------------------------------------------------------------

    def _measuring(self):
        return len(self._steps) < self._most

    def _mark(self, phase):
        """Ends the phase that is open, and begins the next one; None: of the step the last."""
        import torch
        if self._open is not None:
            stats = torch.cuda.memory_stats()
            free, total = torch.cuda.mem_get_info()
            self._rows.append({"step": len(self._steps) + 1, "phase": self._open,
                               "peak_bytes": stats["allocated_bytes.all.peak"],
                               "requested_peak_bytes": stats["requested_bytes.all.peak"],
                               "end_bytes": stats["allocated_bytes.all.current"],
                               "reserved_bytes": stats["reserved_bytes.all.peak"],
                               "device_bytes": total - free if self._kind == "gpu" else None})
        else:
            torch.cuda.synchronize()
            self._began = time.monotonic()
        torch.cuda.reset_peak_memory_stats()
        self._open = phase

    def _close_step(self):
        import torch
        self._stepped = False
        self._micro = 0
        if self._open is None:
            return
        torch.cuda.synchronize()
        self._mark(None)
        seconds = time.monotonic() - self._began if self._kind == "gpu" else None
        number = len(self._steps) + 1
        if self._odd:  # another workload: no part of this measurement
            self._odd, self._losses = False, []
            self._rows = [row for row in self._rows if row["step"] != number]
            return
        self._steps.append({"step": number, "loss": sum(self._losses) if self._losses else None,
                            "timed": seconds is not None and number > 1, "seconds": seconds})
        self._losses = []

    def _of_step(self, number):
        rows = [row for row in self._rows if row["step"] == number]
        device = [row["device_bytes"] for row in rows if row["device_bytes"] is not None]
        return {"peak_bytes": max(row["peak_bytes"] for row in rows),
                "resident_bytes": rows[-1]["end_bytes"],
                "reserved_bytes": max(row["reserved_bytes"] for row in rows),
                "device_bytes": max(device) if device else None}

    # Predicting --------------------------------------------------------------------------------

    def _predict(self):
        if self._batch in self._plans:
            return
        from . import Error, fit
        try:
            model, options = question(self._model, self._optimizer, self._trainer, self._batch,
                                      self._options)
            plan = fit(model, **options)
        except (Error, ValueError) as error:
            self._plans[self._batch] = None
            warnings.warn(f"plimsoll: no prediction: {error}", stacklevel=2)
            return
        self._plans[self._batch] = plan
        if self.plan is None:
            self.plan = plan
        self._warn(plan)

    def _warn(self, plan):
        import torch
        if plan.peak_bytes is None:
            return
        free, total = torch.cuda.mem_get_info()
        elsewhere = max(0, total - free - torch.cuda.memory_reserved())
        needed = plan.peak_bytes + elsewhere
        if needed > total:
            shape = "" if self._batch is None else f" of {self._batch[0]} x {self._batch[1]} tokens"
            warnings.warn(
                f"plimsoll: a step{shape} needs {_gib(plan.peak_bytes)} and {_gib(elsewhere)} are "
                f"in use beside it: {_gib(needed - total)} more than the card's {_gib(total)}",
                WillNotFit, stacklevel=2)

    # The document ------------------------------------------------------------------------------

    def _error_of(self, error):
        import torch
        stats = torch.cuda.memory_stats()
        free, total = torch.cuda.mem_get_info()
        live = {f"{name}_bytes": stats.get(f"{name}_bytes.all.current", 0)
                for name in ("allocated", "requested", "reserved")}
        return {"kind": "out_of_memory", "message": str(error)[:500], "step": len(self._steps) + 1,
                "phase": self._open, "tried_bytes": None,
                "live": {**live, "device_bytes": total - free if self._kind == "gpu" else None,
                         "states": None, "largest": []}}

    def _ranks(self):
        import torch
        rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
        whole = len(self._steps)
        figures = dict.fromkeys(("peak_bytes", "resident_bytes", "reserved_bytes", "device_bytes"))
        peak = None
        if whole:  # the first step alone is lazy in many ways: states, workspaces, buckets
            steady = [self._of_step(n) for n in range(min(2, whole), whole + 1)]
            figures = {key: max((step[key] for step in steady if step[key] is not None),
                                default=None) for key in steady[0]}
            figures["resident_bytes"] = steady[-1]["resident_bytes"]
            row = max((r for r in self._rows if r["step"] >= min(2, whole)),
                      key=lambda r: r["peak_bytes"])
            peak = {"phase": row["phase"], "where": None,
                    "requested_peak_bytes": row["requested_peak_bytes"]}
        states = self._states if self._states and "optimizer_bytes" in self._states else None
        return rank, [{"rank": rank, **figures, "states": states, "at_peak": None, "peak": peak,
                       "first_step": self._of_step(1) if whole else None, "phases": self._rows,
                       "modules": [], "allocator": {}}]

    def _time(self):
        timed = [step["seconds"] for step in self._steps if step["timed"]]
        if not timed:
            return None
        import torch
        middle = statistics.median(timed)
        batch = self.plan.workload.batch
        tokens = batch.seq_len * batch.micro_batch * batch.grad_accum
        real = torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1
        return {"step_seconds": middle,
                "mad_seconds": statistics.median(abs(t - middle) for t in timed),
                "timed_steps": len(timed), "peak_flops": None,
                "communication": "real" if real else "none", "tokens_per_second": tokens / middle,
                "model_flops_per_step": None, "mfu": None, "mfu_full_attention": None}

    def _environment(self):
        import torch
        properties = torch.cuda.get_device_properties(self._device)
        versions = {"torch": torch.__version__, "cuda": torch.version.cuda,
                    "python": platform.python_version()}
        for name in ("transformers", "accelerate", "peft"):
            with contextlib.suppress(ImportError):
                versions[name] = __import__(name).__version__
        return {"device": {"name": properties.name,
                           "capability": f"{properties.major}.{properties.minor}",
                           "multiprocessors": properties.multi_processor_count,
                           "capacity_bytes": torch.cuda.mem_get_info()[1]},
                "versions": versions,
                "variables": {k: os.environ[k] for k in _VARIABLES if k in os.environ}}

    def _write(self, error):
        from . import Document, __version__, compare
        rank, ranks = self._ranks()
        self.measurement = json.loads(json.dumps({
            "schema": "plimsoll.measurement/1",
            "tool": {"name": "plimsoll.Watch", "version": __version__}, "kind": self._kind,
            "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "workload": self.plan.workload, "environment": self._environment(),
            "outcome": "out_of_memory" if error else "completed", "error": error, "ranks": ranks,
            "steps": self._steps, "time": self._time(), "clocks": None}), object_hook=Document)
        path = str(self._out).format(rank=rank)
        with open(path + ".new", "w", encoding="utf-8") as file:
            json.dump(self.measurement, file, indent=2)
            file.write("\n")
        os.replace(path + ".new", path)
        if error is None:
            self.comparison = compare(self.plan, self.measurement)
        if not self._quiet:
            print(self._line(path), flush=True)

    def _line(self, path):
        seen = self.measurement.ranks[0]
        if seen.peak_bytes is None:
            return f"plimsoll: out of memory before a step was done; {path}"
        said = next((kind for kind in self.plan.ranks if kind["rank"] == seen["rank"]),
                    self.plan.ranks[0])
        off = seen.peak_bytes / said.peak_bytes - 1
        return (f"plimsoll: peak {_gib(seen.peak_bytes)}, {_gib(said.peak_bytes)} predicted "
                f"({off:+.1%}); reserved {_gib(seen.reserved_bytes)}, "
                f"{_gib(self.plan.reserved_bytes)} predicted; {path}")

"""What a training step costs in GPU memory, before it runs.

    >>> import plimsoll
    >>> plan = plimsoll.fit("llama-3.1-8b", gpu="h100", gpus=8, zero=3)
    >>> plan.fits, plan.peak_bytes, plan.at_peak.logits_bytes

Options are those of the commands (`plimsoll fit --help`), with _ for -. In the place of MODEL may
stand a model of Transformers or PEFT, its configuration, or what a config.json holds; in the place
of the files of peft, training_args, deepspeed and accelerate a PEFT configuration,
TrainingArguments, or what such a file holds. Answers are the documents of `--json`: dictionaries
whose members are attributes too.
"""
import json as _json
import pickle as _pickle

from . import _plimsoll
from ._objects import Asked as _Asked
from .watch import Watch, WillNotFit

__version__ = _plimsoll.version()
__all__ = ["BadInput", "Document", "Error", "Unsupported", "compare", "fit", "gpus", "models",
           "recommend", "Watch", "WillNotFit"]


class Error(Exception):
    """What the program says on standard error; `kind` as in an answer of `plimsoll batch`."""

    def __init__(self, message, kind="internal"):
        super().__init__(message)
        self.kind = kind


class BadInput(Error, ValueError):
    """A question that cannot be understood: exit status 2."""


class Unsupported(Error, NotImplementedError):
    """A question that this version does not answer: exit status 2."""


_ERRORS = {"bad_input": BadInput, "unsupported": Unsupported}


class Document(dict):
    """A JSON object; plan.peak_bytes is plan["peak_bytes"]."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the document has no {name!r}; it has {', '.join(self)}") from None

    def __dir__(self):
        return [*super().__dir__(), *self]


def _document(answer):
    kind, text = answer
    if kind:
        raise _ERRORS.get(kind, Error)(text, kind)
    return _json.loads(text, object_hook=Document)


def _query(model, options):
    query = {} if model is None else {"model": str(model)}
    for name, value in options.items():
        path = hasattr(value, "__fspath__")
        query[name] = value.__fspath__() if path else value
    return _json.dumps(query)


def _answer(door, model, launch, options):
    with _Asked(model, options) as asked:
        answer = door(_query(asked.model, asked.options), [str(word) for word in launch])
        return asked.named(_document(answer))


def fit(model=None, *, launch=(), **options):
    """Will it fit, where does the memory go, what is the peak? `launch`: the words of the command
    line that starts the training, as behind `--`."""
    return _answer(_plimsoll.fit, model, launch, options)


def recommend(model=None, *, launch=(), **options):
    """How should it run? Options that are given stay, the rest is searched."""
    return _answer(_plimsoll.recommend, model, launch, options)


def compare(prediction, *measurements, tolerance=5.0):
    """Do measurements agree with their prediction? Each is a document, or the path of one;
    `tolerance` in percent. In place of measurements also snapshots of torch's allocator: what
    torch.cuda.memory._snapshot() returns, its pickle as bytes, or the path of one; `prediction`
    must then have full detail (`fit(..., detail=True)`)."""
    def content(what):
        if isinstance(what, (bytes, bytearray)):
            return bytes(what)
        if isinstance(what, dict):
            if "device_traces" in what and "segments" in what:
                return _pickle.dumps(what, protocol=4)
            return _json.dumps(what).encode()
        with open(what, "rb") as file:
            return file.read()
    plan, contents = content(prediction).decode(), [content(m) for m in measurements]
    # A pickle of protocol 2 and later begins with its number.
    if contents and contents[0][:1] == b"\x80":
        return _document(_plimsoll.compare_snapshots(plan, contents, float(tolerance)))
    return _document(_plimsoll.compare(plan, [c.decode() for c in contents], float(tolerance)))


def models(search=None):
    """The models that are known by name."""
    return _document(_plimsoll.models(search)).models


def gpus(search=None):
    """The GPUs that are known by name."""
    return _document(_plimsoll.gpus(search)).gpus

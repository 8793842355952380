#!/usr/bin/env python3
"""stub.py PLIMSOLL SCHEMA OUTPUT: types of the package, from the options that --help lists and the
members that the plan's schema has."""
import json
import re
import subprocess
import sys

HEAD = '''\
from contextlib import AbstractContextManager
from os import PathLike
from types import TracebackType
from typing import Any, Mapping, Sequence

__version__: str

class Error(Exception):
    kind: str

class BadInput(Error, ValueError): ...
class Unsupported(Error, NotImplementedError): ...

class Document(dict[str, Any]):
    def __getattr__(self, name: str) -> Any: ...

_Path = str | PathLike[str]
_Value = str | int | float
_Model = _Path | Mapping[str, Any] | object  # of Transformers or PEFT, or its configuration
_Settings = _Path | Mapping[str, Any] | object  # or what the file holds
'''

TAIL = '''
def compare(prediction: dict[str, Any] | _Path, *measurements: dict[str, Any] | bytes | _Path,
            tolerance: float = ...) -> Document: ...
def models(search: str | None = ...) -> list[Document]: ...
def gpus(search: str | None = ...) -> list[Document]: ...

class WillNotFit(UserWarning): ...

class Watch:
    plan: Plan | None
    measurement: Document | None
    comparison: Document | None
    def __init__(self, what: Any, optimizer: Any = ..., *, out: _Path = ..., steps: int = ...,
                 kind: str = ..., quiet: bool = ..., **options: Any) -> None: ...
    def __enter__(self) -> Watch: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> bool: ...
    def step(self, batch: Any) -> AbstractContextManager[None]: ...
'''

JSON_TYPES = {"integer": "int", "number": "float", "string": "str", "boolean": "bool",
              "object": "Document", "array": "list[Any]", "null": "None"}
SETTINGS = {"peft", "training-args", "deepspeed", "accelerate"}  # plimsoll/_objects.py
OUTPUT = {"json", "quiet", "html", "svg", "trace", "memory-viz", "plot", "explain"}


def type_of(schema):
    if "const" in schema or "enum" in schema:
        values = schema.get("enum", [schema.get("const")])
        names = sorted({"None" if v is None else type(v).__name__ for v in values})
        return " | ".join(names)
    kinds = schema.get("type", [])
    kinds = kinds if isinstance(kinds, list) else [kinds]
    names = [JSON_TYPES[kind] for kind in kinds]
    for part in schema.get("anyOf", []) + schema.get("oneOf", []):
        names.append("None" if part.get("type") == "null" else "Document")
    return " | ".join(dict.fromkeys(names)) or "Document"


def argument(name, value, repeatable):
    kind = {"": "bool", "YES|NO": "bool | str", "FILE": "_Path"}.get(value, "_Value")
    if name in SETTINGS:
        kind = "_Settings"
    if value in ("LIST", "PATTERN") or repeatable:
        kind = "str | Sequence[str]"
    return f"{name.replace('-', '_')}: {kind} | None = ..."


def function(plimsoll, command, returns):
    text = subprocess.run([plimsoll, command, "--help"], check=True, stdout=subprocess.PIPE,
                          text=True).stdout
    options = re.findall(r"^  --([a-z0-9-]+)(?: ([^ \n]+))?", text, re.M)
    lines = [argument(name, value, False) for name, value in options if name not in OUTPUT]
    return (f"\ndef {command}(model: _Model | None = ..., *, launch: Sequence[str] = ...,\n        "
            + ",\n        ".join(lines) + f") -> {returns}: ...\n")


def main(plimsoll, schema, output):
    with open(schema, encoding="utf-8") as file:
        plan = json.load(file)
    members = plan["properties"]
    text = HEAD + "\nclass Plan(Document):\n"
    text += "".join(f"    {name}: {type_of(member)}\n" for name, member in members.items())
    text += function(plimsoll, "fit", "Plan") + function(plimsoll, "recommend", "Document") + TAIL
    with open(output, "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    main(*sys.argv[1:])

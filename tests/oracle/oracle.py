"""Where the oracle's programs are, for the tests beside this file."""
import importlib.util
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
ORACLE = ROOT / "tools" / "oracle"
TRACES = ROOT / "tests" / "golden" / "traces"
PROGRAM = ORACLE / "torch_measure.py"

sys.path.insert(0, str(ORACLE))
sys.dont_write_bytecode = True
import torch_measure  # noqa: E402,F401

HAS_TORCH = all(importlib.util.find_spec(name) for name in ("torch", "transformers"))

LLAMA = {"model_type": "llama", "hidden_size": 256, "intermediate_size": 704,
         "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4,
         "vocab_size": 1000, "max_position_embeddings": 512}


def workload(**parts):
    return {"model": {"name": "tiny", "config": dict(LLAMA)}, **parts}


def trace(name):
    return json.loads((TRACES / f"{name}.json").read_text())


def run(*arguments, **environment):
    return subprocess.run([sys.executable, str(PROGRAM), *map(str, arguments)], text=True,
                          capture_output=True, check=False, env={**os.environ, **environment})


def complaint(schema, documents):
    """What a JSON Schema validator says of the documents, "" where they validate, None without
    a validator (the built one in SCHEMA_CHECK, or the package jsonschema)."""
    path = ROOT / "reports" / "schema" / f"{schema}.schema.json"
    if os.environ.get("SCHEMA_CHECK"):
        text = "\n".join(json.dumps(document) for document in documents)
        result = subprocess.run([os.environ["SCHEMA_CHECK"], str(path)], input=text, text=True,
                                stdout=subprocess.PIPE, check=False)
        return "" if result.returncode == 0 else result.stdout
    try:
        import jsonschema
    except ImportError:
        return None
    validator = jsonschema.Draft7Validator(json.loads(path.read_text()))
    return "\n".join(error.message for document in documents
                     for error in validator.iter_errors(document))

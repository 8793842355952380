"""Packages whose own __init__ files, which import much that no step needs, do not run."""

import importlib.machinery
import os
import sys
import types


def bare(*names):
    """They are found on sys.path, empty."""
    for name in names:
        if name in sys.modules:
            continue
        tail = name.replace(".", os.sep)
        paths = [os.path.join(p, tail) for p in sys.path if os.path.isdir(os.path.join(p, tail))]
        if not paths:
            raise ImportError(f"{name}: the sources of {name.split('.', maxsplit=1)[0]} are not on PYTHONPATH")
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = paths
        sys.modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)

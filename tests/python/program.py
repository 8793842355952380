"""Runs the built program, for the tests of this folder."""
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
SANITIZED = os.environ.get("PLIMSOLL_SANITIZED")  # tools/sanitize.py: which
# What goes on to the program under test: its sanitizers' options, and where it notes which faults it comes to
# (tools/mutant_reach.py). The rest of the environment would make answers depend on who asks.
PASSED_ON = {name: value for name, value in os.environ.items()
             if name.endswith("SAN_OPTIONS") or name == "PLIMSOLL_REACHED"}
PLIMSOLL = os.environ.get("PLIMSOLL", str(ROOT / "build" / "tools" / "plimsoll"))


def plimsoll(*words, stdin="", **environment):
    """The finished process: returncode, stdout, stderr. The GPU is named unless the test does."""
    merged = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "HOME": "/nonexistent",
              "HF_HUB_OFFLINE": "1", **PASSED_ON, **environment}
    return subprocess.run([PLIMSOLL, *map(str, words)], input=stdin, env=merged, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)

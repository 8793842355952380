#!/usr/bin/env python3
"""What commands print, whole: tests/golden/transcripts/*.txt, each a session of a shell in a folder with the inputs
of transcripts/files.

  $ COMMAND     is executed by sh, with plimsoll in its path
  ! TEXT        is a line of standard error; what has no mark is standard output
  [N]           is an exit status other than 0
  #: TEXT       says why

`test_transcripts.py --write [NAME…]` writes anew what stands below the commands. Read what changes: a transcript is
only worth what its reader has checked.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from program import PLIMSOLL, ROOT, PASSED_ON

FOLDER = ROOT / "tests/golden/transcripts"
# What differs from one build, machine or call to the next.
CHANGING = ((r'"version": ?"[^"]*", ?"commit": ?"[^"]*"', '"version": "V", "commit": "C"'),
            (r'"commit": ?"[^"]*"', '"commit": "C"'),
            (r"plimsoll \d+\.\d+\.\d+( \([^)]*\))?", "plimsoll V"),
            (r'"elapsed_seconds": ?[-+.e0-9]+', '"elapsed_seconds": S'))


class Session:
    """A folder with the inputs, in which commands follow each other."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        shutil.copytree(FOLDER / "files", self.folder, dirs_exist_ok=True)
        (self.folder / "project").symlink_to(ROOT)
        self.environment = {"PATH": f"{pathlib.Path(PLIMSOLL).resolve().parent}:{os.environ['PATH']}",
                            "LC_ALL": "C.UTF-8", "HOME": "/nonexistent", "HF_HUB_OFFLINE": "1", **PASSED_ON}

    def run(self, command):
        """What stands below the command."""
        done = subprocess.run(["sh", "-c", command], cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
        out = done.stdout.decode().replace("\r\n", "\\r\n").split("\n")
        if out[-1] == "":
            out.pop()
        else:
            out[-1] += "\\c"
        out += ["! " + line for line in done.stderr.decode().splitlines()]
        if done.returncode:
            out.append(f"[{done.returncode}]")
        text = "".join(("\\" if line.startswith(("$ ", "#: ")) else "") + line + "\n" for line in out)
        text = text.replace(str(self.folder.resolve()), "FOLDER")
        for pattern, put in CHANGING:
            text = re.sub(pattern, put, text)
        # Where the lines of this paragraph are broken depends on how long its seconds are.
        return re.sub(r"\d strategies\s+compared by(?:.|\n(?=  ))*",
                      lambda found: re.sub(r"\s+in (\d+(\.\d+)? m?s|S)\b", " in S", " ".join(found.group(0).split())), text)


def commands(text):
    """[(lines before it, command, what stands below it)]."""
    found = []
    head, command, below = [], None, []
    for line in text.splitlines():
        if line.startswith("$ ") or line.startswith("#: "):
            if command is not None:
                found.append(("".join(head), command, "".join(below)))
                head, command, below = [], None, []
            if line.startswith("$ "):
                command = line[2:]
            else:
                head.append(line + "\n")
        elif command is None:
            head.append(line + "\n")
        else:
            below.append(line + "\n")
    return found + [("".join(head), command, "".join(below))]


class Transcripts(unittest.TestCase):
    """One test for each file: tools/mutate asks them one by one."""
    maxDiff = 4000

    def printed(self, file):
        with tempfile.TemporaryDirectory() as folder:
            session = Session(folder)
            for _, command, expected in commands(file.read_text()):
                with self.subTest(file=file.name, command=command):
                    self.assertEqual(session.run(command), expected)

    def test_there_are_transcripts(self):
        self.assertGreater(len(list(FOLDER.glob("*.txt"))), 5)


for found in sorted(FOLDER.glob("*.txt")):
    setattr(Transcripts, f"test_what_{found.stem}_shows", lambda self, file=found: self.printed(file))


def write(names):
    for file in sorted(FOLDER.glob("*.txt")):
        if names and file.stem not in names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            session = Session(folder)
            file.write_text("".join(f"{head}$ {command}\n{session.run(command)}"
                                    for head, command, _ in commands(file.read_text())))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--write"]:
        write(sys.argv[2:])
    else:
        unittest.main()

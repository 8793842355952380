#!/usr/bin/env python3
"""Runs the commands of README.md and compares what they print with what stands there.

In a block opened with ```console a line "$ COMMAND" is run with `sh` from the project root, and the
lines below it are its output; a line "…" stands for any number of lines. `tools/test` is not run
again: its last line is taken from PLIMSOLL_TEST_SUMMARY, and only the words are compared.

usage: check_readme.py            compare; exit status 1 where something differs
       check_readme.py --update   write the true output into README.md (not where "…" stands)
"""
import difflib
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
README = ROOT / "README.md"


def steps(text):
    """[(command, output lines, first line, last line)] of all console blocks, lines from 0."""
    found, inside, current = [], False, None
    for number, line in enumerate(text.split("\n")):
        if not inside:
            inside = line == "```console"
        elif line == "```":
            inside, current = False, None
        elif line.startswith("$ "):
            current = [line[2:], [], number + 1, number + 1]
            found.append(current)
        elif current is not None:
            current[1].append(line)
            current[3] = number + 1
    return found


def run(command):
    environment = dict(os.environ, NO_COLOR="1", LC_ALL="C.UTF-8", COLUMNS="80")
    result = subprocess.run(["sh", "-c", command], cwd=ROOT, env=environment,
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, timeout=300)
    return result.stdout.rstrip("\n").split("\n"), result


def matches(expected, actual):
    """Whether the lines are equal, "…" standing for any lines."""
    if not expected:
        return not actual
    if expected[0] == "…":
        return any(matches(expected[1:], actual[i:]) for i in range(len(actual) + 1))
    return bool(actual) and expected[0] == actual[0] and matches(expected[1:], actual[1:])


def actual_output(command):
    if command.split()[0] == "tools/test":
        return [os.environ.get("PLIMSOLL_TEST_SUMMARY", "")]
    lines, result = run(command)
    if result.returncode not in (0, 1):  # 1 is an answer: "does not fit"
        lines.append(f"(exit status {result.returncode}) {result.stderr.strip()}")
    return lines


def without_numbers(lines):
    return [re.sub(r"\d+", "N", line) for line in lines if line != "…"]


def difference(command, expected):
    actual = actual_output(command)
    if command.split()[0] == "tools/test":
        same = actual == [""] or without_numbers(expected)[-1:] == without_numbers(actual)
    else:
        same = matches(expected, actual)
    if same:
        return None, actual
    return "\n".join(difflib.unified_diff(expected, actual, "README.md", command, lineterm="")), actual


def main(arguments):
    text = README.read_text(encoding="utf-8")
    lines, bad = text.split("\n"), 0
    found = steps(text)
    if not found:
        print("README.md shows no command in a ```console block")
        return 1
    for command, expected, first, last in reversed(found):
        why, actual = difference(command, expected)
        if why is None:
            continue
        bad += 1
        print(f"README.md: `{command}` prints something else:\n{why}")
        if "--update" in arguments and "…" not in expected:
            lines[first:last] = actual
    if "--update" in arguments:
        README.write_text("\n".join(lines), encoding="utf-8")
        return 0
    print(f"{len(found)} commands of README.md, {bad} differ"
          + (" (tools/check_readme.py --update writes what they print)" if bad else ""))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

#!/usr/bin/env python3
"""Runs `meson test` and counts the test cases inside: doctest's, unittest's, else one a program.

usage: count_tests.py BUILD_DIR [ARGUMENT_OF_MESON_TEST…]
"""
import json
import os
import re
import subprocess
import sys

DOCTEST = re.compile(r"test cases: *(\d+) *\| *(\d+) passed *\| *(\d+) failed *\| *(\d+) skipped")
UNITTEST_RAN = re.compile(r"^Ran (\d+) tests? in ", re.MULTILINE)
UNITTEST_END = re.compile(r"^(?:OK|FAILED)(?: \((.*)\))?\s*$", re.MULTILINE)
PLAIN = re.compile(r"\x1b\[[0-9;]*m")


def counts(entry):
    """(passed, failed, skipped) of one entry of meson's testlog.json."""
    text = PLAIN.sub("", entry.get("stdout", "") + "\n" + entry.get("stderr", ""))
    bad = entry["result"] not in ("OK", "SKIP", "EXPECTEDFAIL")
    if entry["result"] == "SKIP":
        return 0, 0, 1
    doctest = DOCTEST.findall(text)
    if doctest:
        passed = sum(int(row[1]) for row in doctest)
        failed = sum(int(row[2]) for row in doctest)
        skipped = sum(int(row[3]) for row in doctest)
    elif UNITTEST_RAN.search(text):
        ran = int(UNITTEST_RAN.search(text).group(1))
        notes = UNITTEST_END.search(text)
        named = dict(re.findall(r"([a-z ]+)=(\d+)", notes.group(1) or "")) if notes else {}
        named = {key.strip(): int(value) for key, value in named.items()}
        failed = named.get("failures", 0) + named.get("errors", 0)
        skipped = named.get("skipped", 0)
        passed = max(0, ran - failed - skipped)
    else:
        passed, failed, skipped = (0, 1, 0) if bad else (1, 0, 0)
    if bad and failed == 0:  # it crashed or hung after its last count
        failed = 1
    return passed, failed, skipped


def total(build):
    """[passed, failed, skipped] of the last run of meson test; nothing where it wrote no log."""
    log = os.path.join(build, "meson-logs", "testlog.json")
    if not os.path.exists(log):
        return None
    with open(log, encoding="utf-8", errors="replace") as lines:
        entries = [json.loads(line) for line in lines if line.strip()]
    sums = [0, 0, 0]
    for entry in entries:
        found = counts(entry)
        sums = [a + b for a, b in zip(sums, found)]
        if found[2]:
            print(f"skipped: {found[2]} in {entry['name']}")
    return sums


def main(arguments):
    build = arguments[0]
    log = os.path.join(build, "meson-logs", "testlog.json")
    if os.path.exists(log):
        os.remove(log)
    command = ["meson", "test", "-C", build, "--no-rebuild", "--print-errorlogs"]
    status = subprocess.run(command + arguments[1:], stdin=subprocess.DEVNULL).returncode
    sums = total(build)
    if sums is None:
        print("meson test wrote no log", file=sys.stderr)
        return 3
    if status != 0 and sums[1] == 0:
        sums[1] = 1
    print(f"{sums[0]} passed, {sums[1]} failed, {sums[2]} skipped")
    return 1 if sums[1] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

#!/usr/bin/env python3
"""What a test may not be written with: doctest's Approx adds 1 to what its epsilon is relative to, so
that it accepts nearly any time, rate or share below 1. tests/near.h says what it means."""
import pathlib
import re
import sys

APPROX = re.compile(r"\bApprox\s*\(")


def complaints(root):
    found = []
    for path in sorted((root / "tests").rglob("*")):
        if path.suffix not in {".h", ".cpp", ".cu", ".cuh"}:
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if APPROX.search(line):
                found.append(f"{path.relative_to(root)}:{number}: Approx is not relative below 1; "
                             "near() of tests/near.h is")
    return found


def main(arguments):
    root = pathlib.Path(arguments[0] if arguments else __file__).resolve()
    if not arguments:
        root = root.parent.parent
    found = complaints(root)
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

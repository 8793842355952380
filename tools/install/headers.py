#!/usr/bin/env python3
"""headers.py ROOT HEADER...: these headers and all of the project's that they include, a line each."""
import pathlib
import re
import sys


def closure(root, headers):
    found, open_ = set(), list(headers)
    while open_:
        header = open_.pop()
        if header in found:
            continue
        found.add(header)
        text = (root / header).read_text(encoding="utf-8")
        open_ += re.findall(r'^#include "([^"]+)"', text, re.M)
    return sorted(found)


if __name__ == "__main__":
    print(*closure(pathlib.Path(sys.argv[1]), sys.argv[2:]), sep="\n")

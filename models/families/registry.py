#!/usr/bin/env python3
"""Writes the C++ table of all model families: registry.py OUT.cpp FAMILY.cpp ...

Each FAMILY.cpp defines `Family <stem>()`; a new family is a new file and nothing else.
"""
import pathlib
import sys


def main() -> None:
    out, *files = sys.argv[1:]
    names = sorted(pathlib.Path(f).stem for f in files)
    lines = ['#include "models/table/family.h"', "", "namespace plimsoll::models::families {", ""]
    lines += [f"Family {name}();" for name in names]
    lines += ["", "std::span<const FamilyEntry> all_families() {"]
    lines += [f"  static constexpr FamilyEntry kFamilies[] = {{"]
    lines += [f'      {{"{name}", {name}}},' for name in names]
    lines += ["  };", "  return kFamilies;", "}", "", "}  // namespace plimsoll::models::families"]
    pathlib.Path(out).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

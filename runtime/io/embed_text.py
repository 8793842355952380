#!/usr/bin/env python3
"""Compiles a text into a C++ source: embed_text.py TEXT OUT.cpp"""
import pathlib
import sys

PLAIN = set(range(0x20, 0x7f)) - set(b'"\\?')  # ?: trigraphs


def literal(line: bytes) -> str:
    # Three octal digits end an escape, whatever follows.
    return '"' + "".join(chr(b) if b in PLAIN else f"\\{b:03o}" for b in line) + '"'


def main() -> None:
    text, out = map(pathlib.Path, sys.argv[1:])
    content = text.read_bytes()
    lines = ["#include \"runtime/io/tokens.h\"", "", "namespace plimsoll::runtime::io {", "",
             "std::string_view shipped_text() {", "  static constexpr char kText[] ="]
    lines += [f"      {literal(line)}" for line in content.splitlines(keepends=True)]
    lines += ["      ;", f"  static_assert(sizeof kText == {len(content)} + 1);",
              f"  return {{kText, {len(content)}}};", "}", "", "}  // namespace plimsoll::runtime::io"]
    out.write_text("\n".join(lines) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()

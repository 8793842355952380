#!/usr/bin/env python3
"""Compiles texts into a C++ source with one function each:

  embed_text.py OUT.cpp HEADER NAMESPACE FUNCTION=TEXT...

HEADER declares `std::string_view FUNCTION();` in NAMESPACE.
"""
import pathlib
import sys

PLAIN = set(range(0x20, 0x7f)) - set(b'"\\?')  # ?: trigraphs


def literal(line: bytes) -> str:
    # Three octal digits end an escape, whatever follows.
    return '"' + "".join(chr(b) if b in PLAIN else f"\\{b:03o}" for b in line) + '"'


def function(name: str, content: bytes) -> list:
    return [f"std::string_view {name}() {{", "  static constexpr char kText[] =",
            *(f"      {literal(line)}" for line in content.splitlines(keepends=True)),
            "      ;", f"  static_assert(sizeof kText == {len(content)} + 1);",
            f"  return {{kText, {len(content)}}};", "}", ""]


def main() -> None:
    out, header, namespace, *texts = sys.argv[1:]
    lines = [f'#include "{header}"', "", f"namespace {namespace} {{", ""]
    for text in texts:
        name, path = text.split("=", 1)
        lines += function(name, pathlib.Path(path).read_bytes())
    lines += [f"}}  // namespace {namespace}"]
    pathlib.Path(out).write_text("\n".join(lines) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()

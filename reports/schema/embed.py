#!/usr/bin/env python3
"""Compiles JSON Schemas into C++ text: embed.py OUT.cpp FILE.schema.json...

Fails the build for a file that is not JSON. What only people read is left out.
"""
import json
import pathlib
import sys

FOR_PEOPLE = ("title", "description", "$schema")


def without_texts(value, names=False):
    """`names`: the keys are names of fields, not words of the schema."""
    if isinstance(value, list):
        return [without_texts(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {key: without_texts(item, key in ("properties", "definitions"))
            for key, item in value.items() if names or key not in FOR_PEOPLE}


def main() -> None:
    out, *files = map(pathlib.Path, sys.argv[1:])
    lines = ['#include "reports/schema_check.h"', "", "namespace plimsoll::reports {", "",
             "std::string_view schema_text(std::string_view name) {"]
    for path in files:
        text = json.dumps(without_texts(json.loads(path.read_text(encoding="utf-8"))),
                          separators=(",", ":"))
        assert ')json"' not in text
        lines.append(f'  if (name == "{path.name.removesuffix(".schema.json")}")')
        lines.append(f'    return R"json({text})json";')
    lines += ['  return "";', "}", "", "}  // namespace plimsoll::reports"]
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Compiles this folder's JSON files into C++ text: embed.py FOLDER OUT.cpp OUT.d

FOLDER/models/*.json are catalog entries, found by name or alias; FOLDER/*.json are documents of
their own. Fails the build for a file that is not JSON, an entry whose name is not its file's, or a
name that two entries claim. OUT.d (for ninja) names the folders too, so that a new file is noticed.
"""
import json
import pathlib
import sys


def load(path: pathlib.Path):
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        sys.exit(f"{path}: not JSON: {error}")


def raw_string(value) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    assert ')json"' not in text
    return f'R"json({text})json"'


def documents(function: str, items: list) -> list:
    lines = [f"std::span<const Document> {function}() {{"]
    if not items:
        return lines + ["  return {};", "}", ""]
    lines += ["  static constexpr Document kDocuments[] = {"]
    lines += [f'      {{"{name}", {raw_string(value)}}},' for name, value in items]
    return lines + ["  };", "  return kDocuments;", "}", ""]


def keys_of(models: list) -> list:
    keys = {}
    for index, (name, entry) in enumerate(models):
        for key in [name, *entry.get("aliases", [])]:
            owner = keys.setdefault(key.lower(), index)
            if owner != index:
                sys.exit(f"{name}: the name '{key}' belongs to {models[owner][0]} already")
    return sorted(keys.items())


def main() -> None:
    folder, out, dependencies = map(pathlib.Path, sys.argv[1:])
    model_files = sorted(folder.glob("models/*.json"))
    other_files = sorted(folder.glob("*.json"))
    models = [(path.stem, load(path)) for path in model_files]
    others = [(path.stem, load(path)) for path in other_files]
    for stem, entry in models:
        if entry.get("name") != stem:
            sys.exit(f"{folder}/models/{stem}.json: its name is '{entry.get('name')}'")
    models.sort(key=lambda item: item[0])
    lines = ['#include "models/specs/embedded.h"', "", "namespace plimsoll::models::specs {", ""]
    lines += documents("model_documents", models)
    lines += documents("other_documents", others)
    lines += ["std::span<const ModelKey> model_keys() {", "  static constexpr ModelKey kKeys[] = {"]
    lines += [f'      {{"{key}", {index}}},' for key, index in keys_of(models)]
    lines += ["  };", "  return kKeys;", "}", "", "}  // namespace plimsoll::models::specs"]
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    inputs = [folder, folder / "models", *model_files, *other_files]
    dependencies.write_text(f"{out}: " + " ".join(map(str, inputs)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

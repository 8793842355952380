#!/usr/bin/env python3
"""Compiles this folder's JSON files into C++ text: embed.py FOLDER OUT.cpp OUT.d

FOLDER/models/*.json and the records of FOLDER/gpus.json are catalog entries, found by name or
alias
(of a hub id also by what stands behind the slash); any other FOLDER/*.json is a document of its own. Fails the build for a file that is not
JSON, an entry whose name is not its file's, or a name that two entries claim. OUT.d (for ninja)
names the folders too, so that a new file is noticed.
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


def array(c_type: str, name: str, rows: list) -> list:
    if not rows:
        return [f"constexpr std::span<const {c_type}> {name};"]
    return [f"constexpr {c_type} {name}[] = {{", *(f"    {{{row}}}," for row in rows), "};"]


def keys_of(entries: list) -> list:
    keys = {}
    for index, (name, entry) in enumerate(entries):
        for key in [name, *entry.get("aliases", [])]:
            owner = keys.setdefault(key.lower(), index)
            if owner != index:
                sys.exit(f"{name}: the name '{key}' belongs to {entries[owner][0]} already")
    keys.update(bare_names(keys))
    return sorted(keys.items(), key=lambda item: item[0].encode())


def bare_names(keys: dict) -> dict:
    """"org/name" is also found by "name", where that is no other entry's."""
    bare = {}
    for key, index in keys.items():
        name = key.partition("/")[2]
        if name and name not in keys:
            bare.setdefault(name, set()).add(index)
    return {name: indices.pop() for name, indices in bare.items() if len(indices) == 1}


def catalog(function: str, entries: list) -> list:
    texts = [f'"{name}", {raw_string(entry)}' for name, entry in entries]
    keys = [f'"{key}", {index}' for key, index in keys_of(entries)]
    lines = ["namespace {"]
    lines += array("Document", f"k_{function}", texts)
    lines += array("EntryKey", f"k_{function}_keys", keys)
    return lines + [
        "}  // namespace", f"const Catalog& {function}() {{",
        f"  static constexpr Catalog kCatalog{{k_{function}, k_{function}_keys}};",
        "  return kCatalog;", "}", ""]


def load_models(files: list) -> list:
    models = [(path.stem, load(path)) for path in files]
    for stem, entry in models:
        if entry.get("name") != stem:
            sys.exit(f"models/{stem}.json: its name is '{entry.get('name')}'")
    return sorted(models, key=lambda item: item[0])


def load_gpus(path: pathlib.Path) -> list:
    document = load(path)
    for gpu in document["gpus"]:
        for key in [key for key in gpu if key == "src" or key.endswith("_src")]:
            gpu[key] = document["sources"].get(gpu[key], gpu[key])
    return [(gpu["id"], gpu) for gpu in document["gpus"]]


def main() -> None:
    folder, out, dependencies = map(pathlib.Path, sys.argv[1:])
    model_files = sorted(folder.glob("models/*.json"))
    other_files = sorted(folder.glob("*.json"))
    others = [(path.stem, load(path)) for path in other_files if path.stem != "gpus"]
    lines = ['#include "models/specs/embedded.h"', "", "namespace plimsoll::models::specs {", ""]
    lines += catalog("models", load_models(model_files))
    lines += catalog("gpus", load_gpus(folder / "gpus.json"))
    texts = [f'"{name}", {raw_string(value)}' for name, value in others]
    lines += ["namespace {", *array("Document", "k_others", texts), "}  // namespace"]
    lines += ["std::span<const Document> other_documents() {", "  return k_others;", "}", ""]
    lines += ["}  // namespace plimsoll::models::specs"]
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    inputs = [folder, folder / "models", *model_files, *other_files]
    dependencies.write_text(f"{out}: " + " ".join(map(str, inputs)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

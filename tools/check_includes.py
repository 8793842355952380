#!/usr/bin/env python3
"""Who may include whom. The include root is the project root, so this table is the header side of the
picture of the libraries; Meson's link lines are the other side. And no two headers say what one name of a
namespace is: a program would link one's destructor for the other's objects."""
import collections
import pathlib
import re
import sys

# Longest prefix wins. `project`: folders or files of ours; `outside`: third-party headers, by name
# (the standard library and POSIX are always allowed). A folder may always include itself.
RULES = {
    "models/base": {"project": [], "outside": []},
    "models": {"project": ["models/base"], "outside": ["fmt"]},
    "reports": {"project": ["models"], "outside": ["fmt"]},
    "planner": {"project": ["models", "reports/record.h"], "outside": ["fmt"]},
    "kernels": {"project": ["models/base"], "outside": ["fmt"]},
    "kernels/cuda": {"project": ["models/base", "kernels"], "outside": ["cuda"]},
    "kernels/device": {"project": ["models/base", "kernels"], "outside": ["cuda"]},
    "runtime": {"project": ["kernels", "models", "reports/record.h"], "outside": ["fmt"]},
    "tools": {"project": [""], "outside": ["fmt"]},
    "tests": {"project": [""], "outside": ["fmt", "doctest", "benchmark", "json", "valijson"]},
}

# Files that may include more than their folder may.
ALSO = [
    (r"models/.*(reader|catalog|config)\w*\.(h|cpp)", ["json"]),
    (r"models/yaml_reader\.cpp", ["yaml"]),
    (r"models/toml_reader\.cpp", ["json", "toml"]),
    (r"runtime/io/.*\.cpp", ["json"]),
    (r"runtime/.*_cuda\.cpp", ["cuda"]),
    (r"runtime/comm/nccl_\w+\.(h|cpp)", ["cuda", "nccl"]),
    (r"runtime/comm/mpi_\w+\.(h|cpp)", ["mpi"]),
    (r"reports/page/.*", ["json"]),  # pages are made of documents
    (r"reports/\w*check\w*\.(h|cpp)", ["json"]),  # documents against their schemas
    (r"tools/.*_json\.cpp", ["json"]),
    (r"tests/.*(_cuda|cudnn_test|library_loading_test)\.cpp", ["cuda"]),
    (r"tools/python/module\.cpp", ["nanobind"]),
    (r"tools/cli/command_line\.cpp", ["cli11"]),
]

# The eager modules of the runtime take decisions, never a planned tensor.
FORBIDDEN = [
    (r"runtime/(?!follower/).*", "models/step_program.h"),
]

OUTSIDE = [
    ("fmt", r"fmt/"),
    ("json", r"nlohmann/"),
    ("cli11", r"CLI/"),
    ("doctest", r"doctest/"),
    ("benchmark", r"benchmark/"),
    ("valijson", r"valijson/"),
    ("cuda", r"(cuda|cub|cublas|cudnn|thrust|nvToolsExt|nvtx|nvml|cooperative_groups)"),
    ("nccl", r"nccl"),
    ("mpi", r"mpi\.h"),
    ("yaml", r"yaml-cpp/"),
    ("toml", r"toml\+\+/"),
    ("nanobind", r"nanobind/"),
    ("curl", r"curl/"),
]

SPACE = re.compile(r"^namespace ([\w:]+) \{", re.MULTILINE)
TYPE = re.compile(r"^(?:struct|class|union|enum(?: class)?) (\w+)[^;{]*\{", re.MULTILINE)
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]')
SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}
FOLDERS = ["models", "reports", "planner", "kernels", "runtime", "tools", "tests"]


def rule_of(path):
    prefixes = [p for p in RULES if path.startswith(p + "/")]
    return max(prefixes, key=len) if prefixes else None


def allowed_outside(path, rule):
    names = list(RULES[rule]["outside"])
    for pattern, more in ALSO:
        if re.fullmatch(pattern, path):
            names += more
    return names


def third_party(header):
    """The name of the library that a header belongs to; None for the standard library and POSIX."""
    for name, pattern in OUTSIDE:
        if re.match(pattern, header):
            return name
    if "/" in header and not header.startswith(("sys/", "netinet/", "arpa/")):
        return header.split("/")[0]
    return None


def complaint(root, path, quote, header):
    """Why `path` may not include `header`; None where it may."""
    rule = rule_of(path)
    if rule is None:
        return "stands in no folder of the table"
    for pattern, name in FORBIDDEN:
        if header == name and re.fullmatch(pattern, path):
            return f"must not include {name}"
    if quote == '"':
        if not (root / header).is_file():
            return f'includes "{header}", which is no file of the project'
        allowed = RULES[rule]["project"] + [rule]
        if any(a == "" or header == a or header.startswith(a + "/") for a in allowed):
            return None
        return f'includes "{header}"; {rule}/ may include {", ".join(allowed)}'
    name = third_party(header)
    if name is None or name in allowed_outside(path, rule):
        return None
    return f"includes <{header}> ({name}), which is not allowed there"


def complaints(root):
    found = []
    for folder in FOLDERS:
        for file in sorted((root / folder).rglob("*")):
            if file.suffix not in SUFFIXES or not file.is_file():
                continue
            path = file.relative_to(root).as_posix()
            for number, line in enumerate(file.read_text(errors="replace").splitlines(), 1):
                match = INCLUDE.match(line)
                why = complaint(root, path, *match.groups()) if match else None
                if why:
                    found.append(f"{path}:{number}: {why}")
    return found


def named_twice(root):
    """Types that two headers define under one name of one namespace."""
    homes = collections.defaultdict(list)
    for folder in FOLDERS:
        for file in sorted((root / folder).rglob("*.h")):
            text = file.read_text(errors="replace")
            space = SPACE.search(text)
            for name in sorted(set(TYPE.findall(text))):
                homes[space.group(1) if space else "", name].append(file.relative_to(root).as_posix())
    return [f"{files[-1]}: {space}::{name} is in {', '.join(files[:-1])} too"
            for (space, name), files in sorted(homes.items()) if len(files) > 1]


def main(arguments):
    root = pathlib.Path(arguments[0] if arguments else __file__).resolve()
    if not arguments:
        root = root.parent.parent
    found = complaints(root) + named_twice(root)
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

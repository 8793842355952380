#!/usr/bin/env python3
"""Sizes that a reader can hold in the head: a header of 150 lines, a source of 400, a function of 80.

Exceptions stand in tools/size_exceptions.txt: path, limit, why. One that is no longer needed is an
error too.
"""
import ast
import pathlib
import re
import sys

HEADER, SOURCE, FUNCTION = 150, 400, 80
FOLDERS = ["models", "reports", "planner", "kernels", "runtime", "tools", "tests"]
HEADERS = {".h", ".cuh"}
CPP = {".h", ".cuh", ".cpp", ".cu"}

SKIPPED = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\'',
    re.DOTALL)
SCOPE = re.compile(r"\b(namespace|class|struct|union|enum|extern)\b")


def blanked(text):
    """The text with comments and literals replaced by blanks, lines kept."""
    return SKIPPED.sub(lambda m: re.sub(r"[^\n]", " ", m.group(0)), text)


def is_function(head):
    """Whether `head`, the text before a brace outside of any function, opens a function's body."""
    head = re.sub(r"template\s*<.*?>\s*(?=\w)", "", head, flags=re.DOTALL)
    head = re.sub(r"^\s*#(?:[^\n]*\\\n)*[^\n]*$", "", head, flags=re.MULTILINE)
    if "(" not in head:
        return False
    before = head.split("(")[0]
    if SCOPE.search(before):  # `struct X foo() {` is not our style
        return False
    return not re.search(r"=\s*$", head) and not re.search(r"(?<![=!<>])=(?!=)", before)


def cpp_functions(text):
    """(first line, lines) of each outermost function body, the signature not counted."""
    text = blanked(text)
    found, stack, head_start, line = [], [], 0, 1
    for at, c in enumerate(text):
        if c == "\n":
            line += 1
        elif c == "{":
            inside = any(kind == "function" for kind, _ in stack)
            function = not inside and is_function(text[head_start:at])
            stack.append(("function" if function else "other", line))
            head_start = at + 1
        elif c == "}":
            if stack:
                kind, first = stack.pop()
                if kind == "function":
                    found.append((first, line - first + 1))
            head_start = at + 1
        elif c == ";":
            head_start = at + 1
    return found


def python_functions(text):
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [(node.lineno, node.end_lineno - node.lineno + 1)
            for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]


def exceptions(path):
    found = {}
    if path.is_file():
        for line in path.read_text().splitlines():
            if line.strip() and not line.startswith("#"):
                name, limit, why = line.split(None, 2)
                found[name] = (int(limit), why)
    return found


def complaints(root):
    allowed = exceptions(root / "tools" / "size_exceptions.txt")
    needed, found = set(), []
    for folder in FOLDERS:
        for file in sorted((root / folder).rglob("*")):
            if file.suffix not in CPP | {".py"} or not file.is_file():
                continue
            path = file.relative_to(root).as_posix()
            text = file.read_text(errors="replace")
            lines = text.count("\n")
            limit = HEADER if file.suffix in HEADERS else SOURCE
            if lines > limit:
                needed.add(path)
                limit = allowed.get(path, (limit, ""))[0]
            if lines > limit:
                found.append(f"{path}: {lines} lines, at most {limit}")
            functions = cpp_functions(text) if file.suffix in CPP else python_functions(text)
            for first, length in functions:
                if length > FUNCTION:
                    found.append(f"{path}:{first}: a function of {length} lines, at most {FUNCTION}")
    found += [f"tools/size_exceptions.txt: {path} needs no exception"
              for path in sorted(set(allowed) - needed)]
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

#!/usr/bin/env python3
"""Runs the commands of README.md and of the guide (reports/guide), and compares what they print with what stands there.

In a block opened with ```console a line "$ COMMAND" is run with `sh` ("> MORE" continues it), README's from the project
root, a page's of the guide in an empty folder with `plimsoll` on the PATH; the lines below it are its output; a line "…" stands for any number of lines. `tools/test` is not run again: its last line
is taken from PLIMSOLL_TEST_SUMMARY, and only the words are compared.

usage: check_readme.py [FILE…]            compare; exit status 1 where something differs
       check_readme.py --update [FILE…]   write the true output into the files (not where "…" stands)
"""
import difflib
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "reports" / "guide").glob("*.md"))]


def steps(text):
    """[(command, output lines, first line, last line)] of all console blocks, lines from 0."""
    found, inside, current = [], False, None
    for number, line in enumerate(text.split("\n")):
        if not inside:
            inside = line == "```console"
        elif line == "```":
            inside, current = False, None
        elif line.startswith("$ "):
            current = [line[2:], [], number + 1, number + 1]
            found.append(current)
        elif current is not None and line.startswith("> ") and not current[1]:
            current[0] += "\n" + line[2:]
            current[2] = current[3] = number + 1
        elif current is not None:
            current[1].append(line)
            current[3] = number + 1
    return found


def run(command, folder):
    environment = dict(os.environ, NO_COLOR="1", LC_ALL="C.UTF-8", COLUMNS="80",
                       PATH=f"{ROOT / 'tools'}{os.pathsep}{os.environ['PATH']}")
    result = subprocess.run(["sh", "-c", command], cwd=folder, env=environment,
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, timeout=300)
    return result.stdout.rstrip("\n").split("\n"), result


def matches(expected, actual):
    """Whether the lines are equal, "…" standing for any lines."""
    if not expected:
        return not actual
    if expected[0] == "…":
        return any(matches(expected[1:], actual[i:]) for i in range(len(actual) + 1))
    return bool(actual) and expected[0] == actual[0] and matches(expected[1:], actual[1:])


def actual_output(command, folder):
    if command.split()[0] == "tools/test":
        return [os.environ.get("PLIMSOLL_TEST_SUMMARY", "")]
    lines, result = run(command, folder)
    if result.returncode not in (0, 1):  # 1 is an answer: "does not fit"
        lines.append(f"(exit status {result.returncode}) {result.stderr.strip()}")
    return lines


def without_numbers(lines):
    return [re.sub(r"\d+", "N", line) for line in lines if line != "…"]


def difference(command, expected, name, folder):
    actual = actual_output(command, folder)
    if actual == [""] and not expected:  # nothing is printed, and nothing stands there
        actual = []
    if command.split()[0] == "tools/test":
        same = actual == [""] or without_numbers(expected)[-1:] == without_numbers(actual)
    else:
        same = matches(expected, actual)
    if same:
        return None, actual
    return "\n".join(difflib.unified_diff(expected, actual, name, command, lineterm="")), actual


def check_page(page, update):
    """(commands, those that differ) of one file."""
    name = str(page.relative_to(ROOT)) if page.is_relative_to(ROOT) else page.name
    text = page.read_text(encoding="utf-8")
    lines, found = text.split("\n"), steps(text)
    edits = []
    with tempfile.TemporaryDirectory() as own:
        folder = ROOT if page == README else own
        for command, expected, first, last in found:  # in their order: one may need another's files
            why, actual = difference(command, expected, name, folder)
            if why is None:
                continue
            edits.append((first, last, actual) if "…" not in expected else None)
            if not update:
                print(f"{name}: `{command}` prints something else:\n{why}")
    if update:
        for first, last, actual in reversed([edit for edit in edits if edit]):
            lines[first:last] = actual
        page.write_text("\n".join(lines), encoding="utf-8")
    return len(found), len(edits)


def main(arguments):
    update = "--update" in arguments
    pages = [pathlib.Path(a).resolve() for a in arguments if a != "--update"] or PAGES
    counts = [check_page(page, update) for page in pages]
    commands, bad = (sum(column) for column in zip(*counts))
    if commands == 0:
        print(f"{pages[0].name} shows no command in a ```console block")
        return 1
    if update:
        return 0
    print(f"{commands} commands of README.md and the guide, {bad} differ"
          + (" (tools/check_readme.py --update writes what they print)" if bad else ""))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

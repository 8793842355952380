#!/usr/bin/env python3
"""The checks of the house find what they are there to find."""
import contextlib
import io
import pathlib
import re
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
sys.dont_write_bytecode = True

import check_includes  # noqa: E402
import check_readme  # noqa: E402
import check_sizes  # noqa: E402
import check_tests  # noqa: E402
import count_tests  # noqa: E402
import sanitize  # noqa: E402


class Tree(unittest.TestCase):
    """A project in a temporary folder, with the files that a test writes."""

    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.root = pathlib.Path(holder.name)

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


class Documents(unittest.TestCase):
    """What is committed was made on some machine, and names none of its folders."""

    def test_no_committed_document_names_an_absolute_path(self):
        absolute = re.compile(r'"(?:name|source|path|file)": ?"/')
        found = [str(path.relative_to(ROOT))
                 for folder in ("tests", "reports", "models")
                 for path in sorted((ROOT / folder).rglob("*.json"))
                 if absolute.search(path.read_text(encoding="utf-8", errors="replace"))]
        self.assertEqual(found, [])


class Stacks(unittest.TestCase):
    """Outside planner/stacks the planner asks for facts (planner/stacks/stack_info.h)."""

    def test_nothing_else_in_the_planner_asks_which_stack_it_is(self):
        asks = re.compile(r"\bStack::\w|\"(pytorch|deepspeed|plimsoll)\"")
        found = [f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
                 for path in sorted((ROOT / "planner").rglob("*.*"))
                 if path.suffix in {".h", ".cpp"} and "stacks" not in path.parts
                 for number, line in enumerate(path.read_text().splitlines(), 1)
                 if asks.search(line.split("//")[0])]
        self.assertEqual(found, [])


class Includes(Tree):
    def complaints(self, path, line):
        for header in ("models/a.h", "planner/b.h", "reports/record.h", "reports/plan_json.h",
                       "models/base/c.h", "models/step_program.h"):
            self.write(header, "#pragma once\n")
        self.write(path, line + "\n")
        return check_includes.complaints(self.root)

    def test_what_the_picture_allows_passes(self):
        self.assertEqual(self.complaints("planner/x.cpp", '#include "models/a.h"'), [])
        self.assertEqual(self.complaints("planner/x.cpp", '#include "reports/record.h"'), [])
        self.assertEqual(self.complaints("planner/x.cpp", "#include <vector>"), [])
        self.assertEqual(self.complaints("models/config_reader.cpp",
                                         "#include <nlohmann/json.hpp>"), [])
        self.assertEqual(self.complaints("tools/cli/command_line.cpp", "#include <CLI/CLI.hpp>"), [])

    def test_each_forbidden_arrow_is_named_with_its_line(self):
        for path, line in [
                ("models/base/x.h", '#include "models/a.h"'),
                ("models/x.h", '#include "planner/b.h"'),
                ("reports/x.h", '#include "planner/b.h"'),
                ("planner/x.h", '#include "reports/plan_json.h"'),
                ("planner/x.cpp", "#include <nlohmann/json.hpp>"),
                ("planner/x.cpp", "#include <cuda_runtime.h>"),
                ("models/x.cpp", "#  include <mpi.h>"),
                ("tools/cli/x.cpp", "#include <CLI/CLI.hpp>"),
                ("runtime/modules/x.cpp", '#include "models/step_program.h"'),
                ("runtime/modules/x.cpp", '#include "planner/b.h"'),
                ("models/x.cpp", "#include <boost/any.hpp>"),
                ("models/x.cpp", '#include "models/gone.h"')]:
            with self.subTest(path=path, line=line):
                found = self.complaints(path, line)
                self.assertEqual(len(found), 1, found)
                self.assertTrue(found[0].startswith(f"{path}:1: "), found)
                (self.root / path).unlink()

    def test_this_project_passes(self):
        self.assertEqual(check_includes.complaints(ROOT), [])
        self.assertEqual(check_includes.named_twice(ROOT), [])

    def test_a_name_of_a_namespace_has_one_header(self):
        self.write("models/a.h", "namespace x {\nstruct A {\n};\nstruct B;\nenum class C : int { c };\n}\n")
        self.write("models/b.h", "namespace x {\nstruct B {\n  struct A {};\n};\nclass A;\n}\n")
        self.write("models/c.h", "namespace y {\nstruct A {\n};\n}\n")
        self.assertEqual(check_includes.named_twice(self.root), [])
        self.write("reports/d.h", "namespace x {\nclass A final : B {\n};\n}\n")
        self.assertEqual(check_includes.named_twice(self.root), ["reports/d.h: x::A is in models/a.h too"])


class Sizes(Tree):
    def function(self, lines):
        return "int f() {\n" + "  work();\n" * (lines - 2) + "}\n"

    def test_limits_are_sharp(self):
        self.write("models/a.h", "\n" * 150)
        self.write("models/a.cpp", "\n" * 320 + self.function(80))
        self.assertEqual(check_sizes.complaints(self.root), [])
        self.write("models/a.h", "\n" * 151)
        self.write("models/a.cpp", self.function(81))
        self.write("models/b.cpp", "\n" * 401)
        self.assertEqual(check_sizes.complaints(self.root), [
            "models/a.cpp:1: a function of 81 lines, at most 80",
            "models/a.h: 151 lines, at most 150",
            "models/b.cpp: 401 lines, at most 400"])

    def test_functions_are_told_from_classes_tables_and_namespaces(self):
        text = ("namespace a {\nclass B : public C<int> {\n" + "  int f() const { return 1; }\n" * 90
                + "};\nconstexpr int kTable[] = {\n" + "  1,\n" * 90 + "};\n"
                + 'const char* s = "int f() {";  // int g() {\n'
                + "template <class T>\nB::B(int x) : y_(x) {\n" + "  {\n  }\n" * 45 + "}\n}\n")
        self.assertEqual([n for _, n in check_sizes.cpp_functions(text) if n > 1], [92])

    def test_an_exception_must_be_needed(self):
        self.write("models/b.cpp", "\n" * 401)
        self.write("tools/size_exceptions.txt", "models/b.cpp 500 a table\nmodels/c.cpp 500 gone\n")
        self.assertEqual(check_sizes.complaints(self.root),
                         ["tools/size_exceptions.txt: models/c.cpp needs no exception"])

    def test_this_project_passes(self):
        self.assertEqual(check_sizes.complaints(ROOT), [])


class Tolerances(Tree):
    def test_approx_is_refused_with_its_line(self):
        self.write("tests/a/x.cpp", "// like doctest's Approx\nCHECK(a == doctest::Approx(1e-6));\n")
        self.write("tests/b.h", "using doctest::Approx;\nCHECK(a == Approx (b).epsilon(0.1));\n")
        found = check_tests.complaints(self.root)
        self.assertEqual([line.split(": ")[0] for line in found], ["tests/a/x.cpp:2", "tests/b.h:2"])

    def test_this_project_passes(self):
        self.assertEqual(check_tests.complaints(ROOT), [])


class Sanitized(unittest.TestCase):
    def test_what_is_asked_for_races_is_a_test(self):
        known = {name for path in (ROOT / "tests").rglob("meson.build")
                 for name in re.findall(r"^ *test\('([^']+)'", path.read_text(), re.MULTILINE)}
        self.assertEqual(set(sanitize.THREADED) - known, set())

    def test_what_is_let_pass_has_its_reason(self):
        lines = sanitize.SUPPRESSED.read_text().splitlines()
        for before, line in zip(["", *lines], lines):
            if line and not line.startswith("#"):
                self.assertTrue(before.startswith("#"), line)


class Counts(unittest.TestCase):
    def counts(self, result, out="", err=""):
        return count_tests.counts({"name": "x", "result": result, "stdout": out, "stderr": err})

    def test_doctest_cases_are_counted(self):
        text = "[doctest] test cases: 12 | 10 passed | 2 failed | 3 skipped\n"
        self.assertEqual(self.counts("FAIL", text), (10, 2, 3))

    def test_unittest_cases_are_counted(self):
        self.assertEqual(self.counts("OK", err="Ran 7 tests in 0.1s\n\nOK (skipped=2)\n"), (5, 0, 2))
        self.assertEqual(self.counts("FAIL", err="Ran 7 tests in 0.1s\n\nFAILED (failures=1, "
                                     "errors=2)\n"), (4, 3, 0))

    def test_a_crash_is_a_failure_whatever_was_counted_before(self):
        self.assertEqual(self.counts("FAIL"), (0, 1, 0))
        self.assertEqual(self.counts("TIMEOUT", "[doctest] test cases: 1 | 1 passed | 0 failed | "
                                     "0 skipped\n"), (1, 1, 0))

    def test_exit_77_is_a_skip(self):
        self.assertEqual(self.counts("SKIP", "no GPU here"), (0, 0, 1))


class Readme(unittest.TestCase):
    def test_commands_and_outputs_are_found_in_console_blocks_only(self):
        text = "```sh\n$ not this\n```\n```console\n$ one\nout\n$ two\n```\n"
        self.assertEqual([(s[0], s[1]) for s in check_readme.steps(text)],
                         [("one", ["out"]), ("two", [])])

    def test_a_command_of_several_lines_is_one(self):
        (command, output, first, last), = check_readme.steps("```console\n$ cat <<E\n> a\n> E\na\n> b\n```\n")
        self.assertEqual((command, output), ("cat <<E\na\nE", ["a", "> b"]))
        self.assertEqual((first, last), (4, 6))

    def test_every_page_of_the_guide_is_checked_and_linked(self):
        guide = ROOT / "reports" / "guide"
        index = (guide / "README.md").read_text()
        for page in guide.glob("*.md"):
            self.assertIn(page, check_readme.PAGES)
            if page.name != "README.md":
                self.assertIn(f"({page.name})", index)
                self.assertTrue(check_readme.steps(page.read_text()), page)

    def test_a_page_that_says_something_else_is_found_and_mended(self):
        with tempfile.TemporaryDirectory() as folder:
            page = pathlib.Path(folder) / "page.md"
            page.write_text("```console\n$ echo one > file\n$ cat file\ntwo\n$ echo a; echo b\n…\nb\n```\n")
            with contextlib.redirect_stdout(io.StringIO()) as said:
                self.assertEqual(check_readme.main([str(page)]), 1)
            self.assertIn("-two\n+one", said.getvalue())
            check_readme.main(["--update", str(page)])
            self.assertEqual(check_readme.main([str(page)]), 0)
            self.assertIn("$ cat file\none\n$ echo a", page.read_text())

    def test_dots_stand_for_any_lines_and_nothing_else_does(self):
        self.assertTrue(check_readme.matches(["a", "…", "d"], ["a", "b", "c", "d"]))
        self.assertTrue(check_readme.matches(["a", "…"], ["a"]))
        self.assertFalse(check_readme.matches(["a", "…", "d"], ["a", "b"]))
        self.assertFalse(check_readme.matches(["a"], ["a", "b"]))


if __name__ == "__main__":
    unittest.main()

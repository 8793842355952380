"""tools/mutate: which faults it finds to put in, and what its page says."""
import ast
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import types
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import mutant_build  # noqa: E402
import mutant_reach  # noqa: E402
import mutants  # noqa: E402
import mutation_page  # noqa: E402

SOURCE = '''#include <a>  // 1 + 2
int sum(const std::vector<int>& values) {
  int sum = 0;
  for (int i = 0; i < size(values); ++i) sum += values[i] * 3;
  if (sum > 7 && !done("a < b")) return 1;
  note(sum, [&] { count(2); });
  return sum == 4 ? left(sum) : right;
}
'''


# Doctest programs that no folder's sources can be held against, and why.
UNCLAIMED = {
    "gpu_test": "a GPU", "cuda_exact_test": "a GPU", "cuda_gemms_test": "sources of CUDA", "cuda_twins_test": "a GPU",
    "cudnn_test": "sources of CUDA", "emulated_twins_test": "sources of CUDA", "races_test": "sources of CUDA",
    "mpi_test": "several processes", "witness_mpi_test": "several processes", "fuzz_test": "claims no value",
    "drawn_test": "takes minutes", "allocation_test": "takes minutes", "run_allocation_test": "takes minutes",
    "goldens_test": "the reader of its own golden files"}


class TestClaims(unittest.TestCase):
    def test_every_program_of_tests_answers_for_a_folder(self):
        tree = ast.parse((ROOT / "tools" / "mutate").read_text())
        claims = next(ast.literal_eval(node.value) for node in tree.body
                      if isinstance(node, ast.Assign) and node.targets[0].id == "CLAIMS")
        claimed = {name.rpartition("/")[2] for row in claims.values() for name in row}
        built = {name for path in (ROOT / "tests").glob("*/meson.build")
                 for name in re.findall(r"executable\(\s*'(\w+_test)'", path.read_text())}
        self.assertEqual(built - claimed, set(UNCLAIMED))
        for row in claims.values():
            for name in row:
                self.assertTrue(name.partition("/")[2] in built or (ROOT / f"tests/python/{name}.py").exists(), name)


class TestMutants(unittest.TestCase):
    def found(self, kind):
        return {m.shown(SOURCE)[1] for m in mutants.sites("a.cpp", SOURCE) if m.kind == kind}

    def test_assertions_are_left_alone(self):
        text = "void f() {\n  check(a < 1, ErrorKind::internal, [&] { return b + 2; });\n  check(c < 3, ErrorKind::io, g);\n}\n"
        touched = {text[m.begin:m.end].strip() for m in mutants.sites("f.cpp", text)}
        self.assertEqual(touched, {"<", "3", "check(c < 3, ErrorKind::io, g);"})

    def test_operators_are_exchanged_outside_of_comments_and_text(self):
        self.assertEqual(self.found("operator"), {
            "for (int i = 0; i <= size(values); ++i) sum += values[i] * 3;",
            "for (int i = 0; i < size(values); ++i) sum -= values[i] * 3;",
            "for (int i = 0; i < size(values); ++i) sum += values[i] / 3;",
            'if (sum >= 7 && !done("a < b")) return 1;', 'if (sum > 7 || !done("a < b")) return 1;',
            'if (sum > 7 && done("a < b")) return 1;', "return sum != 4 ? left(sum) : right;"})

    def test_constants_go_up_and_down(self):
        found = self.found("constant")
        self.assertIn("int sum = 1;", found)
        self.assertIn('if (sum > 8 && !done("a < b")) return 1;', found)
        self.assertIn('if (sum > 6 && !done("a < b")) return 1;', found)
        self.assertEqual(len(found), 1 + 1 + 2 + 4 + 2 + 2)

    def test_statements_are_dropped_and_declarations_are_not(self):
        self.assertEqual(self.found("statement"), {
            "for (int i = 0; i < size(values); ++i) {}", 'if (sum > 7 && !done("a < b")) {}', "{}",
            "note(sum, [&] { {} });"})

    def test_branches_are_swapped(self):
        self.assertEqual(self.found("branch"), {
            'if (!(sum > 7 && !done("a < b"))) return 1;', "return sum == 4 ? right : left(sum);"})

    def test_the_same_seed_draws_the_same_and_kinds_take_turns(self):
        faults = list(mutants.sites("a.cpp", SOURCE))
        once = list(mutants.drawn(faults, random.Random("1 a")))
        self.assertEqual(once, list(mutants.drawn(faults, random.Random("1 a"))))
        self.assertEqual([m.kind for m in once[:4]], list(mutants.KINDS))
        self.assertEqual(sorted(m.begin for m in once), sorted(m.begin for m in faults))

    def test_every_fault_of_the_project_changes_its_file(self):
        for path in sorted((ROOT / "planner" / "search").glob("*.cpp")):
            text = path.read_text()
            for fault in mutants.sites(path.name, text):
                self.assertNotEqual(fault.apply(text), text, (path.name, fault))


class TestReach(unittest.TestCase):
    TEXT = """#include <a>
constexpr int table[] = {1, 2};
struct A { int b = 3; };
int f(int x) const {
  switch (x) {
    case 4: return 5;
  }
  for (int i = 6; i < x; ++i) { g(7, [&] { return 8; }); }
  const int list[] = {9};
  if (x) return 10; else { h(11); }
  return "{".size() + 12;
}
"""

    def call_before(self, number):
        """The line that has the call for a number, and what stands behind the call there."""
        at = self.TEXT.index(str(number))
        fault = mutants.Mutant("a.cpp", at, at + 1, "0", "constant")
        text, numbers = mutant_reach.marked(self.TEXT, [(number, fault)])
        if not numbers:
            return None
        before, _, after = text.removeprefix(mutant_reach.DECLARATION).partition(f" plimsoll_reached({number});")
        self.assertEqual(before + after, self.TEXT)
        return before.splitlines()[-1].strip(), after.splitlines()[0].strip()

    def test_a_call_stands_at_the_beginning_of_the_block_around_a_fault(self):
        function = ("int f(int x) const {", "")
        self.assertEqual(self.call_before(6), function)
        self.assertEqual(self.call_before(9), function)
        self.assertEqual(self.call_before(10), function)
        self.assertEqual(self.call_before(12), function)
        self.assertEqual(self.call_before(7)[1], "g(7, [&] { return 8; }); }")
        self.assertEqual(self.call_before(8)[1], "return 8; }); }")
        self.assertEqual(self.call_before(11)[1], "h(11); }")

    def test_in_front_of_a_first_case_nothing_runs_and_a_table_has_no_block(self):
        self.assertEqual(self.call_before(5), ("int f(int x) const {", ""))
        self.assertIsNone(self.call_before(1))
        self.assertIsNone(self.call_before(3))

    def test_several_faults_each_have_their_call(self):
        faults = [(n, mutants.Mutant("a.cpp", self.TEXT.index(str(n)), 0, "", "constant")) for n in (1, 7, 8, 12)]
        text, numbers = mutant_reach.marked(self.TEXT, faults)
        self.assertEqual(numbers, {7, 8, 12})
        self.assertIn("\n#include <a>\n", text)
        for number in numbers:
            self.assertEqual(text.count(f"plimsoll_reached({number});"), 1)

    @unittest.skipUnless(shutil.which("c++"), "no C++ compiler here")
    def test_a_program_notes_what_it_came_to(self):
        with tempfile.TemporaryDirectory() as folder:
            place = pathlib.Path(folder)
            made = mutant_build.compiled_text(place / "reach.cpp", mutant_reach.SOURCE, ran)
            (place / "main.cpp").write_text(mutant_reach.DECLARATION + "int main(int n, char**) { plimsoll_reached(3); "
                                            "if (n > 1) plimsoll_reached(70); }")
            status, said = ran(["c++", str(place / "main.cpp"), str(made), "-o", str(place / "main")], 60)
            self.assertEqual((status, said), (0, ""))
            record = mutant_reach.Record(place / "seen")
            environment = {mutant_reach.VARIABLE: str(record.path)}
            self.assertEqual(ran([place / "main"], 60, env={}), (0, ""))  # nobody asks
            self.assertEqual(record.take(), set())
            ran([place / "main"], 60, env=environment)
            self.assertEqual(record.take(), {3})
            ran([place / "main", "x"], 60, env=environment)
            self.assertEqual(record.take(), {3, 70})
            self.assertEqual(record.take(), set())

    def test_the_tests_tell_the_program_where_to_note_it(self):
        asks = ("import program, test_transcripts\n"
                "program.PLIMSOLL = 'env'\n"
                "print(program.plimsoll().stdout)\n"
                "print('-')\n"
                "with test_transcripts.tempfile.TemporaryDirectory() as folder:\n"
                "    print(test_transcripts.Session(folder).run('env'))\n")
        said = subprocess.run([sys.executable, "-c", asks], cwd=pathlib.Path(__file__).parent, text=True,
                              env={**os.environ, mutant_reach.VARIABLE: "here"}, stdout=subprocess.PIPE, check=True)
        for environment in said.stdout.split("\n-\n"):
            self.assertIn(f"{mutant_reach.VARIABLE}=here", environment.splitlines())


# Stands for a compiler, an archiver and a linker: what they make has the text of what they are given.
NINJA = """
rule made
  command = sh ../make.sh $out $in
build a.o: made ../a.cpp
build b.o: made ../b.cpp
build lib.a: made a.o b.o
build other: made b.o
build program: made main.o lib.a
build main.o: made ../main.cpp
"""
MAKE = """out=$1; shift
for word; do case $word in -*) ;; *) grep -q broken "$word" && exit 1; inputs="$inputs $word" ;; esac; done
cat $inputs >"$out"
"""


def ran(command, limit, **more):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=limit, **more)
    return done.returncode, done.stdout


@unittest.skipUnless(shutil.which("ninja"), "no ninja here")
class TestBuild(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.root = pathlib.Path(holder.name)
        self.build = self.root / "build"
        self.build.mkdir()
        for name in ("a", "b", "main"):
            (self.root / f"{name}.cpp").write_text(f"the text of {name}\n")
        (self.root / "make.sh").write_text(MAKE)
        (self.build / "build.ninja").write_text(NINJA)
        (self.build / "compile_commands.json").write_text(json.dumps(
            [{"file": f"../{n}.cpp", "output": f"{n}.o", "command": f"sh ../make.sh {n}.o ../{n}.cpp"}
             for n in ("a", "b", "main")]))
        subprocess.run(["ninja", "-C", str(self.build)], check=True, stdout=subprocess.DEVNULL)
        self.commands = mutant_build.Commands(self.root, self.build)

    def everything(self):
        return {p.name: (p.stat().st_mtime_ns, p.read_bytes()) for p in self.root.rglob("*") if p.is_file()}

    def test_a_program_is_linked_with_the_changed_source_and_comes_back_as_it_was(self):
        before = self.everything()
        with mutant_build.Altered(self.commands, {"a.cpp": "another\n"}, ran) as altered:
            self.assertTrue(altered.compiled(mutant_build.LITTLE))
            self.assertTrue(altered.links("program"))
            self.assertEqual((self.build / "program").read_text(), "the text of main\nanother\nthe text of b\n")
            self.assertFalse(altered.same_code())
        self.assertEqual(self.everything(), before)

    def test_who_has_the_source(self):
        self.assertTrue(self.commands.holds("program", "a.cpp"))
        self.assertTrue(self.commands.holds("program", "main.cpp"))
        self.assertFalse(self.commands.holds("other", "a.cpp"))
        self.assertEqual(self.commands.objects("c.cpp"), [])

    def test_what_does_not_compile_and_what_makes_no_difference(self):
        before = self.everything()
        with mutant_build.Altered(self.commands, {"a.cpp": "broken\n"}, ran) as altered:
            self.assertFalse(altered.compiled())
        with mutant_build.Altered(self.commands, {"a.cpp": "the text of a\n"}, ran) as altered:
            self.assertTrue(altered.same_code())
        self.assertEqual(self.everything(), before)

    def test_several_sources_change_together_and_one_is_given_back(self):
        before = self.everything()
        with mutant_build.Altered(self.commands, {"a.cpp": "another\n", "b.cpp": "broken\n"}, ran) as altered:
            self.assertTrue(altered.compiled((), ["a.cpp"]))
            self.assertFalse(altered.compiled((), ["b.cpp"]))
            altered.give_back("b.cpp")
            self.assertEqual((self.root / "b.cpp").read_text(), "the text of b\n")
            self.assertTrue(altered.links("program", [self.root / "main.cpp"]))
            self.assertEqual((self.build / "program").read_text(),
                             "the text of main\nanother\nthe text of b\nthe text of main\n")
        self.assertEqual(self.everything(), before)


class TestTimes(unittest.TestCase):
    def test_tests_are_timed_one_by_one_and_end_with_the_first_that_fails(self):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "some_tests.py").write_text(
                "import unittest\nclass A(unittest.TestCase):\n"
                "    def test_a(self): pass\n    def test_b(self): self.fail()\n    def test_c(self): pass\n")
            status, said = ran([sys.executable, str(ROOT / "tools/timed_unittest.py"), "some_tests"], 30, cwd=folder)
            self.assertEqual(status, 1)
            self.assertRegex(said, r"(?m)^0\.\d+ s: A\.test_a$")
            self.assertRegex(said, r"(?m)^FAIL: test_b ")
            self.assertNotIn("test_c", said)
            status, said = ran([sys.executable, str(ROOT / "tools/timed_unittest.py"), "some_tests", "A.test_c"], 30,
                               cwd=folder)
            self.assertEqual(status, 0)
            self.assertRegex(said, r"s: A\.test_c$|s: A\.test_c\n")


class TestPage(unittest.TestCase):
    def section(self, folder, *outcomes):
        fault = mutants.Mutant("a.cpp", 0, 1, "", "operator")
        verdicts = [types.SimpleNamespace(mutant=fault, line=3, shown=("a < b", "a <= b"), outcome=outcome, by="")
                    for outcome in outcomes]
        return mutation_page.Section(folder, "7", verdicts, [])

    def test_a_folder_that_is_not_tried_keeps_its_row(self):
        with tempfile.TemporaryDirectory() as folder:
            page = pathlib.Path(folder) / "page.md"
            mutation_page.write(page, [self.section("models", "survived", "killed", "killed", "uncompiled")], [])
            mutation_page.write(page, [self.section("reports", "killed", "pinned", "equivalent")], [])
            text = page.read_text()
        self.assertIn("| `models` | 7 | 3 | 2 | 0 | 1 | 0 | 66.7 % |", text)
        self.assertIn("| `reports` | 7 | 3 | 2 | 1 | 0 | 1 | 100.0 % |\n| all | | 6 | 4 | 1 | 1 | 1 | 80.0 % |", text)
        self.assertIn("a.cpp:3: `` a < b `` → `` a <= b ``", text)

    def test_what_is_judged_equivalent_is_still_there_and_says_why(self):
        for entry in json.loads((ROOT / "tests" / "mutation" / "equivalent.json").read_text()):
            text = (ROOT / entry["file"]).read_text()
            shown = {fault.shown(text) for fault in mutants.sites(entry["file"], text)}
            self.assertIn((entry["line"], entry["with"]), shown)
            self.assertGreater(len(entry["why"]), 20)


if __name__ == "__main__":
    unittest.main()

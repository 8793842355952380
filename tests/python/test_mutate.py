"""tools/mutate: which faults it finds to put in, and what its page says."""
import json
import pathlib
import random
import sys
import tempfile
import types
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
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


class TestMutants(unittest.TestCase):
    def found(self, kind):
        return {m.shown(SOURCE)[1] for m in mutants.sites("a.cpp", SOURCE) if m.kind == kind}

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
        self.assertIn("| `reports` | 7 | 3 | 2 | 1 | 0 | 1 | 100.0 % |", text)
        self.assertIn("a.cpp:3: `` a < b `` → `` a <= b ``", text)

    def test_what_is_judged_equivalent_is_still_there_and_says_why(self):
        for entry in json.loads((ROOT / "tests" / "mutation" / "equivalent.json").read_text()):
            text = (ROOT / entry["file"]).read_text()
            shown = {fault.shown(text) for fault in mutants.sites(entry["file"], text)}
            self.assertIn((entry["line"], entry["with"]), shown)
            self.assertGreater(len(entry["why"]), 20)


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""`plimsoll check`: plans against what they were."""
import json
import unittest
import xml.etree.ElementTree as xml

from case import TINY, Case
from program import plimsoll
from test_schema import SCHEMA_CHECK, complaint, jsonschema


class Check(Case):
    def plan(self, name, *words):
        config = self.write("config.json", json.dumps(TINY))
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        result = plimsoll("fit", config, "--gpu", "h100", "--quiet", "--json", path, *words)
        self.assertIn(result.returncode, (0, 1), result.stderr)
        return path

    def baseline(self, *plans):
        path = self.folder / "baseline.json"
        result = plimsoll("check", *plans, "--json", path)
        self.assertEqual(result.returncode, 0, result.stderr)
        return path

    def document(self, *words, status=0):
        result = plimsoll("check", *words, "--json", "-")
        self.assertEqual((result.returncode, result.stderr), (status, ""))
        return json.loads(result.stdout)

    def test_a_baseline_has_the_plans_own_figures(self):
        plan = self.plan("a.json")
        (row,) = json.loads(self.baseline(plan).read_text())["plans"]
        figures = json.loads(plan.read_text())
        self.assertEqual((row["name"], row["verdict"], row["before"]), ("a", "new", None))
        self.assertEqual({key: row["now"][key] for key in row["now"] if key != "fingerprint"},
                         {key: figures[key] for key in ("fits", "peak_bytes", "reserved_bytes",
                                                        "device_bytes")})

    def test_what_did_not_change_passes_and_what_grew_more_than_allowed_does_not(self):
        a, b = self.plan("a.json"), self.plan("b.json", "--seq-len", 32)
        baseline = self.baseline(a, b)
        self.assertTrue(self.document(a, b, "--against", baseline)["ok"])
        before = json.loads(b.read_text())
        now = json.loads(self.plan("b.json", "--seq-len", 64, "--micro-batch", 64).read_text())
        grown = self.document(a, b, "--against", baseline, status=1)
        self.assertEqual([row["verdict"] for row in grown["plans"]], ["within", "grew"])
        growth = max(now[key] / before[key] - 1
                     for key in ("peak_bytes", "reserved_bytes", "device_bytes"))
        self.assertAlmostEqual(grown["plans"][1]["growth"], growth)
        self.assertIn("another workload", grown["plans"][1]["text"])
        percent = 100 * growth
        for allowed, status in ((f"{percent + 0.01}%", 0), (f"{percent - 0.01} %", 1),
                                (f"{percent + 0.01}", 0)):
            self.document(a, b, "--against", baseline, "--max-growth", allowed, status=status)

    def test_what_shrank_passes(self):
        a = self.plan("a.json", "--micro-batch", 64)
        baseline = self.baseline(a)
        self.plan("a.json")
        (row,) = self.document(a, "--against", baseline)["plans"]
        self.assertEqual(row["verdict"], "within")
        self.assertLess(row["now"]["peak_bytes"], row["before"]["peak_bytes"])

    def test_a_plan_that_fits_no_longer_fails_however_little_it_grew(self):
        a = self.plan("a.json", "--gpu-memory", "80GB")
        baseline = self.baseline(a)
        self.plan("a.json", "--gpu-memory", "100MB")
        (row,) = self.document(a, "--against", baseline, "--max-growth", "50%", status=1)["plans"]
        self.assertEqual(row["verdict"], "no longer fits")

    def test_new_and_gone_plans_are_said_and_pass(self):
        a, b = self.plan("a.json"), self.plan("b.json")
        rows = self.document(b, "--against", self.baseline(a))["plans"]
        # One plan against one are compared whatever their names.
        self.assertEqual([row["verdict"] for row in rows], ["within"])
        c = self.plan("c.json")
        rows = self.document(b, c, "--against", self.baseline(a, b))["plans"]
        self.assertEqual([(row["name"], row["verdict"]) for row in rows],
                         [("b", "within"), ("c", "new"), ("a", "gone")])

    def test_one_plan_is_a_baseline_too(self):
        a, b = self.plan("a.json"), self.plan("b.json", "--micro-batch", 64)
        self.assertTrue(self.document(a, "--against", a)["ok"])
        self.assertFalse(self.document(b, "--against", a, status=1)["ok"])

    def test_a_test_report_for_other_programs(self):
        a, odd = self.plan("a.json"), self.plan('x<&".json')
        baseline = self.baseline(a, odd)
        self.plan('x<&".json', "--micro-batch", 64)
        report = self.folder / "junit.xml"
        self.assertEqual(plimsoll("check", a, odd, "--against", baseline, "--junit", report).returncode, 1)
        suite = xml.parse(report).getroot()
        self.assertEqual((suite.get("tests"), suite.get("failures")), ("2", "1"))
        cases = {case.get("name"): case for case in suite}
        self.assertIsNone(cases["a"].find("failure"))
        self.assertIn("more than 0 %", cases['x<&"'].find("failure").get("message"))

    def test_annotations_on_github(self):
        a, odd = self.plan("a.json"), self.plan("50%,a:b.json")
        baseline = self.baseline(a, odd)
        self.plan("50%,a:b.json", "--micro-batch", 64)
        words = ("check", a, odd, "--against", baseline)
        self.assertNotIn("::error", plimsoll(*words, GITHUB_ACTIONS="").stdout)
        for result in (plimsoll(*words, "--github"), plimsoll(*words, GITHUB_ACTIONS="true")):
            (line,) = [line for line in result.stdout.splitlines() if line.startswith("::")]
            # % , : are the separators of workflow commands
            self.assertIn("50%25%2Ca%3Ab.json,title=50%25%2Ca%3Ab%3A grew::", line)
            self.assertTrue(line.startswith("::error file="))

    def test_the_table_is_80_columns_wide(self):
        plans = [self.plan("a.json"), self.plan("b" * 50 + ".json")]
        baseline = self.baseline(*plans)
        self.plan("a.json", "--micro-batch", 64)
        result = plimsoll("check", *plans, "--against", baseline)
        self.assertEqual(result.returncode, 1)
        self.assertTrue(result.stdout.startswith("GREW: 1 of 2 plans, 0 % is allowed\n"), result.stdout)
        self.assertLessEqual(max(map(len, result.stdout.splitlines())), 80)

    def test_what_cannot_be_is_refused(self):
        a, states = self.plan("a.json"), self.folder / "s.json"
        plimsoll("fit", "--params", "7e9", "--gpu", "h100", "--quiet", "--json", states)
        copy = self.write("other/a.json", a.read_text())
        altered = self.write("altered.json", a.read_text().replace('"peak_bytes": ', '"peak_bytes": 1'))
        for words, parts in (((a, "--max-growth", "2%"), ("--against",)),
                             ((a, "--against", a, "--max-growth", "much"), ("--max-growth", "much")),
                             ((a, copy), ("another plan is called a",)),
                             ((states,), ("s.json", "model states")),
                             ((altered,), ("altered.json",)),
                             ((a, "--against", self.write("b.json", '{"schema": "x"}')), ("b.json", "baseline")),
                             ((a, "--against", self.write("c.json", "[]")), ("c.json",)),
                             ((a, "--against", self.folder / "none.json"), ("none.json",)),
                             ((a, "--html", "x.html"), ("--html",)),
                             ((a, "--junit", a), ("--junit",))):
            self.assert_refused(plimsoll("check", *words), *parts)

    @unittest.skipUnless(SCHEMA_CHECK or jsonschema, "neither valijson nor jsonschema is here")
    def test_its_document_is_as_its_schema_says(self):
        a, b = self.plan("a.json"), self.plan("b.json", "--micro-batch", 64)
        documents = [json.loads(self.baseline(a).read_text()), self.document(b, "--against", a, status=1),
                     self.document(b, "--against", self.baseline(a, self.plan("c.json")))]
        self.assertEqual(complaint("check", documents), "")


if __name__ == "__main__":
    unittest.main()

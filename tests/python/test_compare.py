#!/usr/bin/env python3
"""`plimsoll compare` from the command line."""
import copy
import json
import pathlib
import subprocess
import tempfile
import unittest

from program import PLIMSOLL, plimsoll
from test_schema import SCHEMA_CHECK, complaint, jsonschema

WORDS = ["--stack", "plimsoll", "--device", "cpu", "--gpus", "2", "--zero", "3", "--seq-len", "16"]


def plan_of(*words):
    return json.loads(plimsoll("fit", "gpt2", *WORDS, *words, "--json", "-").stdout)


def perfect(plan):
    """The measurement of a runtime that did exactly what the plan says."""
    ledger = {"steps": [1], "skipped": False,
              "timeline": [{key: op[key] for key in ("op", "phase", "allocated_bytes",
                                                     "high_water_bytes")}
                           for op in plan["timeline"]],
              "tensors": [{key: tensor[key] for key in ("name", "category", "bytes", "born_op",
                                                        "dies_op")}
                          for tensor in plan["tensors"]]}
    rank = {"peak_bytes": plan["peak_bytes"], "resident_bytes": plan["resident_bytes"],
            "reserved_bytes": plan["reserved_bytes"], "device_bytes": None,
            "states": plan["states"], "at_peak": plan["at_peak"], "ledgers": [ledger]}
    return {"schema": "plimsoll.measurement/1", "tool": {"name": "a test", "version": "1"},
            "kind": "cpu", "measured_at": "2026-01-01T00:00:00Z", "workload": plan["workload"],
            "environment": None, "outcome": "completed", "error": None,
            "ranks": [{"rank": r, **copy.deepcopy(rank)} for r in range(2)], "steps": [],
            "time": None}


class Compare(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.plan = plan_of("--detail")
        cls.measurement = perfect(cls.plan)
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)

    def write(self, name, document):
        text = document if isinstance(document, str) else json.dumps(document)
        (self.folder / name).write_text(text)
        return self.folder / name

    def compare(self, plan, *measurements, words=()):
        files = [self.write("plan.json", plan)]
        files += [self.write(f"measurement{i}.json", m) for i, m in enumerate(measurements)]
        return plimsoll("compare", *files, *words)

    def test_what_agrees_exits_0(self):
        result = self.compare(self.plan, self.measurement)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertTrue(result.stdout.startswith("AGREES: gpt2, stack plimsoll, 2 ranks\n"))
        self.assertLessEqual(max(map(len, result.stdout.split("\n"))), 80)
        self.assertEqual(self.compare(self.plan, self.measurement, words=["--quiet"]).stdout, "")

    def test_a_prediction_altered_by_one_byte_exits_1_and_names_the_tensor(self):
        for tensor in self.plan["tensors"][::97]:
            plan = copy.deepcopy(self.plan)
            altered = next(t for t in plan["tensors"]
                           if (t["name"], t["born_op"]) == (tensor["name"], tensor["born_op"]))
            altered["bytes"] += 1
            result = self.compare(plan, self.measurement, words=["--json", "-"])
            self.assertEqual(result.returncode, 1)
            document = json.loads(result.stdout)
            self.assertIn(tensor["name"], document["first_difference"])
            self.assertIn(f"{tensor['bytes']:,} B measured", document["first_difference"])
            self.assertEqual(document["differences"][0]["tensor"], tensor["name"])
            self.assertEqual(document["differences"][0]["difference_bytes"], -1)

    def test_an_altered_total_is_named(self):
        for key, name in (("peak_bytes", "peak"), ("resident_bytes", "between steps"),
                          ("reserved_bytes", "reserved")):
            measurement = copy.deepcopy(self.measurement)
            measurement["ranks"][1][key] += 256
            result = self.compare(self.plan, measurement)
            self.assertEqual(result.returncode, 1)
            self.assertIn(f"rank 1, {name}: ", result.stdout)

    def test_other_workloads_are_refused_with_the_keys_that_differ(self):
        result = self.compare(plan_of("--grad-accum", "2"), self.measurement)
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertIn("batch.grad_accum (2 predicted, 1 measured)", result.stderr)

    def test_without_detail_categories_are_compared_and_it_is_said(self):
        result = self.compare(plan_of(), self.measurement)
        self.assertEqual(result.returncode, 0)
        self.assertIn("has no detail (fit --detail)", " ".join(result.stdout.split()))

    def test_a_missing_rank_disagrees(self):
        measurement = {**self.measurement, "ranks": self.measurement["ranks"][:1]}
        result = self.compare(self.plan, measurement)
        self.assertEqual(result.returncode, 1)
        self.assertIn("rank 1: predicted, and not measured", result.stdout)

    def test_what_is_no_measurement_is_refused(self):
        whole = json.dumps(self.measurement)
        for text, part in ((whole[:len(whole) // 2], "not JSON"), ("", "not JSON"),
                           (whole.replace('"peak_bytes": ', '"peak_bytes": NaN, "x": ', 1),
                            "not JSON"),
                           (json.dumps(self.plan), "plimsoll.measurement/1 is needed")):
            result = self.compare(self.plan, text)
            self.assertEqual((result.returncode, result.stdout), (2, ""))
            self.assertIn(part, result.stderr)
            self.assertIn("measurement0.json", result.stderr)
        self.assertEqual(plimsoll("compare").returncode, 2)
        self.assertEqual(plimsoll("compare", self.folder / "plan.json").returncode, 2)
        self.assertEqual(plimsoll("compare", "/nonexistent", "/nonexistent").returncode, 2)
        self.assertEqual(plimsoll("compare", "-", "-").returncode, 2)

    def test_a_full_disk_is_a_failure(self):
        result = self.compare(self.plan, self.measurement, words=["--json", "/dev/full"])
        self.assertEqual(result.returncode, 3)
        self.assertIn("/dev/full", result.stderr)

    def test_the_prediction_may_come_from_a_pipe(self):
        path = self.write("measurement.json", self.measurement)
        result = subprocess.run([PLIMSOLL, "compare", "-", path], input=json.dumps(self.plan),
                                text=True, capture_output=True, timeout=60)
        self.assertEqual(result.returncode, 0, result.stderr)

    @unittest.skipUnless(SCHEMA_CHECK or jsonschema, "neither valijson nor jsonschema is here")
    def test_documents_validate(self):
        altered = copy.deepcopy(self.measurement)
        altered["ranks"][0]["ledgers"][0]["tensors"][5]["bytes"] -= 1
        self.assertEqual(complaint("measurement", [self.measurement, altered]), "")
        documents = [json.loads(self.compare(self.plan, *m, words=["--json", "-"]).stdout)
                     for m in ([self.measurement], [altered], [self.measurement, altered])]
        self.assertEqual([d["agrees"] for d in documents], [True, False, False])
        self.assertEqual([c["agrees"] for c in documents[2]["comparisons"]], [True, False])
        self.assertEqual(complaint("comparison", documents), "")
        del documents[0]["levels"]
        self.assertNotEqual(complaint("comparison", documents[:1]), "")


if __name__ == "__main__":
    unittest.main()

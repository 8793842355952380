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


# What stands for itself: no other figure of the document says it too.
FREE = ({("workload", "model"), ("environment",), ("model",), ("host",), ("high_end",),
         ("flops",), ("communication",), ("time",), ("timeline",), ("tensors",), ("remedies",),
         ("assumptions",), ("calibration",), ("ranks", 0, "pipeline_stage")},
        {("workload", "model"), ("ranks", 0, "ledgers"), ("ranks", 1)})


def figures(value, path=()):
    """(path, number) of all numbers in a document."""
    if isinstance(value, (dict, list)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from figures(item, (*path, key))
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield path, value


def put(document, path, value):
    for key in path[:-1]:
        document = document[key]
    document[path[-1]] = value


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

    def test_other_reserved_bytes_are_named(self):
        measurement = copy.deepcopy(self.measurement)
        measurement["ranks"][1]["reserved_bytes"] += 256
        result = self.compare(self.plan, measurement)
        self.assertEqual(result.returncode, 1)
        self.assertIn("rank 1, reserved: ", result.stdout)

    def refused(self, plan, measurement, *parts):
        result = self.compare(plan, measurement)
        self.assertEqual((result.returncode, result.stdout), (2, ""), parts)
        for part in parts:
            self.assertIn(part, result.stderr)

    def test_what_was_not_compared_does_not_agree(self):
        for name, value in (("ranks", []), ("ranks", None)):
            self.refused(self.plan, {**self.measurement, name: value}, "measurement0.json: ", name)
        for key in ("peak_bytes", "resident_bytes", "reserved_bytes", "at_peak", "states"):
            measurement = copy.deepcopy(self.measurement)
            for rank in measurement["ranks"]:
                rank["ledgers"] = []
            measurement["ranks"][0][key] = None
            self.refused(self.plan, measurement, "nothing to compare: rank 0 has no ")
            del measurement["ranks"][0][key]
            self.refused(self.plan, measurement, f"ranks[0].{key} is missing")
        # Of stacks that are estimated no rank need be there.
        plan = json.loads(plimsoll("fit", "gpt2", "--gpu", "h100", "--json", "-").stdout)
        rank = dict.fromkeys(("peak_bytes", "resident_bytes", "reserved_bytes", "device_bytes",
                              "states", "at_peak"))
        self.refused(plan, {**self.measurement, "workload": plan["workload"],
                            "ranks": [{"rank": 0, **rank}]}, "nothing to compare: rank 0 has no peak")

    def test_the_fingerprint_is_computed_again(self):
        for part, key, value in (("batch", "seq_len", 17), ("strategy", "zero", 2),
                                 ("stack", "device", "cuda"), ("strategy", "offload_to", "nvme")):
            for first, second in ((True, True), (True, False), (False, True)):
                documents = [copy.deepcopy(self.plan), copy.deepcopy(self.measurement)]
                for document, alter in zip(documents, (first, second)):
                    if alter:
                        document["workload"][part][key] = value
                self.refused(*documents, "workload.fingerprint is ", "is expected")
        plan = copy.deepcopy(self.plan)
        plan["workload"]["batch"]["seq_len"] = -5
        self.refused(plan, self.measurement, "plan.json: workload.batch.seq_len is -5")

    def test_each_figure_that_is_altered_turns_the_verdict(self):
        for which, document in enumerate((self.plan, self.measurement)):
            for path, value in figures(document):
                if any(path[:len(free)] == free for free in FREE[which]):
                    continue
                more = value + 1 if isinstance(value, int) else value * 1.5 + 1e-3
                wild = (None, "x", 1 << 63, [], 1e300) if path[0].endswith("_bytes") else ()
                for other in (more, -5, *wild):
                    documents = [copy.deepcopy(self.plan), copy.deepcopy(self.measurement)]
                    put(documents[which], path, other)
                    result = self.compare(*documents)
                    self.assertIn(result.returncode, (1, 2), (which, path, other))
                    if result.returncode == 2:
                        name = "measurement0.json" if which else "plan.json"
                        self.assertIn(name + ": ", result.stderr, (path, other))
                        self.assertNotIn("AGREES", result.stdout)

    def test_a_sum_beyond_63_bits_names_the_file(self):
        measurement = copy.deepcopy(self.measurement)
        measurement["ranks"][0]["at_peak"]["logits_bytes"] = (1 << 63) - 1
        self.refused(self.plan, measurement, "measurement0.json: overflow: ")

    def test_an_outcome_that_its_steps_contradict_is_refused(self):
        step = {"step": 1, "loss": 5.5, "seconds": None, "skipped": False}
        own = {**self.measurement, "tool": {"name": "plimsoll-run", "version": "1"}}
        self.assertEqual(self.compare(self.plan, {**own, "steps": [step]}).returncode, 0)
        self.refused(self.plan, {**own, "steps": [{**step, "loss": None}]}, "steps[0].loss is null")
        self.refused(self.plan, {**own, "steps": [{**step, "skipped": True}]}, "was skipped")

    def test_texts_from_hostile_hands_are_refused(self):
        whole = json.dumps(self.plan)
        for text in ("\0" + whole, whole[:-1], whole + "}", "[" * 100000, '{"a":' * 100000,
                     "null", "7", '"plimsoll.plan/1"', whole.replace("{", '{"schema": 1, ', 1),
                     whole.replace('"ranks": [', '"ranks": [[], ', 1),
                     whole.replace('"peak_bytes"', '"peak_bytes": 5, "peak_bytes"', 1),
                     whole.replace('"peak_bytes": ', '"peak_bytes": 1e400, "x": ', 1),
                     whole.replace('"peak_bytes": ', '"peak_bytes": "NaN", "x": ', 1)):
            self.refused(text, self.measurement, "plan.json: ")
        result = self.compare("\ufeff" + whole, self.measurement)  # a byte order mark is none
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_a_run_that_did_not_train_does_not_agree(self):
        for outcome in ("diverged", "not_stepped"):
            measurement = {**self.measurement, "outcome": outcome, "error": {
                "kind": "training", "message": "the loss of step 1 of 3 is not finite", "step": 1,
                "phase": None, "tried_bytes": None, "live": None}}
            result = self.compare(self.plan, measurement, words=["--json", "-"])
            self.assertEqual(result.returncode, 1, result.stderr)
            document = json.loads(result.stdout)
            self.assertEqual((document["agrees"], document["outcome"]), (False, outcome))
            self.assertEqual(document["levels"]["requested"]["verdict"], "exact")
            self.assertEqual(complaint("comparison", [document]), "")
            result = self.compare(self.plan, measurement)
            self.assertTrue(result.stdout.startswith("NOT TRAINED: gpt2"), result.stdout)
            self.assertIn("the loss of step 1 of 3 is not finite", result.stdout)
        self.refused(self.plan, {**measurement, "outcome": "completed"}, "outcome is ")

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

#!/usr/bin/env python3
"""From measured runs to a calibrated plan: tools/evidence fit, `fit --calibration`, and what a
comparison says of the evidence that its plan was fitted on. The runs are made up, so that every
figure is known by hand; no GPU is needed."""
import importlib.machinery
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

from program import ROOT, plimsoll
import test_schema

MIB = 1 << 20
PROGRAM = ROOT / "tools" / "evidence"
LOADER = importlib.machinery.SourceFileLoader("evidence", str(PROGRAM))
evidence = importlib.util.module_from_spec(importlib.util.spec_from_loader("evidence", LOADER))
with mock.patch.object(sys, "dont_write_bytecode", True):
    LOADER.exec_module(evidence)

# name, micro-batch (another workload each), role, MiB of context and of libraries
RUNS = [("one", 1, "fit", 500, 100), ("two", 2, "fit", 500, 120), ("three", 3, "judge", 500, 117)]
# The middle of 100 and 120 is 110; the largest distance from it is 10, of the judged one 7.
CONTEXT, LIBRARIES, DEVIATION = 500 * MIB, 110 * MIB, 10 * MIB


def words(batch, *more):
    return ["gpt2", "--stack", "plimsoll", "--gpu", "h200", "--seq-len", "128", "--micro-batch",
            batch, *more]


def plan_of(batch, *more):
    done = plimsoll("fit", *words(batch, *more), "--json", "-")
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout)


def measurement_of(plan, context, libraries, driver="580.95.05"):
    reserved = plan["reserved_bytes"]
    used = reserved + (context + libraries) * MIB
    rank = {"rank": 0, **{k: plan[k] for k in ("peak_bytes", "resident_bytes", "reserved_bytes",
                                               "states", "at_peak")},
            "device_bytes": used, "driver": [
                {"after": "context", "used_bytes": context * MIB, "reserved_bytes": 0},
                {"after": "libraries", "used_bytes": (context + 60) * MIB, "reserved_bytes": 0},
                {"after": "steps", "used_bytes": used, "reserved_bytes": reserved}]}
    return {"schema": "plimsoll.measurement/1",
            "tool": {"name": "plimsoll-run", "version": "0", "commit": "0"}, "kind": "gpu", "measured_at": "2026-01-31T12:00:00Z",
            "workload": plan["workload"], "environment": {
                "device": {"name": "NVIDIA H200", "capacity_bytes": 150109880320, "driver": driver,
                           "other_processes": 0}, "versions": {"cuda_driver": "13.0"},
                "variables": {}},
            "outcome": "completed", "error": None, "ranks": [rank], "steps": [], "time": None,
            "clocks": None, "comparison": None}


def check_of(name, role, measurement, **more):
    return {"schema": "plimsoll.gpu_check/1", "kind": "gpu", "part": "memory", "item": name,
            "role": role, "measured_at": "2026-01-31T12:00:00Z", "outcome": "passed",
            "seconds": 9.0, "gpu": "NVIDIA H200", "measurement": measurement, **more}


class Calibration(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.plans = {name: plan_of(batch) for name, batch, *_ in RUNS}

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.root = self.folder / "evidence"
        self.file = self.root / "calibrated_overheads.json"

    def run_it(self, *arguments):
        return subprocess.run([sys.executable, str(PROGRAM), *map(str, arguments), "--root",
                               str(self.root)], capture_output=True, text=True, check=False)

    def checks(self):
        return [check_of(name, role, measurement_of(self.plans[name], context, libraries))
                for name, _, role, context, libraries in RUNS]

    def take_in(self, checks):
        path = self.folder / "results.jsonl"
        path.write_text("".join(json.dumps(c) + "\n" for c in checks))
        done = self.run_it("import", path)
        self.assertEqual(done.returncode, 0, done.stderr)

    def fitted(self, checks):
        self.take_in(checks)
        done = self.run_it("fit")
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(self.file.read_text())["entries"], done.stderr

    def test_figures_are_those_of_the_fitted_models_and_the_range_holds_the_others(self):
        (entry,), _ = self.fitted(self.checks())
        self.assertEqual((entry["stack"], entry["gpu"], entry["driver"]),
                         ("plimsoll", "h200-sxm-141gb", "580.95.05"))
        self.assertEqual((entry["context_bytes"], entry["libraries_bytes"],
                          entry["deviation_bytes"]), (CONTEXT, LIBRARIES, DEVIATION))
        self.assertEqual((entry["fitted"], entry["judged"]),
                         (["memory-one", "memory-two"], ["memory-three"]))
        # A judged model that is further away widens the range and moves nothing else.
        checks = self.checks()
        checks[2]["measurement"] = measurement_of(self.plans["three"], 500, 150)
        (wider,), _ = self.fitted(checks)
        self.assertEqual((wider["libraries_bytes"], wider["deviation_bytes"]),
                         (LIBRARIES, 40 * MIB))

    def test_a_plan_has_a_range_and_names_its_evidence(self):
        self.fitted(self.checks())
        plan = plan_of(4, "--calibration", self.file)
        self.assertEqual(plan["outside_allocator"], {
            "context_bytes": CONTEXT, "libraries_bytes": LIBRARIES, "nccl_bytes": 0})
        device = plan["reserved_bytes"] + CONTEXT + LIBRARIES
        self.assertEqual(plan["device_bytes"], device)
        self.assertEqual((plan["range"]["low_bytes"], plan["range"]["high_bytes"]),
                         (device - DEVIATION, device + DEVIATION))
        self.assertIn("2026-01-31-h200", plan["range"]["why"])
        calibrated = {a["what"]: a for a in plan["assumptions"] if a["basis"] == "calibrated"}
        source = calibrated["libraries and lazily loaded kernels, bytes"]["source"]
        self.assertIn("2026-01-31-h200: memory-one, memory-two; driver 580.95.05", source)
        self.assertNotIn("range of device bytes", {a["what"] for a in plan["assumptions"]})
        table = plimsoll("fit", *words(4, "--calibration", self.file)).stdout
        self.assertIn("at most", table)

    def test_between_the_ends_of_the_range_it_is_borderline(self):
        self.fitted(self.checks())
        device = plan_of(4, "--calibration", self.file)["device_bytes"]
        for more, verdict in ((-DEVIATION - 1, "does not fit"), (-DEVIATION, "borderline"),
                              (DEVIATION - 1, "borderline"), (DEVIATION, "fits")):
            plan = plan_of(4, "--calibration", self.file, "--gpu-memory", device + more)
            self.assertEqual((plan["verdict"], plan["fits"]), (verdict, verdict == "fits"), more)

    def test_other_stacks_and_other_gpus_take_nothing_from_it(self):
        self.fitted(self.checks())
        done = plimsoll("fit", "gpt2", "--stack", "pytorch", "--gpu", "h200", "--seq-len", "128",
                        "--calibration", self.file, "--json", "-")
        plan = json.loads(done.stdout)
        self.assertIsNone(plan["calibration"])
        self.assertIsNone(plan["range"])
        done = plimsoll("fit", "gpt2", "--stack", "plimsoll", "--gpu", "h100", "--calibration",
                        self.file)
        self.assertEqual(done.returncode, 2)
        self.assertIn("nothing was measured on h100-sxm-80gb; it has h200-sxm-141gb", done.stderr)

    def test_with_several_gpus_nccl_widens_the_range_by_what_is_published(self):
        self.fitted(self.checks())
        plan = plan_of(4, "--calibration", self.file, "--gpus", "8")
        own = plan["reserved_bytes"] + CONTEXT + LIBRARIES
        self.assertGreater(plan["outside_allocator"]["nccl_bytes"], 0)
        self.assertGreater(plan["range"]["low_bytes"], own - DEVIATION)
        self.assertGreater(plan["range"]["high_bytes"],
                           own + DEVIATION + plan["outside_allocator"]["nccl_bytes"])
        self.assertIn("not measured", plan["range"]["why"])

    def compared(self, name, libraries, driver="580.95.05"):
        batch = next(b for n, b, *_ in RUNS if n == name) if name in self.plans else 4
        plan = plan_of(batch, "--calibration", self.file)
        paths = self.folder / "plan.json", self.folder / "measurement.json"
        paths[0].write_text(json.dumps(plan))
        paths[1].write_text(json.dumps(measurement_of(plan, 500, libraries, driver)))
        done = plimsoll("compare", *paths, "--json", "-")
        self.assertIn(done.returncode, (0, 1), done.stderr)
        return json.loads(done.stdout)

    def test_a_comparison_says_whether_its_plan_knew_the_answer(self):
        self.fitted(self.checks())
        known = self.compared("one", 100)
        self.assertEqual((known["sample"], known["unaccounted_bytes"]), ("in-sample", -10 * MIB))
        self.assertIn("in-sample", known["levels"]["device"]["text"])
        self.assertIn("2026-01-31-h200", " ".join(known["notes"]))
        judged = self.compared("three", 117)
        self.assertEqual((judged["sample"], judged["unaccounted_bytes"]),
                         ("out-of-sample", 7 * MIB))
        self.assertIn("range was made to hold", " ".join(judged["notes"]))
        new = self.compared("four", 119)
        self.assertEqual((new["sample"], new["unaccounted_bytes"], new["agrees"]),
                         ("out-of-sample", 9 * MIB, True))
        outside = self.compared("four", 121)
        self.assertEqual((outside["levels"]["device"]["verdict"], outside["agrees"]),
                         ("differs", False))
        other = self.compared("four", 110, driver="590.10")
        self.assertIn("overheads were measured with driver 580.95.05, this run had 590.10",
                      " ".join(other["notes"]))

    @unittest.skipUnless(test_schema.SCHEMA_CHECK, "no validator")
    def test_calibrated_documents_are_of_their_schema(self):
        self.fitted(self.checks())
        plan = plan_of(1, "--calibration", self.file)
        self.assertEqual(test_schema.complaint("plan", [plan]), "")
        self.assertEqual(test_schema.complaint("measurement", [measurement_of(plan, 500, 100)]), "")
        self.assertEqual(test_schema.complaint("comparison", [self.compared("one", 100)]), "")

    def test_summary_figures_are_those_of_the_judged_models_alone(self):
        self.take_in(self.checks())
        page = (self.root / "README.md").read_text()
        device = self.plans["three"]["reserved_bytes"] + 617 * MIB
        self.assertIn("Out of sample (1): unaccounted +7 MiB at most, "
                      f"{100 * 7 * MIB / device:.2f} % of the device bytes.", page)
        self.assertRegex(page, r"`memory-one` \| in-sample \| 0.59 \| -10 \|")
        self.assertRegex(page, r"`memory-three` \| out-of-sample \| 0.60 \| \+7 \|")

    def test_without_a_model_to_judge_on_there_is_no_range(self):
        (entry,), said = self.fitted(self.checks()[:2])
        self.assertIsNone(entry["deviation_bytes"])
        self.assertIn("no other model to judge on", said)
        plan = plan_of(4, "--calibration", self.file)
        self.assertIsNone(plan["range"])
        self.assertEqual(plan["outside_allocator"]["context_bytes"], CONTEXT)

    def test_runs_that_ended_early_are_left_out_by_name(self):
        checks = self.checks()
        full = measurement_of(self.plans["one"], 500, 100)
        full.update(outcome="out_of_memory", error={"kind": "out_of_memory", "message": "x"})
        checks[0] = check_of("one", "fit", full, outcome="out_of_memory")
        (entry,), said = self.fitted(checks)
        self.assertEqual((entry["fitted"], entry["libraries_bytes"]),
                         (["memory-two"], 120 * MIB))
        self.assertIn("memory-one: left out: out_of_memory", said)
        crowded = self.checks()
        crowded[1]["measurement"]["environment"]["device"]["other_processes"] = 2
        (entry,), said = self.fitted(crowded)
        self.assertEqual(entry["fitted"], ["memory-one"])
        self.assertIn("memory-two: left out: 2 other processes", said)

    def test_nothing_to_fit_on_is_an_error(self):
        self.take_in(self.checks()[2:])
        done = self.run_it("fit")
        self.assertEqual(done.returncode, 2)
        self.assertIn("nothing to fit on", done.stderr)

    def test_drivers_are_not_mixed_and_the_newest_day_counts(self):
        mixed = self.checks()
        mixed[1]["measurement"] = measurement_of(self.plans["two"], 500, 120, "590.10")
        self.take_in(mixed)
        done = self.run_it("fit")
        self.assertEqual(done.returncode, 2)
        self.assertIn("driver is 580.95.05 and 590.10", done.stderr)

    def test_another_day_with_another_driver_takes_its_place(self):
        later = [check_of(name, role, measurement_of(self.plans[name], context, libraries + 50,
                                                     "590.10"),
                          measured_at="2026-02-01T00:00:00Z")
                 for name, _, role, context, libraries in RUNS]
        (entry,), _ = self.fitted(self.checks() + later)
        self.assertEqual((entry["driver"], entry["evidence"], entry["libraries_bytes"]),
                         ("590.10", "2026-02-01-h200", 160 * MIB))

    def test_a_workload_is_not_judged_on_itself(self):
        checks = self.checks()
        checks[2]["measurement"] = measurement_of(self.plans["one"], 500, 117)
        self.take_in(checks)
        done = self.run_it("fit")
        self.assertEqual(done.returncode, 2)
        self.assertIn("is fitted on and judged", done.stderr)

    def test_a_calibration_that_was_edited_is_refused_by_name(self):
        self.fitted(self.checks())
        text = self.file.read_text()
        for old, new, said in ((evidence.CALIBRATED, "plimsoll.plan/1", "schema"),
                               ('"context_bytes": ', '"context": ', "context_bytes"),
                               ('"fitted_fingerprints": [', '"fitted_prints": [',
                                "fitted_fingerprints")):
            self.assertIn(old, text)
            self.file.write_text(text.replace(old, new))
            done = plimsoll("fit", *words(1, "--calibration", self.file))
            self.assertEqual(done.returncode, 2, new)
            self.assertIn(said, done.stderr)

    def test_a_gpu_stands_there_once(self):
        self.fitted(self.checks())
        document = json.loads(self.file.read_text())
        document["entries"] *= 2
        self.file.write_text(json.dumps(document))
        done = plimsoll("fit", *words(1, "--calibration", self.file))
        self.assertEqual(done.returncode, 2)
        self.assertIn("one entry for each GPU and stack", done.stderr)

    def test_the_catalog_is_current_and_check_notices_where_it_is_not(self):
        self.fitted(self.checks())
        self.assertEqual(self.run_it("--check").returncode, 0)
        self.file.write_text(self.file.read_text().replace(str(DEVIATION), str(DEVIATION - 1)))
        done = self.run_it("--check")
        self.assertEqual(done.returncode, 1)
        self.assertIn("calibrated_overheads.json", done.stdout)


if __name__ == "__main__":
    unittest.main()

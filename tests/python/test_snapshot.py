#!/usr/bin/env python3
"""`plimsoll compare PLAN.json SNAPSHOT`: a plan held against torch's own history of allocations.

The snapshots of tests/golden/snapshots were dumped by torch on the dry CUDA runtime, and what its counters said
stands beside them (tools/oracle/snapshots.py)."""
import functools
import gzip
import json
import os
import pathlib
import pickle
import pickletools
import shlex
import unittest

from case import TINY, Case
from program import ROOT, plimsoll
from test_schema import SCHEMA_CHECK, complaint, jsonschema

GOLDEN = ROOT / "tests" / "golden" / "snapshots"
RUNS = {run["case"]: run for run in json.loads((GOLDEN / "runs.json").read_text())["runs"]}
FAULTS = {name for name, run in RUNS.items() if run["fault"]}


@functools.cache
def dumped(name):
    return gzip.decompress((GOLDEN / f"{name}.pickle.gz").read_bytes())


class Snapshots(Case):
    def plan(self, name, *words):
        run, path = RUNS[name], self.folder / "plan.json"
        config = self.write("config.json", json.dumps(run["model"]))
        result = plimsoll("fit", config, "--gpu", "h200", "--quiet", "--detail", "--json", path,
                          *shlex.split(run["words"]), *words)
        self.assertEqual(result.returncode, 0, result.stderr)
        return path

    def compare(self, plan, snapshot, *words):
        path = self.write("snapshot.pickle", snapshot)
        result = plimsoll("compare", plan, path, "--json", "-", *words)
        self.assertEqual(result.stderr, "")
        document = json.loads(result.stdout)
        self.assertEqual(result.returncode, 0 if document["agrees"] else 1)
        return document

    def test_peak_and_reserved_are_what_torchs_counters_said(self):
        for name, run in RUNS.items():
            with self.subTest(name):
                found = self.compare(self.plan(name), dumped(name))
                self.assertEqual(
                    (found["peak"]["measured_bytes"], found["reserved"]["measured_bytes"]),
                    (run["allocated_bytes"], run["reserved_bytes"]))

    def test_a_page_shows_what_the_document_says(self):
        plan, snapshot = self.plan("gpt2"), self.write("<b>.pickle", dumped("gpt2"))
        document = json.loads(plimsoll("compare", plan, snapshot, "--json", "-").stdout)
        one = plimsoll("compare", plan, snapshot, "--html", "-").stdout
        for figure in (document["peak"]["measured_bytes"], document["reserved"]["predicted_bytes"],
                       document["only_measured"][0]["total_bytes"]):
            self.assertIn(f'<data value="{figure}"', one)
        self.assertIn("agree", one)
        two = plimsoll("compare", plan, snapshot, snapshot, "--html", "-").stdout
        self.assertEqual(two.count("In one step"), 2)
        self.assertNotIn("<b>.pickle", two)

    def test_the_plans_tensors_are_found(self):
        for name in RUNS:
            with self.subTest(name):
                found = self.compare(self.plan(name), dumped(name))
                # scores.masked of eager attention is the one tensor that is not there
                self.assertLess(found["planned_tensors"]["without_partner"],
                                0.03 if name == "llama-python-stacks" else 0.001)
                self.assertLess(found["allocations"]["without_partner"],
                                0.06 if name in FAULTS else 0.035)
                self.assertEqual(found["agrees"], name != "llama-kept-outputs")
                if name not in FAULTS:
                    self.assertLess(found["allocations_at_peak"]["without_partner"], 0.002)
                    self.assertEqual(found["left_behind_bytes"], 0)
                    self.assertEqual(found["outlived"], [])

    def test_a_tensor_that_the_loop_keeps_is_named_with_its_line(self):
        found = self.compare(self.plan("llama-kept-tensor"), dumped("llama-kept-tensor"))
        kept = [row for row in found["only_measured"] if row["stays"] and "train" in (row["where"] or "")]
        # bf16 of 256 tokens and 256 hidden, after each of three steps before the one that is compared
        self.assertEqual([(row["bytes"], row["count"], row["at_peak"]) for row in kept],
                         [(2 * 256 * 256, 3, True)])
        self.assertRegex(kept[0]["where"], r"^snapshots\.py:\d+ train")
        self.assertEqual(found["left_behind_bytes"], 2 * 256 * 256)

    def test_logits_that_the_loop_keeps_outlive_the_step(self):
        found = self.compare(self.plan("llama-kept-outputs"), dumped("llama-kept-outputs"))
        logits = 2 * 256 * 4000  # bf16, tokens, vocabulary
        self.assertEqual([(row["name"], row["bytes"]) for row in found["outlived"]],
                         [("lm_head.out", logits)])
        self.assertEqual(found["left_behind_bytes"], logits)
        self.assertEqual(sum(row["total_bytes"] for row in found["only_measured"]
                             if row["bytes"] == logits and row["stays"]), 3 * logits)

    def test_another_workload_is_not_taken_for_it(self):
        path = self.write("snapshot.pickle", dumped("llama-running"))
        other = self.compare(self.plan("llama-running", "--loss", "fused", "--kernels", "liger"),
                             dumped("llama-running"))
        self.assertFalse(other["agrees"])
        result = plimsoll("compare", self.plan("gpt2"), path)
        if result.returncode == 2:
            self.assert_refused(result, "no step like the plan's")
        else:
            self.assertEqual(result.returncode, 1, result.stdout)

    def test_a_step_that_was_not_wholly_recorded_is_not_compared(self):
        snapshot = pickle.loads(dumped("llama-running"))
        events = snapshot["device_traces"][0]
        del events[:-40]
        result = plimsoll("compare", self.plan("llama-running"),
                          self.write("s.pickle", pickle.dumps(snapshot)))
        self.assert_refused(result, "s.pickle", "no step like the plan's", "40 events")

    def test_older_steps_that_the_ring_lost_do_not_matter(self):
        snapshot = pickle.loads(dumped("gpt2"))
        whole = self.compare(self.plan("gpt2"), dumped("gpt2"))
        del snapshot["device_traces"][0][:whole["step"]["first_event"] - 3]
        cut = self.compare(self.plan("gpt2"), pickle.dumps(snapshot, protocol=2))
        for key in ("peak", "planned_tensors"):
            whole[key].pop("highest_measured_bytes", None)
            cut[key].pop("highest_measured_bytes", None)
            self.assertEqual(cut[key], whole[key])

    def test_our_own_snapshot_of_a_plan_is_the_plan(self):
        for words in ((), ("--recompute", "full"), ("--gpus", 8, "--zero", 3)):
            with self.subTest(words):
                config = self.write("config.json", json.dumps(TINY))
                plan, snapshot = self.folder / "p.json", self.folder / "s.pickle"
                plimsoll("fit", config, "--gpu", "h100", "--quiet", "--detail", *words, "--json", plan,
                         "--memory-viz", snapshot)
                found = self.compare(plan, snapshot.read_bytes())
                self.assertEqual(found["planned_tensors"]["without_partner"], 0)

    def test_several_snapshots_and_the_table(self):
        paths = [self.write(f"{n}.pickle", dumped("llama-ddp")) for n in (1, 2)]
        plan = self.plan("llama-ddp")
        document = json.loads(plimsoll("compare", plan, *paths, "--json", "-").stdout)
        self.assertEqual((document["agrees"], len(document["comparisons"])), (True, 2))
        table = plimsoll("compare", plan, *paths).stdout
        self.assertEqual(table.count("AGREES"), 2)
        self.assertLessEqual(max(map(len, table.splitlines())), 80)
        self.assert_refused(plimsoll("compare", plan, paths[0], plan), "one kind at a time")

    def test_a_device_that_has_a_history_and_holds_nothing_is_one_more(self):
        snapshot = pickle.loads(dumped("llama-ddp"))
        note = "of 2 devices in the snapshot, device 0 holds the most"
        for events, notes in ((snapshot["device_traces"][0][:1], 1), ([], 0)):
            snapshot["device_traces"] = [snapshot["device_traces"][0], events]
            document = self.compare(self.plan("llama-ddp"), pickle.dumps(snapshot))
            self.assertEqual(sum(note in said for said in document["notes"]), notes)

    def test_a_plan_without_detail_is_refused(self):
        run = RUNS["gpt2"]
        config, plan = self.write("config.json", json.dumps(run["model"])), self.folder / "p.json"
        plimsoll("fit", config, "--gpu", "h200", "--quiet", "--json", plan, "--seq-len", 128)
        self.assert_refused(plimsoll("compare", plan, self.write("s.pickle", dumped("gpt2"))),
                            "--detail")

    @unittest.skipUnless(SCHEMA_CHECK or jsonschema, "neither valijson nor jsonschema is here")
    def test_its_document_is_as_its_schema_says(self):
        path, plan = self.write("s.pickle", dumped("llama-kept-outputs")), self.plan("llama-kept-outputs")
        for files in ((path,), (path, path)):
            document = json.loads(plimsoll("compare", plan, *files, "--json", "-").stdout)
            self.assertEqual(complaint("snapshot_comparison", [document]), "")
        del document["agrees"]
        self.assertNotEqual(complaint("snapshot_comparison", [document]), "")


class Touches:
    """What unpickling would run."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


class Hostile(Case):
    def setUp(self):
        super().setUp()
        config = self.write("config.json", json.dumps(TINY))
        self.plan = self.folder / "plan.json"
        plimsoll("fit", config, "--gpu", "h100", "--quiet", "--detail", "--json", self.plan)

    def refused(self, content, *parts):
        self.assert_refused(plimsoll("compare", self.plan, self.write("s.pickle", content)),
                            "s.pickle", *parts)

    def test_a_pickle_that_would_run_something_is_refused_by_the_opcodes_name(self):
        for protocol, opcode in ((2, "GLOBAL"), (3, "GLOBAL"), (4, "STACK_GLOBAL"), (5, "STACK_GLOBAL")):
            touched = self.folder / "touched"
            self.refused(pickle.dumps({"segments": [Touches(touched)]}, protocol=protocol), opcode,
                         "nothing of it was run")
            self.assertFalse(touched.exists())

    def test_every_other_opcode_is_refused_by_its_name(self):
        allowed = {"PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1",
                   "BININT2", "LONG1", "BINFLOAT", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8",
                   "EMPTY_LIST", "APPEND", "APPENDS", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3",
                   "EMPTY_DICT", "SETITEM", "SETITEMS", "MEMOIZE", "BINPUT", "LONG_BINPUT", "BINGET",
                   "LONG_BINGET"}
        for opcode in pickletools.opcodes:
            if opcode.name not in allowed:
                self.refused(b"\x80\x04" + opcode.code.encode("latin-1") + bytes(20), opcode.name)
        used = {opcode.name for name in RUNS for opcode, _, _ in pickletools.genops(dumped(name))}
        self.assertLessEqual(used, allowed)

    def test_what_is_no_snapshot_is_refused(self):
        for value, words in (({}, "device_traces"), ([], "device_traces"),
                             ({"segments": [], "device_traces": [[]]}, "_record_memory_history"),
                             ({"segments": 3, "device_traces": []}, "segments is no list"),
                             ({"segments": [], "device_traces": [[{"action": "alloc"}]]}, "addr is missing"),
                             ({"segments": [], "device_traces": [[{"action": "melt"}]]}, "melt")):
            self.refused(pickle.dumps(value), words)

    def test_a_cut_or_altered_pickle_is_refused(self):
        whole = dumped("gpt2")
        for size in range(2, len(whole), len(whole) // 50):
            self.refused(whole[:size], "" if size == 2 else "offset")
        self.refused(whole + b".", "follows")

    def test_events_that_contradict_each_other_are_refused(self):
        snapshot = pickle.loads(dumped("gpt2"))
        snapshot["device_traces"][0].append(dict(snapshot["device_traces"][0][0], action="free_requested"))
        self.refused(pickle.dumps(snapshot), "event")

    def test_a_list_that_holds_itself_ends(self):
        loop = []
        loop.append(loop)
        self.refused(pickle.dumps({"segments": loop, "device_traces": loop}), "")

    def test_a_small_file_cannot_stand_for_much(self):
        event = {"action": "alloc", "addr": 1, "size": 1}
        self.refused(pickle.dumps({"segments": [], "device_traces": [[event] * 300000]}),
                     "allocation that is not there")


class Committed(unittest.TestCase):
    def test_no_snapshot_names_a_folder_of_the_machine_that_made_it(self):
        self.assertEqual({path.name.split(".")[0] for path in GOLDEN.glob("*.gz")}, set(RUNS))
        for name in RUNS:
            texts = {argument for _, argument, _ in pickletools.genops(dumped(name)) if isinstance(argument, str)}
            self.assertEqual([text for text in texts if text.startswith("/")], [])
            self.assertTrue(any(text.startswith("site-packages/torch/") for text in texts))


if __name__ == "__main__":
    unittest.main()

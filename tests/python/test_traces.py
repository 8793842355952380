#!/usr/bin/env python3
"""What `fit --trace` and `--memory-viz` write: the plan's own figures, as their viewers take them."""
import json
import pathlib
import pickle
import pickletools
import tempfile
import unittest

from program import plimsoll

BASE = ("fit", "gpt2", "--gpu", "h100", "--gpus", 8, "--seq-len", 256, "--grad-accum", 2)
WORKLOADS = [("--stack", stack, "--zero", zero, "--recompute", recompute)
             for stack in ("pytorch", "deepspeed", "plimsoll") for zero in (0, 1, 2, 3)
             for recompute in ("none", "full")]


class Case(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)

    def refused(self, option, *words):
        result = plimsoll(*words)
        self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
        self.assertIn(option, result.stderr)
        return result.stderr


class Trace(Case):
    def trace(self, *words):
        path = self.folder / "trace.json"
        result = plimsoll(*words, "--trace", path)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return json.loads(path.read_text()), result.stdout

    def test_its_counters_are_the_plans_timeline(self):
        for words in WORKLOADS:
            with self.subTest(words):
                plan = json.loads(plimsoll(*BASE, *words, "--detail", "--json", "-").stdout)
                trace, _ = self.trace(*BASE, *words)
                counters = [e for e in trace["traceEvents"] if e["ph"] == "C"]
                self.assertEqual([e["args"] for e in counters],
                                 [{name.removesuffix("_bytes"): value
                                   for name, value in op["by_category"].items()}
                                  for op in plan["timeline"]])
                self.assertEqual(max(sum(e["args"].values()) for e in counters),
                                 plan["peak_bytes"])
                tracks = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"]
                          if e["name"] == "thread_name"}
                ops = [e for e in trace["traceEvents"]
                       if e["ph"] == "X" and tracks[e["tid"]] != "phases"]
                self.assertEqual([(e["name"], e["cat"], e["ts"], e["dur"]) for e in ops],
                                 [(op["op"], op["phase"], i, 1)
                                  for i, op in enumerate(plan["timeline"])])
                phases = [e for e in trace["traceEvents"]
                          if e["ph"] == "X" and tracks[e["tid"]] == "phases"]
                self.assertEqual(sum(e["dur"] for e in phases), len(ops))
                collectives = [e["args"] for e in trace["traceEvents"] if e["ph"] == "i"]
                self.assertEqual([(c["count"], c["array_bytes"], c["group"]) for c in collectives],
                                 [(c["count"], c["array_bytes"], c["group"])
                                  for c in plan["communication"]["collectives"]])

    def test_gathers_of_our_runtime_are_as_many_as_its_collectives(self):
        words = (*BASE, "--stack", "plimsoll", "--zero", 3)
        plan = json.loads(plimsoll(*words, "--json", "-").stdout)
        trace, _ = self.trace(*words)
        gathers = [e for e in trace["traceEvents"]
                   if e["ph"] == "X" and e["name"].split(".")[-1] == "gather"]
        tracks = {e["args"]["name"]: e["tid"] for e in trace["traceEvents"]
                  if e["name"] == "thread_name"}
        self.assertEqual({e["tid"] for e in gathers}, {tracks["communication"]})
        self.assertEqual(len(gathers), sum(c["count"] for c in plan["communication"]["collectives"]
                                           if c["kind"] == "all_gather"))

    def test_it_says_that_a_microsecond_is_no_time(self):
        trace, _ = self.trace(*BASE)
        self.assertIn("order, not seconds", trace["otherData"]["time"])

    def test_the_answer_beside_it_is_the_same(self):
        with_trace = self.trace(*BASE, "--json", "-")[1]
        self.assertEqual(with_trace, plimsoll(*BASE, "--json", "-").stdout)
        self.assertEqual([path.name for path in self.folder.iterdir()], ["trace.json"])

    def test_a_step_that_does_not_fit_has_its_trace_too(self):
        path = self.folder / "t.json"
        result = plimsoll("fit", "llama-3.1-8b", "--gpu", "rtx-4090", "--trace", path)
        self.assertEqual(result.returncode, 1)
        self.assertGreater(len(json.loads(path.read_text())["traceEvents"]), 100)

    def test_what_cannot_be_is_refused(self):
        path = self.folder / "t.json"
        for option in ("--trace", "--svg", "--memory-viz"):
            self.refused(option, *BASE, option, "-")
            self.refused(option, "fit", "--params", "7e9", "--gpu", "h100", option, path)
        self.refused("--trace", *BASE, "--trace", path, "--json", path)
        self.assertEqual(list(self.folder.iterdir()), [])
        result = plimsoll(*BASE, "--trace", self.folder / "none" / "t.json")
        self.assertEqual(result.returncode, 2)
        self.assertIn("--trace", result.stderr)


# Of torch/utils/viz/MemoryViz.js, `unpickle`: those that it has been tested with.
OPCODES = {"PROTO", "EMPTY_DICT", "EMPTY_LIST", "MARK", "SETITEMS", "APPENDS", "BINUNICODE", "BINPUT",
           "BINGET", "BININT", "LONG1", "NEWTRUE", "NEWFALSE", "NONE", "STOP"}


class MemoryViz(Case):
    def snapshot(self, *words):
        path = self.folder / "snapshot.pickle"
        result = plimsoll(*words, "--memory-viz", path)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return path.read_bytes()

    def test_its_allocations_are_the_plans_tensors(self):
        for words in WORKLOADS:
            with self.subTest(words):
                plan = json.loads(plimsoll(*BASE, *words, "--detail", "--json", "-").stdout)
                snapshot = pickle.loads(self.snapshot(*BASE, *words))
                self.check_events(snapshot, plan)

    def check_events(self, snapshot, plan):
        (segment,), (events,) = snapshot["segments"], snapshot["device_traces"]
        first, end = segment["address"], segment["address"] + segment["total_size"]
        live, frees, peak, names = {}, set(), 0, set()
        for event in events:
            address, size = event["addr"], event["size"]
            if event["action"] == "alloc":
                self.assertTrue(first <= address and address + size <= end)
                live[address] = size
                names.add((event["frames"][0]["name"], size, event["category"]))
            elif event["action"] == "free_requested":
                frees.add(address)
            elif event["action"] == "free_completed":
                frees.remove(address)
                self.assertEqual(live.pop(address), size)
            else:
                self.assertEqual((event["action"], address, address + size),
                                 ("segment_alloc", first, end))
            peak = max(peak, sum(live.values()))
        self.assertEqual((peak, frees), (plan["peak_bytes"], set()))
        self.assertLessEqual({(t["name"], t["bytes"], t["category"]) for t in plan["tensors"]}, names)
        at_end, address = {}, first
        for block in segment["blocks"]:
            self.assertEqual(block["address"], address)
            if block["state"] == "active_allocated":
                at_end[address] = block["requested_size"]
            address += block["size"]
        self.assertEqual((at_end, address), (live, end))
        self.assertEqual(sum(live.values()), plan["timeline"][-1]["allocated_bytes"])

    def test_no_two_blocks_overlap(self):
        snapshot = pickle.loads(self.snapshot(*BASE, "--recompute", "full"))
        live = {}
        for event in snapshot["device_traces"][0]:
            begin, size = event["addr"], event["size"]
            if event["action"] == "alloc":
                self.assertFalse([b for b, s in live.items() if b < begin + size and begin < b + s])
                live[begin] = size
            elif event["action"] == "free_completed":
                del live[begin]

    def test_nothing_in_it_runs(self):
        data = self.snapshot(*BASE)
        self.assertLessEqual({opcode.name for opcode, _, _ in pickletools.genops(data)}, OPCODES)


class Measured(Case):
    """What our own runtime did, in the same forms: equal to what was planned."""

    @classmethod
    def setUpClass(cls):
        holder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(holder.cleanup)
        cls.document = pathlib.Path(holder.name) / "run.json"
        cls.tiny = pathlib.Path(holder.name) / "config.json"
        cls.tiny.write_text(json.dumps({"model_type": "gpt2", "n_layer": 2, "n_embd": 16, "n_head": 4,
                                        "n_positions": 32, "vocab_size": 64}))
        cls.words = (cls.tiny, "--device", "cpu", "--gpus", 2, "--zero", 3, "--seq-len", 16)
        done = plimsoll("run", *cls.words, "--steps", 2, "--quiet", "--json", cls.document)
        assert done.returncode == 0, done.stderr

    def files(self, *words):
        trace, snapshot = self.folder / "t.json", self.folder / "s.pickle"
        result = plimsoll(*words, "--trace", trace, "--memory-viz", snapshot)
        self.assertEqual(result.returncode, 0, result.stderr)
        events = json.loads(trace.read_text())["traceEvents"]
        return ([e for e in events if e["ph"] in "CX"],
                [(e["action"], e["addr"], e["size"])
                 for e in pickle.loads(snapshot.read_bytes())["device_traces"][0]], events[0])

    def test_a_run_is_traced_as_it_was_planned(self):
        planned = self.files("fit", *self.words, "--stack", "plimsoll", "--gpu-memory", "1GiB")
        measured = self.files("report", self.document)
        self.assertIn("planned", planned[2]["args"]["name"])
        self.assertIn("measured", measured[2]["args"]["name"])
        self.assertGreater(len(measured[0]), 100)
        self.assertEqual([e.get("args") for e in measured[0]], [e.get("args") for e in planned[0]])
        self.assertEqual(sorted(e[2] for e in measured[1]), sorted(e[2] for e in planned[1]))
        ranks = json.loads(self.document.read_text())["ranks"]
        counters = [sum(e["args"].values()) for e in measured[0] if e["ph"] == "C"]
        self.assertEqual(max(counters), ranks[0]["peak_bytes"])

    def test_any_rank_can_be_asked_for(self):
        first, other = (self.files("report", self.document, "--rank", rank) for rank in (0, 1))
        self.assertIn("rank 1", other[2]["args"]["name"])
        self.assertEqual([e["name"] for e in first[0]], [e["name"] for e in other[0]])
        path = self.folder / "x.json"
        self.assertIn("no rank 2", self.refused("run.json", "report", self.document, "--rank", 2,
                                                "--trace", path))
        self.refused("--rank", "report", self.document, "--rank", 1, "--html", path)
        self.refused("--rank", "report", self.document, "--rank", "-1", "--trace", path)
        self.assertFalse(path.exists())

    def test_a_document_of_another_kind_is_refused(self):
        plan = plimsoll(*BASE, "--json", "-").stdout
        result = plimsoll("report", "-", "--trace", self.folder / "t.json", stdin=plan)
        self.assertEqual(result.returncode, 2)
        self.assertIn("plimsoll.measurement/1", result.stderr)


if __name__ == "__main__":
    unittest.main()

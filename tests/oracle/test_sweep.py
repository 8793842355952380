"""Sweeps: order, resuming, time limits, crashes, and what a result file survives."""
import argparse
import contextlib
import io
import json
import os
import pathlib
import subprocess
import tempfile
import time
import unittest
from unittest import mock

from oracle import LLAMA, ORACLE, ROOT, complaint, torch_measure as tm

SWEEPS = sorted((ORACLE / "sweeps").glob("*.json"))


def sweep(*points, **more):
    return {"schema": "plimsoll.sweep/1", "models": {"tiny": LLAMA}, "points": list(points), **more}


def options(**more):
    return argparse.Namespace(**{**vars(tm.parser().parse_args(["--sweep", "x"])), **more})


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, document, name="sweep.json"):
        path = self.folder / name
        path.write_text(json.dumps(document))
        return path


class Points(Folder):
    def test_the_most_informative_come_first_and_ties_keep_their_order(self):
        path = self.write(sweep(*[{"id": i, "model": "tiny", "priority": p}
                                  for i, p in (("a", 2), ("b", 1), ("c", 2), ("d", 1))]))
        self.assertEqual([p[0] for p in tm.read_sweep(path)], ["b", "d", "a", "c"])

    def test_a_point_adds_to_the_defaults_key_by_key(self):
        path = self.write(sweep({"id": "a", "model": "tiny", "strategy": {"ddp": {
            "bucket_view": True}}, "seconds": 5}, seconds=30, defaults={
                "strategy": {"precision": "bf16", "ddp": {"bucket_cap_mb": 50}}}))
        name, seconds, workload = tm.read_sweep(path)[0]
        self.assertEqual((name, seconds), ("a", 5))
        self.assertEqual(workload["strategy"]["precision"], "bf16")
        self.assertEqual(workload["strategy"]["ddp"],
                         {"bucket_view": True, "bucket_cap_mb": 50, "wrap": None})
        self.assertEqual(workload["model"], {"name": "tiny", "config": LLAMA})

    def test_a_bad_list_is_refused_before_anything_runs(self):
        for points, word in (([{"id": "a", "model": "huge"}], "huge"),
                             ([{"id": "a", "model": "tiny"}] * 2, "repeated"),
                             ([{"model": "tiny"}], "missing"),
                             ([{"id": "a/b", "model": "tiny"}], "odd letters"),
                             ([{"id": "a", "model": "tiny", "batch": {"seq": 1}}],
                              "point a: batch")):
            with self.subTest(word), self.assertRaisesRegex(tm.BadInput, word):
                tm.read_sweep(self.write(sweep(*points)))
        with self.assertRaisesRegex(tm.BadInput, "schema"):
            tm.read_sweep(self.write({"schema": "other", "points": []}))
        with self.assertRaisesRegex(tm.BadInput, "No such file"):
            tm.read_sweep(self.folder / "none.json")

    def test_the_committed_lists_are_sound(self):
        self.assertTrue(SWEEPS)
        for path in SWEEPS:
            with self.subTest(path.name):
                points = tm.read_sweep(path)
                prints = [tm.fingerprint(w) for _, _, w in points]
                self.assertEqual(len(set(prints)), len(prints), "two points are one workload")

    def test_the_first_list_covers_what_a_first_run_is_for(self):
        points = {name: w for name, _, w in tm.read_sweep(ORACLE / "sweeps" / "first20.json")}
        self.assertGreaterEqual(len(points), 50)

        def some(**wanted):
            return [w for w in points.values() if all(
                w["strategy"].get(k, w["stack"].get(k, w["batch"].get(k))) == v
                for k, v in wanted.items())]

        worlds = {w["strategy"]["world_size"] for w in some(zero=3, fsdp_version=2)}
        self.assertTrue({1, 8, 64, 512} <= worlds, worlds)
        for wanted in ({"zero": 3, "fsdp_version": 1, "world_size": 8}, {"optimizer_impl": "fused"},
                       {"precision": "fp32"}, {"precision": "bf16"}, {"recompute": "full"},
                       {"attention": "eager"}, {"compile": True}, {"seq_len": 1024},
                       {"seq_len": 4096}, {"seq_len": 8192}, {"seq_len": 32768}):
            self.assertTrue(some(**wanted), wanted)
        views = {w["strategy"]["ddp"]["bucket_view"] for w in some(zero=0, world_size=8)}
        self.assertEqual(views, {True, False})
        targets = {w["strategy"]["lora"]["targets"] for w in points.values()
                   if w["strategy"]["lora"]}
        self.assertEqual(targets, {"all-linear", "q_proj,v_proj"})
        edges = [n for n in points if n.startswith("edge-")]
        self.assertEqual(sum(n.endswith("-under") for n in edges), 5)
        self.assertEqual(sum(n.endswith("-over") for n in edges), 5)


class Digests(unittest.TestCase):
    """tests/golden/sweeps: what PyTorch's own allocator gave for the committed lists, without a
    GPU."""

    def test_each_digest_is_of_the_list_as_it_is_now(self):
        for path in SWEEPS:
            wanted = {name: tm.fingerprint(w) for name, _, w in tm.read_sweep(path)}
            document = json.loads((ROOT / "tests" / "golden" / "sweeps" / path.name).read_text())
            found = {p["id"]: p["workload"]["fingerprint"] for p in document["points"]}
            # Without a GPU nothing compiles, and cuDNN builds no plan.
            left_out = {n for n in set(wanted) - set(found)
                        if not n.endswith("-compile") and not n.endswith("-cudnn")}
            self.assertEqual(left_out, set())
            for name, value in found.items():
                self.assertEqual(value, wanted.get(name), name)

    def test_categories_sum_to_the_peak_and_reserved_holds_it(self):
        for path in SWEEPS:
            document = json.loads((ROOT / "tests" / "golden" / "sweeps" / path.name).read_text())
            for point in document["points"]:
                if point["outcome"] != "completed":
                    continue
                with self.subTest(point["id"]):
                    requested = point["peak"]["requested_peak_bytes"]
                    self.assertEqual(sum(point["at_peak"].values()), requested)
                    self.assertLessEqual(requested, point["peak_bytes"])
                    self.assertLessEqual(point["peak_bytes"], point["reserved_bytes"])
                    # Later steps may be handed a block of up to 1 MiB more than they asked for.
                    steady = max(p[1] for p in point["phases"])
                    self.assertTrue(0 <= point["peak_bytes"] - steady <= 4 << 20)

    def test_fragmentation_decides_at_the_edge_of_capacity(self):
        first, depth = (json.loads((ROOT / "tests" / "golden" / "sweeps" / name).read_text())
                        for name in ("first20.json", "depth.json"))
        outcome = {p["id"]: p["outcome"] for p in first["points"] + depth["points"]}
        for name in ("1b-bf16", "8b-bf16", "1b-mixed", "7b-lora-all", "8b-bf16-full"):
            self.assertEqual(outcome[f"edge-{name}-under"], "completed")
            self.assertEqual(outcome[f"edge-{name}-over"], "out_of_memory")
            # The same workload, with expandable segments.
            self.assertEqual(outcome[f"edge-{name}-over-expandable"], "completed")


class Resuming(Folder):
    def document(self, name, outcome="completed"):
        return {"id": name, "workload": {"fingerprint": "f" + name}, "outcome": outcome}

    def test_what_has_a_result_is_not_run_again(self):
        points = [(n, 60, tm.normalised({"model": {"config": LLAMA}, "batch": {"micro_batch": m}}))
                  for n, m in (("a", 1), ("b", 2), ("c", 3), ("d", 4))]
        prints = {n: tm.fingerprint(w) for n, _, w in points}
        done = {("a", prints["a"]): "completed", ("b", prints["b"]): "out_of_memory",
                ("c", prints["c"]): "timed_out", ("d", "another workload"): "completed"}
        self.assertEqual([p[0] for p in tm.pending(points, done, False)], ["d"])
        self.assertEqual([p[0] for p in tm.pending(points, done, True)], ["c", "d"])

    def test_results_are_found_again(self):
        results = tm.Results(self.folder)
        results.append(self.document("a"))
        results.append(self.document("b", "failed"))
        again = tm.Results(self.folder)
        self.assertEqual(again.done, {("a", "fa"): "completed", ("b", "fb"): "failed"})

    def test_a_line_cut_off_by_a_kill_costs_only_itself(self):
        results = tm.Results(self.folder)
        results.append(self.document("a"))
        with open(self.folder / "results-1.jsonl", "a") as f:
            f.write('{"id": "b", "workl')
        again = tm.Results(self.folder)
        self.assertEqual(list(again.done), [("a", "fa")])
        again.append(self.document("c"))
        self.assertEqual(list(tm.Results(self.folder).done), [("a", "fa"), ("c", "fc")])

    def test_a_full_file_is_closed_and_the_tenth_comes_after_the_ninth(self):
        with mock.patch.object(tm, "FILE_BYTES", 10):
            results = tm.Results(self.folder)
            for i in range(11):
                results.append(self.document(str(i)))
        again = tm.Results(self.folder)
        self.assertEqual(again.files()[-1], "results-11.jsonl")
        self.assertEqual([k[0] for k in again.done], [str(i) for i in range(11)])

    def test_not_a_number_never_reaches_a_file(self):
        with self.assertRaises(ValueError):
            tm.Results(self.folder).append({**self.document("a"), "x": float("nan")})


def gone(pid):
    """Whether the process ends within two seconds (a zombie has ended)."""
    for _ in range(100):
        try:
            state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


class Children(Folder):
    WORKLOAD = tm.normalised({"model": {"name": "tiny", "config": LLAMA}})

    def point(self, work, limit=20.0, isolation="fork"):
        with mock.patch.object(tm, "measured", work):
            return tm.run_point("p", self.WORKLOAD, limit, options(), isolation)

    def test_a_child_that_hangs_is_killed_at_its_limit_and_says_so(self):
        began = time.monotonic()
        document, _ = self.point(lambda w, o: time.sleep(60), limit=0.3)
        self.assertLess(time.monotonic() - began, 10)
        self.assertEqual(document["outcome"], "timed_out")
        self.assertIn("killed", document["error"]["message"])

    def test_a_child_that_crashes_leaves_its_words(self):
        def crash(workload, opts):
            raise RuntimeError("the reason")
        document, _ = self.point(crash)
        self.assertEqual(document["outcome"], "failed")
        self.assertIn("the reason", document["error"]["message"])
        document, _ = self.point(lambda w, o: os.abort())
        self.assertIn("exit status -6", document["error"]["message"])

    def test_a_childs_document_is_taken_as_it_is(self):
        def write(workload, opts):
            pathlib.Path(opts.out).write_text('{"answer": 42}')
        self.assertEqual(self.point(write), ({"answer": 42}, "fork"))

    def test_what_a_killed_child_had_started_ends_with_it(self):
        note = self.folder / "pid"

        def start_and_hang(workload, opts):
            note.write_text(str(subprocess.Popen(["sleep", "60"]).pid))
            time.sleep(60)

        for limit in (0.5, None):       # killed at its limit; ended by itself
            if limit is None:
                self.point(lambda w, o: note.write_text(str(
                    subprocess.Popen(["sleep", "60"]).pid)))
            else:
                self.point(start_and_hang, limit=limit)
            self.assertTrue(gone(int(note.read_text())))

    def test_cuda_that_cannot_live_after_a_fork_is_given_a_new_process(self):
        def refuse(workload, opts):
            raise RuntimeError("Cannot re-initialize CUDA in forked subprocess.")
        with mock.patch.object(tm, "in_process", return_value=(3, 0.1)) as spawned:
            document, isolation = self.point(refuse)
        self.assertEqual(isolation, "spawn")
        self.assertEqual(spawned.call_count, 1)
        self.assertEqual(document["outcome"], "failed")

    def test_a_failure_is_a_valid_measurement(self):
        document, _ = self.point(lambda w, o: time.sleep(60), limit=0.1)
        found = complaint("measurement", [{"id": "p", **document}])
        if found is None:
            self.skipTest("no JSON Schema validator")
        self.assertEqual(found, "")
        self.assertEqual(document["workload"]["fingerprint"], tm.fingerprint(self.WORKLOAD))


class Budget(Folder):
    def run_with(self, seconds_each, **more):
        ran = []

        def point(name, workload, limit, opts, isolation):
            ran.append((name, limit))
            time.sleep(seconds_each)
            return {"outcome": "completed", "error": None, "time": None,
                    "ranks": [{"peak_bytes": 1}],
                    "workload": {"fingerprint": tm.fingerprint(workload)}}, isolation

        path = self.write(sweep(*[{"id": f"p{i}", "model": "tiny", "batch": {"micro_batch": i + 1}}
                                  for i in range(6)], seconds=60))
        with mock.patch.object(tm, "run_point", point), mock.patch.object(tm, "prepare"), \
                contextlib.redirect_stderr(io.StringIO()):
            tm.run_sweep(options(sweep=str(path), out=str(self.folder / "out"), **more))
        return ran

    def test_no_point_starts_that_the_budget_cannot_pay(self):
        # 0.3 s each, 10 s are assumed for the first: with 11 s the limit of the first is 11 s, and
        # later ones start while the median cost is left.
        ran = self.run_with(0.3, budget=11)
        self.assertEqual(len(ran), 6)
        self.assertAlmostEqual(ran[0][1], 11, delta=0.2)
        self.assertEqual(self.run_with(0.3, budget=11), [], "all were done")

    def test_a_budget_too_small_for_one_starts_none(self):
        self.assertEqual(self.run_with(0.0, budget=5), [])

    def test_only_names_the_points_that_are_wanted(self):
        self.assertEqual([n for n, _ in self.run_with(0.0, budget=60, only="p3")], ["p3"])


if __name__ == "__main__":
    unittest.main()

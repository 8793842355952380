#!/usr/bin/env python3
"""tools/gpu_check from its first part to the fitted overheads, with the real planner and programs
that only pretend to have a GPU."""
import contextlib
import io
import json
import sys
import unittest
from unittest import mock

from program import PLIMSOLL
from test_gpu_check import Folder, check, evidence

# Programs of a build as far as gpu_check sees them; what they say is what real ones would.
FAKES = {
    "gpu_test": """
import sys
if "--list-test-cases" in sys.argv:
    print("[doctest] listing all test case names\\n====\\nfirst, with a comma\\nsecond\\n====")
else:
    print("[doctest] test cases:  2 |  2 passed | 0 failed | 0 skipped")
""",
    # One case fails; behind it, in the same process, all do.
    "cuda_twins_test": """
import sys
names = ["first, with a comma", "second", "third"]
asked = [a.split("=", 1)[1].replace("\\\\,", ",") for a in sys.argv if a.startswith("--test-case=")]
if "--list-test-cases" in sys.argv:
    print("[doctest] listing all test case names\\n====\\n" + "\\n".join(names) + "\\n====")
    sys.exit(0)
run = asked or names
failed = 0 if "second" not in run else len(run) - run.index("second")
print("x" * 1000 if failed else "")
print(f"[doctest] test cases:  {len(run)} |  {len(run) - failed} passed | {failed} failed | 0 skipped")
sys.exit(1 if failed else 0)
""",
    "cuda_exact_test": """
import json
for ranks in (1, 8):
    print(json.dumps({"workload": "w", "ranks": ranks, "difference": "", "seconds": 0.1}))
""",
    "gpu_rates": """
import json
print(json.dumps({"gpu": {"name": "NVIDIA H200"}, "products": [{"flops_per_second": 7e14}]}))
""",
    # Reserves as planned, and 600 MiB beside it. A part of the card is somebody else's.
    "plimsoll-run": """
import json, pathlib, sys
plan = json.loads(pathlib.Path(sys.argv[1]).read_text())
reserved, beside = plan["reserved_bytes"], 600 << 20
full = reserved > 135 << 30 or plan["workload"]["model"]["name"] == "llama-3.2-3b"
rank = {"rank": 0, "reserved_bytes": reserved, "device_bytes": reserved + beside, "driver": [
    {"after": "context", "used_bytes": 500 << 20, "reserved_bytes": 0},
    {"after": "steps", "used_bytes": reserved + beside, "reserved_bytes": reserved}]}
document = {"schema": "plimsoll.measurement/1", "outcome": "out_of_memory" if full else "completed",
            "error": {"kind": "out_of_memory", "message": "rank 0: no room"} if full else None,
            "workload": plan["workload"], "ranks": [rank], "environment": {"device": {
                "name": "NVIDIA H200", "capacity_bytes": 1, "driver": "580.1"}, "versions": {}},
            "time": {"tokens_per_second": 1000.0, "mfu": 0.5}}
pathlib.Path(sys.argv[sys.argv.index("--json") + 1]).write_text(json.dumps(document))
sys.exit(3 if full else 0)
"""}


# Fewer and smaller models than the real ones: each is planned in full.
FEWER = {"MEMORY": [("gpt2", 1, 64, [], 60, "fit"), ("gpt2-medium", 1, 64, [], 90, "fit"),
                    ("qwen2.5-0.5b", 1, 64, [], 60, "judge"),
                    ("llama-3.2-1b", 1, 64, [], 120, "judge")],
         "SPEED": [("gpt2", 64, [], 60), ("llama-3.2-3b", 64, [], 60),
                   ("gpt2", 64, ["--lora-rank", "16"], 60)],
         "TORCH": [("gpt2", 64, 60)],
         "FIT": [("gpt2", 1024, [], 150)]}


class Rehearsal(Folder):
    """All parts from the first to the last."""

    def setUp(self):
        super().setUp()
        fewer = mock.patch.multiple(check, **FEWER)
        fewer.start()
        self.addCleanup(fewer.stop)
        self.build, self.results = self.out / "build", self.out / "results"
        for name, path in check.PROGRAMS.items():
            program = self.build / path
            program.parent.mkdir(parents=True, exist_ok=True)
            if name == "plimsoll":
                program.symlink_to(PLIMSOLL)
            else:
                program.write_text(f"#!{sys.executable}\n{FAKES[name]}")
                program.chmod(0o755)

    def call(self, *words):
        said, messages = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(messages), \
                mock.patch.object(check, "driver_gpu_name", lambda: "NVIDIA H200"), \
                mock.patch.object(check.signal, "signal"), \
                mock.patch.object(check, "oracle", lambda *_, **__: None):
            status = check.main([*map(str, words), "--build", str(self.build), "--out",
                                 str(self.results)])
        return status, said.getvalue(), messages.getvalue()

    def document(self, name):
        return json.loads((self.results / f"{name}.json").read_text())

    def test_every_part_runs_and_is_carried_away_taken_in_and_fitted(self):
        collected = self.out / "collected"
        status, said, messages = self.call("--all", "--collect", collected)
        self.assertEqual(status, 1, said)  # of one kernel
        self.assertEqual(len(list(self.results.glob("*.json"))), len(check.items()))
        self.assertIn("exact-covering … (about ", messages)
        twins = self.document("kernels-twins")
        self.assertEqual((twins["outcome"], twins["failed"]), ("failed", 2))
        self.assertEqual([(r["case"], r["outcome"]) for r in twins["alone"]],
                         [("first, with a comma", "passed"), ("second", "failed"),
                          ("third", "passed")])
        memory = self.document("memory-gpt2")
        self.assertEqual((memory["role"], memory["gpu"]), ("fit", "NVIDIA H200"))
        speed = self.document("speed-gpt2")
        self.assertEqual(speed["outcome"], "passed")
        # As many tokens a micro-batch as fit, and 16 of them a step.
        batch = speed["measurement"]["workload"]["batch"]
        self.assertEqual((batch["micro_batch"] * batch["seq_len"], batch["grad_accum"]),
                         (check.TOKENS, check.ACCUMULATED))
        self.assertEqual(speed["measurement"]["workload"]["model"]["config"]["attn_pdrop"], 0.0)
        self.assertEqual(self.document("speed-llama-3.2-3b")["outcome"], "out_of_memory")
        self.assertEqual(self.document("torch-gpt2-compiled")["outcome"], "skipped")
        fit = self.document("fit-gpt2")
        self.assertLess(fit["measured"], fit["predicted"])
        self.assertEqual({r["outcome"] for r in fit["runs"]}, {"completed", "out_of_memory"})
        self.assertEqual([p.name for p in collected.iterdir()], ["results-1.jsonl"])
        root = self.out / "evidence"
        paths = evidence.take_in(sorted(collected.iterdir()), root)
        self.assertEqual(len(paths), len(check.items()))
        (entry,) = evidence.calibrations(root)
        self.assertEqual((entry["gpu"], entry["context_bytes"], entry["libraries_bytes"],
                          entry["deviation_bytes"], len(entry["fitted"])),
                         ("h200-sxm-141gb", 500 << 20, 100 << 20, 0, 4))  # two of "memory", two of "speed"
        self.assertIn("Out of sample", evidence.page(root))
        # Called again, nothing is left to do.
        status, said, _ = self.call("--all")
        self.assertEqual((status, said), (1, ""))

    def test_pytorch_beside_it_needs_torch_alone_and_is_planned_eager(self):
        package = self.out / "package"
        (package / "oracle").mkdir(parents=True)
        (package / "oracle" / "plain_torch.py").write_text(
            "import json, pathlib, sys\n"
            "plan = json.loads(pathlib.Path(sys.argv[2]).read_text())\n"
            "full = plan['workload']['batch']['micro_batch'] > 4\n"
            "pathlib.Path(sys.argv[4]).write_text(json.dumps({'words': sys.argv[5:], 'outcome':"
            " 'out_of_memory' if full else 'completed', 'workload': plan['workload']}))\n")
        (package / "torch.py").write_text("")
        machine = check.Machine(self.build, self.out)
        machine.gpu_name = "NVIDIA H200"
        machine.tokens = 128
        with mock.patch.object(check, "HERE", package), \
                mock.patch.dict("os.environ", {"PYTHONPATH": str(package)}):
            outcome, compiled = check.torch(machine, "gpt2", 64, True)
            self.assertEqual(outcome, "passed")
            self.assertEqual(compiled["measurement"]["words"],
                             ["--steps", "3", "--seconds", "10", "--compile"])
            workload = compiled["measurement"]["workload"]
            self.assertEqual(workload["stack"]["name"], "pytorch")
            self.assertEqual((workload["batch"]["micro_batch"], workload["batch"]["grad_accum"]),
                             (2, check.ACCUMULATED))
            machine.tokens = 512
            outcome, eager = check.torch(machine, "gpt2", 64, False)
            self.assertEqual((outcome, "--compile" in eager["measurement"]["words"]),
                             ("out_of_memory", False))
        machine.python = "/bin/false"
        with mock.patch.object(check, "HERE", package):
            self.assertEqual(check.torch(machine, "gpt2", 64, True)[0], "skipped")

    def test_a_sweep_has_a_list_for_the_card_and_its_lines_are_read(self):
        package = self.out / "package"
        (package / "oracle").mkdir(parents=True)
        (package / "torch.py").write_text("")
        # As torch_measure.py keeps what it has measured (its class Results).
        (package / "oracle" / "torch_measure.py").write_text(
            "import json, pathlib, sys\n"
            "points = json.loads(pathlib.Path(sys.argv[2]).read_text())['points']\n"
            "lines = [json.dumps({'id': p['id'], 'ranks': [{'ledgers': [1]}]}) for p in points]\n"
            "pathlib.Path(sys.argv[4], 'results-1.jsonl').write_text('\\n'.join(lines))\n")
        (package / "oracle" / "sweeps").symlink_to(check.HERE / "oracle" / "sweeps")
        machine = check.Machine(self.build, self.out)
        with mock.patch.object(check, "HERE", package), \
                mock.patch.dict("os.environ", {"PYTHONPATH": str(package)}):
            for card, point in (("NVIDIA H200", "edge-8b-bf16-under"),
                                ("NVIDIA H100 80GB HBM3", "edge-3b-bf16-under")):
                machine.gpu_name = card
                outcome, found = check.sweep(machine)
                self.assertEqual(outcome, "passed")
                self.assertIn(point, [p["id"] for p in found["points"]])
                self.assertEqual(found["points"][0]["ranks"], [{}])

    def test_a_fresh_machine_goes_on_from_what_was_collected(self):
        collected = self.out / "collected"
        self.call("--part", "rates", "--collect", collected)
        (self.results / "autotune.txt").write_text("key\tvalue\n")
        check.collect(self.results, collected)
        again = self.out / "again"
        with mock.patch.object(self, "results", again):
            _, said, _ = self.call("--part", "rates", "--resume", collected)
        self.assertIn("1 results are there already", said)
        self.assertNotIn("rates-ceilings:", said)  # it is not run again
        self.assertEqual((again / "autotune.txt").read_text(), "key\tvalue\n")
        # A line that was cut off is as if it were not there.
        (collected / "results-1.jsonl").write_text('{"part": "rates", "it')
        self.assertEqual(check.restore(collected, self.out / "third"), 0)

    def test_a_program_that_is_missing_does_not_end_the_rest(self):
        (self.build / check.PROGRAMS["gpu_rates"]).unlink()
        status, said, messages = self.call("--part", "rates", "--part", "exact")
        self.assertEqual(status, 0)
        self.assertEqual(self.document("rates-ceilings")["outcome"], "skipped")
        self.assertEqual(self.document("exact-covering")["outcome"], "passed")
        self.assertIn("gpu_rates is not in", messages)

    def test_what_a_budget_cut_short_is_run_again(self):
        slow = self.build / check.PROGRAMS["cuda_exact_test"]
        slow.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(30)\n")
        with mock.patch.object(check, "items", lambda: [
                check.Item("exact", "covering", 0.5, check.exact)]):
            self.call("--part", "exact", "--budget", "0.03")
            self.assertEqual(self.document("exact-covering")["outcome"], "timed_out")
            self.assertTrue(self.document("exact-covering")["cut_short"])
            slow.write_text(f"#!{sys.executable}\n{FAKES['cuda_exact_test']}")
            status, _, _ = self.call("--part", "exact")
        self.assertEqual((status, self.document("exact-covering")["outcome"]), (0, "passed"))

    def test_collected_files_stay_small(self):
        for number in range(5):
            self.put(f"part-{number}", {"schema": "x", "text": "y" * 400})
        with mock.patch.object(check, "COLLECTED", 1000):
            check.collect(self.out, self.out / "few")
        files = sorted((self.out / "few").iterdir())
        self.assertEqual(len(files), 3)
        self.assertTrue(all(f.stat().st_size <= 1000 for f in files))
        self.assertEqual(sum(len(f.read_text().splitlines()) for f in files), 5)

    def test_a_gpu_that_the_catalog_lacks_fails_the_items_that_plan(self):
        machine = check.Machine(self.build, self.out)
        machine.gpu_name = "NVIDIA X1"
        with self.assertRaisesRegex(RuntimeError, "no 'NVIDIA X1'"):
            machine.gpu()
        machine.gpu_name = None
        self.assertEqual(machine.gpu(), [])

    def test_what_a_program_says_is_kept_from_its_beginning(self):
        text = "first\n" + "x" * (2 * check.CLIPPED) + "\nlast"
        self.assertLess(len(check.clipped(text)), check.CLIPPED + 20)
        self.assertTrue(check.clipped(text).startswith("first"))
        self.assertTrue(check.clipped(text).endswith("last"))

    def test_the_c_library_that_a_package_needs_is_read_from_its_files(self):
        path = self.out / "program"
        path.write_bytes(b"\x7fELF\0GLIBC_2.34\0GLIBC_2.9\0GLIBC_2.2.5\0GLIBCXX_3.4.30\0")
        found = check.glibc_versions(path)
        self.assertEqual(found, {"2.34", "2.9", "2.2.5"})
        self.assertEqual(max(found, key=check.version_key), "2.34")


if __name__ == "__main__":
    unittest.main()

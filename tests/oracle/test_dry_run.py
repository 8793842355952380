"""PyTorch itself on the CUDA runtime that computes nothing. Skipped where torch and transformers
are not installed; with them: PYTHON -m unittest discover -s tests/oracle."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from oracle import HAS_TORCH, LLAMA, PROGRAM, TRACES, complaint, run, trace, workload

TINY = {**LLAMA, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 128}


@unittest.skipUnless(HAS_TORCH, "torch and transformers are not installed")
class DryRun(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)

    def succeed(self, *arguments):
        result = run(*arguments)
        self.assertEqual(result.returncode, 0, result.stderr[-3000:])
        return result

    def measure(self, described, *arguments):
        path, out = self.folder / "w.json", self.folder / "m.json"
        path.write_text(json.dumps(described))
        self.succeed("--workload", path, "--dry-run", "--out", out, *arguments)
        return json.loads(out.read_text())

    def test_a_committed_trace_is_made_again_byte_for_byte(self):
        versions = trace("llama-a-bf16")["versions"]
        for name in ("llama-a-mixed-full", "llama-a-fsdp2-w8", "gpt2-a-ddp-w8"):
            out = self.folder / f"{name}.json"
            self.succeed("--trace", name, "--out", out)
            if json.loads(out.read_text())["versions"] != versions:
                self.skipTest(f"made with {versions}")
            self.assertEqual(out.read_bytes(), (TRACES / f"{name}.json").read_bytes(), name)

    def test_observing_changes_nothing_that_the_allocator_counts(self):
        for name in ("llama-a-bf16", "llama-a-mixed-full", "llama-a-fsdp2-w8", "llama-a-ddp-w8"):
            document = trace(name)
            last = max(p["step"] for p in document["phases"])
            observed = max(p["peak_block_bytes"] for p in document["phases"] if p["step"] == last)
            plain = self.measure(document["workload"], "--no-observe")["ranks"][0]["peak_bytes"]
            # A block may be up to 1 MiB larger than its request's multiple of 512: not split.
            self.assertTrue(observed <= plain <= observed + (4 << 20), (name, observed, plain))

    def test_a_dry_measurement_is_valid_and_its_categories_sum_to_the_peak(self):
        for strategy in ({"precision": "bf16"}, {"zero": 3, "world_size": 8}, {"world_size": 4},
                         {"zero": 1, "world_size": 4}, {"precision": "bf16", "lora": {}},
                         {"recompute": "every:2"},
                         {"recompute": "selective", "attention": "eager"}):
            with self.subTest(strategy):
                document = self.measure({"model": {"name": "tiny", "config": TINY},
                                         "strategy": strategy,
                                         "batch": {"seq_len": 32, "micro_batch": 2}})
                self.assertIn(complaint("measurement", [document]), ("", None))
                self.assertEqual((document["kind"], document["outcome"]), ("dry-run", "completed"))
                rank = document["ranks"][0]
                requested = rank["peak"]["requested_peak_bytes"]
                self.assertEqual(sum(rank["at_peak"].values()), requested)
                self.assertLessEqual(requested, rank["peak_bytes"])
                self.assertLessEqual(rank["peak_bytes"], rank["reserved_bytes"])
                self.assertIsNone(document["time"])
                self.assertTrue(rank["modules"])

    def test_the_timed_part_of_a_measurement(self):
        # The path that a GPU takes, on the dry device with a clock that says 250 ms a step.
        script = "\n".join((
            "import json, sys", f"sys.path.insert(0, {str(PROGRAM.parent)!r})",
            "import torch_measure as tm", "tm.start_dry_cuda()", "import torch",
            "torch.cuda.Event.elapsed_time = lambda self, other: 250.0",
            "tm.PEAKS.append(('dry', {'bf16': 1e12}))",
            f"w = tm.normalised({workload(batch={'seq_len': 64, 'micro_batch': 2})!r})",
            "d = tm.Measurement(w, False, seconds=0.0, most_steps=9).run()",
            "print(json.dumps(d))"))
        result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True,
                                check=False, env={**os.environ, "PATH": "/usr/bin:/bin"})
        self.assertEqual(result.returncode, 0, result.stderr[-2000:])
        document = json.loads(result.stdout)
        self.assertIn(complaint("measurement", [document]), ("", None))
        # Two steps to come to the steady state, three at least that are timed.
        self.assertEqual([s["timed"] for s in document["steps"]], [False] * 2 + [True] * 3)
        time = document["time"]
        self.assertEqual((time["step_seconds"], time["mad_seconds"]), (0.25, 0.0))
        self.assertEqual(time["tokens_per_second"], 128 / 0.25)
        # 6 N + 3 L a 2 d s: N = Vh + 2(2h² + 2·kv·h + 3fh), L 2, a 8, d 32, s 64
        matrix = 1000 * 256 + 2 * (2 * 256 ** 2 + 2 * 128 * 256 + 3 * 704 * 256)
        flops = 128 * (6 * matrix + 3 * 2 * 8 * 2 * 32 * 64)
        self.assertEqual(time["model_flops_per_step"], flops)
        self.assertAlmostEqual(time["mfu"], flops / 0.25 / 1e12)
        self.assertIsNotNone(document["ranks"][0]["device_bytes"])
        self.assertEqual(document["clocks"]["samples"], 0)

    def test_states_are_those_of_the_arithmetic(self):
        document = self.measure(workload(batch={"seq_len": 64}), "--no-observe")
        # h 256, f 704, V 1000, kv 128, 2 layers: 2Vh + 2(2h² + 2·128h + 3fh + 2h) + h
        h, f, v, kv = 256, 704, 1000, 128
        parameters = 2 * v * h + 2 * (2 * h * h + 2 * kv * h + 3 * f * h + 2 * h) + h
        self.assertEqual(document["ranks"][0]["states"], {
            "parameters_bytes": 4 * parameters, "gradients_bytes": 4 * parameters,
            "optimizer_bytes": 8 * parameters})

    def test_its_own_out_of_memory_is_a_label_with_what_was_live(self):
        document = self.measure({"model": {"name": "wide", "config": {
            **LLAMA, "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
            "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256}}})
        self.assertEqual(document["outcome"], "out_of_memory")
        self.assertIn(complaint("measurement", [document]), ("", None))
        self.assertEqual(document["error"]["phase"], "build")
        self.assertIn("Tried to allocate", document["error"]["message"])
        # fp32 weights of a 70B model do not fit: what was there is almost the whole device.
        self.assertGreater(document["error"]["live"]["allocated_bytes"], 130 << 30)
        self.assertIsNone(document["ranks"][0]["peak_bytes"])

    def test_a_sweep_resumes_where_it_was(self):
        points = [{"id": f"p{m}", "model": "tiny", "batch": {"seq_len": 16, "micro_batch": m}}
                  for m in (1, 2)]
        points.append({"id": "compiled", "model": "tiny", "stack": {"compile": True}})
        path, out = self.folder / "sweep.json", self.folder / "results"
        path.write_text(json.dumps({"schema": "plimsoll.sweep/1", "models": {"tiny": TINY},
                                    "points": points}))
        first = self.succeed("--sweep", path, "--dry-run", "--out", out, "--only", "p1")
        self.assertIn("[1/1] p1", first.stderr)
        second = self.succeed("--sweep", path, "--dry-run", "--out", out)
        self.assertIn("[1/2] p2", second.stderr)
        lines = [json.loads(t) for t in (out / "results-1.jsonl").read_text().splitlines()]
        self.assertEqual([(d["id"], d["outcome"]) for d in lines],
                         [("p1", "completed"), ("p2", "completed"), ("compiled", "failed")])
        self.assertIn("dry run", lines[2]["error"]["message"])
        self.assertIn(complaint("measurement", lines), ("", None))
        self.assertNotIn("/", self.succeed("--sweep", path, "--dry-run", "--out", out).stderr)

    def test_a_new_process_measures_the_same_as_a_fork(self):
        path = self.folder / "one.json"
        path.write_text(json.dumps({
            "schema": "plimsoll.sweep/1", "models": {"tiny": TINY},
            "points": [{"id": "p", "model": "tiny", "batch": {"seq_len": 16}}]}))
        peaks = []
        for kind in ("fork", "spawn"):
            out = self.folder / kind
            self.succeed("--sweep", path, "--dry-run", "--out", out, "--isolation", kind)
            line = json.loads((out / "results-1.jsonl").read_text())
            peaks.append((line["ranks"][0]["peak_bytes"], line["ranks"][0]["reserved_bytes"]))
        self.assertEqual(peaks[0], peaks[1])


if __name__ == "__main__":
    unittest.main()

"""plimsoll.Watch on real runs: Transformers' Trainer, plain loops, FSDP2, on the dry CUDA runtime."""
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

from oracle import complaint

HERE = pathlib.Path(__file__).resolve().parent
NEEDED = [name for name in ("torch", "transformers", "accelerate", "peft")
          if importlib.util.find_spec(name) is None]


@unittest.skipIf(NEEDED, f"no {', '.join(NEEDED)} here")
class Watch(unittest.TestCase):
    def run_case(self, name):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)
        done = subprocess.run([sys.executable, HERE / "watched_runs.py", name, self.folder], text=True,
                              capture_output=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        found = json.loads((self.folder / "found.json").read_text())
        lines = [line for line in done.stdout.splitlines() if line.startswith("plimsoll")]
        return found, lines

    def assert_agrees(self, name, percent, ranks=1):
        found, lines = self.run_case(name)
        self.assertEqual(found["warnings"], [])
        self.assertEqual(len(lines), 1, lines)  # one line for all of the run
        self.assertIn("predicted", lines[0])
        self.assertTrue(found["comparison"]["agrees"], found["comparison"]["levels"])
        written = json.loads((self.folder / "rank-0.json").read_text())
        self.assertEqual(written, found["measurement"])
        self.assertIn(complaint("measurement", [written]), ("", None))
        self.assertEqual(found["plan"]["workload"], written["workload"])
        self.assertEqual(sum(rank["count"] for rank in found["plan"]["ranks"]), ranks)
        peak = written["ranks"][0]["peak_bytes"]
        self.assertLess(abs(peak / found["plan"]["peak_bytes"] - 1), percent / 100)
        self.assertEqual(len(written["steps"]), 3)
        return found, written["ranks"][0]

    def test_a_trainer_agrees_with_its_prediction(self):
        found, rank = self.assert_agrees("trainer", 0.05)
        batch = found["plan"]["workload"]["batch"]
        self.assertEqual((batch["micro_batch"], batch["seq_len"], batch["grad_accum"]), (2, 256, 2))
        self.assertEqual([row["phase"] for row in rank["phases"] if row["step"] == 2],
                         ["forward", "backward", "forward1", "backward1", "optimizer", "zero_grad"])
        self.assertTrue(found["restored"])
        # fp32 parameters, gradients, two states of AdamW: 4 bytes each, and its step counts
        states = rank["states"]
        self.assertEqual(states["parameters_bytes"], 4 * found["plan"]["model"]["parameters"])
        self.assertEqual(states["gradients_bytes"], states["parameters_bytes"])
        self.assertEqual(found["plan"]["workload"]["model"]["name"], "llama")

    def test_a_trainer_with_adapters_and_checkpoints(self):
        found, rank = self.assert_agrees("trainer-lora", 0.05)
        strategy = found["plan"]["workload"]["strategy"]
        self.assertEqual((strategy["recompute"], strategy["lora"]["rank"]), ("full", 8))
        self.assertLess(rank["states"]["gradients_bytes"], rank["states"]["parameters_bytes"] / 20)

    def test_a_classifier_is_predicted_as_one_whatever_its_checkpoint_was(self):
        found, _ = self.assert_agrees("trainer-classifier", 0.05)
        self.assertEqual(found["plan"]["model"]["architecture"], "LlamaForSequenceClassification")

    def test_a_plain_loop_under_autocast(self):
        found, _ = self.assert_agrees("loop", 0.5)
        strategy = found["plan"]["workload"]["strategy"]
        self.assertEqual((strategy["precision"], strategy["optimizer"]), ("bf16-mixed", "adamw"))

    def test_a_plain_loop_that_accumulates(self):
        found, _ = self.assert_agrees("loop-accumulation", 0.05)
        workload = found["plan"]["workload"]
        self.assertEqual((workload["strategy"]["precision"], workload["stack"]["optimizer_impl"]),
                         ("bf16", "for-loop"))

    def test_a_loop_with_fsdp2(self):
        found, _ = self.assert_agrees("loop-fsdp2", 4, ranks=8)
        strategy = found["plan"]["workload"]["strategy"]
        self.assertEqual((strategy["zero"], strategy["precision"]), (3, "bf16-mixed"))

    def test_it_warns_before_a_step_that_will_not_fit(self):
        found, _ = self.run_case("too-small")
        (kind, text), = found["warnings"]
        self.assertEqual(kind, "WillNotFit")
        self.assertIn("8 x 1024 tokens", text)
        self.assertTrue(found["ran_out"])  # as was said
        written = found["measurement"]
        self.assertEqual((written["outcome"], written["error"]["step"]), ("out_of_memory", 1))
        self.assertIn(complaint("measurement", [written]), ("", None))

    def test_a_longer_batch_is_predicted_before_it_runs_and_is_no_part_of_the_measurement(self):
        found, _ = self.run_case("longer-batch")
        (kind, text), = found["warnings"]
        self.assertEqual(kind, "WillNotFit")
        self.assertIn("16 x 2048 tokens", text)
        self.assertTrue(found["ran_out"])
        self.assertEqual(found["measurement"]["outcome"], "completed")
        self.assertEqual(found["measurement"]["workload"]["batch"]["seq_len"], 256)
        # Of the steps before it alone.
        peak = found["measurement"]["ranks"][0]["peak_bytes"]
        self.assertLess(abs(peak / found["plan"]["peak_bytes"] - 1), 0.005)

    def test_what_cannot_be_predicted_is_said_and_the_run_goes_on(self):
        found, lines = self.run_case("not-modelled")
        (kind, text), = found["warnings"]
        self.assertIn("--tp", text)
        self.assertEqual((kind, found["measurement"], lines), ("UserWarning", None, []))


if __name__ == "__main__":
    unittest.main()

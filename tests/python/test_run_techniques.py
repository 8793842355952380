"""`plimsoll run` where the optimizer steps early, where inputs of layers are on the host, and where ranks exchange casts
of their gradients."""
import json
import pathlib
import tempfile
import unittest

from program import plimsoll
from test_run import TINY, WORDS


class Techniques(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)
        self.tiny = self.folder / "tiny.json"
        self.tiny.write_text(json.dumps(TINY))

    def document(self, *words):
        result = plimsoll("run", *words, "--json", "-")
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def test_stepping_in_the_backward_trains_alike_and_keeps_one_layers_gradients(self):
        words = [*WORDS, "--ranks", "2", "--zero", "3", "--max-norm", "0"]
        usual = self.document(self.tiny, *words)
        early = self.document(self.tiny, *words[:-2], "--optimizer-in-backward")
        self.assertTrue(early["comparison"]["agrees"])
        self.assertEqual([step["loss"] for step in early["steps"]], [step["loss"] for step in usual["steps"]])
        self.assertIsNone(early["steps"][0]["grad_norm"])
        self.assertGreater(usual["steps"][0]["grad_norm"], 0)
        self.assertLess(early["ranks"][1]["peak_bytes"], usual["ranks"][1]["peak_bytes"])
        saved = self.folder / "saved"
        self.document(self.tiny, *words[:-2], "--save-checkpoint", saved)
        on = ["--device", "cpu", "--seq-len", "16", "--ranks", "2", "--zero", "3", "--steps", "3"]
        result = plimsoll("run", self.tiny, *on, "--optimizer-in-backward", "--resume", saved)
        self.assertEqual(result.returncode, 2, result.stdout)
        self.assertIn("--max-norm 1", result.stderr)  # the checkpoint's
        self.document(self.tiny, *on, "--max-norm", "0", "--optimizer-in-backward", "--resume", saved)
        for more, says in (["--max-norm", "1"], "knows no norm of all gradients"), (["--grad-accum", "2"], "--grad-accum"):
            result = plimsoll("run", self.tiny, *words[:-2], "--optimizer-in-backward", *more)
            self.assertEqual(result.returncode, 2, result.stdout)
            self.assertIn(says, result.stderr)

    def test_gradients_cast_for_the_exchange_agree_with_their_plan(self):
        for stage in ("0", "1", "2", "3"):
            words = [*WORDS, "--ranks", "4", "--zero", stage, "--precision", "fp32"]
            usual, cast = self.document(self.tiny, *words), self.document(self.tiny, *words, "--reduce-dtype", "bf16")
            self.assertTrue(cast["comparison"]["agrees"])
            losses = [[step["loss"] for step in run["steps"]] for run in (usual, cast)]
            self.assertEqual(losses[0][0], losses[1][0])  # before anything is exchanged
            self.assertNotEqual(losses[0][1:], losses[1][1:])
            for one, other in zip(*losses):
                self.assertAlmostEqual(one, other, delta=0.01 * one)
        for more, says in (["--precision", "fp32", "--reduce-dtype", "fp16"], "needs --precision fp16-mixed"), (
                ["--reduce-dtype", "fp32"], "gradients are bf16"):
            result = plimsoll("run", self.tiny, *WORDS, "--ranks", "2", *more)
            self.assertEqual(result.returncode, 2, result.stdout)
            self.assertIn(says, result.stderr)

    def test_inputs_of_layers_are_on_the_host_and_change_no_loss(self):
        # Four sequences of 64: three layers' inputs are more than two and a layer's gradients.
        words = [*WORDS, "--ranks", "2", "--zero", "3", "--recompute", "full", "--micro-batch", "4"]
        words[words.index("--seq-len") + 1] = "64"
        usual = self.document(self.tiny, *words)
        prediction = self.folder / "prediction.json"
        away = self.document(self.tiny, *words, "--offload", "activations", "--prediction", prediction)
        self.assertTrue(away["comparison"]["agrees"])
        self.assertEqual([step["loss"] for step in away["steps"]], [step["loss"] for step in usual["steps"]])
        self.assertLess(away["ranks"][1]["peak_bytes"], usual["ranks"][1]["peak_bytes"])
        # Three inputs of 256 tokens, 32 wide, in bf16.
        host = json.loads(prediction.read_text())["host"]
        self.assertEqual(host["pageable_bytes"], 3 * 256 * TINY["hidden_size"] * 2)
        for more in ([], ["--recompute", "sqrt"]):
            result = plimsoll("run", self.tiny, *WORDS, "--offload", "activations", *more)
            self.assertEqual(result.returncode, 2, result.stdout)
            self.assertIn("(--recompute full)", result.stderr)

    def test_galore_keeps_less_and_agrees(self):
        words = [*WORDS, "--ranks", "2"]
        usual = self.document(self.tiny, *words)
        away = self.document(self.tiny, *words, "--optimizer", "galore", "--galore-rank", "2")
        self.assertTrue(away["comparison"]["agrees"])
        # Of the same gradients: the first loss is before any step.
        self.assertEqual(away["steps"][0]["loss"], usual["steps"][0]["loss"])
        self.assertNotEqual(away["steps"][1]["loss"], usual["steps"][1]["loss"])
        self.assertEqual(away["steps"][0]["grad_norm"], usual["steps"][0]["grad_norm"])
        for more, says in (["--zero", "3"], "it projects whole matrices"), (["--lora-rank", "4"], "low-rank already"):
            result = plimsoll("run", self.tiny, *words, "--optimizer", "galore", *more)
            self.assertEqual(result.returncode, 2, result.stdout)
            self.assertIn(says, result.stderr)


if __name__ == "__main__":
    unittest.main()

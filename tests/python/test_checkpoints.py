#!/usr/bin/env python3
"""`plimsoll run --save-checkpoint` and `--resume` from the command line, on the host."""
import json
import os
import pathlib
import tempfile
import unittest

from program import plimsoll
from test_run import TINY

WORDS = ["--device", "cpu", "--seq-len", "16", "--quiet"]


class Checkpoints(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)
        self.model, self.saved = self.folder / "tiny.json", self.folder / "checkpoints"
        self.model.write_text(json.dumps(TINY))

    def steps(self, *words, status=0):
        """{step: (loss, gradient norm)} of a run that agrees with its plan."""
        path = self.folder / "measurement.json"
        result = plimsoll("run", self.model, *WORDS, *words, "--json", path)
        self.assertEqual(result.returncode, status, result.stderr)
        document = json.loads(path.read_text())
        self.assertTrue(document["comparison"]["agrees"])
        return {step["step"]: (step["loss"], step["grad_norm"]) for step in document["steps"]}

    def refused(self, *words):
        result = plimsoll("run", self.model, *WORDS, *words)
        self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
        return result.stderr

    def names(self):
        return sorted(os.listdir(self.saved))

    def test_a_run_goes_on_as_if_it_had_not_ended(self):
        words = ["--gpus", "2", "--zero", "3", "--grad-accum", "2", "--lr", "1e-3", "--warmup", "4", "--seed", "7"]
        whole = self.steps(*words, "--steps", "6")
        first = self.steps(*words, "--steps", "4", "--save-checkpoint", self.saved)
        self.assertEqual(self.names(), ["step-00000004"])
        # Seed, learning rate and warmup are the checkpoint's.
        rest = self.steps(*words[:6], "--steps", "6", "--resume", self.saved, "--save-checkpoint", self.saved)
        self.assertEqual({**first, **rest}, whole)
        self.assertEqual((sorted(first), sorted(rest)), ([1, 2, 3, 4], [5, 6]))
        self.assertEqual(self.names(), ["step-00000006"])
        # What is given counts.
        other = self.steps(*words[:6], "--lr", "0.5", "--steps", "8", "--resume", self.saved)
        same = self.steps(*words[:6], "--steps", "8", "--resume", self.saved)
        self.assertEqual(other[7], same[7])  # the loss is from before its step
        self.assertNotEqual(other[8], same[8])

    def test_so_does_one_on_a_packed_base_and_one_whose_states_are_on_the_host(self):
        packed = ["--quantize", "nf4-dq", "--lora-rank", "4", "--optimizer", "adam8bit"]
        for number, more in enumerate(([*packed, "--offload", "optimizer"], packed,
                                       ["--offload", "optimizer", "--precision", "fp16-mixed"])):
            with self.subTest(more):
                words, saved = ["--gpus", "2", "--zero", "3", *more], self.folder / str(number)
                whole = self.steps(*words, "--steps", "4")
                first = self.steps(*words, "--steps", "2", "--save-checkpoint", saved)
                rest = self.steps(*words, "--steps", "4", "--resume", saved)
                self.assertEqual({**first, **rest}, whole)

    def test_on_other_ranks_it_trains_on_the_tokens_that_follow(self):
        whole = self.steps("--precision", "fp32", "--gpus", "4", "--steps", "4")
        self.steps("--precision", "fp32", "--gpus", "4", "--steps", "2", "--save-checkpoint", self.saved)
        for words in (["--grad-accum", "4"], ["--gpus", "2", "--zero", "3", "--micro-batch", "2"]):
            rest = self.steps("--precision", "fp32", *words, "--steps", "4", "--resume", self.saved)
            for step in (3, 4):
                self.assertAlmostEqual(rest[step][0] / whole[step][0], 1, delta=1e-6)
        # Another number of sequences a step: those that were taken are not taken again.
        few = self.steps("--precision", "fp32", "--resume", self.saved, "--steps", "6")
        self.assertEqual(sorted(few), [3, 4, 5, 6])
        together = sum(few[step][0] for step in few) / 4
        self.assertAlmostEqual(together / whole[3][0], 1, delta=1e-3)

    def test_every_few_steps_the_last_one_stays(self):
        self.steps("--steps", "5", "--save-checkpoint", self.saved, "--save-every", "2")
        self.assertEqual(self.names(), ["step-00000005"])
        about = json.loads((self.saved / "step-00000005" / "checkpoint.json").read_text())
        self.assertEqual((about["step"]["all"], about["data"]["sequences"]), (5, 5))
        without = self.steps("--resume", self.saved)  # --steps: three more
        self.assertEqual(sorted(without), [6, 7, 8])

    def test_what_cannot_go_on_is_refused(self):
        self.steps("--steps", "2", "--save-checkpoint", self.saved)
        resume = ["--resume", self.saved]
        text = self.folder / "text.txt"
        text.write_text("a text of one's own, that is long enough to train on")
        for words, part in ((["--steps", "2"], "--steps 2: "), (["--seed", "1"], "is of --seed 42"),
                            (["--data", text], "is not what"),
                            (["--weights", self.folder], "--weights: the checkpoint"),
                            (["--precision", "fp32"], "is of --precision bf16-mixed"),
                            (["--optimizer", "lion"], "is of --optimizer adamw")):
            given = [*words, *([] if "--steps" in words else ["--steps", "4"])]
            self.assertIn(part, self.refused(*resume, *given))
        self.assertIn("in sequences of 16", plimsoll("run", self.model, "--device", "cpu", "--seq-len", "8",
                                                     *resume).stderr)
        self.assertIn("there is no training checkpoint", self.refused("--resume", self.folder))
        self.assertIn("--save-every", self.refused("--save-every", "2"))
        # Another run's stay what they are.
        self.assertIn("there is one already, step-00000002", self.refused("--save-checkpoint", self.saved))
        self.assertEqual(self.names(), ["step-00000002"])
        file = self.folder / "file"
        file.write_text("")
        self.assertIn("--save-checkpoint", self.refused("--save-checkpoint", file))
        damaged = next((self.saved / "step-00000002").glob("*.safetensors"))
        damaged.write_bytes(damaged.read_bytes()[:-1] + b"!")
        self.assertIn("damaged: its bytes are not those that were written", self.refused(*resume))

    def test_with_adapters_and_a_run_that_is_profiled(self):
        words = ["--lora-rank", "4", "--optimizer", "adam8bit", "--profile"]
        whole = self.steps(*words, "--steps", "3")
        self.steps(*words, "--steps", "2", "--save-checkpoint", self.saved)
        self.assertEqual(self.steps(*words, "--steps", "3", "--resume", self.saved)[3], whole[3])


if __name__ == "__main__":
    unittest.main()

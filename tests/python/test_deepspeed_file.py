#!/usr/bin/env python3
"""`--deepspeed ds_config.json` from the command line."""
import json
import pathlib
import tempfile
import unittest

from program import plimsoll

ZERO2 = {"train_batch_size": 32, "gradient_accumulation_steps": 2, "bf16": {"enabled": True},
         "zero_optimization": {"stage": 2, "reduce_bucket_size": 5e8}}


class DeepSpeedFile(unittest.TestCase):
    def fit(self, config, *words):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "ds.json"
            path.write_text(json.dumps(config))
            return plimsoll("fit", "llama-3.2-1b", "--gpu", "h100", "--gpus", "4", "--deepspeed",
                            path, "--json", "-", *words)

    def test_a_file_is_its_options(self):
        # 32 sequences / (4 GPUs x 2 micro-batches) = 4 a micro-batch.
        said = json.loads(self.fit(ZERO2).stdout)
        options = json.loads(plimsoll("fit", "llama-3.2-1b", "--gpu", "h100", "--gpus", "4",
                                      "--stack", "deepspeed", "--zero", "2", "--micro-batch", "4",
                                      "--grad-accum", "2", "--json", "-").stdout)
        self.assertEqual(said["workload"], options["workload"])
        self.assertEqual(said["peak_bytes"], options["peak_bytes"])

    def test_parameters_in_turn_are_of_the_flat_buffer_of_stages_1_and_2(self):
        # LLaMA-Factory 0.9.5, examples/deepspeed/ds_z2_config.json; its ds_z0_config.json and ds_z3_config.json have other
        # stages beside the same key, or none.
        flat = {"stage": 2, "allgather_partitions": True, "allgather_bucket_size": 5e8, "overlap_comm": False,
                "reduce_scatter": True, "reduce_bucket_size": 5e8, "contiguous_gradients": True,
                "round_robin_gradients": True}
        config = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}}
        for stage, words in ((0, ()), (1, ("--round-robin-gradients", "yes")), (2, ("--round-robin-gradients", "yes")),
                             (3, ())):
            said = json.loads(self.fit({**config, "zero_optimization": {**flat, "stage": stage}}).stdout)
            knobs = () if stage == 0 else ("--overlap-comm", "no")
            options = json.loads(plimsoll("fit", "llama-3.2-1b", "--gpu", "h100", "--gpus", "4", "--stack", "deepspeed",
                                          "--zero", stage, *knobs, *words, "--json", "-").stdout)
            self.assertEqual(said["workload"], options["workload"])
            in_turn = said["workload"]["stack"]["deepspeed"].get("round_robin_gradients", False)
            self.assertEqual(in_turn, stage in (1, 2))
        for stack, stage, part in (("deepspeed", 3, "--zero 1 and 2"), ("pytorch", 2, "--stack deepspeed")):
            result = plimsoll("fit", "gpt2", "--gpu", "h100", "--gpus", 2, "--stack", stack, "--zero", stage,
                              "--round-robin-gradients", "yes")
            self.assertEqual(result.returncode, 2)
            self.assertIn(part, result.stderr)

    def test_an_exported_file_with_parameters_in_turn_is_read_back_as_the_same_plan(self):
        config = {**ZERO2, "zero_optimization": {**ZERO2["zero_optimization"], "round_robin_gradients": True}}
        first = self.fit(config).stdout
        exported = plimsoll("export", "-", "--to", "deepspeed", "--quiet", stdin=first).stdout
        self.assertTrue(json.loads(exported)["zero_optimization"]["round_robin_gradients"])
        self.assertEqual(json.loads(first)["workload"], json.loads(self.fit(json.loads(exported)).stdout)["workload"])

    def test_the_same_said_twice_is_no_contradiction(self):
        words = ["--zero", "2", "--grad-accum", "2"]
        self.assertEqual(self.fit(ZERO2, *words).stderr, "")

    def test_a_contradiction_names_both_values(self):
        result = self.fit(ZERO2, "--zero", "3")
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        for part in ("--zero 3", "says 2", "zero_optimization.stage"):
            self.assertIn(part, result.stderr)

    def test_deepspeeds_own_estimate_stands_beside_the_plan(self):
        plan = json.loads(self.fit(ZERO2).stdout)
        figures = {a["what"]: a["value"] for a in plan["assumptions"]}
        # 2 x 1,235,814,400 + 18 x 1,235,814,400 / 4
        self.assertEqual(figures["model states by DeepSpeed's own estimator, bytes"], 8032793600)
        self.assertEqual(figures["model states as planned, bytes"], sum(plan["states"].values()))
        self.assertTrue(any("estimator" in line for line in plan["advice"]))

    def test_an_exported_file_is_read_back_as_the_same_plan(self):
        first = self.fit(ZERO2).stdout
        exported = plimsoll("export", "-", "--to", "deepspeed", "--quiet", stdin=first).stdout
        again = self.fit(json.loads(exported)).stdout
        self.assertEqual(json.loads(first)["workload"], json.loads(again)["workload"])


if __name__ == "__main__":
    unittest.main()

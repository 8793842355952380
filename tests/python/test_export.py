#!/usr/bin/env python3
"""`plimsoll export` from the command line."""
import json
import unittest

from program import ROOT, plimsoll
from test_schema import SCHEMA_CHECK, complaint, jsonschema

PLAN = (ROOT / "tests/golden/exports/fsdp.plan.json").read_text()


def export(*words, stdin=PLAN):
    return plimsoll("export", "-", *words, stdin=stdin)


class Export(unittest.TestCase):
    def test_a_plan_from_a_pipe(self):
        fit = plimsoll("fit", "gpt2", "--gpu", "h100", "--gpus", "4", "--micro-batch", "3",
                       "--grad-accum", "2", "--json", "-")
        config = json.loads(export("--to", "deepspeed", stdin=fit.stdout).stdout)
        self.assertEqual((config["train_batch_size"], config["train_micro_batch_size_per_gpu"],
                          config["gradient_accumulation_steps"]), (24, 3, 2))

    def test_a_plan_of_tensor_parallelism_is_consistent_and_is_not_written(self):
        fit = plimsoll("fit", "llama-3-8b", "--trainer", "torchtitan", "--gpu", "h100", "--gpus", "16",
                       "--tp", "4", "--seq-len", "8192", "--json", "-")
        plan = json.loads(fit.stdout)
        tokens = 8192 * 4  # of four ranks that see other rows
        step = plan["time"]["step_seconds"]
        self.assertAlmostEqual(plan["time"]["tokens_per_second"] * step / tokens, 1)
        self.assertAlmostEqual(plan["time"]["tokens_per_second_per_gpu"] * step * 16 / tokens, 1)
        result = export("--to", "accelerate", stdin=fit.stdout)
        self.assertEqual(result.returncode, 2)
        self.assertIn("only data-parallel plans are exported (this one has tp 4", result.stderr)

    def test_a_plan_whose_fullest_rank_is_not_the_first_of_its_kind(self):
        fit = plimsoll("fit", "qwen2.5-0.5b", "--gpu", "h100", "--stack", "deepspeed", "--gpus",
                       "8", "--zero", "2", "--grad-dtype", "fp32", "--json", "-")
        self.assertEqual(json.loads(fit.stdout)["ranks"][0]["rank"], 7)
        result = export("--to", "deepspeed", stdin=fit.stdout)
        self.assertEqual((result.returncode, bool(json.loads(result.stdout))), (0, True))

    def test_notes_of_a_file_without_comments_go_to_standard_error(self):
        result = export("--to", "deepspeed")
        self.assertIn("learning rate", result.stderr)
        self.assertEqual(export("--to", "deepspeed", "--quiet").stderr, "")
        self.assertIn("\n# ", export("--to", "accelerate").stdout)

    def test_what_no_option_switches_on_is_said_and_written(self):
        def plan(*words):
            return plimsoll("fit", "gpt2", "--gpu", "h100", "--json", "-", *words).stdout

        for words, part, code in (
                (["--loss", "chunked"], "chunked loss", "chunked_loss(model)"),
                (["--loss", "fused"], "Liger", "fused_loss(model)"),
                (["--recompute", "every:5"], "every 5 layers", "checkpoint_groups(model, 5)"),
                (["--recompute", "sqrt"], "sqrt(layers)", "checkpoint_groups(model, 4)"),
                (["--recompute", "block:5"], "first 5 layers",
                 "checkpoint_first_layers(model, 5, False)"),
                (["--recompute", "block:5", "--use-reentrant", "yes"], "first 5 layers",
                 "checkpoint_first_layers(model, 5, True)"),
                (["--recompute", "nth:5"], "one in 5 layers", "checkpoint_every_nth_layer(model, 5, False)"),
                (["--recompute", "nth:5"], "one in 5 layers", "gradient_checkpointing = number % n == 0"),
                (["--recompute", "selective"], "core attention", "checkpoint_attention(model)"),
                (["--attention", "math"], "math attention", "_sdp"),
                (["--gpus", "2", "--zero", "1"], "ZeroRedundancy", "return ZeroTrainer("),
                (["--gpus", "2", "--zero", "3", "--stack", "deepspeed", "--loss", "chunked"],
                 "chunked loss", "chunked_loss(model)")):
            with self.subTest(words=words):
                document = plan(*words)
                notes = [line for line in json.loads(document)["advice"] if "Needs code" in line]
                self.assertEqual(len(notes), 1)
                self.assertIn(part, notes[0])
                self.assertIn(notes[0].split(" no option")[0],
                              export("--to", "deepspeed", stdin=document).stderr)
                self.assertIn(code, export("--to", "transformers", stdin=document).stdout)
        for words in (["--recompute", "full"], ["--stack", "plimsoll", "--loss", "chunked"]):
            self.assertNotIn("Needs code", plan(*words))
        old = plan("--recompute", "selective", "--transformers-version", "4.51")
        self.assertIn("not known", "".join(json.loads(old)["advice"]))
        result = export("--to", "transformers", stdin=old)
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertIn("4.53", result.stderr)

    def test_a_head_with_an_adapter_has_no_code_for_other_losses(self):
        fit = plimsoll("fit", "llama-3.2-1b", "--gpu", "h100", "--lora-rank", "8",
                       "--lora-targets", "lm_head", "--loss", "chunked", "--json", "-")
        if fit.returncode == 2:  # refused before
            self.assertIn("lm_head", fit.stderr)
            return
        result = export("--to", "transformers", stdin=fit.stdout)
        self.assertEqual(result.returncode, 2)
        self.assertIn("adapter", result.stderr)

    def test_the_first_plan_of_a_recommendation_is_taken(self):
        document = {"schema": "plimsoll.recommendation/1",
                    "ranked": [{"plan": json.loads(PLAN)}, {"plan": {"schema": "wrong"}}]}
        for to in ("deepspeed", "accelerate", "transformers"):
            self.assertEqual(export("--to", to, stdin=json.dumps(document)).stdout,
                             export("--to", to).stdout)
        own = export("--to", "plimsoll", stdin=json.dumps(document)).stdout
        self.assertEqual(json.loads(own), json.loads(PLAN))
        self.assertEqual(list(json.loads(own)), list(json.loads(PLAN)))

    def test_the_plan_itself_is_handed_on_unchanged(self):
        self.assertEqual(export("--to", "plimsoll").stdout, PLAN)

    def test_refusals(self):
        for words, stdin, part in (
                (["--to", "deepspede"], PLAN, "deepspeed"),
                (["--to", "kubernetes"], PLAN, "kubernetes"),
                ([], PLAN, "--to is missing"),
                (["--to", "deepspeed"], "{}", "standard input"),
                (["--to", "deepspeed"], "[[", "standard input"),
                (["--to", "deepspeed"], '{"schema": "plimsoll.recommendation/1", "ranked": []}',
                 "ranks no plan"),
                (["--to", "accelerate"], plimsoll("fit", "--params", "7e9", "--gpu", "h100",
                                                  "--json", "-").stdout, "parameter count")):
            with self.subTest(words=words, part=part):
                result = export(*words, stdin=stdin)
                self.assertEqual(result.returncode, 2)
                self.assertEqual(result.stdout, "")
                self.assertTrue(result.stderr.startswith("plimsoll: "))
                self.assertIn(part, result.stderr)

    @unittest.skipUnless(SCHEMA_CHECK or jsonschema, "neither valijson nor jsonschema is here")
    def test_the_document_validates(self):
        document = json.loads(export("--to", "deepspeed", "--json", "-").stdout)
        self.assertEqual(complaint("export", [document]), "")
        self.assertTrue(document["notes"])


if __name__ == "__main__":
    unittest.main()

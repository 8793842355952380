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

    def test_notes_of_a_file_without_comments_go_to_standard_error(self):
        result = export("--to", "deepspeed")
        self.assertIn("learning rate", result.stderr)
        self.assertEqual(export("--to", "deepspeed", "--quiet").stderr, "")
        self.assertIn("\n# ", export("--to", "accelerate").stdout)

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

#!/usr/bin/env python3
"""`plimsoll recommend`: what it prints can be typed, and gives back the same plan."""
import json
import os
import shlex
import unittest

from program import plimsoll
from test_schema import SCHEMA_CHECK, complaint, jsonschema

SMALL = ["llama-3.2-1b", "--gpu", "4090", "--gpus", "4", "--seq-len", "2048"]


def recommendation(*words):
    result = plimsoll("recommend", *words, "--json", "-", "--threads", "2")
    return result.returncode, json.loads(result.stdout)


class Recommend(unittest.TestCase):
    def assert_valid(self, document):
        if not (SCHEMA_CHECK or jsonschema):
            self.skipTest("neither valijson nor jsonschema is here")
        self.assertEqual(complaint("recommendation", [document]), "")
        self.assertEqual(complaint("plan", [ranked["plan"] for ranked in document["ranked"]]
                                   or [document["nothing_fits"]["closest"]]), "")

    def test_every_command_gives_its_plan(self):
        for words in (SMALL, [*SMALL, "--objective", "memory"], [*SMALL, "--global-batch", "24"],
                      ["gpt2", "--gpu", "t4", "--objective", "context"],
                      [*SMALL, "--stack", "plimsoll", "--recompute", "full"],
                      [*SMALL, "--fsdp-version", "1"]):
            status, document = recommendation(*words)
            self.assertEqual(status, 0)
            self.assert_valid(document)
            for ranked in document["ranked"]:
                with self.subTest(command=ranked["command"]):
                    typed = shlex.split(ranked["command"])
                    self.assertEqual(typed[:2], ["plimsoll", "fit"])
                    plan = json.loads(plimsoll(*typed[1:], "--json", "-").stdout)
                    self.assertEqual(plan, ranked["plan"])

    def test_plans_leave_room_for_what_is_assumed(self):
        _, document = recommendation(*SMALL)
        self.assertEqual(document["headroom"], {"overheads": "high end", "min_headroom_bytes": 0})
        for ranked in document["ranked"]:
            plan = ranked["plan"]
            self.assertTrue(plan["high_end"]["fits"])
            self.assertLessEqual(plan["high_end"]["device_bytes"], plan["usable_bytes"])
            self.assertGreater(plan["high_end"]["device_bytes"], plan["device_bytes"])
        careful = document["ranked"][0]["tokens_per_second"]
        _, document = recommendation(*SMALL, "--min-headroom", "0")
        self.assertEqual(document["headroom"], {"overheads": "typical", "min_headroom_bytes": 0})
        self.assertGreaterEqual(document["ranked"][0]["tokens_per_second"], careful)
        self.assertFalse(all(r["plan"]["high_end"]["fits"] for r in document["ranked"]))
        _, document = recommendation(*SMALL, "--min-headroom", "2GiB")
        self.assertEqual(document["headroom"]["min_headroom_bytes"], 2 << 30)
        for ranked in document["ranked"]:
            plan = ranked["plan"]
            self.assertEqual(plan["capacity_bytes"] - plan["usable_bytes"], 2 << 30)
            self.assertLessEqual(plan["device_bytes"] + (2 << 30), plan["capacity_bytes"])

    def test_nothing_fits_says_what_would(self):
        # Without grouped queries: those have no fused attention on a T4, and need room for all scores.
        words = ["llama-2-7b", "--gpu", "t4", "--without", "adapters=lora", "--stack", "pytorch"]
        status, document = recommendation(*words)
        self.assertEqual(status, 1)
        self.assert_valid(document)
        self.assertEqual(document["ranked"], [])
        nothing = document["nothing_fits"]
        self.assertGreater(nothing["shortfall_bytes"], 0)
        self.assertTrue(any(change.startswith("--gpus ") for change in nothing["would_fit"]))
        for command in nothing["commands"]:
            self.assertEqual(plimsoll(*shlex.split(command)[1:]).returncode, 0, command)

    def test_what_is_given_stays(self):
        _, document = recommendation(*SMALL, "--zero", "2", "--micro-batch", "3",
                                     "--loss", "chunked", "--precision", "bf16")
        for ranked in document["ranked"]:
            strategy = ranked["plan"]["workload"]["strategy"]
            self.assertEqual(strategy["zero"], 2)
            self.assertEqual(strategy["loss"], "chunked")
            self.assertEqual(strategy["precision"], "bf16")
            self.assertEqual(ranked["plan"]["workload"]["batch"]["micro_batch"], 3)

    def test_a_version_of_fsdp_leaves_its_stage_open(self):
        _, document = recommendation(*SMALL, "--fsdp-version", "1", "--top", "20")
        workloads = [ranked["plan"]["workload"] for ranked in document["ranked"]]
        self.assertEqual({w["strategy"]["zero"] for w in workloads}, {2, 3})
        self.assertEqual({w["stack"]["fsdp_version"] for w in workloads}, {1})

    def test_bad_questions_are_refused_by_name(self):
        for words, name in ((["--only", "zero=7"], "zero"), (["--keep", "nothing"], "keep"),
                            (["--only", "speed=1"], "speed"), (["--objective", "fun"], "objective"),
                            (["--without", "loss"], "AXIS=VALUE"),
                            (["--global-batch", "8", "--grad-accum", "2"], "grad-accum")):
            result = plimsoll("recommend", *SMALL, *words)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn(name, result.stderr)

    def test_the_table_is_80_columns_wide(self):
        result = plimsoll("recommend", *SMALL, "--tokens", "15e12")
        self.assertEqual(result.returncode, 0)
        self.assertLessEqual(max(map(len, result.stdout.splitlines())), 80)
        self.assertIn("GPU-days", result.stdout)


if __name__ == "__main__":
    os.environ.setdefault("LC_ALL", "C.UTF-8")
    unittest.main()

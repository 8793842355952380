#!/usr/bin/env python3
"""`plimsoll run --quantize` from the command line, on the host."""
import json
import pathlib
import re
import tempfile
import unittest

from program import plimsoll
from test_run import TINY, WORDS


class PackedBase(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.tiny = pathlib.Path(holder.name) / "tiny.json"
        self.tiny.write_text(json.dumps(TINY))

    def test_a_packed_base_with_offloaded_states_is_exact_and_trains_as_without_offloading(self):
        lora = ["--ranks", "4", "--zero", "3", "--quantize", "nf4-dq", "--lora-rank", "8",
                "--optimizer", "adam8bit"]
        losses, optimizer = [], []
        for offload in ([], ["--offload", "optimizer"]):
            result = plimsoll("run", self.tiny, *WORDS, *lora, *offload, "--json", "-")
            self.assertEqual(result.returncode, 0, result.stderr)
            document = json.loads(result.stdout)
            levels = document["comparison"]["levels"]
            self.assertEqual([levels[k]["verdict"] for k in ("requested", "reserved")],
                             ["exact", "exact"])
            self.assertEqual(len(document["ranks"]), 4)
            losses.append([step["loss"] for step in document["steps"]])
            optimizer.append(document["ranks"][3]["states"]["optimizer_bytes"])
        self.assertEqual(*losses)
        self.assertGreater(optimizer[0], 0)
        self.assertEqual(optimizer[1], 0)
        result = plimsoll("run", self.tiny, *WORDS, "--offload", "optimizer,params")
        self.assertEqual(result.returncode, 2)
        self.assertIn("plimsoll's runtime keeps them on the device", result.stderr)

    def test_a_run_says_what_packing_loses(self):
        # Of normal weights NF4 loses about 9 %, its levels' own error. A row of 32 or 64 reaches to 2.4 or 2.7
        # deviations, which are 127 steps, and 256 values range over 5.7, which are 255; a step / sqrt(12) is lost.
        for storage, least, most in (("nf4", 8.5, 10), ("int8", 0.5, 0.65), ("int8-affine", 0.6, 0.7)):
            result = plimsoll("run", self.tiny, *WORDS, "--lora-rank", "8", "--quantize", storage)
            self.assertEqual(result.returncode, 0, result.stderr)
            loses = re.search(rf"{storage} loses (\S+) % of the base's packed weights", result.stderr)
            self.assertIsNotNone(loses, result.stderr)
            self.assertTrue(least < float(loses[1]) < most, loses[0])
        plain = plimsoll("run", self.tiny, *WORDS, "--lora-rank", "8")
        self.assertNotIn("loses", plain.stderr)


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""Files of Accelerate, PEFT and Transformers from the command line."""
import json
import time
import unittest

from case import Case
from program import plimsoll


class UserFiles(Case):
    def fit(self, *words):
        return plimsoll("fit", *words, "--gpu", "h100", "--json", "-")

    def test_an_exported_configuration_is_read_back_as_the_same_plan(self):
        batch = ["--seq-len", "512", "--micro-batch", "2", "--grad-accum", "2"]
        for words in (["--gpus", "4"], ["--gpus", "4", "--zero", "3", "--recompute", "full"],
                      ["--gpus", "16", "--zero", "2", "--gpus-per-node", "4"],
                      ["--gpus", "4", "--zero", "3", "--shard-group", "2"],
                      ["--gpus", "8", "--zero", "3", "--fsdp-version", "1", "--precision",
                       "fp16-mixed"], ["--precision", "bf16"]):
            first = self.fit("gpt2", *batch, *words).stdout
            text = plimsoll("export", "-", "--to", "accelerate", stdin=first).stdout
            path = self.write("c.yaml", text)
            extra = ["--precision", "bf16"] if words[0] == "--precision" else []
            again = self.fit("gpt2", *batch, *extra, "--accelerate", path)
            self.assertEqual(again.stderr, "", words)
            self.assertEqual(json.loads(first)["workload"], json.loads(again.stdout)["workload"])

    def test_hostile_files_are_refused_in_a_moment(self):
        large = b"a: 1\n" * 2_000_000
        for option, content in (("accelerate", large), ("peft", large), ("training-args", large),
                                ("accelerate", b""), ("peft", b""), ("training-args", b"\x00"),
                                ("accelerate", b"\xff\xfe"), ("accelerate", b"- 1\n- 2\n"),
                                ("training-args", b"[" * 100000), ("accelerate", b"{" * 400),
                                ("accelerate", b"a: " * 3000), ("training-args", b"? " * 20000),
                                ("axolotl", large), ("llamafactory", b"{" * 400),
                                ("swift", b"a: &x [*x]"), ("torchtitan", large),
                                ("torchtitan", b"a = " + b"[" * 100000),
                                ("torchtitan", b"[a]\n" * 1000), ("torchtitan", b"\x00")):
            path = self.write("file", content)
            began = time.monotonic()
            self.assert_refused(self.fit("gpt2", f"--{option}", path), str(path))
            self.assertLess(time.monotonic() - began, 5, (option, content[:10]))

    def test_a_configuration_of_axolotl_names_the_model_and_its_origin_in_an_error(self):
        text = ("base_model: gpt2\nattn_implementation: flash_attention_2\nsequence_len: 256\n"
                "micro_batch_size: 4\n")
        path = self.write("a.yaml", text)
        answer = json.loads(plimsoll("fit", "--axolotl", path, "--gpu", "h100", "--json",
                                     "-").stdout)
        self.assertEqual(answer["workload"]["batch"]["seq_len"], 256)
        self.assertEqual(answer["workload"]["batch"]["micro_batch"], 4)
        self.assert_refused(plimsoll("fit", "--axolotl", path, "--gpu", "h100", "--seq-len", "512"),
                            f"--seq-len 512, but {path} says 256 (sequence_len)")

    def test_files_are_inputs_that_no_output_overwrites(self):
        path = self.write("t.json", json.dumps({"bf16": True}))
        self.assert_refused(plimsoll("fit", "gpt2", "--training-args", path, "--json", path),
                            "is an input of this command")

    def test_a_recommendation_prints_commands_that_need_no_file(self):
        path = self.write("t.json", json.dumps({"model_name_or_path": "gpt2", "bf16": True,
                                                "optim": "sgd"}))
        answer = json.loads(plimsoll("recommend", "--training-args", path, "--gpu", "4090", "--top",
                                     "1", "--seq-len", "512", "--json", "-").stdout)
        command = answer["ranked"][0]["command"]
        self.assertIn("--optimizer sgd", command)
        self.assertNotIn("t.json", command)


if __name__ == "__main__":
    unittest.main()

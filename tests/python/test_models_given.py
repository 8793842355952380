#!/usr/bin/env python3
"""MODEL as users give it: names, hub ids, paths, and what is no model."""
import json
import unittest

from case import TINY, Case
from program import plimsoll


class BadModels(Case):
    def refused(self, content, *parts):
        path = self.write("config.json", content)
        self.assert_refused(plimsoll("fit", path), *parts)

    def test_paths(self):
        self.assert_refused(plimsoll("fit", self.folder / "gone.json"), "no such file")
        self.assert_refused(plimsoll("fit", self.folder), "without a config.json")
        self.assert_refused(plimsoll("fit", "org/name", HF_HUB_CACHE=str(self.folder)),
                            str(self.folder))
        self.assert_refused(plimsoll("fit", "lama-3.1-8b"), "did you mean 'llama-3.1-8b'")

    def test_what_is_no_config(self):
        for content in [b"", b"not json", b"[]", b"42", b"null", b"{", b'"x"', b"\xff\xfe\x00",
                        b"{}" * 2, b"{" * 100_000, b"[" * 100_000,
                        b'{"a":' * 100_000 + b"1" + b"}" * 100_000]:
            with self.subTest(content=content[:20]):
                self.refused(content)

    def test_numbers_that_cannot_be(self):
        for key in ["n_layer", "n_embd", "n_head", "vocab_size", "n_positions"]:
            for value in [-1, 0, 1.5, 1e30, "8", [], {}, True, 10**40]:
                with self.subTest(key=key, value=value):
                    self.refused(json.dumps({**TINY, key: value}), key)

    def test_widths_that_do_not_divide(self):
        self.refused(json.dumps({**TINY, "n_embd": 18}), "n_head")

    def test_sizes_beyond_all_bounds(self):
        self.refused(json.dumps({**TINY, "n_layer": 10**18}))
        self.refused(json.dumps({**TINY, "n_embd": 2**40, "vocab_size": 2**40}), "overflow")

    def test_families(self):
        self.refused(json.dumps({**TINY, "model_type": "gtp2"}), "did you mean 'gpt2'")
        self.refused(json.dumps({k: v for k, v in TINY.items() if k != "model_type"}),
                     "model_type")
        self.refused(json.dumps({**TINY, "model_type": 7}), "model_type")

    def test_a_damaged_checkpoint_beside_the_config(self):
        self.write("config.json", json.dumps(TINY))
        for content in [b"", b"\x10", b"\xff" * 8, (100).to_bytes(8, "little") + b"{",
                        (2).to_bytes(8, "little") + b"[]"]:
            with self.subTest(content=content):
                self.write("model.safetensors", content)
                self.assert_refused(plimsoll("fit", self.folder), "model.safetensors")

    def test_a_checkpoint_that_differs_is_explained(self):
        self.write("config.json", json.dumps(TINY))
        header = json.dumps({"wte.weight": {"dtype": "F32", "shape": [32, 16],
                                            "data_offsets": [0, 2048]}}).encode()
        self.write("model.safetensors",
                   len(header).to_bytes(8, "little") + header + bytes(2048))
        result = plimsoll("fit", self.folder, "--gpu", "h100", "--json", "-")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex("\n".join(json.loads(result.stdout)["advice"]),
                         "transformer.wpe.weight: in the model, not in the checkpoint")

    def test_a_file_without_end_is_not_read_for_ever(self):
        self.assert_refused(plimsoll("fit", "/dev/zero"))


    def test_names_that_people_type_are_found_or_the_nearest_is_named(self):
        for name, found in (("phi3", "phi-3-mini-4k"), ("GPT2-Medium", "gpt2-medium"),
                            ("llama-3.1-8b-instruct", "llama-3.1-8b"),
                            ("mistral-7b-instruct-v0.3", "mistral-7b-v0.3")):
            plan = json.loads(plimsoll("fit", name, "--gpu", "h100", "--json", "-").stdout)
            self.assertEqual(plan["model"]["name"], found)
        for name, near in (("llama3", "llama-3-8b"), ("mixtral", "mixtral-8x7b"),
                           ("mistral-7b-instruct", "mistral-7b-v0."),
                           ("someone/Llama-3.2-1B-Instruct-GGUF", "llama-3.2-1b"),
                           ("llama-3.1-8b-gguf", "llama-3.1-8b")):
            self.assert_refused(plimsoll("fit", name), f"did you mean '{near}")

    def test_a_git_lfs_pointer_is_named(self):
        pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 660\n"
        self.refused(pointer, "is a Git LFS pointer", "git lfs pull")
        self.write("config.json", json.dumps(TINY))
        self.write("model.safetensors", pointer)
        result = plimsoll("fit", self.folder, "--gpu", "h100")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("model.safetensors is a Git LFS pointer", result.stdout)

    def test_bytes_behind_a_nul_are_an_error(self):
        self.refused(json.dumps(TINY).encode() + b"\0garbage", "NUL")


class HubCache(Case):
    def test_a_hub_id_that_the_catalog_knows_is_taken_from_there_and_said(self):
        ids = {"meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
               "Qwen/Qwen2.5-7B-Instruct": "qwen2.5-7b",
               "mistralai/Mistral-7B-Instruct-v0.3": "mistral-7b-v0.3",
               "openai-community/gpt2": "gpt2"}
        for name, found in ids.items():
            result = plimsoll("fit", name, "--gpu", "h100", "--json", "-")
            self.assertEqual(json.loads(result.stdout)["model"]["name"], found)
            self.assertEqual(result.stderr,
                             f"plimsoll: {name}: the catalog's config of {found} is taken\n")
            self.assertEqual(plimsoll("fit", name, "--gpu", "h100", "--quiet").stderr, "")
        # What was downloaded goes first.
        self.write("hub/models--openai-community--gpt2/refs/main", "abc")
        self.write("hub/models--openai-community--gpt2/snapshots/abc/config.json", json.dumps(TINY))
        result = plimsoll("fit", "openai-community/gpt2", "--gpu", "h100", "--json", "-",
                          HF_HOME=str(self.folder))
        self.assertEqual(json.loads(result.stdout)["workload"]["model"]["config"]["n_embd"], 16)
        self.assertEqual(result.stderr, "")

    def test_a_hub_id_is_read_from_the_cache(self):
        self.write("hub/models--org--tiny/refs/main", "abc")
        self.write("hub/models--org--tiny/snapshots/abc/config.json",
                   json.dumps({**TINY, "model_type": "gtp2"}))
        result = plimsoll("fit", "org/tiny", HF_HOME=str(self.folder))
        self.assert_refused(result, "snapshots/abc/config.json", "did you mean 'gpt2'")


if __name__ == "__main__":
    unittest.main()

"""`plimsoll run` on checkpoints that bitsandbytes has packed: read, written again, and merged with an adapter.
tests/golden/bitsandbytes_checkpoints is what Transformers saved (tools/oracle/bitsandbytes_checkpoints.py)."""
import json
import pathlib
import struct
import unittest

from case import Case
from program import plimsoll

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
GOLDEN = ROOT / "tests" / "golden" / "bitsandbytes_checkpoints"
WORDS = ["--device", "cpu", "--precision", "bf16-mixed", "--seq-len", "16", "--lora-rank", "4", "--steps", "2",
         "--lr", "1e-2", "--warmup", "0"]
STATE = ".quant_state.bitsandbytes__nf4"


def tensors(file):
    """name -> (dtype, shape, bytes)"""
    data = file.read_bytes()
    length = struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    begin = 8 + length
    return {name: (one["dtype"], one["shape"], data[begin + one["data_offsets"][0]:begin + one["data_offsets"][1]])
            for name, one in header.items()}


def write(file, content):
    header, data = {}, b""
    for name, (dtype, shape, held) in content.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(held)]}
        data += held
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)


def values(tensor):
    dtype, _, data = tensor
    if dtype == "F32":
        return list(struct.unpack(f"<{len(data) // 4}f", data))
    assert dtype == "BF16"
    return [struct.unpack("<f", b"\0\0" + data[i:i + 2])[0] for i in range(0, len(data), 2)]


def nf4_values(file, name):
    """As bitsandbytes' dequantize_4bit has them; scales not quantized."""
    table, scales = (values(file[name + suffix]) for suffix in (".quant_map", ".absmax"))
    codes = [code for byte in file[name][2] for code in (byte >> 4, byte & 15)]
    return [table[code] * scales[i // 64] for i, code in enumerate(codes)]


class PackedCheckpoints(Case):
    def run_it(self, model, *words):
        result = plimsoll("run", model, *WORDS, *words)
        self.assertEqual(result.returncode, 0, result.stderr + result.stdout)
        return result

    def assert_same(self, ours, theirs, but=()):
        self.assertEqual(ours.keys(), theirs.keys())
        for name, tensor in theirs.items():
            if not name.endswith(tuple(but) or ("\0",)):
                self.assertEqual(ours[name], tensor, name)

    def test_what_bitsandbytes_packed_is_written_again_byte_for_byte(self):
        for kind in ("nf4", "nf4-dq", "int8"):
            for words in ((), ("--ranks", "3", "--zero", "3"), ("--ranks", "2", "--zero", "2")):
                with self.subTest(kind=kind, words=words):
                    saved = self.folder / f"{kind}-{len(words)}-{''.join(words)}"
                    # The folder's config.json says how it is packed.
                    result = self.run_it(GOLDEN / kind, "--weights", GOLDEN / kind, "--save-packed", saved, *words)
                    self.assertNotIn("loses", result.stderr)
                    self.assert_same(tensors(saved / "model.safetensors"), tensors(GOLDEN / kind / "model.safetensors"))
                    ours, theirs = (json.loads((folder / "config.json").read_text())
                                    for folder in (saved, GOLDEN / kind))
                    said = ours.pop("quantization_config")
                    self.assertEqual(said, {key: theirs["quantization_config"][key] for key in said})
                    self.assertEqual(said["quant_method"], "bitsandbytes")
                    theirs.pop("quantization_config")
                    self.assertEqual(ours, theirs)

    def test_weights_that_we_pack_are_bitsandbytes_bytes(self):
        for kind in ("nf4", "nf4-dq", "int8"):
            with self.subTest(kind=kind):
                saved = self.folder / kind
                result = self.run_it(GOLDEN / "plain", "--weights", GOLDEN / "plain", "--quantize", kind,
                                     "--save-packed", saved)
                self.assertIn("loses", result.stderr)
                ours, theirs = tensors(saved / "model.safetensors"), tensors(GOLDEN / kind / "model.safetensors")
                # PyTorch's order of summing the mean of the scales is the processor's.
                self.assert_same(ours, theirs, but=[STATE, ".nested_absmax", ".absmax"] if kind == "nf4-dq" else [])
                for name in theirs:
                    if name.endswith(STATE) and kind == "nf4-dq":
                        one, other = (json.loads(file[name][2]) for file in (ours, theirs))
                        self.assertAlmostEqual(one.pop("nested_offset"), other.pop("nested_offset"), delta=1e-7)
                        self.assertEqual(one, other)

    def test_bytes_that_are_held_in_16_bits_are_the_same_bytes(self):
        saved = self.folder / "saved"
        self.run_it(GOLDEN / "nf4-dq", "--weights", GOLDEN / "nf4-dq-bf16", "--save-packed", saved)
        self.assert_same(tensors(saved / "model.safetensors"), tensors(GOLDEN / "nf4-dq" / "model.safetensors"))

    def test_a_merged_model_is_the_unpacked_base_and_the_product_rounded_once(self):
        merged, adapter = self.folder / "merged", self.folder / "adapter"
        self.run_it(GOLDEN / "nf4", "--weights", GOLDEN / "nf4", "--ranks", "2", "--zero", "3", "--lora-alpha", "6",
                    "--save-merged", merged, "--save-weights", adapter)
        self.assertNotIn("quantization_config", json.loads((merged / "config.json").read_text()))
        ours, base = tensors(merged / "model.safetensors"), tensors(GOLDEN / "nf4" / "model.safetensors")
        trained = tensors(adapter / "adapter_model.safetensors")
        self.assertEqual(ours.keys(), tensors(GOLDEN / "plain" / "model.safetensors").keys())
        for name in ("model.layers.0.self_attn.k_proj", "model.layers.0.mlp.down_proj"):
            out, width = ours[name + ".weight"][1]
            a, b = (values(trained[f"base_model.model.{name}.lora_{x}.weight"]) for x in "AB")
            self.assertGreater(max(abs(x) for x in b), 1e-3)
            plain = nf4_values(base, name + ".weight")
            for i, value in enumerate(values(ours[name + ".weight"])):
                row, column = divmod(i, width)
                delta = 6 / 4 * sum(b[row * 4 + k] * a[k * width + column] for k in range(4))
                # The base is rounded to 16 bits before, the sum after: half a unit in the last place each.
                self.assertAlmostEqual(value, plain[i] + delta, delta=2**-8 * (abs(plain[i]) + abs(plain[i] + delta)))
        for name in ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"):
            self.assertEqual(ours[name], base[name])

    def test_two_adapters_take_turns_on_one_packed_base(self):
        base = GOLDEN / "nf4"
        words = [base, "--weights", base, "--ranks", "2", "--zero", "3"]
        for name, seed in (("first", "1"), ("second", "2")):
            self.run_it(*words, "--seed", seed, "--save-weights", self.folder / "begun" / name)
        begun = {name: self.folder / "begun" / name for name in ("first", "second")}
        for order in (("first", "second"), ("second", "first")):
            with self.subTest(order=order):
                alone, both = self.folder / "alone", self.folder / "-".join(order)
                self.run_it(*words, "--adapter", begun[order[0]], "--save-weights", alone)
                result = self.run_it(*words, "--adapter", ",".join(f"{begun[name]}/" for name in order),
                                     "--save-weights", both, "--save-merged", both / "merged", "--json", "-")
                self.assertIn(f"adapter: {order[1]}", result.stderr)
                document = json.loads(result.stdout)
                self.assertEqual([step["step"] for step in document["steps"]], [1, 2, 3, 4])
                self.assertTrue(document["comparison"]["agrees"])
                file = "adapter_model.safetensors"
                # Whoever comes first is trained as if nobody came behind; who comes second, on other data.
                self.assertEqual(tensors(both / order[0] / file), tensors(alone / file))
                self.assertNotEqual(tensors(both / order[1] / file), tensors(begun[order[1]] / file))
                merged = [tensors(both / "merged" / name / "model.safetensors") for name in order]
                self.assertNotEqual(*merged)
                self.assertEqual(merged[0].keys(), tensors(GOLDEN / "plain" / "model.safetensors").keys())
        # Where all batches are alike, who comes second is trained as if nobody came before: rates, moments, steps.
        alike = self.folder / "alike.bin"
        alike.write_bytes(struct.pack("<H", 5) * 4096)
        rates = [*WORDS[:-2], "--warmup", "3", "--data", alike]
        for adapters, name in ((begun["second"], "only"), (f"{begun['first']},{begun['second']}", "pair")):
            result = plimsoll("run", *words, *rates, "--adapter", adapters, "--save-weights", self.folder / name)
            self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(tensors(self.folder / "pair" / "second" / "adapter_model.safetensors"),
                         tensors(self.folder / "only" / "adapter_model.safetensors"))
        plan = self.folder / "plan.json"
        self.run_it(*words, "--prediction", plan, "--json", self.folder / "measured.json")
        result = plimsoll("run", plan, "--adapter", begun["first"], "--weights", base, "--steps", "1")
        self.assertEqual(result.returncode, 0, result.stderr)
        both = f"{begun['first']},{begun['second']}"
        for more, says in (([f"{begun['first']},{begun['first']}/"], "another adapter's folder is named first"),
                           ([both, "--seconds", "1"], "--seconds: --adapter names 2 adapters"),
                           ([both, "--save-checkpoint", self.folder / "c"], "--save-checkpoint: --adapter names 2"),
                           ([f"{begun['first']},"], None), ([f",{begun['first']}"], "a folder without a name"),
                           ([both, "--json", begun["second"] / "adapter_model.safetensors"], "is an input")):
            result = plimsoll("run", *words, *WORDS, "--adapter", *more)
            if says is None:
                self.assertEqual(result.returncode, 0, result.stderr)
                continue
            self.assertEqual(result.returncode, 2, result.stdout)
            self.assertIn(says, result.stderr)

    def test_what_does_not_go_together_is_refused_before_the_run(self):
        def refused(model, *words):
            result = plimsoll("run", model, *WORDS, *words)
            self.assertEqual(result.returncode, 2, result.stdout)
            return result.stderr
        nf4, plain = GOLDEN / "nf4", GOLDEN / "plain"
        self.assertIn("is packed as nf4, --quantize says nf4-dq",
                      refused(plain, "--quantize", "nf4-dq", "--weights", nf4))
        self.assertIn("is packed: run it with --quantize nf4", refused(plain, "--weights", nf4))
        # A head that is packed too (llm_int8_skip_modules=[]).
        head = tensors(nf4 / "model.safetensors")
        beside = {name[len("model.layers.0.self_attn.q_proj"):]: tensor for name, tensor in head.items()
                  if name.startswith("model.layers.0.self_attn.q_proj.weight")}
        state = beside[".weight" + STATE][2].replace(b"[64, 64]", b"[96, 64]")
        head["lm_head.weight"] = ("U8", [3072, 1], bytes(3072))
        head["lm_head.weight.absmax"] = ("F32", [96], bytes(4 * 96))
        head["lm_head.weight.quant_map"] = beside[".weight.quant_map"]
        head["lm_head.weight" + STATE] = ("U8", [len(state)], state)
        write(self.folder / "model.safetensors", head)
        self.assertIn("lm_head.weight is packed as nf4: --quantize packs linears of layers alone",
                      refused(plain, "--quantize", "nf4", "--weights", self.folder))
        kept = tensors(nf4 / "model.safetensors")
        name = "model.layers.0.mlp.up_proj.weight"
        for suffix in (".absmax", ".quant_map", STATE):
            del kept[name + suffix]
        kept[name] = tensors(plain / "model.safetensors")[name]
        write(self.folder / "model.safetensors", kept)
        self.assertIn(name + " is not packed, as others are",
                      refused(plain, "--quantize", "nf4", "--weights", self.folder))
        self.assertIn("--save-packed: nothing is packed", refused(plain, "--save-packed", self.folder / "a"))
        self.assertIn("--save-packed: int8-affine is our own runtime's",
                      refused(plain, "--quantize", "int8-affine", "--save-packed", self.folder / "a"))
        self.assertIn("is the folder of --save-merged too",
                      refused(nf4, "--save-merged", self.folder / "a", "--save-packed", f"{self.folder}/./a"))
        self.assertIn("is an input of this command", refused(nf4, "--weights", nf4, "--save-packed", nf4))
        result = plimsoll("run", plain, "--device", "cpu", "--seq-len", "16", "--save-merged", self.folder / "a")
        self.assertEqual(result.returncode, 2)
        self.assertIn("--save-merged: there are no adapters", result.stderr)
        result = plimsoll("run", plain, "--device", "cpu", "--seq-len", "16", "--adapter", self.folder)
        self.assertEqual(result.returncode, 2)
        self.assertIn("--lora-rank says its rank", result.stderr)
        self.assertFalse((self.folder / "a").exists())
        gpt2 = ROOT / "tests" / "golden" / "numerics" / "gpt2"
        self.assertIn("is stored [in, out]", refused(gpt2, "--quantize", "nf4", "--save-packed", self.folder / "a"))


if __name__ == "__main__":
    unittest.main()

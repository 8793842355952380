#!/usr/bin/env python3
"""Every document that the program writes validates against reports/schema/."""
import hashlib
import json
import os
import subprocess
import unittest

from program import ROOT, plimsoll

SCHEMA_CHECK = os.environ.get("SCHEMA_CHECK")
try:
    import jsonschema
except ImportError:
    jsonschema = None

STATES = ["fit", "--gpu", "h100", "--json", "-", "--params"]


def complaint(schema, documents):
    """What is wrong with the documents; "" where they validate."""
    path = ROOT / "reports" / "schema" / f"{schema}.schema.json"
    if SCHEMA_CHECK:
        text = "\n".join(json.dumps(document) for document in documents)
        result = subprocess.run([SCHEMA_CHECK, str(path)], input=text, text=True,
                                stdout=subprocess.PIPE, check=False)
        return "" if result.returncode == 0 else result.stdout
    validator = jsonschema.Draft7Validator(json.loads(path.read_text()))
    return "\n".join(error.message for document in documents
                     for error in validator.iter_errors(document))


@unittest.skipUnless(SCHEMA_CHECK or jsonschema, "neither valijson nor jsonschema is here")
class Documents(unittest.TestCase):
    def assert_valid(self, schema, documents):
        self.assertEqual(complaint(schema, documents), "")

    def test_the_validator_rejects_what_is_wrong(self):
        plan = json.loads(plimsoll(*STATES, "7e9").stdout)
        for change in ({"peak_bytes": "12"}, {"verdict": "maybe"}, {"surprise": 1},
                       {"states": {}}):
            self.assertNotEqual(complaint("plan", [{**plan, **change}]), "", change)
        del plan["timeline"]
        self.assertNotEqual(complaint("plan", [plan]), "")

    def test_model_states(self):
        self.assert_valid("plan", [json.loads(plimsoll(*STATES, *words).stdout) for words in [
            ["7.5e9"], ["7.5e9", "--zero", "3", "--gpus", "64", "--precision", "fp16-mixed"],
            ["1e15"], ["1", "--precision", "fp32", "--gpu-memory", "80GB", "--reserve", "1GiB"]]])

    def test_plans(self):
        for words in [[], ["--detail"], ["--gpus", "8", "--zero", "3", "--shard-group", "4"],
                      ["--recompute", "every:2", "--detail"],
                      ["--lora-rank", "8", "--lora-targets", "attention", "--param-dtype", "bf16"],
                      ["--gpus", "4", "--zero", "1", "--bucket-cap-mb", "100"],
                      ["--optimizer", "sgd", "--precision", "fp16", "--gpu", "4090"],
                      ["--stack", "deepspeed", "--zero", "3", "--gpus", "8"],
                      ["--stack", "plimsoll", "--gpus", "4", "--zero", "1", "--deterministic",
                       "--grad-accum", "5", "--seq-len", "16", "--detail"],
                      ["--gpu", "t4", "--micro-batch", "64"]]:
            with self.subTest(words=words):
                if "--gpu" not in words:
                    words = words + ["--gpu", "h100"]
                result = plimsoll("fit", "gpt2", "--json", "-", *words)
                self.assertIn(result.returncode, (0, 1), result.stderr)
                self.assert_valid("plan", [json.loads(result.stdout)])

    def test_details_say_at_which_op_a_tensor_is_born_and_dies(self):
        result = plimsoll("fit", "gpt2", "--stack", "plimsoll", "--device", "cpu", "--gpus", "2",
                          "--zero", "3", "--grad-accum", "4", "--seq-len", "16", "--detail",
                          "--json", "-")
        plan = json.loads(result.stdout)
        ops, live = plan["timeline"], plan["resident_bytes"]
        # Four micro-batches: the loss is known four times.
        self.assertEqual(sum(op["op"] == "loss" for op in ops), 4)
        born, died = [0] * len(ops), [0] * len(ops)
        for tensor in plan["tensors"]:
            self.assertEqual(tensor["repeat"], 1)
            if tensor["born_op"] < 0:
                self.assertEqual((tensor["born"], tensor["dies"], tensor["dies_op"]),
                                 ("before the step", "never", len(ops)))
                continue
            for text, at in ((tensor["born"], tensor["born_op"]), (tensor["dies"], tensor["dies_op"])):
                self.assertEqual(text, f"{ops[at]['phase']} {ops[at]['op']}")
            born[tensor["born_op"]] += tensor["bytes"]
            died[tensor["dies_op"]] += tensor["bytes"]
        for op, more, less in zip(ops, born, died):
            self.assertEqual(op["high_water_bytes"], live + more)
            live += more - less
            self.assertEqual(op["allocated_bytes"], live)
        self.assertEqual(max(op["high_water_bytes"] for op in ops), plan["peak_bytes"])

    def test_every_model_of_the_catalog(self):
        names = [m["name"] for m in json.loads(plimsoll("models", "--json", "-").stdout)["models"]]
        # ZeRO-3 of BERT and of OPT's projections is refused by name.
        queries = "\n".join(json.dumps({"model": name, "gpu": "h100", "detail": True, "gpus": 8,
                                        "zero": 1 if name.startswith(("bert-", "opt-350m")) else 3})
                            for name in names)
        answers = plimsoll("batch", "-", stdin=queries).stdout.splitlines()
        self.assertEqual(len(answers), len(names))
        self.assert_valid("plan", [json.loads(answer) for answer in answers])

    def test_catalogs(self):
        self.assert_valid("models", [json.loads(plimsoll("models", "--json", "-").stdout)])
        self.assert_valid("gpus", [json.loads(plimsoll("gpus", "--json", "-").stdout)])

    def test_out_of_memory_messages(self):
        golden = json.loads((ROOT / "tests" / "golden" / "oom_messages.json").read_text())
        texts = [(row["text"], (row["workload"] or "").split()) for row in golden["messages"]]
        texts += [(text, []) for text in (
            "CUDA error: out of memory", "Cuda failure 2 'out of memory'", "CUDNN_STATUS_ALLOC_FAILED",
            "CUDA out of memory. Tried to allocate more than 1EB memory.",
            "not enough memory: you tried to allocate 8 bytes", "x.OutOfMemoryError: CUDA out of memory.")]
        answers = [plimsoll("oom", "-", *words, "--json", "-", stdin=text) for text, words in texts]
        self.assert_valid("oom", [json.loads(answer.stdout) for answer in answers])

    def test_errors_of_a_batch(self):
        lines = ['{"id": 7, "gpu": 1}', "{", "[]", '{"zero": 3}', '{"model": "gpt2", "zer0": 1}',
                 '{"model": "gpt2", "tp": 2}', '{"params": 1e30}']
        answers = plimsoll("batch", "-", stdin="\n".join(lines)).stdout.splitlines()
        self.assertEqual(len(answers), len(lines))
        self.assert_valid("batch_error", [json.loads(answer) for answer in answers])


class Fingerprint(unittest.TestCase):
    def test_python_reproduces_it(self):
        for words in (["--params", "7.5e9"], ["--params", "1e9", "--gpus", "8", "--zero", "2"],
                      ["llama-3.1-8b"], ["gpt2", "--lora-rank", "8", "--lora-alpha", "0.0001"],
                      ["gpt2", "--freeze", "*wte*", "--lora-rank", "4", "--lora-dropout", "1e-5"]):
            result = plimsoll("fit", "--gpu", "h100", "--json", "-", *words)
            self.assertIn(result.returncode, (0, 1), result.stderr)
            workload = json.loads(result.stdout)["workload"]
            found = workload.pop("fingerprint")
            del workload["model"]["name"]
            text = json.dumps(workload, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
            self.assertEqual(hashlib.sha256(text.encode()).hexdigest()[:16], found)


if __name__ == "__main__":
    unittest.main()

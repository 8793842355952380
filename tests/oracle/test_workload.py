"""The workload object: what is accepted, what is refused, and what its fingerprint depends on."""
import hashlib
import json
import unittest

from oracle import LLAMA, torch_measure as tm, workload


class Normalised(unittest.TestCase):
    def test_every_key_of_the_table_is_present(self):
        found = tm.normalised(workload())
        # In no object that does not say them.
        unsaid = {"use_reentrant", "model_code", "bitsandbytes_version", "accelerated",
                  "fsdp_activation_checkpointing",
                  "fsdp_sync_module_states", "fsdp_use_orig_params"}
        self.assertEqual(set(found["stack"]), set(tm.STACK_DEFAULTS) - unsaid)
        said = tm.normalised(workload(stack={"use_reentrant": True}))
        self.assertEqual(set(said["stack"]), set(tm.STACK_DEFAULTS) - (unsaid - {"use_reentrant"}))
        float8 = {"fp8_recipe", "fp8_all_gather"}
        self.assertEqual(set(found["strategy"]), set(tm.STRATEGY_DEFAULTS) - float8 - {"rows", "data_parallel", "kbit_casting"})
        padded = tm.normalised(workload(strategy={"rows": "padded", "precision": "fp8-mixed"}))
        self.assertEqual(set(padded["strategy"]), set(tm.STRATEGY_DEFAULTS) - {"data_parallel", "kbit_casting"})
        casts = {"quantize": "nf4", "lora": {}, "kbit_prep": True, "kbit_casting": True}
        self.assertTrue(tm.normalised(workload(strategy=casts))["strategy"]["kbit_casting"])
        for wrong in ({"kbit_prep": False}, {"precision": "fp16-mixed"}):
            with self.assertRaises(tm.BadInput):
                tm.normalised(workload(strategy={**casts, **wrong}))
        threads = {"data_parallel": "dp", "world_size": 2, "precision": "bf16"}
        self.assertEqual(tm.normalised(workload(strategy=threads))["strategy"]["data_parallel"], "dp")
        for wrong in ({"world_size": 1}, {"zero": 1}, {"precision": "bf16-mixed"}, {"data_parallel": "ddp"}):
            with self.assertRaises(tm.BadInput):
                tm.normalised(workload(strategy={**threads, **wrong}))
        self.assertEqual(found["batch"], {"seq_len": 4096, "micro_batch": 1, "grad_accum": 1})

    def test_weights_follow_the_precision_unless_said_otherwise(self):
        for precision, dtype in (("bf16", "bf16"), ("fp16", "fp16"), ("fp32", "fp32"),
                                 ("bf16-mixed", "fp32"), ("fp16-mixed", "fp32")):
            found = tm.normalised(workload(strategy={"precision": precision}))
            self.assertEqual(found["strategy"]["param_dtype"], dtype)
        found = tm.normalised(workload(strategy={"param_dtype": "bf16"}))
        self.assertEqual(found["strategy"]["param_dtype"], "bf16")

    def test_what_cannot_be_is_refused_with_its_name(self):
        for parts, name in (({"strategy": {"zero": 4}}, "strategy.zero"),
                            ({"strategy": {"zeroo": 1}}, "strategy.zeroo"),
                            ({"strategy": {"recompute": "every:0"}}, "strategy.recompute"),
                            ({"strategy": {"recompute": "some"}}, "strategy.recompute"),
                            ({"strategy": {"tp": 2}}, "strategy.tp"),
                            ({"strategy": {"fp8_recipe": "rowwise"}}, "strategy.fp8_recipe"),
                            ({"strategy": {"fp8_all_gather": True, "precision": "fp8-mixed"}},
                             "strategy.fp8_all_gather"),
                            ({"strategy": {"world_size": 0}}, "strategy.world_size"),
                            ({"strategy": {"world_size": True}}, "strategy.world_size"),
                            ({"strategy": {"lora": {"rank": -1}}}, "strategy.lora.rank"),
                            ({"strategy": {"lora": {"dropout": "x"}}}, "strategy.lora.dropout"),
                            ({"strategy": {"loss": "fused"}}, "strategy.loss"),
                            ({"stack": {"name": "deepspeed"}}, "stack.name"),
                            ({"stack": {"sdpa_backend": "fast"}}, "stack.sdpa_backend"),
                            ({"batch": {"seq_len": 1}}, "batch.seq_len"),
                            ({"batch": {"micro_batch": 1.5}}, "batch.micro_batch"),
                            ({"batch": []}, "batch"),
                            ({"surprise": 1}, "workload.surprise")):
            with self.subTest(name), self.assertRaises(tm.BadInput) as raised:
                tm.normalised(workload(**parts))
            self.assertIn(name, str(raised.exception))

    def test_a_model_needs_a_config(self):
        for model in ({}, {"name": "x"}, {"config": {}}, {"config": None}):
            with self.assertRaises(tm.BadInput):
                tm.normalised({"model": model})

    def test_recompute_intervals(self):
        # none and core attention: no layer; full: each; every:K: K layers; sqrt: known with L.
        self.assertEqual([tm.recompute_interval(k) for k in (
            "none", "selective", "full", "every:7", "sqrt")], [0, 0, 1, 7, None])


class Fingerprint(unittest.TestCase):
    def test_spelling_out_a_default_changes_nothing(self):
        plain = tm.fingerprint(workload())
        self.assertEqual(plain, tm.fingerprint(workload(strategy={"precision": "bf16-mixed",
                                                                  "param_dtype": "fp32"})))
        self.assertNotEqual(plain, tm.fingerprint(workload(strategy={"precision": "bf16"})))

    def test_neither_the_models_name_nor_the_old_fingerprint_count(self):
        named = workload(fingerprint="0" * 16)
        named["model"]["name"] = "another"
        self.assertEqual(tm.fingerprint(named), tm.fingerprint(workload()))

    def test_a_lora_alpha_written_as_a_whole_number_is_the_same_number(self):
        def of(alpha):
            return tm.fingerprint(workload(strategy={"lora": {"alpha": alpha}}))
        self.assertEqual(of(16), of(16.0))
        self.assertNotEqual(of(16), of(32))

    def test_plimsoll_computes_the_same(self):
        # `plimsoll fit CONFIG --gpus 8 --zero 3 --seq-len 128 --json -` printed this fingerprint.
        config = {**LLAMA, "rms_norm_eps": 1e-05}
        found = tm.fingerprint({"model": {"config": config}, "batch": {"seq_len": 128},
                                "strategy": {"zero": 3, "world_size": 8}})
        self.assertEqual(found, "3878010e449c6752")

    def test_it_is_the_documented_hash(self):
        # reports/fingerprint.h: sha256 of json.dumps(sorted, no spaces), first 16 digits.
        found = tm.normalised(workload())
        del found["fingerprint"], found["model"]["name"]
        text = json.dumps(found, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        self.assertEqual(tm.fingerprint(workload()),
                         hashlib.sha256(text.encode()).hexdigest()[:16])


if __name__ == "__main__":
    unittest.main()

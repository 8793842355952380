#!/usr/bin/env python3
"""`plimsoll recommend`: what it prints can be typed, and gives back the same plan."""
import json
import os
import pathlib
import shlex
import tempfile
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
                      [*SMALL, "--fsdp-version", "1"],
                      ["llama-3.1-8b", "--gpu", "4090", "--seq-len", "512", "--task", "classification"]):
            status, document = recommendation(*words)
            self.assertEqual(status, 0)
            self.assert_valid(document)
            for ranked in document["ranked"]:
                with self.subTest(command=ranked["command"]):
                    typed = shlex.split(ranked["command"])
                    self.assertEqual(typed[:2], ["plimsoll", "fit"])
                    plan = json.loads(plimsoll(*typed[1:], "--json", "-").stdout)
                    self.assertCountEqual(shlex.split(plan.pop("command")), typed)
                    self.assertEqual(plan, ranked["plan"])
                    self.assertEqual(ranked["tokens_per_second"], plan["time"]["tokens_per_second"])

    def test_plans_leave_room_for_what_is_assumed(self):
        _, document = recommendation(*SMALL)
        self.assertEqual(document["headroom"], {"overheads": "high end", "min_headroom_bytes": 0})
        for ranked in document["ranked"]:
            plan = ranked["plan"]
            self.assertTrue(plan["high_end"]["fits"])
            self.assertLessEqual(plan["high_end"]["device_bytes"], plan["usable_bytes"])
            self.assertGreater(plan["high_end"]["device_bytes"], plan["device_bytes"])
        careful = document["ties"]["fastest_tokens_per_second"]
        _, document = recommendation(*SMALL, "--min-headroom", "0")
        self.assertEqual(document["headroom"], {"overheads": "typical", "min_headroom_bytes": 0})
        self.assertGreaterEqual(document["ties"]["fastest_tokens_per_second"], careful)
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

    def test_the_front_is_what_fit_answers(self):
        for words in (["gpt2", "--gpu", "4090", "--gpus", "2"], [*SMALL, "--global-batch", "8"]):
            _, document = recommendation(*words)
            self.assertGreater(len(document["pareto"]), 2)
            for point in document["pareto"]:
                with self.subTest(options=point["options"]):
                    plan = json.loads(plimsoll("fit", words[0], "--gpu", "4090",
                                               *point["options"].split(), "--json", "-").stdout)
                    self.assertEqual(plan["peak_bytes"], point["peak_bytes"])

    def test_every_number_of_gpus_that_divides_the_work_is_tried(self):
        for batch, gpus in ((7, 7), (6, 6), (12, 6), (5, 5), (11, 1), (8, 8)):
            _, document = recommendation("gpt2", "--gpu", "a100-80gb", "--gpus", "8",
                                         "--global-batch", str(batch), "--top", "1")
            strategy = document["ranked"][0]["plan"]["workload"]["strategy"]
            self.assertEqual(strategy["world_size"], gpus, batch)

    def test_equally_many_on_each_node(self):
        _, document = recommendation("gpt2", "--gpu", "a100-80gb", "--gpus", "16",
                                     "--global-batch", "12")
        self.assertIn("--gpus 12 --gpus-per-node 6", document["ranked"][0]["command"])

    def test_absurd_numbers_are_answered(self):
        for words in (["--gpus", "8", "--global-batch", "1000000000"],
                      ["--gpus", "240240", "--global-batch", "240240"]):
            status, document = recommendation("gpt2", "--gpu", "h100", *words, "--top", "1")
            self.assertEqual(status, 0)
            batch = document["ranked"][0]["plan"]["workload"]["batch"]
            gpus = document["ranked"][0]["plan"]["workload"]["strategy"]["world_size"]
            self.assertEqual(batch["micro_batch"] * batch["grad_accum"] * gpus, int(words[3]))

    # GPT-2 with its activation as one kernel; as eight of them autocast, and with it DDP, is slower
    # by far more than the estimate's error, and the answer says so.
    def test_ties_go_to_the_simpler_plan(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        config = pathlib.Path(folder.name, "config.json")
        config.write_text(json.dumps(
            {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 12, "n_embd": 768,
             "n_head": 12, "n_positions": 1024, "vocab_size": 50257,
             "activation_function": "gelu_pytorch_tanh"}))
        for model, gpu in ((config, "a100-80gb"), (config, "h100"), ("qwen2-0.5b", "a100-80gb")):
            _, document = recommendation(model, "--gpu", gpu, "--gpus", "8", "--seq-len", "1024")
            first = document["ranked"][0]
            self.assertEqual(first["plan"]["workload"]["strategy"]["zero"], 0)
            self.assertEqual(first["plan"]["workload"]["stack"]["name"], "pytorch")
            ties = document["ties"]  # once for what cannot be told apart, once for sharding
            self.assertGreaterEqual(first["tokens_per_second"],
                                    (1 - ties["margin"]) ** 2 * ties["fastest_tokens_per_second"])
        _, document = recommendation("gpt2", "--gpu", "a100-80gb", "--gpus", "8")
        why = document["ranked"][0]["why"]
        self.assertTrue(any("Plain DDP fits" in line and "gelu_new" in line for line in why), why)
        self.assertTrue(any("gelu_pytorch_tanh" in line for line in why), why)
        # Norms and rotation move little else in a model this narrow: in fp32 they cost a seventh.
        _, document = recommendation("smollm2-135m", "--gpu", "h100", "--gpus", "8", "--seq-len", "1024",
                                     "--kernels", "eager")
        why = document["ranked"][0]["why"]
        self.assertTrue(any("Plain DDP fits" in line and "residual stream in fp32" in line
                            for line in why), why)

    # On one card it shards nothing, and the estimate flatters what it computes in.
    def test_deepspeed_on_one_card_only_where_it_is_much_faster(self):
        for words in (["llama-3.1-8b", "--gpu", "rtx-4090", "--lora-rank", "16"],
                      ["mistral-7b-v0.1", "--gpu", "a100-80gb", "--lora-rank", "64"]):
            _, document = recommendation(*words)
            names = [r["plan"]["workload"]["stack"]["name"] for r in document["ranked"]]
            self.assertEqual(names[0], "pytorch")
            self.assertIn("deepspeed", names)

    # By what the card holds, not by the peak.
    def test_listed_plans_leave_room_where_plans_as_fast_do(self):
        for words in (["gpt2-xl", "--gpu", "rtx-3090", "--gpus", "4"],
                      ["mistral-7b-v0.1", "--gpu", "h100", "--gpus", "8"]):
            _, document = recommendation(*words)
            plan = document["ranked"][0]["plan"]
            self.assertGreater(plan["usable_bytes"] - plan["high_end"]["device_bytes"],
                               0.03 * plan["usable_bytes"])

    def test_no_two_plans_look_alike(self):
        result = plimsoll("recommend", *SMALL, "--top", "20")
        rows = [line[4:] for line in result.stdout.splitlines()
                if line[:2].strip().isdigit() and line[2:4] == "  "]
        self.assertGreater(len(rows), 2)
        # What is done (the columns up to the batch), not what it costs.
        self.assertEqual(len(rows), len({row[:42] for row in rows}))

    def test_lora_on_one_card_of_24_gb_has_its_base_in_16_bits(self):
        for words in ([], ["--lora-rank", "16"]):
            _, document = recommendation("llama-3.1-8b", "--gpu", "rtx-3090", *words)
            first = document["ranked"][0]
            self.assertIn("--param-dtype bf16", first["command"])
            self.assertLess(first["plan"]["device_bytes"], 21 << 30)
        table = plimsoll("recommend", "llama-3.1-8b", "--gpu", "rtx-3090").stdout
        self.assertIn("LoRA rank 16 on a base in bf16", " ".join(table.split()))

    def test_pure_bf16_is_a_concession_after_lora(self):
        words = ["llama-3.1-8b", "--gpu", "h100", "--gpus", "1"]
        _, document = recommendation(*words)
        first = document["ranked"][0]
        self.assertIn("--lora-rank", first["command"])
        self.assertTrue(any("concession" in why and "updates" in why for why in first["why"]))
        _, document = recommendation(*words, "--without", "adapters=lora")
        first = document["ranked"][0]
        self.assertIn("--precision bf16", first["command"])
        self.assertTrue(any("concession" in why and "updates" in why for why in first["why"]))

    def test_a_version_of_fsdp_leaves_its_stage_open(self):
        _, document = recommendation(*SMALL, "--fsdp-version", "1", "--top", "20")
        workloads = [ranked["plan"]["workload"] for ranked in document["ranked"]]
        self.assertEqual({w["strategy"]["zero"] for w in workloads}, {2, 3})
        self.assertEqual({w["stack"]["fsdp_version"] for w in workloads}, {1})

    def test_whose_code_it_is_leaves_sharding_and_recomputation_open(self):
        # torchtitan's shards always: with its stage held at 0 nothing could be planned. 8B without recomputation needs
        # 85 GiB at the high end.
        status, document = recommendation("llama-3.1-8b", "--gpu", "h100", "--gpus", "8", "--model-code",
                                          "torchtitan@0.2.2", "--seq-len", "8192")
        self.assertEqual(status, 0)
        for ranked in document["ranked"]:
            self.assertEqual(ranked["plan"]["workload"]["strategy"]["zero"], 3)
            self.assertEqual(ranked["plan"]["workload"]["strategy"]["recompute"], "full")

    def test_a_deepspeed_file_holds_what_it_settles(self):
        auto = {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
                "gradient_accumulation_steps": "auto", "gradient_clipping": "auto"}
        adamw = {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto",
                                             "weight_decay": "auto"}}
        either = {"fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000,
                           "initial_scale_power": 16, "hysteresis": 2, "min_loss_scale": 1},
                  "bf16": {"enabled": "auto"}}
        zero2 = {"stage": 2, "allgather_partitions": True, "allgather_bucket_size": 2e8,
                 "overlap_comm": True, "reduce_scatter": True, "reduce_bucket_size": "auto",
                 "contiguous_gradients": True}
        zero3 = {"stage": 3, "overlap_comm": True, "contiguous_gradients": True,
                 "sub_group_size": 1e9, "reduce_bucket_size": "auto",
                 "stage3_prefetch_bucket_size": "auto",
                 "stage3_param_persistence_threshold": "auto",
                 "stage3_max_live_parameters": 1e9, "stage3_max_reuse_distance": 1e9,
                 "stage3_gather_16bit_weights_on_model_save": True}
        files = {
            "zero2 auto": {**auto, **either, "optimizer": adamw, "zero_optimization": zero2},
            "zero3 auto": {**auto, **either, "optimizer": adamw, "zero_optimization": zero3},
            "micro": {**auto, "train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": True},
                      "zero_optimization": zero2},
            "train": {**auto, "train_batch_size": 24, "bf16": {"enabled": True},
                      "zero_optimization": zero3},
            "train, accumulation": {**auto, "train_batch_size": 32,
                                    "gradient_accumulation_steps": 2, "fp16": {"enabled": True},
                                    "zero_optimization": {"stage": 1}},
            "train, micro": {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 2,
                             "bf16": {"enabled": True}, "zero_optimization": zero2},
            "all": {"train_batch_size": 16, "train_micro_batch_size_per_gpu": 2,
                    "gradient_accumulation_steps": 2, "bf16": {"enabled": True},
                    "zero_optimization": zero3},
            "accumulation": {**auto, "gradient_accumulation_steps": 8, "bf16": {"enabled": True},
                             "zero_optimization": {"stage": 2}},
        }
        keys = {"train_micro_batch_size_per_gpu": "micro_batch",
                "gradient_accumulation_steps": "grad_accum"}
        for name, config in files.items():
            with self.subTest(file=name), tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder) / "ds_config.json"
                path.write_text(json.dumps(config))
                status, document = recommendation(*SMALL, "--deepspeed", str(path))
                self.assertEqual(status, 0)
                for ranked in document["ranked"]:
                    typed = shlex.split(ranked["command"])
                    plan = json.loads(plimsoll(*typed[1:], "--json", "-").stdout)
                    self.assertCountEqual(shlex.split(plan.pop("command")), typed)
                    self.assertEqual(plan, ranked["plan"])
                    workload = plan["workload"]
                    self.assertEqual(workload["stack"]["name"], "deepspeed")
                    self.assertEqual(workload["strategy"]["zero"],
                                     config["zero_optimization"]["stage"])
                    batch = workload["batch"]
                    for key, field in keys.items():
                        if config.get(key, "auto") != "auto":
                            self.assertEqual(batch[field], config[key])
                    if config.get("train_batch_size", "auto") != "auto":
                        self.assertEqual(batch["micro_batch"] * batch["grad_accum"] *
                                         workload["strategy"]["world_size"], config["train_batch_size"])

    def test_a_deepspeed_file_for_more_gpus_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "ds_config.json"
            path.write_text(json.dumps({"train_batch_size": 64, "bf16": {"enabled": True},
                                        "train_micro_batch_size_per_gpu": 2,
                                        "gradient_accumulation_steps": 1}))
            result = plimsoll("recommend", *SMALL, "--deepspeed", str(path))
            self.assertEqual(result.returncode, 2)
            self.assertIn("32 GPUs", result.stderr)

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

#!/usr/bin/env python3
"""What a user of the program meets: exit statuses, messages, tables, files, hostile input."""
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import unittest

from case import TINY, Case
from program import PASSED_ON, PLIMSOLL, plimsoll


class BareCounts(Case):
    def states(self, *words):
        result = plimsoll("fit", "--gpu", "h100", "--json", "-", *words)
        self.assertIn(result.returncode, (0, 1), result.stderr)
        return sum(json.loads(result.stdout)["states"].values())

    def test_table_1_of_the_zero_paper(self):
        # 7.5e9 * (16, 4 + 12/64, 2 + 14/64, 16/64)
        for zero, expected in enumerate([120e9, 31.40625e9, 16.640625e9, 1.875e9]):
            self.assertEqual(self.states("--params", "7.5e9", "--precision", "fp16-mixed", "--gpus",
                                         "64", "--zero", zero), expected)

    def test_fp32_takes_16_bytes(self):
        self.assertEqual(self.states("--params", "1e9", "--precision", "fp32"), 16e9)

    def test_states_that_fit_are_no_promise(self):
        result = plimsoll("fit", "--gpu", "h100", "--params", "1e9", "--json", "-")
        self.assertEqual(result.returncode, 0)
        plan = json.loads(result.stdout)
        self.assertIsNone(plan["fits"])
        self.assertIsNone(plan["verdict"])
        self.assertIsNone(plan["peak_bytes"])


class Plans(Case):
    def plan(self, *words, status=None):
        result = plimsoll("fit", *words, "--json", "-")
        self.assertIn(result.returncode, (0, 1) if status is None else (status,), result.stderr)
        return json.loads(result.stdout)

    def test_llama_8b_on_eight_h100(self):
        common = ["llama-3.1-8b", "--gpu", "h100-sxm-80gb", "--precision", "bf16-mixed", "--seq-len",
                  "8192", "--micro-batch", "1"]
        plan = self.plan(*common, "--gpus", "8", "--zero", "3", "--recompute", "full", status=0)
        self.assertEqual(plan["model"]["parameters"], 8030261248)
        self.assertEqual((plan["fits"], plan["verdict"]), (True, "fits"))
        words = [*common, "--gpus", "1", "--zero", "0", "--recompute", "none"]
        plan = self.plan(*words, status=1)
        self.assertEqual((plan["fits"], plan["verdict"]), (False, "does not fit"))
        self.assertTrue(any(remedy["fits"] for remedy in plan["remedies"]))
        table = plimsoll("fit", *words)
        self.assertEqual(table.returncode, 1)
        self.assertTrue(table.stdout.startswith("DOES NOT FIT"))
        self.assertIn("What would help, cheapest first\n", table.stdout)
        self.assertIn("--recompute full", table.stdout)

    def test_sums(self):
        for words in [["gpt2"], ["qwen2.5-7b", "--gpus", "16", "--zero", "3"],
                      ["llama-3.1-8b", "--lora-rank", "16", "--param-dtype", "bf16"],
                      ["gpt2-xl", "--gpus", "4", "--zero", "1", "--grad-accum", "4"]]:
            with self.subTest(words=words):
                plan = self.plan(*words, "--gpu", "h100", "--reserve", "1GiB")
                self.assertEqual(sum(plan["at_peak"].values()), plan["peak_bytes"])
                self.assertEqual(plan["device_bytes"], plan["reserved_bytes"]
                                 + sum(plan["outside_allocator"].values()))
                self.assertEqual(plan["usable_bytes"], plan["capacity_bytes"] - 2**30)
                self.assertEqual(plan["headroom_bytes"],
                                 plan["usable_bytes"] - plan["device_bytes"])
                self.assertLessEqual(plan["resident_bytes"], plan["peak_bytes"])
                self.assertLessEqual(plan["peak_bytes"], plan["reserved_bytes"])
                self.assertLessEqual(len(plan["timeline"]), 2000)
                self.assertEqual(max(p["high_water_bytes"] for p in plan["timeline"]),
                                 plan["peak_bytes"])

    def test_a_config_from_a_path_is_the_same_question_as_from_the_catalog(self):
        catalog = self.plan("qwen3-0.6b", "--gpu", "h100")
        path = self.write("config.json", json.dumps(catalog["workload"]["model"]["config"]))
        for argument in (path, self.folder):
            plan = self.plan(argument, "--gpu", "h100")
            self.assertEqual(plan["model"]["name"], str(argument))
            for key in ("peak_bytes", "states", "at_peak"):
                self.assertEqual(plan[key], catalog[key])
            self.assertEqual(plan["workload"]["fingerprint"],
                             catalog["workload"]["fingerprint"])

    def test_tables_of_plans_are_80_columns_wide_at_most(self):
        path = self.write("a" * 120 + "\x1b[31m" + "/config.json", json.dumps(TINY))
        for words in [["gpt2"], ["llama-3.1-70b"], ["llama-3.1-8b", "--gpus", "64", "--zero", "3"],
                      ["gpt2", "--lora-rank", "8"], [path]]:
            for locale in ["C", "C.UTF-8"]:
                text = plimsoll("fit", "--gpu", "h100", *words, LC_ALL=locale).stdout
                self.assertLessEqual(max(map(len, text.splitlines())), 80, text)
                self.assertNotIn("\x1b", text)

    def test_what_is_not_modelled_is_no_yes(self):
        for model, part in (("roberta-base", "model_type 'roberta' is not modelled"),
                            (self.write("c.json", json.dumps({**TINY, "activation_function": "mish"})),
                             "activation_function 'mish'")):
            result = plimsoll("fit", model, "--gpu", "h100")
            self.assertEqual(result.returncode, 2)
            self.assertIn("MODEL STATES: ", result.stdout)
            self.assertIn("plimsoll: whether it fits is not known: ", result.stderr)
            self.assertIn(part, result.stderr)
            plan = self.plan(model, "--gpu", "h100", status=2)
            self.assertEqual((plan["fits"], plan["verdict"]), (None, None))
            self.assertGreater(plan["states"]["parameters_bytes"], 0)
        # That the states alone are too much is an answer.
        self.plan("mixtral-8x7b", "--gpu", "h100", status=1)

    def test_ranks_on_the_host_are_held_against_the_hosts_memory(self):
        words = ["--stack", "plimsoll", "--device", "cpu"]
        path = self.write("config.json", json.dumps(TINY))
        plan = self.plan(path, *words, "--gpus", "2", status=0)
        self.assertEqual((plan["fits"], plan["environment"]["gpu"]), (True, None))
        alone = self.plan(path, *words, status=0)
        # What is free changes from call to call; two ranks have half of it each.
        self.assertAlmostEqual(2 * plan["capacity_bytes"] / alone["capacity_bytes"], 1, delta=0.3)
        self.assertEqual(self.plan("llama-3.1-405b", *words, status=1)["verdict"], "does not fit")
        plan = self.plan(path, *words, "--gpu-memory", "1GiB", status=0)
        self.assertEqual(plan["capacity_bytes"], 2**30)

    def test_detail_adds_every_tensor(self):
        short, full = (self.plan("gpt2", "--gpu", "h100", *words) for words in ([], ["--detail"]))
        self.assertGreater(len(full["timeline"]), len(short["timeline"]))
        self.assertEqual(full["peak_bytes"], short["peak_bytes"])


class BadUse(Case):
    def test_options(self):
        for words, part in [
                ([], "a command is missing"),
                (["fti"], "did you mean 'fit'"),
                (["fit"], "MODEL is missing"),
                (["fit", "gpt2", "--zero", "4"], "--zero 4: must be at most 3"),
                (["fit", "gpt2", "--zero", "three"], "--zero three: must be a whole number"),
                (["fit", "gpt2", "--json", "--quiet"], "--json needs a value"),
                (["fit", "gpt2", "--seqlen", "8"], "did you mean --seq-len"),
                (["fit", "gpt2", "--precision", "bf16_mixed"], "did you mean 'bf16-mixed'"),
                (["fit", "gpt2", "--gpu", "h101"], "h10"),
                (["fit", "gpt2", "--gpu-memory", "lots"], "--gpu-memory lots: must be a size"),
                (["fit", "gpt2", "--gpus", "6", "--zero", "3", "--shard-group", "4"],
                 "--shard-group 4: must divide --gpus 6"),
                (["fit", "gpt2", "--device", "cpu"], "--device cpu: only --stack plimsoll"),
                (["fit", "gpt2", "--gpus", "8", "--tp", "2"], "--tp 2 is modelled for torchtitan's Llama alone"),
                (["fit", "gpt2", "--params", "7e9"], "give one of the two"),
                (["fit", "--params", "1e30"], "overflow"),
                (["fit", "--params", "-5"], "--params -5: must be a positive"),
                (["fit", "--params", "nan"], "--params nan: must be a positive"),
                (["batch", "/nonexistent.jsonl"], "/nonexistent.jsonl: No such file")]:
            with self.subTest(words=words):
                self.assert_refused(plimsoll(*words), part)


class Output(Case):
    STATES = ["fit", "--params", "7.5e9", "--gpu", "h100"]

    def test_json_to_standard_output_is_alone_there(self):
        plan = json.loads(plimsoll(*self.STATES, "--json", "-").stdout)
        self.assertEqual(plan["schema"], "plimsoll.plan/1")

    def test_json_to_a_file_leaves_the_table(self):
        path = self.folder / "plan.json"
        result = plimsoll(*self.STATES, "--json", path)
        self.assertEqual(json.loads(path.read_text())["model"]["parameters"], 7_500_000_000)
        self.assertIn("7,500,000,000 parameters", result.stdout)
        self.assertEqual(os.listdir(self.folder), ["plan.json"])

    def test_quiet_prints_nothing(self):
        result = plimsoll(*self.STATES, "--quiet")
        self.assertEqual((result.stdout, result.stderr), ("", ""))

    def test_a_file_that_cannot_be_written_loses_neither_the_table_nor_the_old_file(self):
        for target, status in [("/dev/full", 3), (str(self.folder / "none" / "plan.json"), 2),
                               (str(self.folder), 2), ("/dev/null/plan.json", 2)]:
            result = plimsoll(*self.STATES, "--json", target)
            self.assertEqual(result.returncode, status)
            self.assertIn("7,500,000,000 parameters", result.stdout)
            self.assertIn(f"--json {target}: cannot be written", result.stderr)

    def test_a_full_standard_output_is_a_failure(self):
        with open("/dev/full", "w") as full:
            status = subprocess.run([PLIMSOLL, *self.STATES], stdout=full,
                                    stderr=subprocess.PIPE, text=True)
        self.assertEqual(status.returncode, 3)
        self.assertIn("No space left on device", status.stderr)

    def test_a_reader_who_leaves_is_none(self):
        read, write = os.pipe()
        os.close(read)
        status = subprocess.run([PLIMSOLL, "gpus"], stdout=write, stderr=subprocess.PIPE,
                                preexec_fn=lambda: signal.signal(signal.SIGPIPE, signal.SIG_DFL))
        os.close(write)
        self.assertEqual((status.returncode, status.stderr), (0, b""))

    def test_tables_are_80_columns_wide_at_most(self):
        for words in [self.STATES, ["models"], ["gpus"]]:
            for locale in ["C", "C.UTF-8"]:
                text = plimsoll(*words, LC_ALL=locale).stdout
                self.assertLessEqual(max(map(len, text.splitlines())), 80, words)
                if locale == "C":
                    self.assertTrue(text.isascii())

    def in_terminal(self, **environment):
        """Standard output of a run in a pseudo terminal."""
        try:
            leader, follower = pty.openpty()
        except OSError as error:
            self.skipTest(f"no pseudo terminal here: {error}")
        subprocess.run([PLIMSOLL, *self.STATES], stdout=follower, stdin=subprocess.DEVNULL,
                       env={"LC_ALL": "C.UTF-8", "TERM": "xterm", **PASSED_ON, **environment}, check=False)
        os.close(follower)
        text = os.read(leader, 1 << 16).decode()
        os.close(leader)
        return text

    def test_colour_is_for_terminals_that_want_it(self):
        self.assertIn("\x1b[", self.in_terminal())
        self.assertNotIn("\x1b[", self.in_terminal(NO_COLOR="1"))
        self.assertNotIn("\x1b[", self.in_terminal(TERM="dumb"))
        self.assertNotIn("\x1b[", plimsoll(*self.STATES).stdout)


class Program(Case):
    def test_version_names_the_commit(self):
        self.assertRegex(plimsoll("--version").stdout,
                         r"^plimsoll \d+\.\d+\.\d+ \(([0-9a-f]{7,40}(-dirty)?|unknown)\)\n$")

    def test_help_exists_for_every_command(self):
        overview = plimsoll("--help").stdout
        for command in re.findall(r"^  (\w+) +\w", overview, re.MULTILINE):
            if command != "plimsoll":
                result = plimsoll(command, "--help")
                self.assertEqual(result.returncode, 0)
                self.assertIn("Example:", result.stdout)
                self.assertLessEqual(max(map(len, result.stdout.splitlines())), 80, command)
        self.assertLessEqual(max(map(len, overview.splitlines())), 80)

    def test_an_example_can_be_pasted(self):
        help_text = plimsoll("fit", "--help").stdout
        example = help_text.split("Example:\n")[1].replace("\\\n", "").split()
        self.assertEqual(example[0], "plimsoll")
        self.assertIn(plimsoll(*example[1:]).returncode, (0, 1))

    def test_catalogs_are_searched_by_name_and_alias(self):
        for words, name in ((["models", "--search", "phi3"], "phi-3-mini-4k"),
                            (["models", "--search", "Qwen2.5-7B-Instruct"], "qwen2.5-7b"),
                            (["gpus", "--search", "H200"], "h200-sxm-141gb")):
            result = plimsoll(*words)
            self.assertEqual(result.returncode, 0)
            self.assertIn(name, result.stdout)
            self.assertIn("  also ", result.stdout)
            self.assertNotIn("bert", result.stdout)
            self.assertLessEqual(max(map(len, result.stdout.splitlines())), 80)
        result = plimsoll("models", "--search", "zzz")
        self.assertEqual(result.returncode, 1)
        self.assertIn("nothing has 'zzz' in its names", result.stderr)
        found = json.loads(plimsoll("models", "--search", "phi3", "--json", "-").stdout)
        self.assertIn("microsoft/Phi-3-mini-4k-instruct", found["models"][0]["aliases"])

    @unittest.skipUnless(shutil.which("readelf"), "no readelf here")
    def test_the_program_is_hard_to_take_over(self):
        def said(*words):
            return subprocess.run(["readelf", "-W", *words, PLIMSOLL], stdout=subprocess.PIPE, text=True,
                                  check=True).stdout

        self.assertIn("Type:                              DYN", said("-h"))  # anywhere in memory
        self.assertIn("GNU_RELRO", said("-l"))
        self.assertRegex(said("-d"), "BIND_NOW|NOW")
        self.assertRegex(said("-l"), r"GNU_STACK.* RW +0x")

    @unittest.skipUnless(shutil.which("ldd"), "no ldd here")
    def test_no_library_of_the_runtime_is_linked(self):
        libraries = subprocess.run(["ldd", PLIMSOLL], stdout=subprocess.PIPE, text=True,
                                   check=True).stdout
        self.assertIn("libc.so", libraries)
        for name in ["cuda", "cublas", "cudnn", "nccl", "mpi", "blas", "curl", "nvidia"]:
            self.assertNotIn(name, libraries.lower())


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""What a user of the program meets: exit statuses, messages, tables, files, hostile input."""
import json
import os
import pathlib
import pty
import re
import shutil
import signal
import subprocess
import tempfile
import unittest

from program import PLIMSOLL, plimsoll

TINY = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 2, "n_embd": 16,
        "n_head": 4, "n_positions": 64, "vocab_size": 32}


class Case(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)

    def write(self, name, content):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def assert_refused(self, result, *parts, status=2):
        """One short message on standard error, nothing on standard output."""
        self.assertEqual(result.returncode, status, result.stderr)
        self.assertEqual(result.stdout, "")
        self.assertTrue(result.stderr.startswith("plimsoll: "), result.stderr)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertLess(len(result.stderr), 600, result.stderr[:2000])
        for part in parts:
            self.assertIn(part, result.stderr)


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
                (["fit", "gpt2", "--tp", "2"], "--tp 2: tensor parallelism is not modelled"),
                (["fit", "gpt2", "--params", "7e9"], "give one of the two"),
                (["fit", "--params", "1e30"], "overflow"),
                (["fit", "--params", "-5"], "--params -5: must be a positive"),
                (["fit", "--params", "nan"], "--params nan: must be a positive"),
                (["batch", "/nonexistent.jsonl"], "/nonexistent.jsonl: No such file")]:
            with self.subTest(words=words):
                self.assert_refused(plimsoll(*words), part)


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


class HubCache(Case):
    def test_a_hub_id_is_read_from_the_cache(self):
        self.write("hub/models--org--tiny/refs/main", "abc")
        self.write("hub/models--org--tiny/snapshots/abc/config.json",
                   json.dumps({**TINY, "model_type": "gtp2"}))
        result = plimsoll("fit", "org/tiny", HF_HOME=str(self.folder))
        self.assert_refused(result, "snapshots/abc/config.json", "did you mean 'gpt2'")


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
                       env={"LC_ALL": "C.UTF-8", "TERM": "xterm", **environment}, check=False)
        os.close(follower)
        text = os.read(leader, 1 << 16).decode()
        os.close(leader)
        return text

    def test_colour_is_for_terminals_that_want_it(self):
        self.assertIn("\x1b[", self.in_terminal())
        self.assertNotIn("\x1b[", self.in_terminal(NO_COLOR="1"))
        self.assertNotIn("\x1b[", self.in_terminal(TERM="dumb"))
        self.assertNotIn("\x1b[", plimsoll(*self.STATES).stdout)


class Batch(Case):
    def answers(self, text, *words):
        result = plimsoll("batch", "-", *words, stdin=text)
        return result, [json.loads(line) for line in result.stdout.splitlines()]

    def test_answers_stand_in_the_order_of_the_questions_and_bad_lines_stop_nothing(self):
        lines = ['{"params": 1e9, "precision": "fp32", "gpu": "h100"}',
                 "nonsense",
                 '{"params": "7.5e9", "gpus": 64, "zero": 3, "gpu": "h100"}',
                 '{"model": "gpt2", "zero": 9}',
                 '{"params": 2e9, "gpu": "h100"}']
        result, answers = self.answers("\n".join(lines) + "\n")
        self.assertEqual(result.returncode, 2)
        self.assertEqual(result.stderr, "plimsoll: 2 of 5 lines got an error\n")
        self.assertEqual([sum(a["states"].values()) for a in answers if "states" in a],
                         [16e9, 1.875e9, 32e9])
        self.assertEqual(answers[1]["line"], 2)
        self.assertEqual(answers[3]["line"], 4)
        self.assertEqual(answers[3]["error"]["kind"], "bad_input")
        self.assertIn("--zero 9", answers[3]["error"]["message"])

    def test_all_answered_is_success(self):
        result, answers = self.answers('{"params": 1e9, "gpu": "h100"}')
        self.assertEqual((result.returncode, result.stderr, len(answers)), (0, "", 1))

    def test_keys_are_options_with_either_dash(self):
        for key in ["shard_group", "shard-group"]:
            line = json.dumps({"params": 1e9, "zero": 3, "gpus": 8, key: 4, "gpu": "h100"})
            self.assertEqual(self.answers(line)[1][0]["workload"]["strategy"]["shard_group"], 4)
        self.assertIn("did you mean \"shard-group\"",
                      self.answers('{"params": 1, "shardgroup": 4}')[1][0]["error"]["message"])

    def test_hostile_lines_are_answered_one_by_one(self):
        lines = ["[" * 100_000, '{"a":' * 50_000, '{"params": {"a": 1}}', '{"model": 7}',
                 '{"model": ["gpt2"]}', '{"compile": "yes"}', "\x00", '{"params": 1e400}', "   "]
        result, answers = self.answers("\n".join(lines))
        self.assertEqual(len(answers), len(lines))
        self.assertTrue(all(a["error"]["kind"] == "bad_input" for a in answers))

    def test_an_answer_comes_before_the_next_question(self):
        with subprocess.Popen([PLIMSOLL, "batch", "-"], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True) as process:
            for count in (1, 2):
                process.stdin.write(json.dumps({"params": count * 1e9, "gpu": "h100"}) + "\n")
                process.stdin.flush()
                answer = json.loads(process.stdout.readline())
                self.assertEqual(answer["model"]["parameters"], count * 10**9)
            process.stdin.close()
            self.assertEqual(process.wait(timeout=10), 0)

    def test_a_file_of_answers_appears_whole(self):
        queries = self.write("queries.jsonl", '{"params": 1e9, "gpu": "h100"}\n' * 3)
        target = self.folder / "answers.jsonl"
        result = plimsoll("batch", queries, "--json", target)
        self.assertEqual((result.returncode, result.stdout), (0, ""))
        self.assertEqual(len(target.read_text().splitlines()), 3)


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

    @unittest.skipUnless(shutil.which("ldd"), "no ldd here")
    def test_no_library_of_the_runtime_is_linked(self):
        libraries = subprocess.run(["ldd", PLIMSOLL], stdout=subprocess.PIPE, text=True,
                                   check=True).stdout
        self.assertIn("libc.so", libraries)
        for name in ["cuda", "cublas", "cudnn", "nccl", "mpi", "blas", "curl", "nvidia"]:
            self.assertNotIn(name, libraries.lower())


if __name__ == "__main__":
    unittest.main()

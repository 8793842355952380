#!/usr/bin/env python3
"""`plimsoll oom`: messages of public threads, logs of many ranks, and what is no log at all."""
import json
import os
import subprocess
import unittest

from case import TINY, Case
from program import PLIMSOLL, ROOT, plimsoll

RUNS = json.loads((ROOT / "tests" / "golden" / "oom_runs.json").read_text())["runs"]
GOLDEN = json.loads((ROOT / "tests" / "golden" / "oom_messages.json").read_text())["messages"]
FIGURES = ("tried_bytes", "capacity_bytes", "allocated_bytes", "free_bytes", "reserved_bytes",
           "reserved_unallocated_bytes")
# Read off a screen without its point; the golden figure has it put back.
NOT_AS_WRITTEN = {("oom-fastchat-390", "reserved_bytes"): 3764 << 30}
MESSAGE = ("[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 1 "
           "has a total capacity of 23.64 GiB of which 10.69 MiB is free. Of the allocated memory "
           "22.74 GiB is allocated by PyTorch, and 136.85 MiB is reserved by PyTorch but "
           "unallocated.\n")


def answer(text, *words):
    result = plimsoll("oom", "-", *words, "--json", "-", stdin=text)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def names(document):
    return [candidate["tensor"] for candidate in document["match"]["candidates"]]


class Threads(unittest.TestCase):
    def test_every_figure_of_every_message(self):
        self.assertEqual(len(GOLDEN), 16)
        for row in GOLDEN:
            document = answer(row["text"])
            message = document["message"]
            for figure in FIGURES:
                with self.subTest(id=row["id"], figure=figure):
                    if (row["id"], figure) in NOT_AS_WRITTEN:
                        self.assertEqual(message[figure], NOT_AS_WRITTEN[row["id"], figure])
                        self.assertIsNone(document["accounts"][figure])
                        self.assertIn("3.68 TiB reserved", document["doubts"][0])
                    elif row[figure] is None:
                        self.assertIsNone(message[figure])
                    else:  # halves were rounded in two ways
                        self.assertLessEqual(abs(message[figure] - row[figure]), 1)

    def match(self, name):
        row = next(row for row in GOLDEN if row["id"] == name)
        return answer(row["text"], *row["workload"].split())

    # One decoder layer in 16 bits: 202,383,360 x 2 B = 386.02 MiB, asked for as 388.
    def test_a_gathered_layer(self):
        document = self.match("oom-alpaca-223")
        first = document["match"]["candidates"][0]
        self.assertEqual(first["tensor"], "layers.*.fsdp.flat_parameter")
        self.assertEqual((first["bytes"], first["printed_bytes"]), (202383360 * 2, 388 << 20))
        self.assertTrue(first["agrees"])
        self.assertEqual(document["match"]["refused"]["tensor"], first["tensor"])
        self.assertIn("layers.*.fsdp.flat_parameter", names(self.match("oom-fastchat-390")))
        self.assertTrue(any(remedy["fits"] for remedy in document["remedies"]))

    # 4 x 1024 tokens of 50,257 logits in fp32: 785.27 MiB, asked for as 786.
    def test_logits(self):
        first = self.match("oom-megatron-525")["match"]["candidates"][0]
        self.assertEqual((first["tensor"], first["bytes"]), ("loss.logits.fp32", 4096 * 50257 * 4))

    # 6,738,415,616 / 8 x 4 B = 3,213.13 MiB, printed as 3.14 GiB.
    def test_a_partition_of_zero(self):
        candidates = self.match("oom-llamafactory-1221")["match"]["candidates"]
        self.assertEqual(candidates[0]["phase"], "optimizer")
        for candidate in candidates:
            self.assertEqual(candidate["bytes"] // 512, 6738415616 // 8 * 4 // 512)

    # expandable_segments would have served the 388 MiB; the plan needs 44 GiB of 32.
    def test_room_for_one_request_is_not_room_for_the_step(self):
        row = next(row for row in GOLDEN if row["id"] == "oom-alpaca-223")
        table = plimsoll("oom", "-", *row["workload"].split(), stdin=row["text"]).stdout
        self.assertIn("For this request only", table)
        self.assertNotIn("For this request only", plimsoll("oom", "-", stdin=row["text"]).stdout)

    def test_no_candidate_is_said(self):
        document = self.match("oom-s1-106")
        self.assertEqual(document["match"]["candidates"], [])
        # 8.46 GiB of fp32 logits, vocabulary 152,064: 14,935 tokens by the thread's own decoding.
        guess = document["match"]["logits_guesses"][0]
        self.assertLessEqual(guess["fewest_tokens"], 14935)
        self.assertGreaterEqual(guess["most_tokens"], 14935)
        row = next(row for row in GOLDEN if row["id"] == "oom-s1-106")
        table = plimsoll("oom", "-", *row["workload"].split(), stdin=row["text"]).stdout
        self.assertIn("No candidate", table)

    def test_lines_fit_80_columns_and_are_the_same_again(self):
        for row in GOLDEN:
            words = (row["workload"] or "").split()
            first = plimsoll("oom", "-", *words, stdin=row["text"])
            self.assertEqual(first.returncode, 0, first.stderr)
            for line in first.stdout.splitlines():
                self.assertLessEqual(len(line), 80, line)
            self.assertEqual(plimsoll("oom", "-", *words, stdin=row["text"]).stdout, first.stdout)


class Oracle(unittest.TestCase):
    """torch 2.11's own messages on the dry CUDA runtime: the line that asked is known."""

    def test_the_tensor_is_the_first_candidate(self):
        self.assertEqual(len(RUNS), 11)
        for run in RUNS:
            with self.subTest(case=run["case"]):
                document = answer(run["message"], *run["words"].split())
                first = document["match"]["candidates"][0]
                self.assertEqual(document["message"]["capacity_bytes"], run["capacity_bytes"])
                self.assertEqual(first["tensor"], run["tensor"])
                self.assertTrue(first["agrees"])
                self.assertEqual(first["phase"], None if run["phase"] == "build" else run["phase"])
                self.assertEqual(first["first_step"], run["step"] <= 0)


class Logs(Case):
    def test_many_ranks(self):
        log = "epoch 1\n" + "".join(MESSAGE.replace("rank1", f"rank{rank}").replace("GPU 1", f"GPU {rank}")
                                    for rank in (3, 1, 2)) + "Cuda failure 2 'out of memory'\n"
        document = answer(log)
        self.assertEqual(document["messages"], 4)
        self.assertEqual((document["message"]["rank"], document["message"]["line"]), (3, 2))
        self.assertEqual(document["groups"][0]["ranks"], [3, 1, 2])
        self.assertEqual([group["count"] for group in document["groups"]], [3, 1])
        self.assertIn("All 4 messages", plimsoll("oom", "-", stdin=log).stdout)

    # 20 MiB stand for every request above 1 and below 10 MiB: a class.
    def test_candidates_of_a_class(self):
        model = self.write("tiny/config.json", json.dumps({**TINY, "n_embd": 512, "n_head": 8,
                                                           "vocab_size": 2048}))
        document = answer(MESSAGE, model.parent, "--gpu", "4090", "--seq-len", 64)
        candidates = document["match"]["candidates"]
        self.assertGreater(len(candidates) + document["match"]["further_candidates"], 1)
        for candidate in candidates:
            self.assertEqual(candidate["printed_bytes"], 20 << 20)
            self.assertGreater(candidate["bytes"], 1 << 20)
            self.assertLess(candidate["bytes"], 10 << 20)
            self.assertFalse(candidate["agrees"])  # this model never has 22 GiB

    # The message's card, not the one that is named: 23.64 GiB.
    def test_the_card_is_the_message_s(self):
        document = answer(MESSAGE, "gpt2", "--gpu", "h100")
        self.assertEqual(document["plan"]["capacity_bytes"], 25383256719)
        document = answer(MESSAGE, "gpt2", "--gpu", "h100", "--gpu-memory", "8GiB")
        self.assertEqual(document["plan"]["capacity_bytes"], 8 << 30)

    # Of 23.64 GiB another process has 20: 3.64 are left.
    def test_what_others_hold_is_not_usable(self):
        text = MESSAGE.replace("Of the allocated", "Process 77 has 20.00 GiB memory in use. Including "
                               "non-PyTorch memory, this process has 3.60 GiB memory in use. Of the "
                               "allocated").replace("22.74", "3.00")
        document = answer(text, "gpt2", "--gpu", "4090")
        self.assertEqual(document["plan"]["usable_bytes"], 25383256719 - (20 << 30))
        self.assertEqual(document["cause"], "fragmentation")  # 136.85 MiB in the cache
        self.assertTrue(any("77" in way["change"] for way in document["ways"]))

    def test_a_message_without_a_size_is_planned_all_the_same(self):
        document = answer("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling "
                          "`cublasCreate(handle)`", "gpt2", "--gpu", "4090")
        self.assertEqual(document["cause"], "outside the allocator")
        self.assertFalse(document["match"]["searched"])
        self.assertEqual(document["plan"]["verdict"], "fits")


class Refusals(Case):
    def test_no_message(self):
        for text in ("", "all is well\n", "if you run out of memory, ask\n", "\0" * 5000):
            self.assert_refused(plimsoll("oom", "-", stdin=text), "standard input",
                                "no out-of-memory message")

    def test_bad_words(self):
        self.assert_refused(plimsoll("oom"), "FILE is missing")
        self.assert_refused(plimsoll("oom", self.folder / "absent.log"), "absent.log", "No such file")
        self.assert_refused(plimsoll("oom", self.folder), "Is a directory")
        log = self.write("log", MESSAGE)
        self.assert_refused(plimsoll("oom", log, "--zero", 3), "MODEL is missing")
        self.assert_refused(plimsoll("oom", log, "gpt3"), "gpt3")
        self.assert_refused(plimsoll("oom", log, "gpt2", "more"), "unexpected argument 'more'")
        self.assert_refused(plimsoll("oom", log, "--params", "7e9"), "--params")
        self.assert_refused(plimsoll("oom", log, "gpt2", "--stack", "plimsoll"), "--stack pytorch")
        self.assert_refused(plimsoll("oom", log, "gpt2", "--detail"), "--detail")
        self.assert_refused(plimsoll("oom", log, "--json", log), "--json")

    def test_binary_and_hostile_input(self):
        junk = os.urandom(1 << 20)
        for content in (junk + MESSAGE.encode() + junk, MESSAGE.encode("utf-16"),
                        MESSAGE.encode().replace(b" ", b"\0 "), b"\x1b[31m" + MESSAGE.encode()):
            result = plimsoll("oom", self.write("log", content))
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("20.0 MiB", result.stdout)
        result = plimsoll("oom", self.write("log", MESSAGE.replace("20.00 MiB", "9" * 400 + ".00 GiB")))
        self.assertEqual(result.returncode, 0, result.stderr)
        # Escapes of a message reach no terminal.
        result = plimsoll("oom", "-", stdin="CUDA error: out of memory\n\x1b]0;title\x07")
        self.assertNotIn("\x1b", result.stdout)

    def test_a_long_log_takes_constant_memory(self):
        code = ("import resource, subprocess, sys\n"
                "child = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
                "line = b'step 1 of 100: loss 1.234, out of memory never, 5.00 GiB free' * 1000\n"
                "for _ in range(1500): child.stdin.write(line)\n"
                f"child.stdin.write({MESSAGE.encode()!r})\n"
                "child.stdin.close()\n"
                "assert b'OUT OF MEMORY' in child.stdout.read()\n"
                "assert child.wait() == 0\n"
                "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\n")
        result = subprocess.run(["python3", "-c", code, PLIMSOLL, "oom", "-"], text=True,
                                capture_output=True, check=True)
        self.assertLess(int(result.stdout), 64 << 10)  # KiB, of 95 MB in one line


if __name__ == "__main__":
    unittest.main()

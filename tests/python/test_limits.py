#!/usr/bin/env python3
"""What the shell limits (ulimit), and disks that are full: a status and a message, never a signal,
and nothing is left behind."""
import json
import os
import pathlib
import resource
import subprocess
import tempfile
import unittest

from program import PLIMSOLL, ROOT, SANITIZED, plimsoll

RUN = ["run", ROOT / "tests/golden/numerics/gpt2", "--device", "cpu", "--seq-len", "16", "--steps",
       "1"]
KIB = 1 << 10


def limited(limits, *words, stdin=""):
    """The program under resource limits, {resource.RLIMIT_…: bytes}."""
    def apply():
        for limit, most in limits.items():
            resource.setrlimit(limit, (most, most))
    return subprocess.run([PLIMSOLL, *map(str, words)], input=stdin, text=True, timeout=120,
                          capture_output=True, preexec_fn=apply,
                          env={**os.environ, "LC_ALL": "C.UTF-8", "HOME": "/nonexistent"})


@unittest.skipIf(SANITIZED, "sanitizers take more addresses and a larger stack than these limits leave")
class Limits(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.target = self.folder / "out.json"
        self.query = json.dumps({"model": "gpt2", "gpu": "h100", "detail": True})

    def commands(self):
        return [["fit", "gpt2", "--gpu", "h100", "--detail"],
                ["recommend", "gpt2", "--gpu", "h100", "--gpus", "2"],
                ["batch", "-"], RUN, [*RUN, "--ranks", "2", "--zero", "3"]]

    def test_a_small_stack_changes_no_answer(self):
        plan, measurement = self.folder / "plan.json", self.folder / "measurement.json"
        for words in self.commands():
            with self.subTest(words=words):
                # 300 KiB: less than the blocks of the host's attention.
                result = limited({resource.RLIMIT_STACK: 300 * KIB}, *words, stdin=self.query)
                self.assertEqual(result.returncode, 0, result.stderr)
        limited({}, *RUN, "--prediction", plan, "--json", measurement)
        result = limited({resource.RLIMIT_STACK: 300 * KIB}, "compare", plan, measurement)
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_a_limit_on_files_is_a_full_disk(self):
        for words in self.commands():
            with self.subTest(words=words):
                result = limited({resource.RLIMIT_FSIZE: KIB}, *words, "--json", self.target,
                                 stdin=self.query)
                self.assertEqual(result.returncode, 3, result.stderr)
                self.assertIn("File too large", result.stderr)
                self.assertEqual(os.listdir(self.folder), [])

    def test_few_addresses_are_enough_for_a_run_on_the_host(self):
        # With one thread of OpenBLAS. The libraries of CUDA alone would be 760 MB.
        os.environ["OPENBLAS_NUM_THREADS"] = "1"
        self.addCleanup(os.environ.pop, "OPENBLAS_NUM_THREADS")
        result = limited({resource.RLIMIT_AS: 600 * KIB * KIB}, *RUN)
        self.assertEqual(result.returncode, 0, result.stderr)
        # OpenBLAS itself would ask for its buffer for ever.
        result = limited({resource.RLIMIT_AS: 230 * KIB * KIB}, *RUN)
        self.assertEqual((result.returncode, result.stdout), (1, ""), result.stderr)
        self.assertIn("ulimit -v", result.stderr)

    @unittest.skipUnless(os.geteuid() == 0, "only root can make a small disk")
    def test_a_full_disk_is_a_failure_that_leaves_nothing(self):
        disk = self.folder / "disk"
        disk.mkdir()
        made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", disk],
                              capture_output=True, text=True)
        if made.returncode != 0:
            self.skipTest(f"no small disk can be made: {made.stderr.strip()}")
        try:
            for words in (*self.commands(), [*RUN, "--save-weights", disk / "weights"],
                          [*RUN, "--save-checkpoint", disk / "weights and states"],
                          [*RUN, "--prediction", disk / "plan.json"]):
                with self.subTest(words=words):
                    result = plimsoll(*words, *([] if "weights" in str(words[-1]) else
                                                ["--json", disk / "out.json"]), stdin=self.query)
                    self.assertEqual(result.returncode, 3, result.stderr)
                    self.assertIn("No space left on device", result.stderr)
                    self.assertEqual(os.listdir(disk), [])
        finally:
            subprocess.run(["umount", disk], check=True)

    def test_a_path_that_cannot_be_written_is_bad_input(self):
        file = self.folder / "file"
        file.write_text("")
        for target in (self.folder / "none" / "out.json", self.folder, file / "out.json",
                       self.folder / ("x" * 300)):
            for words in self.commands()[::3]:
                with self.subTest(words=words, target=target):
                    result = plimsoll(*words, "--json", target, stdin=self.query)
                    self.assertEqual(result.returncode, 2, result.stderr)
                    self.assertIn(f"--json {target}", result.stderr)
            result = plimsoll(*RUN, "--prediction", target)
            self.assertEqual((result.returncode, result.stdout), (2, ""))
            self.assertIn(f"--prediction {target}", result.stderr)
        self.assertEqual(os.listdir(self.folder), ["file"])

    def test_no_output_is_written_over_an_input(self):
        plan, measurement = self.folder / "plan.json", self.folder / "measurement.json"
        limited({}, *RUN, "--prediction", plan, "--json", measurement)
        config, queries = self.folder / "config.json", self.folder / "queries.jsonl"
        config.write_bytes((RUN[1] / "config.json").read_bytes())
        queries.write_text(self.query)
        commands = [(["compare", plan, measurement], [plan, measurement]),
                    (["export", plan, "--to", "deepspeed"], [plan]),
                    (["run", plan, "--steps", "1"], [plan]), (["batch", queries], [queries]),
                    (["fit", config, "--gpu", "h100"], [config]),
                    (["fit", self.folder, "--gpu", "h100"], [config])]
        for words, inputs in commands:
            for given in inputs:
                before = given.read_bytes()
                soft, hard = self.folder / "soft", self.folder / "hard"
                soft.symlink_to(given.name)
                hard.hardlink_to(given)
                for name in (given, self.folder / "." / ".." / self.folder.name / given.name, soft,
                             hard):
                    result = plimsoll(*words, "--json", name)
                    self.assertEqual((result.returncode, result.stdout), (2, ""), (words, name))
                    self.assertIn(f"--json {name}: is an input", result.stderr)
                self.assertEqual(given.read_bytes(), before)
                soft.unlink()
                hard.unlink()
        with open(plan) as stdin:
            result = subprocess.run([PLIMSOLL, "compare", "-", measurement, "--json", plan],
                                    stdin=stdin, capture_output=True, text=True, timeout=60)
        self.assertEqual(result.returncode, 2, result.stderr)
        trained = self.folder / "trained"
        self.assertEqual(plimsoll(*RUN, "--save-weights", trained).returncode, 0)
        weights = (trained / "model.safetensors").read_bytes()
        for words in (["run", trained, *RUN[2:]], [*RUN, "--weights", trained]):
            result = plimsoll(*words, "--save-weights", trained)
            self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
            self.assertIn("is an input", result.stderr)
        self.assertEqual((trained / "model.safetensors").read_bytes(), weights)
        result = plimsoll(*RUN, "--json", self.target, "--prediction", self.target)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertFalse(self.target.exists())

    def test_a_run_whose_answer_cannot_be_written_does_not_begin(self):
        result = plimsoll(*RUN, "--json", self.folder / "none" / "out.json")
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertNotIn("step 1/1", result.stderr)

    @unittest.skipIf(os.geteuid() == 0, "root may write everywhere")
    def test_a_folder_that_is_forbidden_is_bad_input(self):
        self.folder.chmod(0o500)
        self.addCleanup(self.folder.chmod, 0o700)
        result = plimsoll(*self.commands()[0], "--json", self.target)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("Permission denied", result.stderr)


class Sizes(unittest.TestCase):
    # A file of exactly so many bytes is read, and is no document; one byte more is not looked at.
    def test_files_are_read_up_to_the_size_that_their_refusal_names(self):
        for most, words in ((64 << 20, ["fit", "{}", "--gpu", "h100"]),
                            (16 << 20, ["fit", "gpt2", "--gpu", "h100", "--deepspeed", "{}"]),
                            (1 << 20, ["fit", "gpt2", "--gpu", "h100", "--accelerate", "{}"]),
                            (1 << 20, ["fit", "gpt2", "--gpu", "h100", "--torchtitan", "{}"]),
                            (64 << 20, ["batch", "--fleet", "{}"]),
                            (256 << 20, ["export", "{}", "--to", "deepspeed"])):
            for size in (most, most + 1):
                with self.subTest(words=words, size=size), tempfile.TemporaryDirectory() as folder:
                    path = pathlib.Path(folder) / "given.json"
                    with path.open("wb") as file:
                        file.truncate(size)
                    result = plimsoll(*(word.format(path) for word in words))
                    self.assertEqual((result.returncode, result.stdout), (2, ""))
                    too_large = f"{path}: {size} bytes, at most {most} are read"
                    self.assertEqual(too_large in result.stderr, size > most, result.stderr)


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""`plimsoll run` under mpirun: every rank plans, rank 0 speaks and writes, and an error of any rank
leaves a document.

Usage: mpi_run_test.py MPIRUN PLIMSOLL
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

# As root in a container and with more ranks than cores; other MPIs ignore these.
ENVIRONMENT = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                   OMPI_MCA_rmaps_base_oversubscribe="1", OPENBLAS_NUM_THREADS="1")
TINY = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 64, "n_head": 4,
        "n_layer": 2, "vocab_size": 257, "n_positions": 64}
MPIRUN = PLIMSOLL = None


class Job(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.model, self.out = self.folder / "tiny.json", self.folder / "measurement.json"
        self.model.write_text(json.dumps(TINY))

    def one(self, *words):
        return [PLIMSOLL, "run", str(self.model), "--device", "cpu", "--seq-len", "32", *words]

    def mpirun(self, *words, stdin=""):
        began = time.monotonic()
        done = subprocess.run([MPIRUN, *words], env=ENVIRONMENT, input=stdin, text=True,
                              capture_output=True, timeout=120, check=False)
        self.assertLess(time.monotonic() - began, 30)
        return done

    def document(self):
        return json.loads(self.out.read_text())

    def test_the_world_is_the_launchers_and_rank_0_alone_speaks(self):
        prediction = self.folder / "prediction.json"
        done = self.mpirun("-np", "2", *self.one("--zero", "2", "--steps", "2", "--json", self.out,
                                                 "--prediction", prediction))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("AGREES"), 1)
        self.assertEqual(done.stderr.count("2 ranks, as mpirun has started"), 1)
        document = self.document()
        self.assertEqual((document["outcome"], len(document["ranks"]), len(document["steps"])),
                         ("completed", 2, 2))
        self.assertTrue(document["comparison"]["agrees"])
        self.assertEqual(document["workload"]["stack"]["exchange"], "mpi")
        names = [t["name"] for t in json.loads(prediction.read_text())["tensors"]]
        self.assertIn("communicator.staging", names)

    def test_another_number_of_ranks_is_refused(self):
        for option, said in (("--gpus", "--gpus asks for 3 ranks"),
                             ("--ranks", "--ranks asks for 3 ranks")):
            done = self.mpirun("-np", "2", *self.one(option, "3", "--json", self.out))
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(said + ", and mpirun has started 2", done.stderr)
        plan = self.folder / "plan.json"
        subprocess.run([PLIMSOLL, "fit", str(self.model), "--stack", "plimsoll", "--device", "cpu",
                        "--gpus", "4", "--seq-len", "32", "--json", str(plan)], check=False,
                       capture_output=True)
        done = self.mpirun("-np", "2", PLIMSOLL, "run", str(plan), "--json", str(self.out))
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("is for 4 ranks, and mpirun has started 2", done.stderr)
        self.assertFalse(self.out.exists())

    def test_standard_input_is_one_ranks_and_refused(self):
        done = self.mpirun("-np", "2", PLIMSOLL, "run", "-", stdin="{}")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("only one rank has the standard input", done.stderr)

    def test_want_of_memory_leaves_a_document_that_says_who_and_what_lived(self):
        done = self.mpirun("-np", "2", *self.one("--gpu-memory", "1MiB", "--anyway", "--json",
                                                 self.out))
        self.assertEqual(done.returncode, 3, done.stderr)
        document = self.document()
        self.assertEqual((document["outcome"], document["error"]["kind"],
                          document["error"]["step"]), ("out_of_memory", "out_of_memory", 1))
        self.assertRegex(document["error"]["message"], r"^rank [01]: no room for layers\.")
        self.assertIn("layers.0.masters", document["error"]["message"])
        self.assertEqual(len(document["ranks"]), 2)
        self.assertIsNone(document["comparison"])

    def test_ranks_that_planned_another_workload_are_named(self):
        done = self.mpirun("-np", "1", *self.one("--json", self.out), ":", "-np", "1",
                           *self.one("--grad-accum", "2"))
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("rank 1 was given workload", done.stderr)

    def test_a_process_that_is_killed_takes_the_job_with_it(self):
        done = self.mpirun("-np", "1", *self.one("--steps", "100000", "--quiet", "--json", self.out),
                           ":", "-np", "1", "timeout", "-s", "KILL", "8",
                           *self.one("--steps", "100000"))
        self.assertNotEqual(done.returncode, 0)
        document = self.document()
        self.assertEqual((document["outcome"], document["error"]["kind"]),
                         ("failed", "communicator"))
        self.assertIn("another rank has died", document["error"]["message"])
        self.assertGreater(len(document["steps"]), 0)


if __name__ == "__main__":
    MPIRUN, PLIMSOLL = sys.argv[1:3]
    unittest.main(argv=sys.argv[:1])

#!/usr/bin/env python3
"""tools/cluster: the scripts, as far as they can be tried without a cluster."""
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from program import ROOT, plimsoll

CLUSTER = ROOT / "tools" / "cluster"


class Cluster(unittest.TestCase):
    def verify(self, **variables):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        root = pathlib.Path(folder.name)
        program = root / "run"
        program.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
        program.chmod(0o755)
        environment = {"PATH": os.environ["PATH"], "PLIMSOLL": str(program),
                       "OUT": str(root / "out"), **variables}
        done = subprocess.run(["sh", str(CLUSTER / "verify.sh")], env=environment,
                              capture_output=True, text=True, timeout=20)
        return done, root

    def test_a_rank_runs_the_workload_and_leaves_its_measurement_under_the_jobs_name(self):
        done, root = self.verify(SLURM_JOB_ID="77", SLURM_PROCID="3", STEPS="2",
                                 WORKLOAD="gpt2 --zero 2")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.split(), [
            "run", "gpt2", "--zero", "2", "--device", "cuda", "--steps", "2", "--data", "synthetic", "--quiet", "--json",
            str(root / "out" / "measurement-77.json")])
        self.assertIn("rank 3", done.stderr)

    def test_a_program_that_is_not_there_is_named(self):
        done, _ = self.verify(PLIMSOLL="/nowhere/plimsoll")
        self.assertEqual(done.returncode, 2)
        self.assertIn("/nowhere/plimsoll", done.stderr)

    def test_the_usual_workload_is_one_that_is_planned(self):
        done, _ = self.verify()
        words = done.stdout.split()
        words = ["fit", *words[1:words.index("--steps")], "--stack", "plimsoll", "--gpu", "h200",
                 "--gpus", "16"]
        self.assertEqual(plimsoll(*words).returncode, 0)

    def test_the_scripts_are_what_their_shells_read(self):
        for name, shell in (("verify.sh", "sh"), ("verify.sbatch", "bash")):
            if not shutil.which(shell):
                self.skipTest(f"no {shell}")
            done = subprocess.run([shell, "-n", str(CLUSTER / name)], capture_output=True)
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_ranks_gpus_and_slots_agree(self):
        text = (CLUSTER / "verify-mpijob.yaml").read_text()
        slots, gpus = (int(re.search(p, text)[1]) for p in (r"slotsPerWorker: (\d+)",
                                                            r"nvidia.com/gpu: (\d+)"))
        workers = int(re.findall(r"replicas: (\d+)", text)[1])
        ranks = int(re.search(r'-np\n\s*- "(\d+)"', text)[1])
        self.assertEqual((slots, ranks), (gpus, workers * slots))
        batch = (CLUSTER / "verify.sbatch").read_text()
        self.assertEqual(re.search(r"ntasks-per-node=(\d+)", batch)[1],
                         re.search(r"gpus-per-node=(\d+)", batch)[1])


if __name__ == "__main__":
    unittest.main()

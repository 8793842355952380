"""device_overheads.py without a GPU: exit statuses, and every section once on the dry runtime."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from oracle import HAS_TORCH, ORACLE

PROGRAM = ORACLE / "device_overheads.py"


def run(*arguments, **environment):
    return subprocess.run([sys.executable, "-W", "ignore", str(PROGRAM), *map(str, arguments)],
                          text=True, capture_output=True, check=False,
                          env={**os.environ, **environment})


class Program(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = pathlib.Path(folder.name) / "overheads.json"

    def test_without_a_gpu_it_says_so_and_exits_3(self):
        result = run("--out", self.out, PATH="")
        self.assertEqual(result.returncode, 3, result.stderr)
        self.assertIn("no GPU", result.stderr)

    def test_an_unknown_section_exits_2(self):
        result = run("--out", self.out, "--only", "context,everything")
        self.assertEqual(result.returncode, 2)
        self.assertIn("everything", result.stderr)

    @unittest.skipUnless(HAS_TORCH, "torch and transformers are not installed")
    def test_every_section_runs_and_no_rate_is_made_up(self):
        result = run("--out", self.out, "--dry-run")
        self.assertEqual(result.returncode, 0, result.stderr[-2000:])
        document = json.loads(self.out.read_text())
        self.assertEqual(document["kind"], "dry-run")
        for row in document["gemm"] + document["attention"] + document["bandwidth"]:
            self.assertEqual([v for k, v in row.items() if k.endswith("per_second")],
                             [None] * sum(k.endswith("per_second") for k in row))
        # The first context row exists, and cudaMalloc takes whole pages of 2 MiB.
        self.assertEqual(document["context"]["rows"][0]["after"], "context")
        page = 2 << 20
        taken = {r["request_bytes"]: r["taken_bytes"] // r["count"]
                 for r in document["granularity"]}
        self.assertEqual((taken[1], taken[page], taken[page + 1]), (page, page, 2 * page))
        # FlashAttention, batch 1, as many key as query heads (32), 4096 x 128:
        # dq_accum 4·b·h·s·d, softmax_d 4·b·h·s, and copies of d_out and out, 2·2·b·h·s·d.
        row = next(r for r in document["scratch"] if r["shape"] == [1, 32, 32, 4096, 128] and
                   r["backend"] == "flash")
        elements = 32 * 4096 * 128
        self.assertEqual(row["backward_scratch_bytes"],
                         4 * elements + 4 * 32 * 4096 + 2 * 2 * elements)

    @unittest.skipUnless(HAS_TORCH, "torch and transformers are not installed")
    def test_no_section_starts_without_budget(self):
        result = run("--out", self.out, "--dry-run", "--budget", "-1", "--only", "gemm")
        self.assertEqual(result.returncode, 0)
        self.assertIn("budget spent before: gemm", result.stderr)


if __name__ == "__main__":
    unittest.main()

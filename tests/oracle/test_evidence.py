"""tools/evidence: what counts as evidence, where it goes, and the page that is made of it."""
import importlib.machinery
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

from oracle import ROOT, torch_measure as tm, workload

PROGRAM = ROOT / "tools" / "evidence"
LOADER = importlib.machinery.SourceFileLoader("evidence", str(PROGRAM))
evidence = importlib.util.module_from_spec(importlib.util.spec_from_loader("evidence", LOADER))
LOADER.exec_module(evidence)

DEVICE = {"name": "NVIDIA H200", "capacity_bytes": 150109880320, "driver": "580.1"}


def measurement(name, **more):
    document = tm.failed_document(tm.normalised(workload()), "completed", "", False)
    document["environment"] = {"device": DEVICE, "versions": {"torch": "2.11.0"}, "variables": {}}
    document["ranks"][0].update(peak_bytes=3 << 30, reserved_bytes=4 << 30, resident_bytes=1 << 30,
                                device_bytes=5 << 30)
    document["time"] = {"step_seconds": 0.25, "tokens_per_second": 16384.0, "mfu": 0.512}
    document.update(id=name, error=None, measured_at="2026-01-02T03:04:05Z")
    document.update(more)
    return document


class Evidence(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.root = self.folder / "evidence"

    def test_a_message_names_sources_from_the_projects_root(self):
        for built in ("../../../somebody/plimsoll/", "/home/somebody/plimsoll/", "../", "./"):
            said = f"{built}tests/kernels/twins/gemm_twins.cpp:43: ERROR: of ../x"
            self.assertEqual(evidence.of_the_project({"output": [said]}),
                             {"output": ["tests/kernels/twins/gemm_twins.cpp:43: ERROR: of ../x"]})
        library = "/usr/lib/python3/transformers/models/llama/modeling_llama.py"
        self.assertEqual(evidence.of_the_project(library), library)
        for path in (ROOT / "reports" / "evidence").glob("*/*.json"):
            document = json.loads(path.read_text())
            self.assertEqual(evidence.of_the_project(document), document, path.name)

    def test_the_pages_say_what_the_runs_of_our_own_runtime_measured(self):
        done = subprocess.run([sys.executable, str(ROOT / "tools" / "roofline"), "--check"],
                              capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def run_it(self, *arguments):
        return subprocess.run([sys.executable, str(PROGRAM), *map(str, arguments), "--root",
                               str(self.root)], capture_output=True, text=True, check=False)

    def write(self, *documents, name="results-1.jsonl"):
        path = self.folder / name
        path.write_text("".join(json.dumps(d) + "\n" for d in documents))
        return path

    def test_no_evidence_is_a_page_that_says_so(self):
        self.assertEqual(self.run_it().returncode, 0)
        self.assertIn("none yet", (self.root / "README.md").read_text())
        self.assertEqual(self.run_it("--check").returncode, 0)

    def test_each_measurement_of_a_sweep_becomes_a_file_of_its_day_and_gpu(self):
        result = self.run_it("import", self.write(measurement("a"), measurement("b")))
        self.assertEqual(result.returncode, 0, result.stderr)
        folder = self.root / "2026-01-02-h200"
        self.assertEqual(sorted(p.name for p in folder.iterdir()), ["a.json", "b.json"])
        self.assertEqual(json.loads((folder / "a.json").read_text()), measurement("a"))

    def test_the_page_has_figures_and_where_they_are_from(self):
        crashed = measurement("c", outcome="failed", environment=None, time=None,
                              error={"kind": "failed", "message": "x"})
        crashed["ranks"][0].update(peak_bytes=None, reserved_bytes=None, resident_bytes=None,
                                   device_bytes=None)
        full = measurement("d", outcome="out_of_memory", error={
            "kind": "out_of_memory", "message": "", "phase": "backward", "step": 1,
            "tried_bytes": 1, "live": {"allocated_bytes": 100 << 30}})
        self.run_it("import", self.write(measurement("a"), crashed, full))
        page = (self.root / "README.md").read_text()
        # 3, 1, 4 and 5 GiB; a quarter of a second; 16384 tokens/s; 51.2 %
        self.assertIn("| 3.00 | 1.00 | 4.00 | 5.00 | 250.0 | 16,384 | 51.2 |", page)
        self.assertIn("NVIDIA H200, driver 580.1, 150,109,880,320 bytes", page)
        self.assertIn("3 measurements: 1 completed, 1 failed, 1 out of memory", page)
        self.assertIn("out of memory in backward, 100.00 GiB live", page)

    def test_device_overheads_have_their_tables(self):
        document = {"schema": "plimsoll.device_overheads/1", "kind": "gpu",
                    "measured_at": "2026-01-02T03:04:05Z",
                    "environment": measurement("x")["environment"],
                    "context": {"rows": [{"after": "context", "outside_bytes": 512 << 20,
                                          "added_bytes": 512 << 20, "error": None}]},
                    "capacity": {"smi_total_mib": 143771.0, "cuda_total_bytes": 150109880320,
                                 "largest_allocation_bytes": 138 << 30},
                    "gemm": [{"dtype": "bf16", "m": 1, "n": 2, "k": 3, "flops_per_second": 7e14},
                             {"dtype": "bf16", "m": 4, "n": 5, "k": 6, "flops_per_second": 8e14}]}
        self.run_it("import", self.write(document, name="overheads.json"))
        page = (self.root / "README.md").read_text()
        self.assertIn("| context | 512 | 512 |", page)
        self.assertIn("| bf16 | 800 | 4 x 5 x 6 |", page)
        self.assertIn("largest single allocation 138.00 GiB", page)

    def test_a_page_that_is_not_current_is_noticed(self):
        self.run_it("import", self.write(measurement("a")))
        self.assertEqual(self.run_it("--check").returncode, 0)
        path = self.root / "2026-01-02-h200" / "b.json"
        path.write_text(json.dumps(measurement("b")))
        result = self.run_it("--check")
        self.assertEqual(result.returncode, 1)
        self.assertIn("+| `b` |", result.stdout)

    def test_what_is_no_evidence_is_refused(self):
        for document, word in ((measurement("a", kind="dry-run"), "dry-run"),
                               ({"schema": "plimsoll.plan/1"}, "plimsoll.plan/1"),
                               ([1], "schema"), (measurement("../a"), "file name")):
            result = self.run_it("import", self.write(measurement("z"), document))
            self.assertEqual(result.returncode, 2, word)
            self.assertIn(word, result.stderr)
            self.assertEqual(result.stderr.count("\n"), 1)
        self.assertEqual(self.run_it("import", self.folder / "none.json").returncode, 2)
        self.assertEqual(self.run_it("import").returncode, 2)

    def test_names_of_gpus(self):
        self.assertEqual([evidence.slug(n) for n in (
            "NVIDIA H200", "NVIDIA GeForce RTX 4090", "NVIDIA A100-SXM4-80GB", "")],
            ["h200", "rtx-4090", "a100-sxm4-80gb", "gpu"])

    def test_the_committed_page_is_current(self):
        result = subprocess.run([sys.executable, str(PROGRAM), "--check"], capture_output=True,
                                text=True, check=False)
        self.assertEqual(result.stdout, "")


if __name__ == "__main__":
    unittest.main()

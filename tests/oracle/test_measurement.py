"""Figures of a measurement that need no torch, and the program's exit statuses."""
import json
import tempfile
import unittest
from types import SimpleNamespace as Some
from unittest import mock

from oracle import complaint, run, torch_measure as tm, workload


class Figures(unittest.TestCase):
    def test_median_of_an_even_and_an_odd_count(self):
        self.assertEqual([tm.median([3.0, 1.0, 2.0]), tm.median([4.0, 1.0, 2.0, 3.0])], [2.0, 2.5])

    def test_an_unknown_gpu_has_no_peak(self):
        self.assertEqual(tm.peak_flops("NVIDIA H200", "bf16-mixed"), 989.4e12)
        self.assertEqual(tm.peak_flops("NVIDIA H100 PCIe", "bf16"), 756e12)
        self.assertEqual(tm.peak_flops("NVIDIA A100-SXM4-80GB", "fp32"), 19.5e12)
        self.assertIsNone(tm.peak_flops("Some GPU 9000", "bf16"))

    def test_the_clock_watch_takes_medians_and_forgives_what_is_not_a_number(self):
        process = mock.Mock()
        process.communicate.return_value = (
            "1980, 3201, 700.1, 60\n1755, 3201, [N/A], 64\n1965, 3201, 690.1, 61\nbroken\n", "")
        with mock.patch.object(tm.subprocess, "Popen", return_value=process):
            with tm.ClockWatch() as watch:
                pass
        self.assertEqual(watch.found, {
            "samples": 3, "sm_clock_mhz": 1965.0, "memory_clock_mhz": 3201.0,
            "power_watts": 695.1, "temperature_c": 61.0})

    def test_without_nvidia_smi_nothing_is_known(self):
        with mock.patch.object(tm.subprocess, "Popen", side_effect=FileNotFoundError), \
                tm.ClockWatch() as watch:
            pass
        self.assertEqual(watch.found["samples"], 0)
        self.assertIsNone(watch.found["sm_clock_mhz"])

    def test_a_phase_table_becomes_a_step(self):
        phases = tm.Phases(dry=False)
        phases.rows = [
            {"step": 1, "phase": "forward", "peak_bytes": 50, "end_bytes": 40,
             "reserved_bytes": 64, "device_bytes": 80},
            {"step": 2, "phase": "forward", "peak_bytes": 70, "end_bytes": 60,
             "reserved_bytes": 90, "device_bytes": 110},
            {"step": 2, "phase": "zero_grad", "peak_bytes": 65, "end_bytes": 30,
             "reserved_bytes": 96, "device_bytes": 112}]
        self.assertEqual(phases.of_step(2), {"peak_bytes": 70, "resident_bytes": 30,
                                             "reserved_bytes": 96, "device_bytes": 112})
        self.assertIsNone(phases.of_step(3))

    def test_categories_follow_role_birth_and_shape(self):
        training = Some(vocabulary=1000, model=Some())
        replica = Some(vocabulary=1000, model=Some(reducer=1))

        def of(peak, allocation, operator="aten.mm", forward=True, training=training):
            return tm.category({"dies": 9, "born": 3, "bytes": 8, "dtype": "bf16", "shape": [4, 8],
                                **allocation}, operator, forward, peak, training)

        kept = {"born": -1, "dies": None, "bytes": 33554432}
        self.assertEqual(of("backward", {"role": "parameter"}), "parameters_bytes")
        self.assertEqual(of("backward", {"role": "gradient"}), "gradients_bytes")
        self.assertEqual(of("optimizer", {"role": "optimizer"}), "optimizer_bytes")
        self.assertEqual(of("backward", {}), "activations_bytes")
        self.assertEqual(of("backward", {}, forward=False), "temporaries_bytes")
        self.assertEqual(of("backward", {"shape": [2, 64, 1000]}), "logits_bytes")
        self.assertEqual(of("forward", {"shape": [1000]}), "temporaries_bytes")
        self.assertEqual(of("backward", {}, "fsdp.all_gather_copy_in"), "communication_bytes")
        unnamed = {k: v for k, v in kept.items()}
        row = {"born": -1, "dies": None, "bytes": 33554432}
        self.assertEqual(tm.category(row, "", False, "forward", training), "workspace_bytes")
        self.assertEqual(tm.category({**unnamed, "bytes": 26214400}, "", False, "forward", replica),
                         "communication_bytes")
        self.assertEqual(tm.category(row, "", False, "forward", replica), "workspace_bytes")


class ModuleHighWaters(unittest.TestCase):
    def test_a_module_has_the_most_that_lived_while_it_ran(self):
        ops = [("forward", "m.a", "x", ""), ("forward", "m.b", "x", ""),
               ("backward", "m.b", "x", "")]
        # +10 (before), then a: +100, b: +50 -100, backward b: +7
        rows = [{"born": -1, "dies": None, "bytes": 10, "asked": "", "released": None},
                {"born": 0, "dies": 2, "bytes": 100, "asked": "0", "released": "1"},
                {"born": 1, "dies": None, "bytes": 50, "asked": "1", "released": None},
                {"born": 3, "dies": None, "bytes": 7, "asked": "2", "released": None}]
        found = {(r["phase"], r["module"]): (r["high_water_bytes"], r["end_bytes"])
                 for r in tm.module_high_waters(rows, [{"step": 1, "begin": 0}], Some(ops=ops))}
        self.assertEqual(found, {("forward", "m"): (160, 60), ("forward", "m.a"): (110, 110),
                                 ("forward", "m.b"): (160, 60), ("backward", "m"): (67, 67),
                                 ("backward", "m.b"): (67, 67)})


class Program(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.file = f"{self.folder}/w.json"
        with open(self.file, "w") as f:
            json.dump(workload(), f)

    def test_without_a_gpu_a_measurement_says_so_and_exits_3(self):
        # An empty PATH: no nvidia-smi, whatever the machine.
        result = run("--workload", self.file, "--out", f"{self.folder}/m.json", PATH="")
        self.assertEqual(result.returncode, 3, result.stderr)
        self.assertIn("no GPU", result.stderr)
        self.assertNotIn("Traceback", result.stderr)

    def test_bad_input_exits_2_with_one_line(self):
        bad = f"{self.folder}/bad.json"
        for text, word in (("{", "bad.json"), ("[]", "an object"), ('{"model": 3}', "model"),
                           (json.dumps(workload(batch={"seq_len": 0})), "batch.seq_len")):
            with open(bad, "w") as f:
                f.write(text)
            result = run("--workload", bad, "--out", f"{self.folder}/m.json")
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn(word, result.stderr)
            self.assertEqual(result.stderr.count("\n"), 1)

    def test_an_unknown_trace_exits_2(self):
        result = run("--trace", "llama-z")
        self.assertEqual(result.returncode, 2)
        self.assertIn("llama-z", result.stderr)

    def test_help_has_an_example(self):
        self.assertIn("example:", run("--help").stdout)


class Schema(unittest.TestCase):
    def test_the_schema_rejects_what_is_wrong(self):
        good = tm.failed_document(tm.normalised(workload()), "failed", "x", True)
        if complaint("measurement", [good]) is None:
            self.skipTest("no JSON Schema validator")
        self.assertEqual(complaint("measurement", [good]), "")
        for change in ({"outcome": "maybe"}, {"surprise": 1}, {"ranks": []}, {"kind": "guess"},
                       {"measured_at": "yesterday"}, {"steps": [{"step": 0, "seconds": 1}]}):
            self.assertNotEqual(complaint("measurement", [{**good, **change}]), "", change)


if __name__ == "__main__":
    unittest.main()

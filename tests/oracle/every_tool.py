#!/usr/bin/env python3
"""Every program of tools/oracle on its smallest case, against what is committed: a golden file that
cannot be made again is none. Exit status 77 where no program's packages are here.

Run by `meson test oracle_tools`, or with a Python that has torch:  PYTHON tests/oracle/every_tool.py
"""
import gzip
import importlib.util
import json
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import unittest

from tool_packages import PACKAGES, PARTS, missing, needs

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
ORACLE = ROOT / "tools" / "oracle"
GOLDEN = ROOT / "tests" / "golden"
PLIMSOLL = os.environ.get("PLIMSOLL", str(ROOT / "build" / "tools" / "plimsoll"))
TINY = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 2, "n_embd": 16,
        "n_head": 4, "n_positions": 32, "vocab_size": 64}


class EveryTool(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)

    def run_tool(self, program, *arguments):
        done = subprocess.run([sys.executable, str(ORACLE / program), *map(str, arguments)],
                              capture_output=True, text=True, check=False, timeout=500,
                              env={**os.environ, "DS_BUILD_OPS": "0"})
        self.assertEqual(done.returncode, 0, done.stderr[-2000:])
        return done

    def assert_made_again(self, made, golden):
        """The same runs as in the golden document, where the same releases made them."""
        made, golden = (json.loads(path.read_text()) for path in (made, golden))
        self.assertTrue(made["runs"])
        if made["versions"] != golden["versions"]:
            self.skipTest(f"made with {golden['versions']}, here are {made['versions']}")
        committed = {run["case"]: run for run in golden["runs"]}
        for run in made["runs"]:
            self.assertEqual(run, committed[run["case"]])

    def test_every_program_is_tested_here(self):
        programs = {path.name for path in ORACLE.glob("*.py")}
        self.assertEqual(programs, PACKAGES.keys() | PARTS.keys())

    @needs("allocator_histories.py")
    def test_allocator_histories(self):
        out = self.folder / "histories.json"
        self.run_tool("allocator_histories.py", "--only", "max_split_size_mb:128", "--out", out)
        made, golden = (json.loads(path.read_text()) for path in (out, GOLDEN / "allocator_histories.json"))
        self.assertEqual((made["requests"], len(made["runs"])), (golden["requests"], 2))
        if made["torch"] == golden["torch"]:
            for run in made["runs"]:
                self.assertIn(run, golden["runs"])

    @needs("check_exports.py")
    def test_check_exports(self):
        self.run_tool("check_exports.py", "--plimsoll", PLIMSOLL, "--only", "fsdp1-hybrid", "--out", self.folder)
        self.assertIn("fsdp1-hybrid-zero2.plan.json", os.listdir(self.folder))

    @needs("compiled_graphs.py")
    def test_compiled_graphs(self):
        out = self.folder / "saved.json"
        self.run_tool("compiled_graphs.py", "--only", "qwen3-8b-bf16-b4", "--out", out)
        self.assert_made_again(out, GOLDEN / "compiled_saved.json")

    def assert_dry_runs(self, cases, only, golden):
        out = self.folder / "runs.json"
        self.run_tool("dry_runs.py", "--cases", ORACLE / cases, "--only", only, "--out", out)
        self.assert_made_again(out, GOLDEN / golden)

    @needs("dry_runs.py")
    def test_dry_runs_of_compiled_layers(self):
        self.assert_dry_runs("dry_runs_compiled_cases.json", "qwen3-0.6b-compiled-mixed", "dry_runs_compiled.json")

    @needs("deepspeed_measure.py")
    def test_deepspeed_measure(self):
        out = self.folder / "runs.json"
        self.run_tool("deepspeed_modules.py", "--only", "llama-lora-full", "--out", out)
        self.assert_made_again(out, GOLDEN / "deepspeed_modules.json")
        self.run_tool("deepspeed_measure.py", "--only", "tiny-zero3-recompute", "--out", out)
        self.assert_made_again(out, GOLDEN / "deepspeed_runs.json")
        for kind, case in (("packed", "packed-tiny-z2-nf4-storage"), ("liger", "liger-tiny-zero3-lora")):
            self.run_tool("deepspeed_measure.py", "--cases", f"deepspeed_{kind}_cases.json", "--only", case, "--out", out)
            self.assert_made_again(out, GOLDEN / f"deepspeed_{kind}.json")

    @needs("device_overheads.py")
    def test_device_overheads_and_its_rates(self):
        out = self.folder / "overheads.json"
        self.run_tool("device_overheads.py", "--dry-run", "--only", "capacity,gemm", "--out", out)
        document = json.loads(out.read_text())
        self.assertEqual((document["kind"], document["skipped"]), ("dry-run", []))

    @needs("drawn_runs.py")
    def test_drawn_runs(self):
        out = self.folder / "runs.json"
        self.run_tool("drawn_runs.py", "--seed", 2026, "--from", 3, "--count", 1, "--out", out)
        self.assert_made_again(out, GOLDEN / "drawn_runs.json")

    @needs("wide_draw.py")
    def test_wide_draw(self):
        """A program that refuses one question of three: the others are written, each drawn by its
        number alone."""
        program = self.folder / "planned"
        program.write_text("#!/bin/sh\necho 'drawn-3-001 refused: no'\n")
        program.chmod(0o755)
        out = self.folder / "cases.json"
        self.run_tool("wide_draw.py", "--seed", 3, "--count", 3, "--planned", program, "--out", out)
        three = json.loads(out.read_text())
        self.assertEqual([c["name"] for c in three], ["drawn-3-000", "drawn-3-002"])
        self.run_tool("wide_draw.py", "--seed", 3, "--count", 1, "--planned", program, "--out", out)
        self.assertEqual(json.loads(out.read_text()), three[:1])

    @needs("dry_runs.py")
    def test_dry_runs(self):
        out = self.folder / "runs.json"
        self.run_tool("dry_runs.py", "--only", "gpt2-bf16", "--out", out)
        self.assert_made_again(out, GOLDEN / "dry_runs.json")

    @needs("export_runs.py")
    def test_export_runs(self):
        out = self.folder / "runs.json"
        self.run_tool("export_runs.py", "--plimsoll", PLIMSOLL, "--only", "run-fsdp-every",
                      "--out", out)
        self.assert_made_again(out, GOLDEN / "export_runs.json")

    @needs("host_times.py")
    def test_host_times(self):
        """Its times are a machine's: of the workload that is committed, within a factor of three of those."""
        out = self.folder / "times.json"
        self.run_tool("host_times.py", "--only", "granite-reentrant", "--out", out)
        made, golden = (json.loads(path.read_text()) for path in (out, GOLDEN / "host_times.json"))
        committed = {case["name"]: case for case in golden["cases"]}["granite-reentrant"]
        [case] = made["cases"]
        self.assertEqual(case["workload"], committed["workload"])
        by_reference = [(one["layer_microseconds"]["forward"] + one["layer_microseconds"]["backward"])
                        / one["reference_microseconds"] for one in (case, committed)]
        self.assertLess(max(by_reference), 3 * min(by_reference))
        middle = self.folder / "middle.json"
        self.run_tool("host_times.py", "--middle", out, out, out, "--out", middle)
        self.assertEqual(json.loads(middle.read_text()), made)

    @needs("load_runs.py")
    def test_load_runs(self):
        out = self.folder / "runs.json"
        self.run_tool("load_runs.py", "--only", "tiny-", "--out", out)
        self.assert_made_again(out, GOLDEN / "load_runs_5.17.json")
        self.run_tool("load_runs.py", "--cases", "load_runs_merge_cases.json", "--only", "tiny-", "--out", out)
        self.assert_made_again(out, GOLDEN / "load_runs_merge.json")

    @needs("oom_runs.py")
    def test_oom_runs(self):
        out = self.folder / "runs.json"
        self.run_tool("oom_runs.py", "--only", "gpt2-mixed", "--out", out)
        self.assert_made_again(out, GOLDEN / "oom_runs.json")

    @needs("dry_runs.py")
    def test_dry_runs_with_settings(self):
        self.assert_dry_runs("dry_runs_settings_cases.json", "gpt2-ddp-mixed-expandable",
                             "dry_runs_settings.json")

    @needs("dry_runs.py")
    def test_dry_runs_of_families_and_of_several_gpus_in_one_process(self):
        self.assert_dry_runs("dry_runs_families_cases.json", "opt-1.3b-bf16-full",
                             "dry_runs_families.json")
        self.assert_dry_runs("dry_runs_data_parallel_cases.json", "bert-base-uncased-4",
                             "dry_runs_data_parallel.json")

    @needs("dry_runs.py")
    def test_dry_runs_with_parameters_on_the_host(self):
        self.assert_dry_runs("dry_runs_offload_cases.json", "tiny-fsdp2-accum", "dry_runs_offload.json")

    @unittest.skipUnless(importlib.util.find_spec("torchao"), "no torchao here")
    @needs("dry_runs.py")
    def test_dry_runs_with_an_optimizer_on_the_host(self):
        self.assert_dry_runs("dry_runs_host_optimizer_cases.json", "gpt2-bf16-gradients",
                             "dry_runs_host_optimizer.json")

    @needs("attention_scratch.py")
    def test_attention_scratch(self):
        out = self.folder / "scratch.json"
        self.run_tool("attention_scratch.py", "--only", "7.5", "--out", out)
        made, golden = (json.loads(path.read_text()) for path in (out, GOLDEN / "attention_scratch.json"))
        self.assertEqual(made["schema"], golden["schema"])
        if made["torch"] == golden["torch"]:
            self.assertEqual(made["rows"], [row for row in golden["rows"] if row[1] == "7.5"])

    @unittest.skipUnless(importlib.util.find_spec("liger_kernel"), "no liger_kernel here")
    @needs("dry_runs.py")
    def test_dry_runs_with_liger(self):
        self.assert_dry_runs("dry_runs_liger_cases.json", "qwen3-0.6b-bf16", "dry_runs_liger.json")

    def assert_kernel_goldens(self, program, package):
        self.run_tool(program, self.folder)
        made = sorted(self.folder.glob("*.json"))
        self.assertTrue(made)
        for path in made:
            document, golden = (json.loads((at / path.name).read_text())
                                for at in (self.folder, GOLDEN / "kernels"))
            self.assertEqual(document.keys(), golden.keys())
            if document[package] == golden[package]:
                self.assertEqual(document, golden, path.name)

    @needs("bitsandbytes_checkpoints.py")
    def test_bitsandbytes_checkpoints(self):
        self.run_tool("bitsandbytes_checkpoints.py", self.folder)
        golden = GOLDEN / "bitsandbytes_checkpoints"
        made, written = ((folder / "versions.txt").read_text() for folder in (self.folder, golden))
        if made != written:
            self.skipTest(f"made with {written.strip()}, here are {made.strip()}")
        for path in golden.glob("*/model.safetensors"):
            self.assertEqual((self.folder / path.relative_to(golden)).read_bytes(), path.read_bytes(), path)

    @needs("bitsandbytes_goldens.py")
    def test_bitsandbytes_goldens(self):
        self.assert_kernel_goldens("bitsandbytes_goldens.py", "bitsandbytes")

    @needs("float8_goldens.py")
    def test_float8_goldens(self):
        self.run_tool("float8_goldens.py", self.folder)
        parts = pathlib.Path("kernels") / "float8.json"
        made, golden = (json.loads((root / parts).read_text()) for root in (self.folder, GOLDEN))
        if made["versions"] != golden["versions"]:
            self.skipTest(f"made with {golden['versions']}, here are {made['versions']}")
        self.assertEqual(made, golden)
        model = pathlib.Path("numerics") / "qwen2-float8"
        for path in (GOLDEN / model).iterdir():
            self.assertEqual((self.folder / model / path.name).read_bytes(), path.read_bytes(), path.name)

    @needs("galore_goldens.py")
    def test_galore_goldens(self):
        self.run_tool("galore_goldens.py", self.folder / "galore.json")
        made, golden = (json.loads((root / "galore.json").read_text()) for root in (self.folder, GOLDEN))
        if made["versions"] != golden["versions"]:
            self.skipTest(f"made with {golden['versions']}, here are {made['versions']}")
        self.assertEqual(made, golden)

    @needs("kernel_goldens.py")
    def test_kernel_goldens(self):
        self.assert_kernel_goldens("kernel_goldens.py", "torch")

    @needs("messages.py")
    def test_messages(self):
        out = self.folder / "messages.json"
        self.run_tool("messages.py", "--only", "hybrid", "--out", out)
        self.assert_made_again(out, GOLDEN / "messages.json")

    @needs("numerics_goldens.py")
    def test_numerics_goldens(self):
        self.run_tool("numerics_goldens.py", self.folder, "gpt2")
        made = {path.name for path in (self.folder / "gpt2").iterdir()}
        self.assertEqual(made, {path.name for path in (GOLDEN / "numerics" / "gpt2").iterdir()})
        weights = "model.safetensors"
        if weights in made:
            self.assertEqual((self.folder / "gpt2" / weights).read_bytes(),
                             (GOLDEN / "numerics" / "gpt2" / weights).read_bytes())

    @needs("parameter_tables.py")
    def test_parameter_tables(self):
        self.assertIn("0 differ", self.run_tool("parameter_tables.py", "counts", "gpt2").stdout)

    @needs("partitions.py")
    def test_partitions(self):
        out = self.folder / "partitions.json"
        self.run_tool("partitions.py", "--out", out, "--count", "12")
        made, golden = (json.loads(path.read_text()) for path in (out, GOLDEN / "partitions.json"))
        if made["versions"] == golden["versions"]:
            self.assertEqual(made["graphs"], golden["graphs"][:12])

    @needs("plain_torch.py")
    def test_plain_torch(self):
        config, plan, out = (self.folder / name for name in ("config.json", "p.json", "m.json"))
        config.write_text(json.dumps(TINY))
        subprocess.run([PLIMSOLL, "fit", config, "--gpu", "h100", "--quiet", "--json", plan],
                       check=True)
        self.run_tool("plain_torch.py", "--workload", plan, "--out", out, "--device", "cpu",
                      "--steps", "3")
        measured = json.loads(out.read_text())
        self.assertEqual((measured["outcome"], len(measured["steps"])), ("completed", 3))

    @needs("plain_torch.py")
    def test_pytorchs_memory_visualizer_reads_a_plan(self):
        from torch.cuda import _memory_viz
        out, document = self.folder / "snapshot.pickle", self.folder / "plan.json"
        for words in (("--stack", "pytorch", "--zero", "3", "--recompute", "full"),
                      ("--stack", "deepspeed", "--zero", "1"), ("--stack", "plimsoll")):
            subprocess.run([PLIMSOLL, "fit", "gpt2", "--gpu", "h100", "--gpus", "8", "--quiet", *words,
                            "--json", document, "--memory-viz", out], check=True)
            snapshot, plan = pickle.loads(out.read_bytes()), json.loads(document.read_text())
            self.assertEqual(self.highest_of(snapshot), plan["peak_bytes"])
            for plot in (_memory_viz.trace_plot, _memory_viz.segment_plot):
                self.assertIn("snapshot.pickle", plot(snapshot))
            self.assertTrue(_memory_viz.trace(snapshot))
            self.assertIn("segments: 1", _memory_viz.segsum(snapshot))  # its blocks add up
            self.assertIn("active_allocated;parameters:0:",
                          _memory_viz.memory(snapshot, format_flamegraph=str))

    def highest_of(self, snapshot):
        live, highest = 0, 0
        for event in snapshot["device_traces"][0]:
            live += {"alloc": 1, "free_completed": -1}.get(event["action"], 0) * event["size"]
            highest = max(highest, live)
        return highest

    @needs("snapshots.py")
    def test_snapshots(self):
        self.run_tool("snapshots.py", "--plimsoll", PLIMSOLL, "--only", "llama-kept-tensor", "--out",
                      self.folder)
        golden = GOLDEN / "snapshots"
        self.assert_made_again(self.folder / "runs.json", golden / "runs.json")
        made, committed = (gzip.decompress((folder / "llama-kept-tensor.pickle.gz").read_bytes())
                           for folder in (self.folder, golden))
        self.assertEqual(made, committed)

    @needs("torch_measure.py")
    def test_torch_measure(self):
        self.assert_traced_again("llama-a-bf16")

    @needs("torch_measure.py")
    def test_cudnns_attention(self):
        self.assert_traced_again("llama-a-bf16-cudnn")

    def assert_traced_again(self, trace):
        name = trace + ".json"
        out, golden = self.folder / name, GOLDEN / "traces" / name
        self.run_tool("torch_measure.py", "--trace", trace, "--out", out)
        versions = [json.loads(path.read_text())["versions"] for path in (out, golden)]
        if versions[0] != versions[1]:
            self.skipTest(f"made with {versions[1]}, here are {versions[0]}")
        self.assertEqual(out.read_bytes(), golden.read_bytes())

    @needs("torch_measure.py")
    def test_torchtitans_own_code(self):
        """Of release 0.2.2, where that is importable."""
        package = importlib.util.find_spec("torchtitan")
        roots = list(package.submodule_search_locations or []) if package else []
        if not any((pathlib.Path(root) / "models" / "llama3" / "infra").is_dir() for root in roots):
            self.skipTest("no torchtitan 0.2.2 here")
        golden = GOLDEN / "pytorch_steps" / "llama-b-titan022-ops.json"
        out = self.folder / golden.name
        self.run_tool("torch_measure.py", "--trace", golden, "--out", out)
        made, committed = (json.loads(path.read_text()) for path in (out, golden))
        if made["versions"] != committed["versions"]:
            self.skipTest(f"made with {committed['versions']}, here are {made['versions']}")
        self.assertEqual(made, committed)

    @needs("torch_measure.py")
    def test_litgpts_own_code(self):
        """Of release 0.5.13, where that is importable with what it imports."""
        if not importlib.util.find_spec("litgpt") or not importlib.util.find_spec("lightning"):
            self.skipTest("no litgpt here")
        golden = GOLDEN / "pytorch_steps" / "llama-b-litgpt-lora.json"
        out = self.folder / golden.name
        self.run_tool("torch_measure.py", "--trace", golden, "--out", out)
        made, committed = (json.loads(path.read_text()) for path in (out, golden))
        if made["versions"] != committed["versions"]:
            self.skipTest(f"made with {committed['versions']}, here are {made['versions']}")
        self.assertEqual(made, committed)

    @needs("torch_measure.py")
    def test_torchtunes_own_code(self):
        """Of release 0.6.1, where that is importable with what it imports."""
        if not importlib.util.find_spec("torchtune") or not importlib.util.find_spec("torchao"):
            self.skipTest("no torchtune here")
        golden = GOLDEN / "pytorch_steps" / "llama-a-tune-none.json"
        out = self.folder / golden.name
        self.run_tool("torch_measure.py", "--trace", golden, "--out", out)
        made, committed = (json.loads(path.read_text()) for path in (out, golden))
        if made["versions"] != committed["versions"]:
            self.skipTest(f"made with {committed['versions']}, here are {made['versions']}")
        self.assertEqual(made, committed)


if __name__ == "__main__":
    if all(map(missing, PACKAGES)):
        print("no program of tools/oracle can run: " +
              "; ".join(f"{name} needs {', '.join(missing(name))}" for name in sorted(PACKAGES)))
        sys.exit(77)
    unittest.main()

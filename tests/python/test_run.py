#!/usr/bin/env python3
"""`plimsoll run` and plimsoll-run from the command line, on the host."""
import json
import math
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

from program import PLIMSOLL, ROOT, plimsoll
from test_schema import SCHEMA_CHECK, complaint, jsonschema

RUN = str(pathlib.Path(PLIMSOLL).with_name("plimsoll-run"))
TINY = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48,
        "vocab_size": 300, "num_hidden_layers": 3, "max_position_embeddings": 64}
WORDS = ["--device", "cpu", "--seq-len", "16", "--steps", "2"]
SHORT = ["--device", "cpu", "--seq-len", "64", "--micro-batch", "16", "--precision", "fp32",
         "--gpu-memory", "2MiB", "--anyway"]


def run_program(*words, stdin=""):
    return subprocess.run([RUN, *map(str, words)], input=stdin, text=True, capture_output=True,
                          timeout=60)


TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost",
            "MASTER_PORT": "29500"}
SLURM = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "7",
         "SLURM_STEP_ID": "0", "SLURM_JOB_NODELIST": "localhost"}


class Run(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        (cls.folder / "tiny").mkdir()
        (cls.folder / "tiny" / "config.json").write_text(json.dumps(TINY))
        cls.tiny = cls.folder / "tiny"

    def test_under_torchrun_and_srun_the_host_says_that_it_needs_mpi(self):
        for environment, who in ((TORCHRUN, "torchrun"), (SLURM, "srun")):
            done = plimsoll("run", self.tiny, *WORDS, **environment)
            self.assertEqual(done.returncode, 2)
            self.assertIn(f"started by {who} as 2 processes: on --device cpu they need MPI",
                          done.stderr)

    def test_under_torchrun_and_srun_the_world_is_the_launchers_and_a_gpu_is_missed(self):
        prediction = self.folder / "prediction.json"
        for environment, who in ((TORCHRUN, "torchrun"), (SLURM, "srun")):
            words = ["run", self.tiny, "--gpu", "h200", "--seq-len", "16", "--zero", "3",
                     "--prediction", prediction, "--json", self.folder / "none.json"]
            done = plimsoll(*words, CUDA_VISIBLE_DEVICES="", **environment)
            self.assertEqual(done.returncode, 3, done.stderr)
            self.assertRegex(done.stderr, "no NVIDIA driver|no GPU|has no CUDA")
            self.assertEqual("2 ranks, as " + who in done.stderr, who == "torchrun")  # rank 0
            self.assertFalse((self.folder / "none.json").exists())
            done = plimsoll(*words, "--gpus", "8", **environment)
            self.assertEqual(done.returncode, 2)
            self.assertIn(f"--gpus asks for 8 ranks, and {who} has started 2", done.stderr)
        plan = json.loads(prediction.read_text())  # rank 0's
        self.assertEqual(plan["workload"]["strategy"]["world_size"], 2)
        self.assertNotIn("exchange", plan["workload"]["stack"])

    def test_a_plan_for_another_way_to_exchange_is_refused_or_planned_again(self):
        words = ["fit", self.tiny, "--stack", "plimsoll", "--seq-len", "16", "--gpus", "2",
                 "--zero", "2", "--detail", "--json", "-", "--device", "cpu"]
        text = plimsoll(*words, "--exchange", "mpi").stdout
        plan = json.loads(text)
        self.assertEqual(plan["workload"]["stack"]["exchange"], "mpi")
        self.assertIn("communicator.staging", [t["name"] for t in plan["tensors"]])
        self.assertNotIn("communicator.staging", plimsoll(*words).stdout)
        done = run_program("-", stdin=text)
        self.assertEqual(done.returncode, 2)
        self.assertIn("for ranks over mpi, and here they are over threads", done.stderr)
        again = plimsoll("run", "-", "--steps", "1", "--json", "-", stdin=text)
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertNotIn("exchange", json.loads(again.stdout)["workload"]["stack"])
        done = plimsoll("run", self.tiny, *WORDS, "--ranks", "2", "--exchange", "mpi")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--exchange mpi: here ranks are over threads", done.stderr)

    def document(self, *words, status=0):
        result = plimsoll("run", *words, "--json", "-")
        self.assertEqual(result.returncode, status, result.stderr)
        return json.loads(result.stdout)

    def test_measured_equals_predicted_on_every_rank(self):
        for words in (["--ranks", "2", "--zero", "3"],
                      ["--ranks", "3", "--zero", "2", "--grad-accum", "4"],
                      ["--gpus", "4", "--zero", "1", "--shard-group", "2", "--deterministic",
                       "--grad-accum", "3"],
                      ["--precision", "fp16-mixed", "--recompute", "every:2", "--poison"],
                      ["--precision", "fp32", "--attention", "eager", "--loss", "chunked"],
                      ["--ranks", "2", "--lora-rank", "4", "--precision", "bf16"]):
            with self.subTest(words=words):
                document = self.document(self.tiny, *WORDS, *words)
                comparison = document["comparison"]
                self.assertTrue(comparison["agrees"])
                self.assertTrue(comparison["tensor_by_tensor"])
                levels = comparison["levels"]
                self.assertEqual([levels[k]["verdict"] for k in ("requested", "reserved")],
                                 ["exact", "exact"])
                self.assertEqual([r["rank"] for r in document["ranks"]],
                                 list(range(document["workload"]["strategy"]["world_size"])))
                for step in document["steps"]:
                    self.assertLess(abs(step["loss"] - math.log(300)), 0.5)

    def test_the_loss_is_that_of_transformers(self):
        # tests/golden/numerics/gpt2, fp32.text.losses: 10 steps on the shipped text.
        model = ROOT / "tests/golden/numerics/gpt2"
        expected = golden_losses(model / "goldens.safetensors")
        document = self.document(model, "--device", "cpu", "--precision", "fp32", "--seq-len", "24",
                                 "--micro-batch", "2", "--steps", "10", "--lr", "1e-3", "--warmup",
                                 "0", "--max-norm", "0")
        self.assertTrue(document["comparison"]["agrees"])
        losses = [step["loss"] for step in document["steps"]]
        self.assertEqual(len(losses), len(expected))
        for ours, theirs in zip(losses, expected):
            self.assertLess(abs(ours - theirs) / theirs, 1e-5)

    def test_a_run_that_does_not_train_says_so_and_exits_1(self):
        plan, path = self.folder / "diverged.plan.json", self.folder / "diverged.json"
        words = ["--device", "cpu", "--seq-len", "16", "--steps", "3", "--lr", "1e9", "--warmup", "0"]
        for precision in ("fp32", "fp16-mixed"):
            result = plimsoll("run", self.tiny, *words, "--precision", precision, "--prediction",
                              plan, "--json", path)
            self.assertEqual(result.returncode, 1, result.stderr)
            self.assertTrue(result.stdout.startswith("NOT TRAINED: "), result.stdout)
            self.assertRegex(result.stderr, "of step [23] of 3 is not finite")
            document = json.loads(path.read_text())
            self.assertEqual((document["outcome"], document["error"]["kind"]),
                             ("diverged", "training"))
            self.assertEqual(document["comparison"]["levels"]["requested"]["verdict"], "exact")
            self.assertFalse(document["comparison"]["agrees"])
            if SCHEMA_CHECK or jsonschema:
                self.assertEqual(complaint("measurement", [document]), "")
            result = plimsoll("compare", plan, path)
            self.assertEqual(result.returncode, 1, result.stderr)
            self.assertIn("is not finite", result.stdout)

    def test_progress_goes_to_standard_error_and_the_table_to_standard_output(self):
        result = plimsoll("run", self.tiny, *WORDS)
        self.assertEqual(result.returncode, 0)
        self.assertRegex(result.stdout, "^AGREES: .*tiny, stack plimsoll, 1 rank\n")
        self.assertIn("step 2/2  loss ", result.stderr)
        result = plimsoll("run", self.tiny, *WORDS, "--quiet")
        self.assertEqual((result.stdout, result.stderr), ("", ""))

    def test_a_profile_has_every_product_and_goes_on_behind_the_steps(self):
        document = self.document(self.tiny, *WORDS, "--profile")
        self.assertEqual(len(document["steps"]), 2)
        rows = document["profile"]["rows"]
        products = sum(r["flops"] for r in rows if r["kernel"].startswith("linear"))
        # Forward and both gradients: 6 FLOPs a weight and token. q, o: 32 x 32; k, v: 32 x 16.
        layer = 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48
        self.assertEqual(products, 6 * 16 * (3 * layer + 300 * 32))
        # 4 and 10 FLOPs a pair and column; token i sees i + 1.
        attention = sum(r["flops"] for r in rows if r["kernel"].startswith("flash"))
        self.assertEqual(attention, 14 * 3 * 4 * 8 * (16 * 17 / 2))
        up = [r for r in rows if r["op"] == "layers.*.mlp.up_proj" and r["phase"] == "forward"]
        self.assertEqual([(r["calls"], r["kernel"]) for r in up], [(3, "linear_forward")])
        self.assertEqual(up[0]["bytes"], 3 * 2 * (16 * 32 + 32 * 48 + 16 * 48))
        self.assertEqual(rows, sorted(rows, key=lambda r: -r["seconds"]))
        self.assertLess(sum(r["seconds"] for r in rows), document["profile"]["step_seconds"])
        self.assertEqual(document["time"]["hardware_flops_per_step"], products + attention)
        self.assertIsNone(self.document(self.tiny, *WORDS)["time"]["hfu"])
        self.assertIsNone(document["libraries"])  # the host has none
        result = plimsoll("run", self.tiny, *WORDS, "--profile")
        self.assertRegex(result.stdout, r"Time of a step of [0-9.]+ ms, by kernel")
        self.assertRegex(result.stdout, r"\n  between kernels ")

    def test_a_run_may_go_on_for_a_while(self):
        document = self.document(self.tiny, *WORDS, "--seconds", "0.3")
        loop = document["time"]["loop"]
        self.assertEqual(loop["steps"], len(document["steps"]) - 1)
        self.assertGreaterEqual(loop["seconds"], 0.3)
        self.assertGreater(len(document["steps"]), 2)
        # With data and logging: no faster than the steps alone.
        self.assertLess(sum(s["seconds"] for s in document["steps"][1:]), loop["seconds"])

    def test_plans_are_run_as_they_are_and_may_come_from_a_pipe(self):
        fit = plimsoll("fit", self.tiny, "--stack", "plimsoll", "--device", "cpu", "--seq-len", "16",
                       "--gpus", "2", "--zero", "2", "--json", "-")
        plan = json.loads(fit.stdout)
        recommendation = json.dumps({"schema": "plimsoll.recommendation/1",
                                     "ranked": [{"plan": plan}]})
        for document in (fit.stdout, recommendation):
            result = subprocess.run([PLIMSOLL, "run", "-", "--steps", "1", "--json", "-"],
                                    input=document, text=True, capture_output=True, timeout=60)
            self.assertEqual(result.returncode, 0, result.stderr)
            measured = json.loads(result.stdout)
            self.assertEqual(measured["workload"], plan["workload"])
            self.assertTrue(measured["comparison"]["tensor_by_tensor"])
        path = self.folder / "plan.json"
        path.write_text(fit.stdout)
        self.assertEqual(plimsoll("run", path, "--steps", "1").returncode, 0)
        result = plimsoll("run", path, "--zero", "3")
        self.assertEqual(result.returncode, 2)
        self.assertIn("--zero: the plan has answered it", result.stderr)

    def test_recommended_plans_run_as_planned(self):
        # Data parallel and sharded, activations kept and made again.
        kinds = set()
        for ranks in ("2", "3"):
            result = plimsoll("recommend", self.tiny, "--gpu", "rtx-4090", "--gpus", ranks,
                              "--seq-len", "16", "--global-batch", "6", "--stack", "plimsoll",
                              "--keep", "gpus", "--top", "12", "--json", "-")
            self.assertEqual(result.returncode, 0, result.stderr)
            for entry in json.loads(result.stdout)["ranked"]:
                strategy = entry["plan"]["workload"]["strategy"]
                kinds.add((strategy["zero"], strategy["recompute"]))
                plan = self.folder / "recommended.json"
                plan.write_text(json.dumps(entry["plan"]))
                measured = self.document(plan, "--device", "cpu", "--reduce-layers", "2",
                                         "--steps", "1")
                self.assertTrue(measured["comparison"]["agrees"], strategy)
        self.assertGreater(len(kinds), 3, kinds)

    def test_the_prediction_is_kept_and_compared_alone(self):
        plan, measurement = self.folder / "prediction.json", self.folder / "measurement.json"
        result = plimsoll("run", self.tiny, *WORDS, "--prediction", plan, "--json", measurement)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(plimsoll("compare", plan, measurement).returncode, 0)
        document = json.loads(plan.read_text())
        tensor = document["tensors"][17]
        tensor["bytes"] += 1
        plan.write_text(json.dumps(document))
        result = plimsoll("compare", plan, measurement)
        self.assertEqual(result.returncode, 1)
        self.assertIn(tensor["name"], result.stdout)
        # plimsoll-run itself says so as well.
        result = run_program(plan, "--steps", "1")
        self.assertEqual(result.returncode, 1)
        self.assertIn(tensor["name"], result.stdout)

    def test_fewer_layers_are_planned_anew(self):
        document = self.document(self.tiny, *WORDS, "--reduce-layers", "1")
        self.assertEqual(document["workload"]["model"]["config"]["num_hidden_layers"], 1)
        self.assertTrue(document["comparison"]["agrees"])
        result = plimsoll("run", self.tiny, *WORDS, "--reduce-layers", "4")
        self.assertEqual(result.returncode, 2)
        self.assertIn("has 3 layers", result.stderr)

    def test_saved_weights_are_where_the_next_run_begins(self):
        saved = self.folder / "saved"
        words = ["--device", "cpu", "--seq-len", "16", "--precision", "fp32", "--warmup", "0",
                 "--lr", "1e-3"]
        first = self.document(self.tiny, *words, "--steps", "1", "--save-weights", saved)
        again = self.document(saved, *words, "--steps", "1")
        whole = self.document(self.tiny, *words, "--steps", "2")
        self.assertEqual(first["steps"][0]["loss"], whole["steps"][0]["loss"])
        # The same text, one step later.
        self.assertLess(again["steps"][0]["loss"], first["steps"][0]["loss"])

    def test_a_predicted_shortage_ends_before_the_run(self):
        result = plimsoll("run", self.tiny, *WORDS, "--gpu-memory", "16MiB")
        self.assertEqual(result.returncode, 1)
        self.assertTrue(result.stdout.startswith("DOES NOT FIT: "))
        for part in ("No room for workspace (16.0 MiB) before the step", "Living there",
                     "tail.masters"):
            self.assertIn(part, " ".join(result.stdout.split()))
        self.assertEqual(result.stderr, "")
        result = plimsoll("run", self.tiny, "--device", "cpu", "--seq-len", "64", "--micro-batch",
                          "16", "--precision", "fp32", "--gpu-memory", "2MiB")
        self.assertIn("No room for layers.0.out (128 KiB) at op", " ".join(result.stdout.split()))

    def test_a_host_with_too_little_memory_for_all_ranks_is_told_beforehand(self):
        # 405e9 parameters of 16 B on each of 8 ranks: 48 TiB.
        result = plimsoll("run", "llama-3.1-405b", "--device", "cpu", "--ranks", "8", "--seq-len",
                          "64")
        self.assertEqual(result.returncode, 1)
        self.assertIn("8 ranks need ", result.stderr)
        self.assertIn("--reduce-layers", result.stderr)

    def test_a_real_shortage_names_the_tensor_its_shape_and_what_lives(self):
        path = self.folder / "short.json"
        result = plimsoll("run", self.tiny, *SHORT, "--json", path)
        self.assertEqual(result.returncode, 3, result.stderr)
        for part in ("rank 0: no room for ", " [1024, 32] fp32, 131072 B, in op layers.0.",
                     "\n  131072 B  embeddings.out [1024, 32] fp32\n"):
            self.assertIn(part, result.stderr)
        document = json.loads(path.read_text())
        self.assertEqual(document["outcome"], "out_of_memory")
        self.assertEqual(document["error"]["kind"], "out_of_memory")

    @unittest.skipUnless(shutil.which("mpirun"), "mpirun is not here")
    def test_ranks_may_be_processes_of_mpi(self):
        environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1",
                       "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        result = subprocess.run(["mpirun", "--oversubscribe", "-np", "2", PLIMSOLL, "run", self.tiny,
                                 *WORDS, "--zero", "2", "--json", "-"], env=environment, text=True,
                                stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
        if "no MPI" in result.stderr:
            self.skipTest("built without MPI")
        self.assertEqual(result.returncode, 0, result.stderr)
        document = json.loads(result.stdout)
        self.assertEqual(len(document["ranks"]), 2)
        self.assertTrue(document["comparison"]["agrees"])
        # Threads need no staging block, and give the same bits.
        threads = self.document(self.tiny, *WORDS, "--zero", "2", "--ranks", "2")
        self.assertEqual([step["loss"] for step in document["steps"]],
                         [step["loss"] for step in threads["steps"]])
        self.assertGreater(document["ranks"][0]["peak_bytes"], threads["ranks"][0]["peak_bytes"])

    def test_what_cannot_be_run_is_refused(self):
        pytorch = plimsoll("fit", "gpt2", "--gpu", "h100", "--json", "-").stdout
        bare = plimsoll("fit", "--params", "7e9", "--gpu", "h100", "--json", "-").stdout
        own = plimsoll("fit", self.tiny, "--stack", "plimsoll", "--device", "cpu", "--seq-len", "16",
                       "--json", "-").stdout
        for stdin, part in ((pytorch, "--stack pytorch"), (bare, "bare parameter count"),
                            (own[:len(own) // 2], "not JSON"), ("{}", "schema"),
                            (own.replace('"seq_len": 16', '"seq_len": 17'), "fingerprint")):
            for program in ([PLIMSOLL, "run", "-"], [RUN, "-"]):
                result = subprocess.run(program, input=stdin, text=True, capture_output=True,
                                        timeout=60)
                self.assertEqual(result.returncode, 2, (part, result.stderr))
                self.assertIn(part, result.stderr)
        for words, part in ((["--stack", "pytorch"], "stack plimsoll only"),
                            (["--ranks", "2", "--gpus", "4"], "give one of them"),
                            (["--weights", "/nonexistent"], "/nonexistent"),
                            (["--data", "/nonexistent"], "/nonexistent"),
                            (["--steps", "0"], "--steps 0")):
            result = plimsoll("run", self.tiny, *WORDS, *words) if "--steps" not in words else \
                plimsoll("run", self.tiny, "--device", "cpu", *words)
            self.assertEqual((result.returncode, result.stdout), (2, ""), words)
            self.assertIn(part, result.stderr)
        self.assertIn("--ranks 2: the plan is for 1", run_program("-", "--ranks", "2",
                                                                  stdin=own).stderr)

    def test_a_full_disk_is_a_failure(self):
        result = plimsoll("run", self.tiny, *WORDS, "--json", "/dev/full")
        self.assertEqual(result.returncode, 3)
        self.assertIn("AGREES", result.stdout)  # the answer is not lost
        self.assertIn("/dev/full", result.stderr)
        result = plimsoll("run", self.tiny, *WORDS, "--prediction", "/dev/full")
        self.assertEqual(result.returncode, 3)
        self.assertIn("--prediction /dev/full", result.stderr)

    @unittest.skipUnless(SCHEMA_CHECK or jsonschema, "neither valijson nor jsonschema is here")
    def test_the_document_validates(self):
        path = self.folder / "invalid.json"
        plimsoll("run", self.tiny, *SHORT, "--json", path)
        documents = [self.document(self.tiny, *WORDS, "--ranks", "2", "--zero", "1"),
                     self.document(self.tiny, *WORDS, "--profile"),
                     json.loads(path.read_text())]
        self.assertEqual(complaint("measurement", documents), "")


def golden_losses(path):
    """fp32.text.losses of a safetensors file, with the standard library."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])["fp32.text.losses"]
    begin, end = header["data_offsets"]
    return memoryview(data[8 + size + begin:8 + size + end]).cast("f").tolist()


class WithoutAGpu(unittest.TestCase):
    def test_cuda_says_what_is_missing_and_ends_with_3(self):
        with tempfile.TemporaryDirectory() as folder:
            plan = pathlib.Path(folder, "plan.json")
            fit = plimsoll("fit", "gpt2", "--stack", "plimsoll", "--seq-len", "16", "--detail",
                           "--json", plan)
            self.assertEqual(fit.returncode, 0, fit.stderr)
            for device in (["--device", "cuda"], []):  # the plan's is cuda, too
                run = run_program(plan, *device, "--steps", "1")
                if run.returncode in (0, 1):
                    self.skipTest("there is a GPU")
                self.assertEqual(run.returncode, 3, run.stderr)
                self.assertRegex(run.stderr, "no NVIDIA driver|no GPU|has no CUDA|driver is for")


if __name__ == "__main__":
    unittest.main()

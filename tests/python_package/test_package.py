#!/usr/bin/env python3
"""test_package.py MODULE: the built extension under the package's sources, against the program."""
import gzip
import json
import os
import pathlib
import pickle
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLIMSOLL = os.environ.get("PLIMSOLL", str(ROOT / "build" / "tools" / "plimsoll"))


def load(module):
    """`import plimsoll`, of a folder as an installation lays it out."""
    folder = pathlib.Path(tempfile.mkdtemp())
    package = folder / "plimsoll"
    shutil.copytree(ROOT / "tools" / "python" / "plimsoll", package,
                    ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(module, package)
    sys.path.insert(0, str(folder))
    import plimsoll as made
    shutil.rmtree(folder)
    return made


def program(*words):
    result = subprocess.run([PLIMSOLL, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, timeout=60)
    return result


class Package(unittest.TestCase):
    def test_an_answer_is_the_document_of_the_command(self):
        plan = plimsoll.fit("gpt2", gpu="h100", gpus=8, zero=3, seq_len=512, lora_rank=8,
                            lora_targets=["c_attn", "c_proj"], hold_outputs=True)
        text = program("fit", "gpt2", "--gpu", "h100", "--gpus", "8", "--zero", "3", "--seq-len",
                       "512", "--lora-rank", "8", "--lora-targets", "c_attn,c_proj",
                       "--hold-outputs", "--json", "-").stdout
        document = json.loads(text)
        self.assertTrue(document.pop("command").startswith("plimsoll fit gpt2 "))
        self.assertEqual(plan, document)

    def test_members_are_attributes_at_every_depth(self):
        plan = plimsoll.fit("gpt2", gpu="h100", seq_len=128)
        self.assertEqual(plan.peak_bytes, plan["peak_bytes"])
        self.assertEqual(plan.at_peak.logits_bytes, plan["at_peak"]["logits_bytes"])
        self.assertEqual(plan.assumptions[0].basis, plan["assumptions"][0]["basis"])
        with self.assertRaisesRegex(AttributeError, "has no 'peek_bytes'; it has schema"):
            plan.peek_bytes
        # The eight categories sum to the peak.
        self.assertEqual(sum(plan.at_peak.values()), plan.peak_bytes)

    def test_errors_are_exceptions_with_the_programs_text(self):
        for error, options, words in (
                (plimsoll.BadInput, {"zero": 5}, ("--zero", "5")),
                (plimsoll.Unsupported, {"pp": 2}, ("--pp", "2"))):
            with self.assertRaises(error) as caught:
                plimsoll.fit("gpt2", gpu="h100", **options)
            said = program("fit", "gpt2", "--gpu", "h100", *words).stderr
            self.assertEqual("plimsoll: " + str(caught.exception) + "\n", said)
        self.assertTrue(issubclass(plimsoll.BadInput, ValueError))
        with self.assertRaisesRegex(plimsoll.BadInput, 'did you mean "micro_batch"|micro-batch'):
            plimsoll.fit("gpt2", micro_bach=1)
        with self.assertRaisesRegex(plimsoll.BadInput, "MODEL is missing"):
            plimsoll.fit()
        with self.assertRaises(TypeError):
            plimsoll.fit("gpt2", seq_len=object())

    def test_what_does_not_fit_is_an_answer(self):
        plan = plimsoll.fit("llama-3.1-70b", gpu="h100")
        self.assertIs(plan.fits, False)
        self.assertTrue(plan.remedies)

    def test_a_launch_line_and_a_path_are_questions_too(self):
        plan = plimsoll.fit(gpu="h100", launch=["torchrun", "--nproc_per_node", 4, "t.py",
                                                "--model_name_or_path", "gpt2", "--bf16"])
        self.assertEqual(plan.ranks[0]["count"], 4)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "config.json"
            path.write_text(json.dumps({"model_type": "gpt2", "n_layer": 2, "n_embd": 16,
                                        "n_head": 4, "n_positions": 64, "vocab_size": 32}))
            self.assertEqual(plimsoll.fit(path, gpu="h100").model.parameters,
                             plimsoll.fit(str(path), gpu="h100").model.parameters)

    def test_objects_stand_in_the_place_of_files(self):
        config = {"model_type": "gpt2", "n_layer": 2, "n_embd": 16, "n_head": 4, "n_positions": 64,
                  "vocab_size": 32}

        class Config:  # as PretrainedConfig, PeftConfig and TrainingArguments are asked
            def __init__(self, **said):
                self.said = said

            def to_dict(self):
                return dict(self.said)

        class Model:
            def __init__(self, config):
                self.config = config

        with tempfile.TemporaryDirectory() as folder:
            files = {"model": (pathlib.Path(folder) / "config.json", config),
                     "peft": (pathlib.Path(folder) / "adapter.json",
                              {"peft_type": "LORA", "r": 4, "target_modules": ["c_attn"]}),
                     "training_args": (pathlib.Path(folder) / "args.json",
                                       {"per_device_train_batch_size": 3, "bf16": True})}
            for path, content in files.values():
                path.write_text(json.dumps(content))
            told = plimsoll.fit(gpu="h100", seq_len=64, **{name: path for name, (path, _) in files.items()})
        contents = {name: content for name, (_, content) in files.items()}
        objects = {name: Config(**content) for name, content in contents.items()}
        for given in (contents, objects, {**objects, "model": Model(Config(**config, _name_or_path="own/model"))}):
            plan = plimsoll.fit(gpu="h100", seq_len=64, **given)
            self.assertEqual(plan.workload.batch.micro_batch, 3)
            self.assertEqual(plan.workload.strategy.lora.rank, 4)
            self.assertEqual(plan.peak_bytes, told.peak_bytes)
        self.assertEqual(plan.model.name, "own/model")
        self.assertEqual(plan.workload.model.name, "own/model")
        found = plimsoll.recommend(Config(**config), gpu="h100", seq_len=64)
        self.assertEqual((found.model, found.ranked[0].plan.model.name), ("gpt2", "gpt2"))
        self.assertTrue(found.ranked[0].command.startswith("plimsoll fit config.json --gpu h100"))
        with self.assertRaisesRegex(ValueError, "float has no configuration of Transformers"):
            plimsoll.fit(1.5, gpu="h100")

    def test_a_model_is_of_the_class_that_it_has(self):
        from plimsoll import _objects

        class Config:
            def to_dict(self):
                return {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}

        class Gpt2:
            config = Config()

        named = {name: type(name, (Gpt2,), {}) for name in (
            "GPT2ForSequenceClassification", "FSDPGPT2ForSequenceClassification", "OwnModel")}
        known = types.ModuleType("transformers")
        known.GPT2ForSequenceClassification = named["GPT2ForSequenceClassification"]

        class Adapted(Gpt2):
            def get_base_model(self):
                return named["GPT2ForSequenceClassification"]()

        with unittest.mock.patch.dict(sys.modules, transformers=known):
            for model, expected in ((named["GPT2ForSequenceClassification"](), "GPT2ForSequenceClassification"),
                                    (named["FSDPGPT2ForSequenceClassification"](), "GPT2ForSequenceClassification"),
                                    (Adapted(), "GPT2ForSequenceClassification"),
                                    (named["OwnModel"](), "GPT2LMHeadModel"), (Config(), "GPT2LMHeadModel")):
                self.assertEqual(_objects.config_of(model)["architectures"], [expected])

    def test_recommend_searches_and_keeps_python_alive(self):
        import signal
        before = signal.getsignal(signal.SIGINT)
        answer = plimsoll.recommend("gpt2", gpu="4090", seq_len=512, objective="memory", top=2)
        self.assertLessEqual(len(answer.ranked), 2)
        self.assertEqual(answer.schema, "plimsoll.recommendation/1")
        self.assertIs(signal.getsignal(signal.SIGINT), before)

    def test_compare_takes_snapshots_of_torchs_allocator(self):
        golden = ROOT / "tests" / "golden" / "snapshots"
        run = json.loads((golden / "runs.json").read_text())["runs"][0]
        pickled = gzip.decompress((golden / f"{run['case']}.pickle.gz").read_bytes())
        with tempfile.TemporaryDirectory() as folder:
            config, path = pathlib.Path(folder) / "config.json", pathlib.Path(folder) / "s.pickle"
            config.write_text(json.dumps(run["model"]))
            path.write_bytes(pickled)
            plan = json.loads(program("fit", str(config), "--gpu", "h200", "--quiet", "--detail",
                                      "--json", "-", *shlex.split(run["words"])).stdout)
            # As bytes, and as torch.cuda.memory._snapshot() returns it.
            for snapshot in (pickled, pickle.loads(pickled), path):
                found = plimsoll.compare(plan, snapshot)
                self.assertEqual(found.schema, "plimsoll.snapshot_comparison/1")
                self.assertEqual(found.peak.measured_bytes, run["allocated_bytes"])
        with self.assertRaisesRegex(plimsoll.BadInput, "snapshot 1"):
            plimsoll.compare(plan, b"\x80\x04nonsense")
        with self.assertRaisesRegex(plimsoll.BadInput, "one kind at a time"):
            plimsoll.compare(plan, pickled, plan)

    def test_compare_takes_documents_and_paths(self):
        plan = plimsoll.fit("gpt2", gpu="h100", seq_len=128)
        with self.assertRaisesRegex(plimsoll.BadInput, "measurement 1"):
            plimsoll.compare(plan, {"schema": "nonsense"})
        with self.assertRaisesRegex(plimsoll.BadInput, "at least one measurement"):
            plimsoll.compare(plan)
        with self.assertRaises(FileNotFoundError):
            plimsoll.compare(plan, "/nowhere.json")

    def test_catalogs_are_lists(self):
        self.assertIn("llama-3.1-8b", [model.name for model in plimsoll.models("llama-3.1")])
        self.assertIn("h100-sxm-80gb", [gpu.name for gpu in plimsoll.gpus()])
        self.assertEqual(plimsoll.gpus("no such card"), [])

    def test_a_wheel_takes_every_part(self):
        # pyproject.toml installs what has this tag; Meson's own for a module is another one.
        build = pathlib.Path(sys.argv_module).parents[2]
        plan = json.loads(subprocess.run(["meson", "introspect", str(build), "--install-plan"],
                                         check=True, stdout=subprocess.PIPE, text=True).stdout)
        tags = {pathlib.Path(entry["destination"]).name.split(".")[0]: entry["tag"]
                for entries in plan.values() for entry in entries.values()
                if "py_platlib" in entry["destination"] or "site-packages" in entry["destination"]}
        self.assertEqual(set(tags), {"__init__", "_objects", "_plimsoll", "_question", "py", "watch"})
        self.assertEqual(set(tags.values()), {"python-runtime"})

    def test_the_stub_names_every_option_and_is_python(self):
        stub = (pathlib.Path(sys.argv_module).parent / "__init__.pyi").read_text()
        compile(stub, "__init__.pyi", "exec")
        options = re.findall(r"^  --([a-z0-9-]+)", program("fit", "--help").stdout, re.M)
        for option in set(options) - {"json", "quiet", "html", "svg", "trace", "memory-viz", "plot",
                                      "explain"}:
            self.assertTrue(f" {option.replace('-', '_')}: " in stub, option)
        # null in an answer of model states alone
        self.assertTrue("    peak_bytes: int | None\n" in stub)


if __name__ == "__main__":
    sys.argv_module = sys.argv.pop(1)
    plimsoll = load(sys.argv_module)
    unittest.main()

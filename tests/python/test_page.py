#!/usr/bin/env python3
"""Pages (--html, `plimsoll report`): what a browser will be given."""
import html.parser
import json
import pathlib
import re
import shlex
import tempfile
import unittest

from program import ROOT, plimsoll
from test_run import SHORT, TINY, WORDS
from test_schema import SCHEMA_CHECK, complaint, jsonschema

FIT = ("fit", "llama-3.1-8b", "--gpu", "a100-40gb", "--gpus", 8, "--zero", 3)
VOID = {"meta", "link", "br", "wbr"}


class Reader(html.parser.HTMLParser):
    """The page's tags, whether they nest, and its text by tag."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.texts = [], [], []
        self.feed(text)
        self.close()
        if self.open:
            raise AssertionError(f"never closed: {self.open}")

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if self.open.pop() != tag:
            raise AssertionError(f"</{tag}> closes something else")

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))

    def text(self):
        return " ".join(data for tag, data in self.texts if tag not in ("style", "script"))


def page(*words):
    result = plimsoll(*words, "--html", "-")
    assert result.returncode in (0, 1), result.stderr
    return result.stdout


class Page(unittest.TestCase):
    def test_a_plan_with_its_figures(self):
        text = page(*FIT)
        plan = json.loads(plimsoll(*FIT, "--json", "-").stdout)
        reader = Reader(text)
        values = {attributes["value"] for tag, attributes in reader.tags if tag == "data"}
        for key in ("peak_bytes", "resident_bytes", "reserved_bytes", "device_bytes", "usable_bytes"):
            self.assertIn(str(plan[key]), values)
        for remedy in plan["remedies"]:
            self.assertIn(remedy["option"], reader.text())
        points = json.loads(next(data for tag, data in reader.texts
                                 if tag == "script" and data.lstrip().startswith("[")))
        self.assertEqual([sum(point[2:]) for point in points],
                         [point["high_water_bytes"] for point in plan["timeline"]])
        self.assertLess(len(text), 1_000_000)

    def test_the_command_that_asks_it_again_and_what_was_trained(self):
        words = ("fit", "llama-2-7b", "--gpu", "rtx-3090", "--lora-rank", 16, "--quantize", "nf4-dq", "--kernels", "liger",
                 "--recompute", "full", "--allocator-conf", "expandable_segments:True")
        text = page(*words)
        command = json.loads(plimsoll(*words, "--json", "-").stdout)["command"]
        self.assertCountEqual(command.split(), ["plimsoll", *map(str, words)])
        shown = Reader(text).text()
        for part in (command, "liger kernels", "allocator expandable_segments:True",
                     "LoRA rank 16, adapters in fp32, base packed in nf4-dq, the rest in fp32 (kbit-prep)"):
            self.assertIn(part, shown)
        line = ("fit", "gpt2", "--gpu", "h100", "--json", "-", "--", "torchrun", "--nproc_per_node", 2, "t.py", "--bf16")
        asked = json.loads(plimsoll(*line).stdout)
        again = json.loads(plimsoll(*shlex.split(asked.pop("command"))[1:], "--json", "-").stdout)
        del again["command"]
        for document in (asked, again):  # what was read of the line, and of the options that it became
            del document["advice"]
        self.assertEqual(again, asked)

    def test_a_run_is_the_page_of_its_document_and_one_that_does_not_fit_its_plans(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            tiny, target, document = folder / "tiny", folder / "run.html", folder / "run.json"
            tiny.mkdir()
            (tiny / "config.json").write_text(json.dumps(TINY))
            done = plimsoll("run", tiny, *WORDS, "--html", target, "--json", document)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(plimsoll("report", document, "--html", "-").stdout, target.read_text())
            self.assertIn("Tokens per second", target.read_text())
            short = plimsoll("run", tiny, *SHORT[:-1], "--html", target)
            self.assertEqual(short.returncode, 1, short.stderr)
            self.assertIn("Does not fit", target.read_text())

    def test_nothing_is_loaded_from_anywhere(self):
        for words in (FIT, ("recommend", "gpt2", "--gpu", "h100", "--gpus", 2)):
            text = page(*words)
            loaded = [attributes for _, attributes in Reader(text).tags
                      if {"src", "href"} & set(attributes)]
            self.assertEqual(loaded, [])
            self.assertEqual(re.findall(r"url\(|@import|fetch\(|XMLHttp", text), [])

    def test_the_page_of_a_file_is_the_page_of_its_command(self):
        with tempfile.TemporaryDirectory() as name:
            target = pathlib.Path(name) / "fit.html"
            document = plimsoll(*FIT, "--json", "-", "--html", target).stdout
            self.assertEqual(plimsoll("report", "-", "--html", "-", stdin=document).stdout, target.read_text())
            self.assertEqual(page(*FIT), target.read_text())

    def test_a_page_alone_asks_what_techniques_save(self):
        document = json.loads(plimsoll(*FIT, "--json", "-").stdout)
        self.assertNotIn("savings", document)
        bare = plimsoll("report", "-", "--html", "-", stdin=json.dumps(document)).stdout
        self.assertNotIn("What each technique saves", bare)
        self.assertIn("What each technique saves", page(*FIT))

    def test_a_recommendation_asks_it_of_the_plan_that_its_page_shows_whole(self):
        words = ("recommend", "llama-3.2-1b", "--gpu", "rtx-4090", "--gpus", 2)
        with tempfile.TemporaryDirectory() as name:
            target = pathlib.Path(name) / "plans.html"
            document = plimsoll(*words, "--json", "-", "--html", target).stdout
            self.assertEqual(plimsoll("report", "-", "--html", "-", stdin=document).stdout, target.read_text())
        plans = [ranked["plan"] for ranked in json.loads(document)["ranked"]]
        self.assertEqual([bool(plan.get("savings")) for plan in plans], [True] + [False] * (len(plans) - 1))
        for saving in plans[0]["savings"]:
            self.assertIn(saving["option"], page(*words))
        self.assertNotIn("savings", plimsoll(*words, "--json", "-").stdout)

    def test_a_saving_is_the_difference_of_two_plans(self):
        with tempfile.TemporaryDirectory() as name:
            target = pathlib.Path(name) / "fit.html"
            document = json.loads(plimsoll(*FIT, "--json", "-", "--html", target).stdout)
        first = document["savings"][0]
        self.assertEqual(first["saves_peak_bytes"], first["peak_bytes"] - document["peak_bytes"])
        first["saves_peak_bytes"] += 1
        result = plimsoll("export", "-", "--to", "accelerate", stdin=json.dumps(document))
        self.assertEqual(result.returncode, 2)
        self.assertIn("savings[0].saves_peak_bytes", result.stderr)

    def test_names_are_shown_and_never_run(self):
        config = json.loads((ROOT / "models/specs/models/gpt2.json").read_text())["config"]
        with tempfile.TemporaryDirectory() as folder:
            place = pathlib.Path(folder) / "<script>alert(1)</script>"
            place.mkdir(parents=True)
            (place / "config.json").write_text(json.dumps(config))
            text = page("fit", place, "--gpu", "h100")
        self.assertNotIn("<script>alert", text)
        Reader(text)

    def test_a_recommendation_names_every_plan_and_its_command(self):
        words = ("recommend", "gpt2", "--gpu", "h100", "--gpus", 2)
        text = Reader(page(*words)).text()
        for ranked in json.loads(plimsoll(*words, "--json", "-").stdout)["ranked"]:
            self.assertIn(ranked["command"], text)
            self.assertNotIn("--html", ranked["command"])

    def test_nothing_fits_says_what_would(self):
        words = ("recommend", "llama-3.1-70b", "--gpu", "rtx-4090", "--gpus", 2,
                 "--keep", "quantize,offload")
        text = Reader(page(*words)).text()
        nothing = json.loads(plimsoll(*words, "--json", "-").stdout)["nothing_fits"]
        self.assertIn("Nothing fits", text)
        for command in nothing["commands"]:
            self.assertIn(command, text)

    def test_what_trains_on_what_is_what_fit_says(self):
        with tempfile.TemporaryDirectory() as folder:
            target = pathlib.Path(folder) / "models.json"
            page_ = plimsoll("models", "--search", "llama-2-7b", "--json", target, "--html", "-").stdout
            document = json.loads(target.read_text())
            self.assertEqual(plimsoll("report", target, "--html", "-").stdout, page_)
        if SCHEMA_CHECK or jsonschema:
            self.assertEqual(complaint("models", [document]), "")
        model = next(m for m in document["models"] if m["step_program"])
        gpus = json.loads(plimsoll("gpus", "--json", "-").stdout)["gpus"]
        self.assertEqual(len(model["trains"]), len(document["ways"]))
        lines, expected = [], []
        for way, fitting in zip(document["ways"], model["trains"]):
            words = way["options"].split()
            options = {key.removeprefix("--"): value for key, value in zip(words[::2], words[1::2])}
            self.assertIn(way["options"].replace("<", "&lt;"), page_)
            for gpu in gpus:
                lines.append(json.dumps({"model": model["name"], "gpu": gpu["name"], **options}))
                expected.append(gpu["name"] in fitting)
        answers = plimsoll("batch", "-", "--fields", "fits", stdin="\n".join(lines)).stdout.splitlines()
        found = [json.loads(answer).get("fits", False) for answer in answers]
        self.assertEqual([line for line, a, b in zip(lines, found, expected) if a != b], [])
        self.assertIn(True, expected)
        self.assertIn(False, expected)

    def test_what_is_no_document_of_ours_is_refused(self):
        for text, said in (("{}", "without a schema"), ('{"schema": "other/1"}', "other/1"),
                           ("[1]", "without a schema"), ("{", "JSON"),
                           ('{"schema": "plimsoll.plan/1"}', "not as plimsoll.plan/1 says"),
                           ('{"schema": "plimsoll.comparison/1", "tool": {}}', "not as")):
            result = plimsoll("report", "-", "--html", "-", stdin=text)
            self.assertEqual((result.returncode, result.stdout), (2, ""), text)
            self.assertIn(said, result.stderr)
        self.assertIn("--html", plimsoll("report", "-", stdin="{}").stderr)

    def test_standard_output_holds_one_thing(self):
        result = plimsoll(*FIT, "--json", "-", "--html", "-")
        self.assertEqual((result.returncode, result.stdout), (2, ""))


if __name__ == "__main__":
    unittest.main()

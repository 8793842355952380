#!/usr/bin/env python3
"""`plimsoll compare --published`: every published row, asked again."""
import json
import pathlib
import re
import shlex
import tempfile
import unittest
import xml.etree.ElementTree

from program import ROOT, plimsoll
from test_schema import SCHEMA_CHECK, complaint, jsonschema

FOLDER = ROOT / "reports" / "evidence" / "published"


def answer(*words):
    result = plimsoll("compare", "--published", *words, "--json", "-")
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    return json.loads(result.stdout)


class Published(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.document = answer()

    def test_each_row_is_what_fit_answers_to_its_command(self):
        for row in self.document["rows"][::7]:
            with self.subTest(row=row["id"]), tempfile.TemporaryDirectory() as folder:
                words = shlex.split(row["command"])[1:]
                if row["config"] is not None:
                    words[1] = f"{folder}/{words[1]}"
                    pathlib.Path(words[1]).write_text(json.dumps(row["config"]), encoding="utf-8")
                result = plimsoll(*words, "--json", "-")
                if row["refusal"] is not None:
                    self.assertEqual(result.returncode, 2)
                    self.assertIn(row["refusal"], result.stderr)
                    continue
                plan = json.loads(result.stdout)
                self.assertEqual(plan["verdict"], row["verdict"])
                within = plan["flushing"] or plan
                planned = {"peak_bytes": plan["peak_bytes"], "reserved_bytes": within["reserved_bytes"],
                           "device_bytes": within["device_bytes"],
                           "tokens_per_second_per_gpu": plan["time"]["tokens_per_second_per_gpu"]}
                for figure in row["figures"]:
                    self.assertEqual(figure["planned"], planned[figure["figure"]])
                    if row["upper_bound"]:
                        self.assertIsNone(figure["error"])
                        continue
                    self.assertAlmostEqual(figure["error"],
                                           figure["planned"] / figure["published"] - 1, places=12)

    def test_its_folder_is_what_the_program_was_built_with(self):
        self.assertEqual(answer(FOLDER), self.document)

    def test_all_that_is_published_is_answered_or_refused(self):
        summary, documents = self.document["summary"], self.document["documents"]
        self.assertEqual(summary["published"], summary["answered"] + summary["by_stand_in"]
                         + sum(row["count"] for row in summary["refused"]))
        files = {path.stem: json.loads(path.read_text()) for path in FOLDER.glob("*.json")}
        self.assertEqual({d["name"]: d["published"] for d in documents},
                         {name: len(f["rows"]) + sum(f["left_out"].values()) for name, f in files.items()})
        self.assertEqual(len(self.document["rows"]), sum(len(f["rows"]) for f in files.values()))

    def test_pages_begin_with_the_figures_of_the_goals(self):
        errors = {(e["figure"], e["in_sample"]): e for e in self.document["summary"]["errors"]}
        for page, document, figures in (
                ("memory_accuracy", "memory", {"peak_bytes": "peak allocated", "device_bytes": "nvidia-smi"}),
                ("accuracy", "throughput", {"tokens_per_second_per_gpu": "throughput"})):
            head = (ROOT / "reports" / f"{page}.md").read_text().splitlines()[:10]
            counts = next(d for d in self.document["documents"] if d["name"] == document)
            self.assertTrue(any(line.startswith(
                f"* answered as stated: {counts['answered']} of {counts['published']} ") for line in head))
            for key, name in figures.items():
                line = next(line for line in head if line.startswith(f"* {name}: "))
                median, p95, rows = re.findall(r"[\d.]+(?= %| rows)", line)
                error = errors[key, False]
                self.assertEqual((median, p95, rows), (f"{100 * error['median']:.3g}",
                                                       f"{100 * error['p95']:.3g}", str(error["rows"])))

    def test_its_picture_is_the_one_that_the_pages_show(self):
        with tempfile.TemporaryDirectory() as folder:
            picture = pathlib.Path(folder) / "a.svg"
            result = plimsoll("compare", "--published", "--svg", picture, "--quiet")
            self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "", ""))
            drawn = picture.read_text()
        xml.etree.ElementTree.fromstring(drawn)
        self.assertEqual(drawn.count("<circle"), sum(
            figure["error"] is not None for row in self.document["rows"] for figure in row["figures"]))
        current = drawn == (ROOT / "reports/pictures/published.svg").read_text()
        self.assertTrue(current, "plimsoll compare --published --svg reports/pictures/published.svg")

    @unittest.skipUnless(SCHEMA_CHECK or jsonschema, "neither valijson nor jsonschema is here")
    def test_its_document_has_a_schema(self):
        self.assertEqual(complaint("published", [self.document]), "")
        broken = dict(self.document, rows=[{}])
        self.assertNotEqual(complaint("published", [broken]), "")

    def test_what_it_does_not_take_is_refused(self):
        for words in (["--published", "a", "b"], ["--published", "/nonexistent"],
                      ["--published", "--html", "-"], ["--published", "--tolerance", "1"],
                      ["a.json", "b.json", "--svg", "c.svg"]):
            result = plimsoll("compare", *words)
            self.assertEqual((result.returncode, result.stdout), (2, ""), words)


if __name__ == "__main__":
    unittest.main()

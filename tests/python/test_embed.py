#!/usr/bin/env python3
"""The build refuses a broken catalog, and notices a new file.

Run with: python3 -m unittest discover -s tests/python
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
EMBED = ROOT / "models" / "specs" / "embed.py"
GPU = {"id": "a1", "aliases": ["A-One"], "src": "web"}


class Embed(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)
        (self.folder / "models").mkdir()
        self.write("gpus.json", {"gpus": [GPU], "sources": {"web": "a page"}})
        self.write("models/one.json", {"name": "one", "aliases": ["Org/One"]})

    def write(self, name, value):
        text = value if isinstance(value, str) else json.dumps(value)
        (self.folder / name).write_text(text, encoding="utf-8")

    def embed(self):
        out, dependencies = self.folder / "out.cpp", self.folder / "out.d"
        run = subprocess.run([sys.executable, EMBED, self.folder, out, dependencies],
                             capture_output=True, text=True, check=False)
        if run.returncode != 0:
            return run.returncode, run.stderr, ""
        return 0, out.read_text(encoding="utf-8"), dependencies.read_text(encoding="utf-8")

    def test_keys_are_lower_case_and_sources_are_spelled_out(self):
        status, cpp, _ = self.embed()
        self.assertEqual(status, 0)
        self.assertIn('{"org/one", 0}', cpp)
        self.assertIn('{"a-one", 0}', cpp)
        self.assertIn('"src":"a page"', cpp)

    def test_a_hub_id_is_also_found_without_its_organization_where_that_is_one_models(self):
        self.write("models/two.json", {"name": "two", "aliases": ["a/x-Chat", "b/Both", "c/one"]})
        self.write("models/six.json", {"name": "six", "aliases": ["d/both"]})
        _, cpp, _ = self.embed()
        self.assertIn('{"x-chat", 2}', cpp)
        self.assertNotIn('{"both",', cpp)
        self.assertIn('{"one", 0}', cpp)

    def test_the_folders_themselves_are_dependencies_so_that_a_new_file_is_noticed(self):
        _, _, dependencies = self.embed()
        self.assertIn(f"{self.folder} ", dependencies)
        self.assertIn(f"{self.folder / 'models'} ", dependencies)

    def test_a_name_that_two_models_claim_is_refused(self):
        self.write("models/two.json", {"name": "two", "aliases": ["ORG/ONE"]})
        status, message, _ = self.embed()
        self.assertNotEqual(status, 0)
        self.assertIn("'ORG/ONE' belongs to one already", message)

    def test_a_name_other_than_the_files_is_refused(self):
        self.write("models/two.json", {"name": "three"})
        status, message, _ = self.embed()
        self.assertNotEqual(status, 0)
        self.assertIn("models/two.json: its name is 'three'", message)

    def test_text_that_is_not_json_is_refused_with_its_file(self):
        self.write("models/two.json", "{")
        status, message, _ = self.embed()
        self.assertNotEqual(status, 0)
        self.assertIn("two.json: not JSON", message)


if __name__ == "__main__":
    unittest.main()

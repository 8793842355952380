#!/usr/bin/env python3
"""Pictures: what README shows is what the program draws."""
import os
import pathlib
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree

from program import PLIMSOLL, ROOT, plimsoll


class Pictures(unittest.TestCase):
    def test_readme_shows_what_its_command_draws(self):
        with tempfile.TemporaryDirectory() as folder:
            picture = pathlib.Path(folder) / "a.svg"
            result = plimsoll("fit", "llama-3.1-8b", "--gpu", "h100-sxm-80gb", "--gpus", 8, "--zero", 3,
                              "--seq-len", 8192, "--recompute", "full", "--svg", picture)
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            drawn = picture.read_text()
        xml.etree.ElementTree.fromstring(drawn)  # well-formed
        self.assertEqual(drawn, (ROOT / "reports/pictures/llama-3.1-8b.svg").read_text())

    def test_readme_shows_the_page_that_there_is(self):
        result = subprocess.run([ROOT / "tools" / "screenshots", "--check"], capture_output=True, text=True,
                                env={**os.environ, "PLIMSOLL": PLIMSOLL}, check=False)
        self.assertEqual((result.returncode, result.stderr), (0, ""))

    def test_states_alone_have_no_picture(self):
        result = plimsoll("fit", "--params", "7e9", "--gpu", "h100", "--svg", "/nonexistent/x.svg")
        self.assertEqual(result.returncode, 2)
        self.assertIn("--svg", result.stderr)


if __name__ == "__main__":
    unittest.main()

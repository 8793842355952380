#!/usr/bin/env python3
"""The rows of reports/accuracy.md are what `plimsoll fit` answers to the commands below them."""
import json
import os
import re
import shlex
import tempfile
import unittest

from program import ROOT, plimsoll


class PublishedThroughput(unittest.TestCase):
    def test_each_command_gives_its_row(self):
        page = (ROOT / "reports/accuracy.md").read_text(encoding="utf-8")
        rows = {row["id"]: row for row in json.loads(
            (ROOT / "reports/evidence/published/throughput.json").read_text(encoding="utf-8"))["rows"]}
        stated = {cells[1]: cells for line in page.splitlines()
                  if (cells := [c.strip() for c in line.split("|")])[0] == "" and len(cells) == 10}
        commands = dict(re.findall(r"^# (\S+)\n(plimsoll fit .*)$", page, re.MULTILINE))
        refused = {name for name, row in rows.items() if row.get("compile") is True}
        self.assertEqual(set(commands), set(rows) - refused)
        for name, command in commands.items():
            with self.subTest(row=name), tempfile.TemporaryDirectory() as folder:
                words = shlex.split(command)[1:]
                if words[1].endswith(".json"):
                    words[1] = os.path.join(folder, words[1])
                    with open(words[1], "w", encoding="utf-8") as f:
                        json.dump(rows[name]["config"], f)
                answer = json.loads(plimsoll(*words, "--json", "-").stdout)
                self.assertEqual(f"{answer['time']['tokens_per_second_per_gpu']:.0f}",
                                 stated[name][7])

    def test_what_has_no_command_is_refused_by_name(self):
        for words in (["--kernels", "liger"], ["--compile", "model"]):
            result = plimsoll("fit", "gpt2", "--gpu", "a100-80gb", *words)
            self.assertEqual((result.returncode, result.stdout), (2, ""))
            self.assertIn(words[0], result.stderr)


if __name__ == "__main__":
    unittest.main()

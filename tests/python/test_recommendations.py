"""reports/recommendations.md is what tools/recommendations writes: those answers that take no time."""
import re
import subprocess
import sys
import unittest

import program

TOOL = program.ROOT / "tools" / "recommendations"
PAGE = program.ROOT / "reports" / "recommendations.md"


def run(*words, **environment):
    merged = {"PLIMSOLL": program.PLIMSOLL, "PATH": "/usr/bin:/bin", **program.PASSED_ON, **environment}
    return subprocess.run([sys.executable, TOOL, *words], env=merged, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=120)


class Recommendations(unittest.TestCase):
    def test_the_page_is_current(self):
        done = run("--check", "--quick")
        self.assertEqual(done.returncode, 0, done.stderr + "tools/recommendations writes it anew")

    def test_forty_situations_and_the_range_that_the_page_claims(self):
        text = PAGE.read_text()
        questions = re.findall(r"^### \d+\. `plimsoll recommend (.*)`$", text, re.M)
        self.assertEqual(len(questions), 40)
        self.assertEqual(len(set(questions)), 40)
        gpus = {int(n) for q in questions for n in re.findall(r"--gpus (\d+)", q)}
        self.assertEqual(max(gpus), 1024)
        self.assertTrue(any("405b" in q for q in questions) and any(q.startswith("gpt2 ") for q in questions))

    def test_every_first_plan_has_room_at_worst(self):
        rows = re.findall(r"^\| 1 \|(.*)\|$", PAGE.read_text(), re.M)
        self.assertEqual(len(rows), 40)
        for row in rows:
            worst = row.split("|")[7].strip()
            self.assertTrue(worst.endswith("GiB"), row)  # 100 MiB and more


if __name__ == "__main__":
    unittest.main()

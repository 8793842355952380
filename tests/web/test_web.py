#!/usr/bin/env python3
"""The pages in a real browser: headless Chromium, at the width of a desk and of a phone, light and dark. Ends with 77
where there is none."""
import functools
import html
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLIMSOLL = os.environ.get("PLIMSOLL", str(ROOT / "build" / "tools" / "plimsoll"))
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
CHECKS = (pathlib.Path(__file__).parent / "checks.js").read_text()
CATCH = "<script>var plimsollErrors=[];addEventListener('error',e=>plimsollErrors.push(e.message))</script>"
FITS = ("fit", "llama-3.1-8b", "--gpu", "h100", "--lora-rank", "16", "--quantize", "nf4", "--optimizer", "adam8bit",
        "--recompute", "full", "--grad-accum", "4")
FIT = ("fit", "llama-3.1-8b", "--gpu", "a100-40gb", "--gpus", "8", "--zero", "3")


def plimsoll(*words, stdin=""):
    result = subprocess.run([PLIMSOLL, *map(str, words)], input=stdin, text=True, capture_output=True, timeout=120,
                            check=False)
    assert result.returncode in (0, 1), result.stderr
    return result.stdout


def browse(path, *flags, seconds=90):
    """The page's DOM after it was loaded, and what the console said."""
    with tempfile.TemporaryDirectory() as profile:
        result = subprocess.run(
            [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking", f"--user-data-dir={profile}", "--enable-logging=stderr", *flags,
             "--dump-dom", path.as_uri()],
            capture_output=True, text=True, timeout=seconds, check=False)
    return result.stdout, [line for line in result.stderr.splitlines() if ":CONSOLE" in line]


def looked_at(page, width=1000, dark=False):
    """What checks.js found on a page that is shown so wide."""
    frame = html.escape(page.replace("<head>", "<head>" + CATCH, 1), quote=True)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "harness.html"
        path.write_text(f'<!doctype html><meta charset="utf-8"><body><script>{CHECKS}</script>'
                        f'<iframe width="{width}" height="900" style="border:0" srcdoc="{frame}"></iframe>')
        dom, console = browse(path, *(["--blink-settings=preferredColorScheme=0"] if dark else []))
    found = re.search(r'<pre id="result">(.*?)</pre>', dom, re.S)
    assert found, (dom[-500:], console)
    result = json.loads(html.unescape(found.group(1)))
    result["console"] = console
    return result


@functools.cache
def pages():
    """A page of each kind."""
    config = json.loads((ROOT / "models/specs/models/gpt2.json").read_text())["config"]
    config.update(n_layer=2, n_embd=32, n_head=2, vocab_size=96)
    with tempfile.TemporaryDirectory() as folder:
        model = pathlib.Path(folder) / "<script>alert(1)</script>"
        model.mkdir(parents=True)
        (model / "config.json").write_text(json.dumps(config))
        measured = plimsoll("run", model, "--device", "cpu", "--ranks", 2, "--zero", 2, "--steps", 3, "--seq-len", 16,
                            "--quiet", "--json", "-")
        plan = pathlib.Path(folder) / "plan.json"
        plan.write_text(plimsoll("fit", model, "--stack", "plimsoll", "--device", "cpu", "--gpus", 2, "--zero", 2,
                                 "--seq-len", 16, "--json", "-"))
        (pathlib.Path(folder) / "measured.json").write_text(measured)
        compared = plimsoll("compare", plan, pathlib.Path(folder) / "measured.json", "--html", "-")
    found = {"plan": plimsoll(*FIT, "--html", "-"), "a plan that fits": plimsoll(*FITS, "--html", "-"),
             "recommendation": plimsoll("recommend", "gpt2", "--gpu", "h100", "--gpus", 2, "--html", "-"),
             "nothing fits": plimsoll("recommend", "llama-3.1-70b", "--gpu", "rtx-4090", "--gpus", 2, "--html", "-"),
             "measurement": plimsoll("report", "-", "--html", "-", stdin=measured), "comparison": compared,
             "models": plimsoll("models", "--search", "gpt2", "--quiet", "--html", "-"),
             "gpus": plimsoll("gpus", "--search", "h200", "--quiet", "--html", "-"),
             "batch": subprocess.run([PLIMSOLL, "batch", "-", "--html", "-"], text=True, capture_output=True, check=False,
                                     input='{"model": "gpt2", "gpu": "h100", "seq_len": 512}\n{"id": "<b>"}\n').stdout}
    fleet = {"currency": "EUR", "pools": [{"gpu": "h100", "count": 1, "price": 9, "gpus_per_node": 1}],
             "jobs": [{"name": "j" * 80, "count": 2, "model": "gpt2", "seq_len": 512},
                      {"name": "large", "model": "llama-3.1-70b", "zero": 3}]}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(fleet, file)
        file.flush()
        result = subprocess.run([PLIMSOLL, "batch", "--fleet", file.name, "--html", "-"], text=True, capture_output=True,
                                check=False)
    if "solver CBC" not in result.stderr:
        found["fleet"] = result.stdout
    return found


class Web(unittest.TestCase):
    def each(self, check, **how):
        for name, page in pages().items():
            with self.subTest(name, **how):
                self.assertTrue(page.startswith("<!doctype html>"), page[:200])
                check(looked_at(page, **how))

    def test_every_page_is_sound_on_a_desk(self):
        def check(seen):
            self.assertEqual((seen["errors"], seen["console"], seen["keyboard"]), ([], [], []))
            self.assertEqual(seen["headings"][0], "H1")
            self.assertEqual((seen["language"], seen["unnamed"]), ("en", 0))
            self.assertEqual((seen["contrast"], seen["wide"]), ([], []))
        self.each(check)

    def test_nothing_scrolls_sideways_on_a_phone(self):
        self.each(lambda seen: self.assertEqual(seen["wide"], []), width=390)

    def test_texts_can_be_read_in_the_dark(self):
        self.each(lambda seen: self.assertEqual((seen["contrast"], seen["console"]), ([], [])), dark=True)

    def test_the_figures_on_the_page_are_the_documents(self):
        plan = json.loads(plimsoll(*FIT, "--json", "-"))
        values = {value for value, _ in looked_at(pages()["plan"])["values"]}
        for key in ("peak_bytes", "reserved_bytes", "device_bytes", "usable_bytes"):
            self.assertIn(str(plan[key]), values)

    def test_what_each_technique_saves_is_planned_without_it(self):
        without = {"--recompute full": ("--recompute", "none"), "--optimizer adam8bit": ("--optimizer", "adamw"),
                   "--loss chunked": ("--loss", "chunked")}
        values = {value for value, _ in looked_at(pages()["a plan that fits"])["values"]}
        for option, (name, other) in without.items():
            asked = list(FITS) if name in FITS else [*FITS, name, other]
            if name in FITS:
                asked[asked.index(name) + 1] = other
            plan = json.loads(plimsoll(*asked, "--json", "-"))
            self.assertIn(f"<code>{option}</code>", pages()["a plan that fits"])
            for key in ("peak_bytes", "device_bytes"):
                self.assertIn(str(plan[key]), values, (option, key))

    def test_the_timeline_is_read_by_keys_and_by_the_pointer(self):
        plan = json.loads(plimsoll(*FIT, "--json", "-"))["timeline"]
        seen = looked_at(pages()["plan"])["timeline"]
        self.assertEqual(seen["points"], len(plan))
        for said, index in zip(seen["keys"], (0, 1, 2, len(plan) - 1, len(plan) - 2)):
            self.assertTrue(said.startswith(f"{plan[index]['phase']}, {plan[index]['op']}: "), said)
        self.assertIn("GiB", seen["hover"])
        self.assertNotIn(seen["hover"], ("", seen["keys"][-1]))

    def test_a_page_is_the_same_byte_for_byte(self):
        self.assertEqual(pages()["plan"], plimsoll(*FIT, "--html", "-"))

    def test_a_thousand_ranks_and_a_hundred_thousand_events_are_drawn_within_two_seconds(self):
        plan = json.loads(plimsoll(*FIT, "--json", "-"))
        points = plan["timeline"]
        plan["timeline"] = (points * (100_000 // len(points) + 1))[:100_000]
        plan["ranks"] = [{**plan["ranks"][0], "rank": rank, "count": 1} for rank in range(1000)]
        began = time.monotonic()
        page = plimsoll("report", "-", "--html", "-", stdin=json.dumps(plan))
        made = time.monotonic() - began
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "large.html"
            timed = ("<script>addEventListener('load',()=>{document.body.getBoundingClientRect();"
                     "document.body.dataset.milliseconds=performance.now()})</script></body>")
            path.write_text(page.replace("</body>", timed))
            dom, console = browse(path)
        drawn = float(re.search(r'data-milliseconds="([\d.]+)"', dom).group(1)) / 1000
        print(f"1,000 ranks, 100,000 events: written in {made:.2f} s, {len(page) / 1e6:.1f} MB, drawn in {drawn:.2f} s",
              file=sys.stderr)
        self.assertEqual(console, [])
        self.assertLess(drawn, 2)
        # The highest of all is among those that are shown.
        shown = json.loads(re.search(r'<script type="application/json">(.*?)</script>', page, re.S).group(1))
        self.assertLessEqual(len(shown), 4000)
        self.assertEqual(max(sum(point[2:]) for point in shown),
                         max(point["high_water_bytes"] for point in plan["timeline"]))


if __name__ == "__main__":
    if not CHROMIUM:
        print("skipped: neither chromium nor google-chrome is here")
        sys.exit(77)
    unittest.main()

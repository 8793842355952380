#!/usr/bin/env python3
"""test_install.py BUILD COMPILER...: what `meson install` brings, from a prefix of its own."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
PLIMSOLL = os.environ["PLIMSOLL"]


def run(*words, **options):
    return subprocess.run([str(word) for word in words], text=True, capture_output=True, check=False,
                          **options)


def options_of(command):
    return re.findall(r"^  --([a-z0-9-]+)", run(PLIMSOLL, command, "--help").stdout, re.M)


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        holder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(holder.cleanup)
        cls.root = pathlib.Path(holder.name)
        plan = json.loads(run("meson", "introspect", BUILD, "--install-plan").stdout)
        wanted = {entry["destination"]: source for entries in plan.values()
                  for source, entry in entries.items() if entry["tag"] in ("devel", "runtime", "man")}
        # As `meson install` does, without what is not built for this test (the runtime).
        for destination, source in wanted.items():
            if not os.path.exists(source) or "plimsoll-run" in destination:
                continue
            path = destination
            for key, value in cls.places().items():
                path = path.replace("{" + key + "}", value)
            path = cls.root / path
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, path)
        cls.commands = [name for name in re.findall(r"^  ([a-z]+)  ", run(PLIMSOLL, "--help").stdout, re.M)
                        if "not in this version" not in run(PLIMSOLL, name, "--help").stdout]

    @staticmethod
    def places():
        return {"prefix": "", "bindir": "bin", "datadir": "share", "mandir": "share/man",
                "includedir": "include", "libdir": "lib", "libdir_static": "lib"}

    def found(self, name):
        (path,) = self.root.rglob(name)
        return path

    @unittest.skipUnless(shutil.which("pkg-config"), "no pkg-config here")
    def test_a_program_of_20_lines_uses_the_planner(self):
        source = HERE / "planner_program.cpp"
        body = [line for line in source.read_text().split("int main")[1].splitlines() if line]
        self.assertLessEqual(len(body), 20)
        folder = self.found("plimsoll.pc").parent
        where = {"env": {**os.environ, "PKG_CONFIG_PATH": str(folder)}}
        text = self.found("plimsoll.pc").read_text()
        prefix = re.search(r"^prefix=(.*)$", text, re.M).group(1)
        flags = []
        for question in ("--cflags", "--libs"):
            answer = run("pkg-config", "--define-variable=prefix=" + str(self.root),
                         "--define-variable=libdir=" + str(self.found("libplimsoll.a").parent), "--static",
                         question, "plimsoll", **where)
            self.assertEqual(answer.returncode, 0, answer.stderr)
            flags.append(answer.stdout.split())
        self.assertFalse([flag for flag in flags[0] + flags[1] if flag.startswith("-I" + prefix + "/")])
        program = self.root / "program"
        built = run(*COMPILER, *flags[0], source, "-o", program, *flags[1], cwd=self.root)
        self.assertEqual(built.returncode, 0, built.stderr[-3000:])
        said = json.loads(run(PLIMSOLL, "fit", "llama-3.1-8b", "--gpu", "h100", "--gpus", 8, "--zero", 3,
                              "--seq-len", 2048, "--json", "-").stdout)
        self.assertEqual(int(run(program).stdout), said["peak_bytes"])

    @unittest.skipUnless(shutil.which("readelf"), "no readelf here")
    def test_programs_are_hardened(self):
        plan = json.loads(run("meson", "introspect", BUILD, "--install-plan").stdout)
        programs = [source for entries in plan.values() for source, entry in entries.items()
                    if entry["destination"].startswith("{bindir}/plimsoll") and os.path.exists(source)]
        self.assertTrue(programs)
        for program in programs:
            with self.subTest(program=program):
                said = run("readelf", "-W", "-h", "-l", "-d", "--dyn-syms", program).stdout
                self.assertRegex(said, r"Type: +DYN ")  # at any address: PIE
                self.assertRegex(said, r"FLAGS_1\).*\bPIE\b")
                self.assertIn(" GNU_RELRO ", said)
                self.assertRegex(said, r"FLAGS_1\).*\bNOW\b")
                self.assertRegex(said, r"GNU_STACK +\S+ \S+ \S+ \S+ \S+ RW ")  # no code on the stack
                self.assertTrue("__stack_chk_fail" in said, "no stack protector")

    def test_copies_are_checked_where_sizes_are_known_and_debug_builds_check_indices(self):
        options = {o["name"]: o["value"] for o in json.loads(run("meson", "introspect", BUILD, "--buildoptions").stdout)}
        commands = json.loads((pathlib.Path(BUILD) / "compile_commands.json").read_text())
        ours = [c["command"] for c in commands if re.search(r"(^|/)(tools/cli|tools/run|planner|runtime)/\w+\.cpp$", c["file"])]
        self.assertGreater(len(ours), 50)
        checked = options["optimization"] not in ("plain", "0") and options["b_sanitize"] == "none"
        for command in ours:
            self.assertEqual(bool(re.search(r"-D_FORTIFY_SOURCE=[23]\b", command)), checked, command)
            self.assertIn("-fstack-protector-strong", command)
            self.assertEqual("-D_GLIBCXX_ASSERTIONS=1" in command, options["debug"], command)

    def test_every_installed_header_stands_alone(self):
        headers = sorted((self.root / "include/plimsoll").rglob("*.h"))
        self.assertGreater(len(headers), 10)
        unit = "".join(f'#include "{header.relative_to(self.root / "include/plimsoll")}"\n'
                       for header in headers)
        result = run(*COMPILER, "-std=c++20", "-fsyntax-only", "-x", "c++", "-I",
                     self.root / "include/plimsoll", "-", input=unit)
        self.assertEqual(result.returncode, 0, result.stderr[-2000:])

    def test_the_completions_have_every_command_and_option(self):
        for name, option in (("bash-completion/completions/plimsoll", "--{}"),
                             ("zsh/site-functions/_plimsoll", "--{}"),
                             ("fish/vendor_completions.d/plimsoll.fish", "-l {} ")):
            text = (self.root / "share" / name).read_text()
            for command in self.commands:
                self.assertIn(command, text)
                for known in options_of(command):
                    self.assertIn(option.format(known), text, name)

    def complete(self, *words):
        script = self.root / "share/bash-completion/completions/plimsoll"
        quoted = " ".join(f"'{word}'" for word in words)
        result = run("bash", "--norc", "-c",
                     f"source '{script}'; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _plimsoll; "
                     "printf '%s\\n' \"${COMPREPLY[@]}\"", cwd=self.root / "include")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return result.stdout.split()

    @unittest.skipUnless(shutil.which("bash"), "no bash here")
    def test_bash_completes_commands_options_values_and_names(self):
        self.assertEqual(self.complete("plimsoll", "rec"), ["recommend"])
        self.assertEqual(self.complete("plimsoll", ""), [*self.commands, "--help", "--version"])
        self.assertEqual(self.complete("plimsoll", "fit", "--seq"), ["--sequence-parallel", "--seq-len"])
        self.assertEqual(self.complete("plimsoll", "fit", "--stack", "p"), ["plimsoll", "pytorch"])
        self.assertEqual(self.complete("plimsoll", "fit", "--zero", ""), ["0", "1", "2", "3"])
        self.assertIn("h100-sxm-80gb", self.complete("plimsoll", "fit", "--gpu", "h1"))
        self.assertEqual(self.complete("plimsoll", "fit", "--seq-len", ""), [])
        self.assertIn("llama-3.1-8b", self.complete("plimsoll", "fit", "llama-3.1"))
        self.assertEqual(self.complete("plimsoll", "compare", "pl"), ["plimsoll"])  # the folder here
        self.assertEqual(self.complete("plimsoll", "compare", "--t"), ["--tolerance"])

    def test_zsh_and_fish_read_theirs(self):
        asked = [(shell, self.root / "share" / name) for shell, name in
                 (("zsh", "zsh/site-functions/_plimsoll"),
                  ("fish", "fish/vendor_completions.d/plimsoll.fish")) if shutil.which(shell)]
        if not asked:
            self.skipTest("neither zsh nor fish is here")
        for shell, script in asked:
            result = run(shell, "-n", script)
            self.assertEqual((result.returncode, result.stderr), (0, ""), shell)

    def test_the_manual_page_has_every_option_and_no_error_of_roff(self):
        page = self.found("plimsoll.1")
        text = page.read_text().replace("\\-", "-")
        for command in self.commands:
            for option in options_of(command):
                self.assertIn(f"--{option}", text)
        if not shutil.which("groff"):
            self.skipTest("no groff here")
        result = run("groff", "-man", "-Tutf8", "-ww", page)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertIn("llama-3.1-8b", result.stdout)


if __name__ == "__main__":
    BUILD, COMPILER = sys.argv[1], sys.argv[2:]
    sys.argv[1:] = []
    unittest.main()

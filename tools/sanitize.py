"""Builds and runs tests with what finds undefined behaviour while it happens (`tools/test --sanitize`).

  tools/test --sanitize                    the suite cpu under AddressSanitizer and UndefinedBehaviorSanitizer, then what
                                           has threads (runtime, witness, search) under ThreadSanitizer
  tools/test --sanitize planner 'runtime io'    the tests of these names, under both where they have threads

Builds in build-address/ and build-thread/ (PLIMSOLL_SANITIZE_BUILD, else build/, is what stands before "-"), only what
the tests need that are named: with all of them some 1,000 sources, two hours of one core. Tests run ten to twenty
times as long as without, laws over many draws with a tenth of them (tests/sanitized.h); two hours of one core more.
What is found ends the test at once. What is let pass stands in tests/sanitizers.supp, with its reason. The emulated GPU
is left out: its kernels have the place of ThreadSanitizer's runtime (tests/kernels/emulator/races.h). Exit status 1
where something was found or failed, 3 where the tool could not work.
"""
import os
import pathlib
import platform
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import count_tests  # noqa: E402

BUILD = os.environ.get("PLIMSOLL_SANITIZE_BUILD", str(ROOT / "build"))
SUPPRESSED = ROOT / "tests" / "sanitizers.supp"
# Lines in what is found, and no more: half the time of -g. OpenBLAS and Open MPI are not instrumented.
OPTIONS = ["-Dcuda=disabled", "-Dmpi=disabled", "-Dblas=disabled", "-Dpython=disabled", "-Dbenchmarks=disabled",
           "-Dwerror=false", "-Doptimization=1", "-Ddebug=false", "-Db_lundef=false",
           "-Dcpp_args=-g1 -fno-omit-frame-pointer -D_GLIBCXX_ASSERTIONS"]
KINDS = {
    "address": ("address,undefined", {
        "ASAN_OPTIONS": "detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1:handle_abort=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1"}),
    "thread": ("thread", {"TSAN_OPTIONS": f"halt_on_error=1:second_deadlock_stack=1:suppressions={SUPPRESSED}"}),
}
THREADED = ["runtime", "runtime io", "runtime modules", "runtime for GPUs", "witness", "search", "search axes", "properties"]


def fail(text):
    print(f"sanitize: {text}", file=sys.stderr)
    sys.exit(3)


def configure(build, kind):
    if (build / "build.ninja").exists():
        return
    print(f"sanitize: first use: building in {build}", file=sys.stderr)
    made = subprocess.run(["meson", "setup", str(build), str(ROOT), f"-Db_sanitize={kind}", *OPTIONS],
                          capture_output=True, text=True)
    if made.returncode:
        fail(f"meson setup failed:\n{made.stdout[-2000:]}{made.stderr[-2000:]}")


def known_tests(build):
    said = subprocess.run(["meson", "test", "-C", str(build), "--list"], capture_output=True, text=True)
    return {line.rpartition(" / ")[2].strip() for line in said.stdout.splitlines() if " / " in line}


def run(kind, names):
    """[passed, failed, skipped]."""
    build = pathlib.Path(f"{BUILD}-{kind}")
    sanitizers, environment = KINDS[kind]
    configure(build, sanitizers)
    known = known_tests(build)
    if kind == "thread":
        names = [name for name in names or THREADED if name in THREADED and name in known]
        if not names:
            return [0, 0, 0]
    words = ["meson", "test", "-C", str(build), "--print-errorlogs", "-t", "20", *(names or ["--suite", "cpu"])]
    # ThreadSanitizer's shadow has its fixed place, where newer kernels put libraries now and then.
    if kind == "thread" and shutil.which("setarch"):
        words += ["--wrapper", f"setarch {platform.machine()} -R"]
    log = build / "meson-logs" / "testlog.json"
    log.unlink(missing_ok=True)
    status = subprocess.run(words, env={**os.environ, **environment, "PLIMSOLL_SANITIZED": kind}, check=False).returncode
    sums = count_tests.total(build)
    if sums is None:
        fail("meson test wrote no log")
    if status != 0 and sums[1] == 0:
        sums[1] = 1
    return sums


def main(names):
    if "--help" in names:
        print(__doc__)
        return 0
    sums = {kind: run(kind, names) for kind in KINDS}
    for kind, (passed, failed, skipped) in sums.items():
        print(f"{kind}: {passed} passed, {failed} failed, {skipped} skipped")
    return 1 if any(failed for _, failed, _ in sums.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

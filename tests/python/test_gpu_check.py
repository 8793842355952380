#!/usr/bin/env python3
"""tools/gpu_check: what it would run, what it remembers, what it does without a GPU; and what
tools/evidence makes of its files. No GPU is needed."""
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

from program import PLIMSOLL, ROOT

BUILD = pathlib.Path(PLIMSOLL).parent.parent


def load(name):
    loader = importlib.machinery.SourceFileLoader(name, str(ROOT / "tools" / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    with mock.patch.object(sys, "dont_write_bytecode", True):
        loader.exec_module(module)
    return module


check, evidence = load("gpu_check"), load("evidence")


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = pathlib.Path(folder.name)

    def put(self, name, document):
        (self.out / f"{name}.json").write_text(
            document if isinstance(document, str) else json.dumps(document))


def item(name, seconds=60, part="mfu", result=(check.PASSED, {})):
    def run(_):
        if isinstance(result, Exception):
            raise result
        return result
    return check.Item(part, name, seconds, run)


class Planning(Folder):
    def test_every_part_has_items_of_its_own_name_and_below_the_limit(self):
        every = check.items()
        self.assertEqual({i.part for i in every}, set(check.PARTS))
        self.assertEqual(len({i.id for i in every}), len(every))
        for i in every:
            self.assertLess(i.seconds, check.ITEM_LIMIT)

    def test_what_matters_most_comes_first(self):
        order = [i.part for i in check.items()]
        first = [part for i, part in enumerate(order) if part not in order[:i]]
        self.assertEqual(first, check.PARTS)

    def test_what_the_goals_need_fits_into_a_loan(self):
        # tools/gpu_check --rehearse prints the table.
        until, reached = 0, set()
        for i in check.items():
            until += i.seconds
            if until <= 60 * check.GPU_MINUTES:
                reached.add(i.part)
        self.assertLessEqual({"kernels", "rates", "speed", "torch", "memory", "exact", "overheads"},
                             reached)

    def test_costs_follow_what_was_measured(self):
        costs = check.Costs()
        self.assertEqual(costs.of(item("a", 60)), 60)
        costs.add(item("b", 60, "fit"), 30)
        self.assertEqual(costs.of(item("a", 60)), 30)
        costs.add(item("c", 10), 20)
        self.assertEqual(costs.of(item("a", 60)), 120)
        self.assertEqual(costs.of(item("d", 60, "fit")), 30)

    def test_a_file_that_is_done_is_not_run_again_and_a_broken_one_is(self):
        every = [item(n) for n in ("a", "b", "c", "d", "e")]
        self.put("mfu-a", {"outcome": "passed"})
        self.put("mfu-b", {"outcome": "failed"})
        self.put("mfu-c", "{\"outcome\": ")
        self.put("mfu-d", {"outcome": "out_of_memory"})
        todo, done = check.selected(every, [], self.out, again=False)
        self.assertEqual([i.name for i in todo], ["c", "e"])
        self.assertEqual([i.name for i in done], ["a", "b", "d"])
        todo, _ = check.selected(every, [], self.out, again=True)
        self.assertEqual([i.name for i in todo], ["b", "c", "e"])

    def test_parts_are_chosen_by_name(self):
        every = [item("a"), item("b", part="fit")]
        todo, _ = check.selected(every, ["fit"], self.out, False)
        self.assertEqual([i.id for i in todo], ["fit-b"])

    def test_the_budget_takes_the_first_that_it_pays_for(self):
        todo = [item("long", 300), item("short", 60), item("other", 60)]
        self.assertEqual(check.affordable(todo, 100).name, "short")
        self.assertEqual(check.affordable(todo, None).name, "long")
        self.assertIsNone(check.affordable(todo, 59))

    def test_overheads_are_fitted_on_two_families_and_judged_on_other_models(self):
        roles = {role: {m for m, *_, r in check.MEMORY if r == role} for role in ("fit", "judge")}
        self.assertEqual({len(models) for models in roles.values()}, {2})
        self.assertFalse(roles["fit"] & roles["judge"])
        outcome, document = check.with_role("judge", (check.PASSED, {"status": 0}))
        self.assertEqual((outcome, document), ("passed", {"role": "judge", "status": 0}))

    def largest(self, seconds_of_a_micro_batch, fits=True):
        """Micro-batches of a step in the largest plan, where a plan is what these say."""
        def plan_of(_, arguments):
            micro_batches = int(arguments[arguments.index("--grad-accum") + 1])
            return {"fits": fits, "time": {"step_seconds": micro_batches * seconds_of_a_micro_batch}}
        with mock.patch.object(check, "plan_of", plan_of):
            arguments, _ = check.largest_plan(check.Machine(BUILD, self.out), "gpt2", 1024, [])
        return int(arguments[arguments.index("--grad-accum") + 1])

    def test_a_long_step_has_fewer_micro_batches(self):
        self.assertEqual(self.largest(0.75), 16)  # 12 s
        self.assertEqual(self.largest(0.76), 8)
        self.assertEqual(self.largest(100), 4)

    def test_a_model_that_does_not_fit_is_skipped(self):
        with self.assertRaisesRegex(check.Missing, "not even one sequence"):
            self.largest(1, fits=False)

    def test_every_command_line_is_one_that_the_planner_answers(self):
        if not (BUILD / check.PROGRAMS["plimsoll"]).is_file():
            self.skipTest("no built program")
        machine = check.Machine(BUILD, self.out)
        rows = [row[:4] for row in check.MEMORY]
        rows += [(model, 2, length, extra) for model, length, extra, _ in check.SPEED]
        for model, batch, length, extra in rows:
            plan = check.plan_of(machine, check.words(model, batch, length, extra))
            self.assertEqual(plan["schema"], "plimsoll.plan/1")
            self.assertTrue(plan["peak_bytes"] > 0)


class Running(Folder):
    def run_all(self, todo, budget=None):
        machine = mock.Mock(out=self.out, gpu_name=None)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return check.run_all(list(todo), machine, budget)

    def test_a_failure_is_written_down_and_the_others_go_on(self):
        todo = [item("a", result=ValueError("odd")),
                item("b", result=subprocess.TimeoutExpired(["/x/plimsoll-run"], 480)),
                item("c", result=(check.PASSED, {"cases": 3}))]
        self.assertEqual(self.run_all(todo), ["failed", "timed_out", "passed"])
        first = json.loads((self.out / "mfu-a.json").read_text())
        self.assertEqual((first["schema"], first["part"], first["why"]),
                         ("plimsoll.gpu_check/1", "mfu", "ValueError: odd"))
        second = json.loads((self.out / "mfu-b.json").read_text())
        self.assertEqual(second["why"], "plimsoll-run took longer than 480 s")

    def test_an_item_that_the_budget_does_not_pay_is_named_and_left_for_the_next_call(self):
        machine = mock.Mock(out=self.out, gpu_name=None)
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
            outcomes = check.run_all([item("a", 30), item("b", 9000)], machine, 1)
        self.assertEqual(outcomes, ["passed"])
        self.assertRegex(said.getvalue(), r"mfu-b +dropped")
        self.assertFalse((self.out / "mfu-b.json").exists())

    def test_the_files_name_the_gpu_once_it_is_known(self):
        todo = [item("a", result=(check.PASSED, {"rates": {"gpu": {"name": "NVIDIA H200"}}})),
                item("b")]
        self.run_all(todo)
        self.assertEqual(json.loads((self.out / "mfu-b.json").read_text())["gpu"], "NVIDIA H200")

    def test_the_largest_batch_is_found_with_few_questions(self):
        for answer in (0, 1, 2, 3, 7, 8, 63, 64, 65, 4096):
            asked = []

            def fits(n):
                asked.append(n)
                return n <= answer
            self.assertEqual(check.largest(fits), answer)
            self.assertLess(len(asked), 27)

    def test_what_nobody_accounts_for_has_a_sign(self):
        plan = {"outside_allocator": {"context_bytes": 500, "libraries_bytes": 30,
                                      "nccl_bytes": None}}
        rank = {"device_bytes": 2000, "reserved_bytes": 1500}
        self.assertEqual(check.unaccounted(plan, {"ranks": [rank]}), -30)
        self.assertIsNone(check.unaccounted(plan, {"ranks": [{"device_bytes": None,
                                                              "reserved_bytes": 1}]}))

    def test_workloads_that_differ_are_no_pass(self):
        lines = [{"workload": "w", "ranks": r, "difference": d, "seconds": 0.1}
                 for r, d in ((1, ""), (8, "op 3: planned a, ran b"))]
        done = mock.Mock(returncode=1, stderr="",
                         stdout="\n".join(json.dumps(line) for line in lines))
        outcome, document = check.exact(
            mock.Mock(run=mock.Mock(return_value=done), left=lambda: 400, exact_seconds=90))
        self.assertEqual(outcome, "disagrees")
        self.assertEqual((document["workloads"], document["differ"], document["ranks"]),
                         (2, 1, [1, 8]))

    def test_a_test_program_that_crashes_or_says_nothing_has_failed(self):
        for status, text, outcome in (
                (0, "[doctest] test cases:  9 |  9 passed | 0 failed | 0 skipped", "passed"),
                (1, "[doctest] test cases:  9 |  8 passed | 1 failed | 0 skipped", "failed"),
                (-11, "", "failed"), (0, "", "failed")):
            done = mock.Mock(returncode=status, stdout=text, stderr="")
            machine = mock.Mock(run=mock.Mock(return_value=done), left=lambda: 400, some=[])
            self.assertEqual(check.doctest(machine, "gpu_test")[0], outcome)


class Surroundings(Folder):
    def test_libraries_are_looked_for_in_the_toolkit_and_in_pythons_packages(self):
        (self.out / "lib64").mkdir()
        folders = check.library_folders({"CUDA_HOME": str(self.out)})
        self.assertIn(self.out / "lib64", folders)
        site = self.out / "x" / "site-packages"
        (site / "nvidia" / "cu13" / "lib").mkdir(parents=True)
        with mock.patch.object(sys, "path", [str(site)]):
            folders = check.library_folders({"CUDA_HOME": str(self.out)})
        # Python's come before the toolkit's.
        self.assertLess(folders.index(site / "nvidia" / "cu13" / "lib"),
                        folders.index(self.out / "lib64"))

    def test_libraries_that_are_missing_are_named(self):
        text = "\tlibcudart.so.13 => not found\n\tlibc.so.6 => /lib/libc.so.6 (0x1)\n"
        self.assertEqual(check.missing_libraries(text), ["libcudart.so.13"])
        old = "./x: /lib/libc.so.6: version `GLIBC_2.36' not found (required by ./x)\n" \
            "./x: /lib/libstdc++.so.6: version `GLIBCXX_3.4.30' not found (required by ./x)\n"
        self.assertEqual(check.missing_libraries(old), ["GLIBCXX_3.4.30", "GLIBC_2.36"])

    def test_the_compilers_libraries_are_carried_for_older_machines_alone(self):
        package = self.out / "package"
        (package / "lib" / "compiler").mkdir(parents=True)
        machine = check.Machine(self.out, self.out)
        for first, second, raised in (
                (["GLIBCXX_3.4.30"], [], None), (["GLIBC_2.36"], ["GLIBC_2.36"], "is older than"),
                (["libcudart.so.13"], ["libcudart.so.13"], "install the CUDA toolkit")):
            machine.environment["LD_LIBRARY_PATH"] = "first"
            answers = iter([first, second] + [[]] * 20)
            with mock.patch.object(check, "HERE", package), \
                    mock.patch.object(machine, "program", lambda name: name), \
                    mock.patch.object(machine, "lacking", lambda path: next(answers)), \
                    mock.patch.object(machine, "run", lambda *a, **k: mock.Mock(returncode=0)):
                if raised:
                    self.assertRaisesRegex(check.Missing, raised, machine.check_program, "x")
                else:
                    machine.check_program("x")
            self.assertEqual(machine.environment["LD_LIBRARY_PATH"],
                             f"first:{package / 'lib' / 'compiler'}")

    def test_a_package_leaves_the_c_library_and_nvidias_to_the_machine(self):
        for name in ("libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2", "libpthread.so.0"):
            self.assertTrue(check.SYSTEM_LIBRARIES.match(name), name)
        for name in ("libcudart.so.13", "libcublasLt.so.13", "libnccl.so.2", "libcudnn.so.9"):
            self.assertTrue(check.NVIDIA_LIBRARIES.match(name), name)
        for name in ("libstdc++.so.6", "libopenblas.so.0", "libcurl.so.4", "libmpi.so.40"):
            self.assertFalse(check.SYSTEM_LIBRARIES.match(name), name)
            self.assertFalse(check.NVIDIA_LIBRARIES.match(name), name)

    def call(self, *words):
        return subprocess.run([sys.executable, str(ROOT / "tools" / "gpu_check"), *words],
                              capture_output=True, text=True, timeout=170)

    def test_bad_words_are_named(self):
        for words, said in ((["--part", "nope"], "--part nope: one of kernels"),
                            (["--budget", "0"], "--budget 0.0"), ([], "say --all")):
            done = self.call(*words)
            self.assertEqual((done.returncode, said in done.stderr), (2, True), done.stderr)

    def test_without_a_gpu_or_a_program_it_says_so_and_skips(self):
        done = self.call("--all", "--build", str(self.out), "--out", str(self.out))
        self.assertEqual(done.returncode, 77)
        self.assertIn("build with a CUDA toolkit", done.stderr)
        self.assertEqual(list(self.out.glob("*.json")), [])


class Evidence(Folder):
    def document(self, **more):
        return {"schema": "plimsoll.gpu_check/1", "kind": "gpu", "part": "exact",
                "item": "covering", "measured_at": "2026-01-31T12:00:00Z", "outcome": "passed",
                "seconds": 41.0, "gpu": "NVIDIA H200", "workloads": 200, "differ": 0, **more}

    def test_a_check_becomes_a_file_and_a_row(self):
        self.put("a", self.document())
        root = self.out / "evidence"
        paths = evidence.take_in([self.out / "a.json"], root)
        self.assertEqual(paths, [root / "2026-01-31-h200" / "exact-covering.json"])
        text = evidence.page(root)
        self.assertIn("`exact-covering`", text)
        self.assertIn("| passed |", text)

    def test_checks_and_measurements_stand_in_one_folder(self):
        # Of one whose programs crashed before the GPU was known.
        self.put("a", self.document(gpu=None, item="first", outcome="failed"))
        self.put("b", self.document())
        root = self.out / "evidence"
        paths = evidence.take_in([self.out / "a.json", self.out / "b.json"], root)
        self.assertEqual({p.parent.name for p in paths}, {"2026-01-31-h200"})


if __name__ == "__main__":
    unittest.main()

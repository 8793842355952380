#!/usr/bin/env python3
"""Faults that come from outside, with real processes: four ranks of `plimsoll run` under mpirun, one of which is killed,
stopped, given other files, or may not write. In time all processes have ended, a message says who and why, and what was
good before is as it was.

Usage: mpi_faults_test.py MPIRUN PLIMSOLL [--write reports/reliability.md]
"""
import contextlib
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import two_hosts

RANKS = 4
IN_TIME = 30  # seconds from the fault until all processes have ended; after --timeout, where nobody has died
TINY = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 64, "n_head": 4, "n_layer": 2,
        "vocab_size": 4001, "n_positions": 64}
# As root in a container and with more ranks than cores; other MPIs ignore these. Between SIGTERM and SIGKILL Open MPI
# leaves a second: too little where a busy disk takes a document.
ENVIRONMENT = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                   OMPI_MCA_rmaps_base_oversubscribe="1", OPENBLAS_NUM_THREADS="1",
                   OMPI_MCA_odls_base_sigkill_timeout="4")
MPIRUN = PLIMSOLL = None
ROWS = []  # (fault, what ended, after seconds, what was said, files)


def processes(token):
    """{rank: process id} of the ranks of one job; None: of mpirun and what else is left of it."""
    found = {}
    for folder in pathlib.Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            variables = dict(v.partition("=")[::2] for v in (folder / "environ").read_text(errors="replace").split("\0"))
            state = re.search(r"\) (\w)", (folder / "stat").read_text()).group(1)
            if variables.get("PLIMSOLL_FAULT") == token and state != "Z":
                found[variables.get("OMPI_COMM_WORLD_RANK")] = int(folder.name)
    return found


def can_mount():
    return shutil.which("unshare") is not None and subprocess.run(
        ["unshare", "-rm", "sh", "-c", "mount -t tmpfs none /mnt"], capture_output=True, check=False).returncode == 0


class Job:
    """mpirun with its ranks; lines of both streams as they come."""

    def __init__(self, words, before=()):
        self.token = os.urandom(8).hex()
        self.lines, self.arrived = [], threading.Condition()
        self.process = subprocess.Popen([*before, MPIRUN, *map(str, words)], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                                        env=dict(ENVIRONMENT, PLIMSOLL_FAULT=self.token), start_new_session=True)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            with self.arrived:
                self.lines.append(line)
                self.arrived.notify_all()

    def text(self):
        return "".join(self.lines)

    def wait_for(self, pattern, seconds=60):
        with self.arrived:
            seen = self.arrived.wait_for(lambda: re.search(pattern, self.text()), seconds)
        assert seen, f"no {pattern!r} in\n{self.text()}"

    def rank(self, rank, seconds=60):
        """The process id of a rank, once it is there."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = processes(self.token)
            if str(rank) in found:
                return found[str(rank)]
            time.sleep(0.01)
        raise AssertionError(f"rank {rank} has not come\n{self.text()}")

    def ended(self, limit=IN_TIME):
        """Seconds until it had ended by itself; whatever is left is killed and told."""
        began = time.monotonic()
        try:
            self.process.wait(limit)
            while processes(self.token) and time.monotonic() - began < limit:
                time.sleep(0.05)
        except subprocess.TimeoutExpired:
            pass
        seconds = time.monotonic() - began
        left = processes(self.token)
        for number in left.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        self.process.wait(10)
        self.reader.join(5)
        self.process.stdout.close()
        return seconds, left


class Faults(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)
        self.model, self.out, self.saved, self.states = (
            self.folder / n for n in ("tiny.json", "measurement.json", "saved", "states"))
        self.model.write_text(json.dumps(TINY))

    def one(self, *words):
        return [PLIMSOLL, "run", self.model, "--device", "cpu", "--seq-len", "32", *words]

    def job(self, *words, before=()):
        return Job(["-np", RANKS, *self.one("--zero", "3", "--json", self.out, *words)], before)

    def good_weights(self):
        """A folder with weights of one rank's run, and their digest."""
        done = subprocess.run([str(w) for w in self.one("--steps", "1", "--save-weights", self.saved, "--quiet")],
                              env=ENVIRONMENT, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return self.digest()

    def digest(self):
        return hashlib.sha256((self.saved / "model.safetensors").read_bytes()).hexdigest()

    def told(self, fault, job, said, files, timeout=0):
        seconds, left = job.ended(IN_TIME + timeout)
        self.assertEqual(left, {}, f"{fault}: still running\n{job.text()}")
        self.assertNotEqual(job.process.returncode, 0, job.text())
        patterns = [said] if isinstance(said, str) else said
        found = next(filter(None, (re.search(p, job.text()) for p in patterns)), None)
        self.assertIsNotNone(found, f"{fault}: none of {patterns} is in\n{job.text()}")
        ROWS.append((fault, seconds, " ".join(found.group(0).split()), files))

    def document(self):
        return json.loads(self.out.read_text())

    def test_a_rank_that_is_killed_before_it_has_begun(self):
        job = self.job("--steps", "100000")
        os.kill(job.rank(2), signal.SIGKILL)
        # Before MPI has begun nobody but mpirun can speak. Where it is busy it notices its lost connection before the
        # signal, says the second sentence alone, and names no rank.
        self.told("rank 2 killed while the job starts", job,
                  [r"rank 2[^.]*?exited on signal 9|node \S+ exited on signal 9",
                   r"1 process returned\s+a non-zero exit code"], "none were there")

    def test_a_rank_that_is_killed_in_a_step(self):
        for rank in (0, 3):
            job = self.job("--steps", "100000")
            job.wait_for(r"step 3/")
            os.kill(job.rank(rank), signal.SIGKILL)
            self.told(f"rank {rank} killed in a step", job,
                      [rf"process rank {rank} with PID \d+ on node \S+\s+exited on\s+signal 9",
                       r"another rank has died|1 process returned\s+a non-zero exit code"],
                      "the measurement says that a rank has died" if rank else "rank 0 writes, and is gone: none")
            if rank:
                document = self.document()
                self.assertEqual((document["outcome"], document["error"]["kind"]), ("failed", "communicator"))
                self.assertIn("another rank has died", document["error"]["message"])
                self.out.unlink()
            else:
                self.assertFalse(self.out.exists())

    def test_a_rank_that_is_stopped(self):
        for rank in (0, 1):
            job = self.job("--steps", "100000", "--timeout", "3")
            job.wait_for(r"step 3/")
            stopped = job.rank(rank)
            os.kill(stopped, signal.SIGSTOP)
            self.told(f"rank {rank} stopped (SIGSTOP) in a step, --timeout 3", job, r"rank \d: no answer to \w+ within 3 s, [^\n]*",
                      "the measurement says who waited" if rank else "rank 0 writes, and is stopped: none", 3)
            if rank:
                self.assertIn("no answer", self.document()["error"]["message"])
                self.out.unlink()
            else:
                self.assertFalse(self.out.exists() and not self.document())

    def test_a_link_between_hosts_that_is_cut(self):
        reason = two_hosts.why_not()
        if reason:
            self.skipTest(f"a link that is cut: {reason}")
        with two_hosts.TwoHosts(self.folder) as hosts:
            words = self.one("--zero", "3", "--steps", "100000", "--timeout", "3", "--json", self.out)
            job = Job([*hosts.words(RANKS // 2), *words], hosts.before_mpirun())
            job.wait_for(r"step 3/")
            job.rank(3)  # the ranks beyond the link are among those that are looked for
            hosts.cut()
            self.told("the link between two hosts cut in a step, --timeout 3", job,
                      r"rank [\d, ]*[23]: no answer to \w+ within 3 s, says rank [01]", "the measurement says who waited", 3)
            self.assertIn("no answer", self.document()["error"]["message"])

    def test_a_job_that_is_told_to_end(self):
        job = self.job("--steps", "100000")
        job.wait_for(r"step 3/")
        job.process.send_signal(signal.SIGTERM)
        self.told("mpirun told to end (SIGTERM)", job, r"4 ranks, as mpirun has started", "the measurement says so")
        document = self.document()
        self.assertEqual(document["outcome"], "failed")
        self.assertIn("ended from outside (SIGTERM)", document["error"]["message"])
        ROWS[-1] = (*ROWS[-1][:2], document["error"]["message"], ROWS[-1][3])

    def test_a_rank_whose_weights_are_damaged(self):
        self.good_weights()
        bad = self.folder / "bad"
        shutil.copytree(self.saved, bad)
        with open(bad / "model.safetensors", "r+b") as file:
            file.truncate((bad / "model.safetensors").stat().st_size - 8)
        words = self.one("--zero", "3", "--steps", "100000", "--json", self.out)
        job = Job(["-np", RANKS - 1, *words, "--weights", self.saved, ":", "-np", 1, *words, "--weights", bad])
        self.told("rank 3 finds weights that are cut short", job, r"model\.safetensors: [^\n]*", "the others' are as they were")

    def test_killed_while_weights_are_saved(self):
        before = self.good_weights()
        kept = 0
        for _ in range(3):
            job = self.job("--steps", "2", "--save-weights", self.saved)
            writer = job.rank(0)
            end = time.monotonic() + 60
            while time.monotonic() < end and len(list(self.saved.iterdir())) < 3 and job.process.poll() is None:
                time.sleep(0.0005)
            with contextlib.suppress(ProcessLookupError):
                os.kill(writer, signal.SIGKILL)
            seconds, left = job.ended()
            self.assertEqual(left, {}, job.text())
            kept += self.digest() == before
            words = self.one("--steps", "1", "--weights", self.saved, "--quiet")  # old or new, it is whole
            done = subprocess.run([str(w) for w in words], env=ENVIRONMENT, capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            before = self.digest()
        ROWS.append(("rank 0 killed while weights are saved, three times", seconds, "process rank 0 exited on signal 9",
                     f"whole each time ({kept} times the ones from before)"))

    def checkpoint(self):
        """The folder of the one whole checkpoint, or the newest."""
        return max(f for f in self.states.glob("step-*") if not f.name.endswith(".unfinished"))

    def digests(self, folder):
        return {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in sorted(folder.iterdir())}

    def losses(self, *words):
        """{step: loss} of four ranks that end well."""
        done = subprocess.run([str(w) for w in (MPIRUN, "-np", RANKS, *self.one("--zero", "3", "--quiet", "--json",
                                                                                self.out, *words))],
                              env=ENVIRONMENT, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        losses = {step["step"]: step["loss"] for step in self.document()["steps"]}
        self.out.unlink()
        return losses

    def test_killed_while_a_checkpoint_is_saved(self):
        whole = self.losses("--steps", "60")
        self.losses("--steps", "2", "--save-checkpoint", self.states)
        kept = went_on = 0
        for rank in (0, 1, 3, 0, 2):
            before = self.checkpoint()
            last, good = before.name, self.digests(before)
            # A checkpoint behind every step: whenever it is killed, one is being written, or nearly.
            job = self.job("--steps", "60", "--resume", self.states, "--save-checkpoint", self.states, "--save-every", "1")
            victim = job.rank(rank)
            end = time.monotonic() + 60
            while time.monotonic() < end and job.process.poll() is None:
                if rank == 3 and self.checkpoint().name != last:
                    break
                if rank != 3 and any(self.states.glob("*.unfinished/*")):
                    break
                time.sleep(0.0005)
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
            seconds, left = job.ended()
            self.assertEqual(left, {}, job.text())
            self.assertNotEqual(job.process.returncode, 0, job.text())
            newest = self.checkpoint()
            if newest.name == last:
                kept += 1
                self.assertEqual(self.digests(newest), good)
            # Old or new, it is whole, and goes on as if nothing had been.
            step = int(newest.name[len("step-"):])
            rest = self.losses("--steps", step + 2, "--resume", self.states, "--save-checkpoint", self.states)
            self.assertEqual(rest, {s: whole[s] for s in (step + 1, step + 2)})
            self.assertEqual([f.name for f in self.states.iterdir()], [f"step-{step + 2:08}"])
            went_on += 1
        self.assertEqual(went_on, 5)
        ROWS.append(("a rank killed while a checkpoint is saved, five times", seconds,
                     "process rank … exited on signal 9",
                     f"the newest is whole each time ({kept} times the one from before), and goes on bit for bit"))

    @unittest.skipUnless(can_mount(), "mounting in a namespace of one's own is not allowed here (unshare -rm)")
    def test_a_disk_that_is_full_or_read_only(self):
        before = self.good_weights()
        self.losses("--steps", "2", "--save-checkpoint", self.states)
        states = self.digests(self.checkpoint())
        disk = self.folder / "disk"
        disk.mkdir()
        # Room for what is there, and half of the smaller of the two more.
        sizes = [sum(f.stat().st_size for f in folder.rglob("*")) for folder in (self.saved, self.states)]
        size = (sum(sizes) + min(sizes) // 2) // 1024
        script = (f"mount -t tmpfs -o size={size}k none {disk} && cp -r {self.saved} {self.states} {disk}/ && "
                  "{more} \"$@\"; status=$?; "
                  f"sha256sum {disk}/saved/model.safetensors; ls {disk}/saved; "
                  f"sha256sum {disk}/states/step-00000002/*; exit $status")
        read_only = f"mount -o remount,ro {disk} &&"
        weights = ["--steps", "2", "--save-weights", disk / "saved"]
        going_on = ["--steps", "4", "--resume", disk / "states", "--save-checkpoint", disk / "states"]
        for fault, words, more, said in (
                ("the disk is full while weights are saved", weights, "true &&", "No space left on device"),
                ("the disk is read-only while weights are saved", weights, read_only, "Read-only file system"),
                ("the disk is full while a checkpoint is saved", going_on, "true &&", "No space left on device"),
                ("the disk is read-only while a checkpoint is saved", going_on, read_only, "Read-only file system")):
            before_mpirun = ["unshare", "-rm", "sh", "-c", script.replace("{more}", more), "sh"]
            job = self.job(*words, before=before_mpirun)
            self.told(fault, job, rf"[^\n]*{said}[^\n]*", "as they were")
            self.assertIn(before, job.text())
            listed = job.text().split(before)[1].split("\n", 1)[1].split("\n")
            self.assertEqual(listed[:2], ["config.json", "model.safetensors"], job.text())
            self.assertEqual({pathlib.Path(line.split()[1]).name: line.split()[0] for line in listed[2:] if line}, states)


PAGE = """# What happens to a job when something else fails?

Written by `tests/runtime/mpi_faults_test.py MPIRUN PLIMSOLL --write`: {ranks} ranks of `plimsoll run`, processes of mpirun on
one host. In every case all processes had ended by themselves within {limit} s, with another status than 0, and what was
saved before could still be read. Faults tried: {count}; noticed: {count}; files lost: 0.

| fault | all ended after | what was said | files |
| --- | --: | --- | --- |
{rows}

{skipped}Beside it, in one process: every byte of a safetensors header damaged (`tests/runtime/weights_test.cpp`), of what a
checkpoint says of itself, and of its tensors (`tests/runtime/checkpoint_test.cpp`, `tests/witness/checkpoint_test.cpp`),
allocations of a question's answer made to fail one by one (`tests/tools/allocation_test.cpp`).

The two hosts whose link is cut are network namespaces of one machine (`tests/runtime/two_hosts.py`). Known: where the host has no memory for a few bytes
in the middle of a step, a rank ends by abort (the ledger writes in destructors), and its launcher says so.
"""


def write(path, skipped):
    rows = "\n".join(f"| {fault} | {seconds:.0f} s | {said[:110]} | {files} |"
                     for fault, seconds, said, files in sorted(ROWS))
    rows = re.sub(r"PID \d+ on node \S+", "PID … on node …", rows)
    rows = re.sub(r"/tmp/\S*?/", "…/", rows)
    note = "".join(f"Skipped: {reason}.\n\n" for reason in skipped)
    pathlib.Path(path).write_text(PAGE.format(ranks=RANKS, limit=IN_TIME, count=len(ROWS), rows=rows, skipped=note))


if __name__ == "__main__":
    MPIRUN, PLIMSOLL = sys.argv[1:3]
    page = sys.argv[4] if sys.argv[3:4] == ["--write"] else None
    rest = [] if page else sys.argv[3:]
    program = unittest.main(argv=[sys.argv[0], *rest], exit=False)
    if page and program.result.wasSuccessful():
        write(page, [reason for _, reason in program.result.skipped])
    sys.exit(not program.result.wasSuccessful())

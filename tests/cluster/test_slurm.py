#!/usr/bin/env python3
"""test_slurm.py: tools/cluster/verify.sbatch under a real Slurm of one machine: munge, slurmctld and slurmd are started
here, with keys, ports and folders of their own, and ended with the test. Four ranks of the host. Where that cannot be,
it ends with 77 and says why."""
import contextlib
import getpass
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLIMSOLL = os.environ.get("PLIMSOLL", str(ROOT / "build" / "tools" / "plimsoll"))
RANKS = 4
PATH = os.environ["PATH"] + os.pathsep + "/usr/sbin" + os.pathsep + "/sbin"
WORKLOAD = "gpt2 --zero 3 --seq-len 32 --reduce-layers 2"


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def needed(name, package):
    found = shutil.which(name, path=PATH)
    if not found:
        skip(f"{name} is not here (Debian: {package})")
    return found


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Slurm:
    """The daemons of one machine, in a folder."""

    def __init__(self, folder):
        self.folder, self.children = folder, []
        self.user = getpass.getuser()
        self.host = socket.gethostname().split(".")[0]
        self.environment = {**os.environ, "PATH": PATH, "SLURM_CONF": str(folder / "slurm.conf")}
        for variable in [v for v in self.environment if v.startswith(("SLURM_JOB", "OMPI_", "PMIX_"))]:
            del self.environment[variable]

    def start(self):
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        munge = {name: self.folder / f"munge.{name}" for name in ("socket", "pid", "log", "seed")}
        self.child(needed("munged", "munge"), "--foreground", "--force", f"--key-file={key}",
                   f"--socket={munge['socket']}", f"--pid-file={munge['pid']}", f"--log-file={munge['log']}",
                   f"--seed-file={munge['seed']}")
        self.wait("munge answers", lambda: munge["socket"].exists())
        self.configure(munge["socket"])
        self.child(needed("slurmctld", "slurmctld"), "-D", "-i")
        self.wait("slurmctld answers", lambda: self.ask("scontrol", "ping").returncode == 0)
        self.child(needed("slurmd", "slurmd"), "-D", "-N", self.host)
        self.wait("the node is idle", lambda: "idle" in self.ask("sinfo", "-h", "-o", "%t").stdout)

    def configure(self, munge_socket):
        # proctrack/linuxproc and no task plugin: nothing needs cgroups.
        (self.folder / "slurm.conf").write_text(f"""ClusterName=test
SlurmctldHost={self.host}(127.0.0.1)
SlurmUser={self.user}
SlurmdUser={self.user}
AuthType=auth/munge
AuthInfo=socket={munge_socket}
CredType=cred/munge
StateSaveLocation={self.folder}/state
SlurmdSpoolDir={self.folder}/spool
SlurmctldPidFile={self.folder}/slurmctld.pid
SlurmdPidFile={self.folder}/slurmd.pid
SlurmctldLogFile={self.folder}/slurmctld.log
SlurmdLogFile={self.folder}/slurmd.log
SlurmctldPort={free_port()}
SlurmdPort={free_port()}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
NodeName={self.host} NodeAddr=127.0.0.1 CPUs={RANKS} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
""")

    def child(self, *words):
        log = open(self.folder / (pathlib.Path(words[0]).name + ".out"), "wb")
        self.children.append(subprocess.Popen(words, env=self.environment, stdin=subprocess.DEVNULL, stdout=log,
                                              stderr=log, start_new_session=True))

    def ask(self, *words, **options):
        return subprocess.run([str(word) for word in words], env={**self.environment, **options}, text=True,
                              capture_output=True, timeout=60, check=False)

    def wait(self, what, condition, seconds=30):
        until = time.monotonic() + seconds
        while not condition():
            if any(child.poll() is not None for child in self.children) or time.monotonic() > until:
                logs = "\n".join(f"{path.name}: {path.read_text(errors='replace')[-600:]}"
                                 for path in sorted(self.folder.glob("*.out")) + sorted(self.folder.glob("*.log")))
                skip(f"Slurm does not run here ({what}: not so)\n{logs}")
            time.sleep(0.1)

    def stop(self):
        for child in reversed(self.children):
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(signal.SIGTERM)
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def submit(slurm, out, **variables):
    """The finished job: its state, its log."""
    log = out / "job.log"
    result = slurm.ask("sbatch", "--parsable", f"--ntasks-per-node={RANKS}", "--gpus-per-node=0", f"--output={log}",
                       ROOT / "tools/cluster/verify.sbatch", PLIMSOLL_HOME=str(ROOT), PLIMSOLL=PLIMSOLL,
                       OUT=str(out), OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                       LAUNCHER="pmix", DEVICE="cpu", STEPS="2", OPENBLAS_NUM_THREADS="1", **variables)
    assert result.returncode == 0, result.stderr
    number = result.stdout.strip()
    until, state = time.monotonic() + 240, ""
    while time.monotonic() < until:
        state = slurm.ask("scontrol", "show", "job", number).stdout
        state = state.partition("JobState=")[2].split(" ")[0]
        if state not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"):
            break
        time.sleep(0.2)
    return state, log.read_text() if log.exists() else ""


def check_verification(slurm, out):
    state, log = submit(slurm, out, WORKLOAD=WORKLOAD)
    assert state == "COMPLETED", (state, log)
    for rank in range(RANKS):
        assert f"rank {rank}" in log, log
    (path,) = out.glob("measurement-*.json")
    measured = json.loads(path.read_text())
    assert measured["schema"] == "plimsoll.measurement/1"
    assert [rank["rank"] for rank in measured["ranks"]] == list(range(RANKS)), log
    assert measured["comparison"]["agrees"] is True
    print(f"ok: {RANKS} ranks under {slurm.ask('sinfo', '--version').stdout.strip()}, measured as planned")


def check_failure(slurm, out):
    """A job that cannot be: Slurm hears of it, and the log says why."""
    state, log = submit(slurm, out, WORKLOAD="gpt2 --zero 3 --seq-len 32 --gpus 3")
    assert state == "FAILED", (state, log)
    assert "3" in log and "4" in log, log
    print("ok: a wrong number of ranks fails the job and is named")


def main():
    for program, package in (("sbatch", "slurm-client"), ("srun", "slurm-client"), ("scontrol", "slurm-client"),
                             ("mpirun", "openmpi-bin")):
        needed(program, package)
    with tempfile.TemporaryDirectory(prefix="slurm") as folder:
        slurm = Slurm(pathlib.Path(folder))
        try:
            slurm.start()
            if "pmix" not in (listed := slurm.ask("srun", "--mpi=list")).stdout + listed.stderr:
                skip("this Slurm has no PMIx")
            for number, one in enumerate((check_verification, check_failure)):
                out = slurm.folder / f"out{number}"
                out.mkdir()
                one(slurm, out)
        finally:
            slurm.stop()


if __name__ == "__main__":
    main()

"""Two hosts on this machine: namespaces with a network and a name of their own, and a cable (veth) between them that
can be cut."""
import contextlib
import os
import pathlib
import shutil
import signal
import subprocess

ADDRESSES = ("10.77.0.1", "10.77.0.2")
# Open MPI's own daemons give up a peer that does not acknowledge: after 15 minutes as Linux has it, here after some
# seconds (tcp(7): tcp_retries2), and as fast where nothing is on its way (keepalive).
PATIENCE = "echo 4 >/proc/sys/net/ipv4/tcp_retries2"
KEEPALIVE = {"oob_tcp_keepalive_time": 2, "oob_tcp_keepalive_intvl": 2, "oob_tcp_keepalive_probes": 3}


def done(*words):
    subprocess.run([str(w) for w in words], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                   stderr=subprocess.PIPE, text=True)


def why_not():
    """Nothing, or why this machine has no two hosts."""
    for program in ("unshare", "nsenter", "ip"):
        if not shutil.which(program):
            return f"{program} is not here"
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(TwoHosts(None))
        except (OSError, subprocess.CalledProcessError) as e:
            said = (getattr(e, "stderr", None) or str(e)).strip().splitlines()
            return "network namespaces with a veth pair are not allowed here: " + (said or ["no reason given"])[-1]
    return None


class TwoHosts:
    """`folder`: of the program that mpirun takes for ssh."""

    def __init__(self, folder):
        self.folder, self.hosts = folder, []

    def __enter__(self):
        try:
            for name in ("hosta", "hostb"):
                self.hosts.append(self.host(name))
            ours = f"c{os.getpid()}"
            done("ip", "link", "add", f"{ours}a", "type", "veth", "peer", "name", f"{ours}b")
            for host, end, address in zip(self.hosts, "ab", ADDRESSES):
                done("ip", "link", "set", ours + end, "netns", host.pid)
                done(*self.on(host), "ip", "link", "set", ours + end, "name", "cable")
                done(*self.on(host), "ip", "addr", "add", f"{address}/24", "dev", "cable")
                done(*self.on(host), "ip", "link", "set", "cable", "up")
                done(*self.on(host), "ip", "link", "set", "lo", "up")
                done(*self.on(host), "sh", "-c", PATIENCE)
        except BaseException:
            self.__exit__()
            raise
        return self

    @staticmethod
    def host(name):
        """A process that keeps a host; both streams are closed, so that nobody waits for it. It has come when it says
        so."""
        process = subprocess.Popen(["unshare", "-n", "-u", "sh", "-c", f"hostname {name} && echo up && exec sleep 600 >&-"],
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   start_new_session=True)
        if process.stdout.readline() != "up\n":
            raise OSError(process.communicate()[1])
        return process

    @staticmethod
    def on(host):
        return ["nsenter", "-t", str(host.pid), "-n", "-u"]

    def before_mpirun(self):
        return self.on(self.hosts[0])

    def words(self, ranks):
        """mpirun's, for as many ranks on each of the hosts."""
        agent = pathlib.Path(self.folder) / "agent"
        agent.write_text(f"#!/bin/sh\nshift\nexec {' '.join(self.on(self.hosts[1]))} sh -c \"$*\"\n")
        agent.chmod(0o755)
        settings = {"plm_rsh_agent": agent, "btl": "tcp,self,vader", "btl_tcp_if_include": "cable",
                    "oob_tcp_if_include": "cable", **KEEPALIVE}
        return ["-np", 2 * ranks, "--host", ",".join(f"{a}:{ranks}" for a in ADDRESSES),
                *(word for name, value in settings.items() for word in ("--mca", name, value))]

    def cut(self):
        done(*self.on(self.hosts[0]), "ip", "link", "set", "cable", "down")

    def __exit__(self, *_):
        for host in self.hosts:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(host.pid, signal.SIGKILL)
            host.wait()
            host.stdout.close()
            host.stderr.close()

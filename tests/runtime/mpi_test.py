#!/usr/bin/env python3
"""Ranks as MPI processes: the bits of threads, and a fault of one rank ends the job.

Usage: mpi_test.py MPIRUN PROGRAM
"""
import os
import subprocess
import sys
import time

# As root in a container and with more ranks than cores; other MPIs ignore these.
ENVIRONMENT = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                   OMPI_MCA_rmaps_base_oversubscribe="1", OPENBLAS_NUM_THREADS="1")


def run(mpirun, ranks, *command):
    began = time.monotonic()
    done = subprocess.run([mpirun, "-np", str(ranks), *command], env=ENVIRONMENT, timeout=120,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout, time.monotonic() - began


def main(mpirun, program):
    wrong = []
    for ranks in (1, 2, 3, 4):
        status, output, _ = run(mpirun, ranks, program)
        if status != 0:
            wrong.append(f"{ranks} ranks: status {status}\n{output}")
    # fault, what must be said, exit status or None for any but 0
    faults = [("throws", "rank 2: a fault of the test", 2), ("dies", "", None),
              ("throws", "rank 0 records bad_input rank 2: a fault of the test", 2),
              ("fails", "rank 0 records device rank 2: a fault of the test", 3),
              ("alone", "rank 2 records device rank 2: a fault of the test", 3),
              ("hangs", "rank 2: no answer", 3),
              # One allocation fails; then all that follow, of the words and the news too.
              ("starves", "rank 0 records out_of_memory rank 2: the host has no memory left\n", 3),
              ("starved", "rank 2: the host has no memory left, not even to say for what\n", 3)]
    for fault, words, expected in faults:
        status, output, seconds = run(mpirun, 3, program, fault)
        if status == 0 or (expected is not None and status != expected):
            wrong.append(f"{fault}: status {status}\n{output}")
        if words not in output:
            wrong.append(f"{fault}: {words!r} is not in\n{output}")
        if seconds > 30:
            wrong.append(f"{fault}: the job went on for {seconds:.0f} s")
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

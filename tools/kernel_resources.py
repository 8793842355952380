#!/usr/bin/env python3
"""What the CUDA compiler made of each kernel, as a table; fails where a kernel has a stack frame.

  kernel_resources.py [--check] OBJECT...      objects, archives or cubins of one architecture or more

Asks cuobjdump (in PATH, beside nvcc, or $CUOBJDUMP); exits 77 without it. Columns: registers and
static shared memory of a block; threads that a multiprocessor holds, of 2048 (sm_89: 1536), by
registers alone (65536, handed to a warp in units of 256: CUDA occupancy calculator, sm_80 to sm_90);
loads from and stores to device memory that are 16 bytes wide, of all; GEMMs of tensor cores.
"""
import argparse
import collections
import os
import re
import shutil
import subprocess
import sys

SKIPPED = 77
MOST_THREADS = {"sm_80": 2048, "sm_89": 1536, "sm_90": 2048}


def tool(name):
    beside = os.path.join(os.path.dirname(shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"), name)
    return os.environ.get(name.upper()) or shutil.which(name) or (
        beside if os.path.exists(beside) else None)


def output(command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def plain(names):
    """Demangled, without namespaces and operands."""
    whole = output([shutil.which("c++filt") or "c++filt", *names]).splitlines()
    return [shortened(text) for text in whole]


def shortened(text):
    text = re.sub(r"\(anonymous namespace\)::|\bplimsoll::kernels::(cuda::|device::)?", "", text)
    text = re.sub(r"^void ", "", text)
    depth = 0
    for at, c in enumerate(text):  # operands begin at the first parenthesis outside of <>
        depth += (c == "<") - (c == ">")
        if c == "(" and depth == 0:
            return text[:at]
    return text


def resources(dump):
    """Of `cuobjdump --dump-resource-usage`: {(architecture, function): {"REG": ..., ...}}."""
    found, arch, function = {}, None, None
    for line in dump.splitlines():
        if m := re.match(r"arch = (\w+)", line):
            arch = m[1]
        elif m := re.search(r"Function (\S+):", line):
            function = m[1]
        elif function and "REG:" in line:
            found[arch, function] = {k: int(v) for k, v in re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", line)}
            function = None
    return found


def instructions(dump):
    """Of `cuobjdump -sass`: {(architecture, function): Counter of what the table has}."""
    found, arch, counter = {}, None, None
    for line in dump.splitlines():
        if m := re.match(r"\s*code for (\w+)", line):
            arch = m[1]
        elif m := re.search(r"Function : (\S+)", line):
            counter = found[arch, m[1]] = collections.Counter()
        elif counter is not None and (m := re.search(r"\*/\s+(?:@!?U?P\w+ )?\s*([A-Z][\w.]+)", line)):
            name = m[1]
            for kind in ("LDG", "STG"):
                counter[kind] += name.startswith(kind)
                counter[kind + ".128"] += name.startswith(kind) and ".128" in name
            counter["local"] += name.split(".")[0] in ("LDL", "STL")
            counter["mma"] += name.startswith(("HMMA", "HGMMA"))
    return found


def resident_threads(arch, registers):
    warps = 65536 // (-(-registers * 32 // 256) * 256)
    return min(warps // 4 * 4 * 32, MOST_THREADS.get(arch, 2048))


def rows(paths):
    dump = tool("cuobjdump")
    if dump is None:
        print("cuobjdump is not here", file=sys.stderr)
        sys.exit(SKIPPED)
    used, done = {}, {}
    for path in paths:
        code = instructions(output([dump, "-sass", path]))
        done.update(code)
        of_cubin = next((arch for arch, _ in code), None)  # whose resources do not name it
        for (arch, function), use in resources(output([dump, "--dump-resource-usage", path])).items():
            used[arch or of_cubin, function] = use
    keys = sorted(used)
    for (arch, function), name in zip(keys, plain([f for _, f in keys])):
        yield arch, name, used[arch, function], done.get((arch, function), collections.Counter())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="print only what is wrong")
    parser.add_argument("objects", nargs="+")
    arguments = parser.parse_args()
    bad, kernels = 0, 0
    if not arguments.check:
        print("| sm | kernel | registers | shared | threads | loads 16 B / all | stores | mma |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for arch, name, use, count in sorted(rows(arguments.objects), key=lambda r: (r[0], r[1])):
        kernels += 1
        if use["STACK"] or use["LOCAL"] or count["local"]:
            bad += 1
            print(f"{arch} {name}: {use['STACK']} bytes of stack, {count['local']} instructions on "
                  "local memory")
        if not arguments.check:
            print(f"| {arch[3:]} | `{name}` | {use['REG']} | {use['SHARED']} | "
                  f"{resident_threads(arch, use['REG'])} | {count['LDG.128']} / {count['LDG']} | "
                  f"{count['STG.128']} / {count['STG']} | {count['mma'] or ''} |")
    if kernels == 0:
        sys.exit("no kernel in " + " ".join(arguments.objects))
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()

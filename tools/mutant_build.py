"""How tools/mutate builds a program of tests with one changed source: that source is compiled with little optimization
and the program is linked anew. Ninja is not asked; a mutant costs seconds. What was there before comes back as it was,
with its times, so that ninja notices nothing.
"""
import contextlib
import json
import os
import pathlib
import shlex
import shutil
import subprocess

# Much faster to compile than what the build has, and not so slow that a test would seem to hang; an index beyond a
# vector's end and an empty optional end the program, as in debug builds (meson.build): it is no luck what lies there.
LITTLE = ["-O1", "-w", "-g0", "-D_GLIBCXX_ASSERTIONS=1"]
# Of programs of tests alone: what plimsoll itself is linked like is what a test looks at (test_cli.py).
LINKER = ["-fuse-ld=lld"] if shutil.which("ld.lld") else []


class Commands:
    """What ninja would execute for a source and for a program."""

    def __init__(self, root, build):
        self.root, self.build = root, build
        self.made = {}  # {source: [(its object, how it is compiled)]}
        for entry in json.loads((build / "compile_commands.json").read_text()):
            source = os.path.normpath(build / entry["file"])
            words = [w for w in shlex.split(entry["command"]) if pathlib.Path(w).name != "ccache"]
            self.made.setdefault(source, []).append((build / entry["output"], words))
        self.linked = {}

    def objects(self, file):
        return self.made.get(os.path.normpath(self.root / file), [])

    def last(self, target):
        """The command that makes a target of what it consists of."""
        if target not in self.linked:
            said = subprocess.run(["ninja", "-C", str(self.build), "-t", "commands", "-s", target], check=True,
                                  stdout=subprocess.PIPE, text=True).stdout
            self.linked[target] = said.strip().splitlines()[-1]
        return self.linked[target]

    def holding(self, target, file):
        """The archives of a target that have an object of the source, and the target's own objects of it."""
        names = {str(path.relative_to(self.build)) for path, _ in self.objects(file)}
        words = set(shlex.split(self.last(target)))
        return (sorted(w for w in words if w.endswith(".a") and (self.build / w).exists() and
                       not pathlib.Path(w).is_absolute() and names & set(shlex.split(self.last(w)))), names & words)

    def holds(self, target, file):
        return any(self.holding(target, file))

    def thin(self, archive):
        with open(self.build / archive, "rb") as file:
            return file.read(7) == b"!<thin>"


def compiled_text(path, text, ran):
    """The object of a source of our own."""
    path.write_text(text)
    made = path.with_suffix(".o")
    status, output = ran(["c++", "-std=c++20", "-O1", "-fPIE", "-c", str(path), "-o", str(made)], 300)
    if status != 0:
        raise OSError(output[-500:])
    return made


class Altered:
    """Sources with other texts, and what is built of them; leaving the block brings back what was there."""

    def __init__(self, commands, texts, ran):
        self.commands, self.texts, self.ran = commands, dict(texts), ran
        self.aside = []

    def __enter__(self):
        for file, text in self.texts.items():
            self.put_aside(self.commands.root / file)
            (self.commands.root / file).write_text(text)
            for path, _ in self.commands.objects(file):
                self.put_aside(path)
        return self

    def __exit__(self, *_):
        for path in reversed(self.aside):
            os.replace(self.kept(path), path)

    @staticmethod
    def kept(path):
        return path.with_name(path.name + ".sound")

    def put_aside(self, path):
        os.replace(path, self.kept(path))
        self.aside.append(path)

    def give_back(self, file):
        """One of the sources as it was."""
        del self.texts[file]
        for path in [self.commands.root / file, *(path for path, _ in self.commands.objects(file))]:
            self.aside.remove(path)
            os.replace(self.kept(path), path)

    def compiled(self, more=(), files=None):
        """Whether the sources compile, or those that are named."""
        for file in self.texts if files is None else files:
            for _, words in self.commands.objects(file):
                status, _ = self.ran([*words, *more], 300, cwd=self.commands.build)
                if status != 0:
                    return False
        return True

    def same_code(self):
        """Whether the build's own optimization makes of it what it made before."""
        return self.compiled() and all(path.read_bytes() == self.kept(path).read_bytes()
                                       for file in self.texts for path, _ in self.commands.objects(file))

    def links(self, target, more=()):
        """Whether a target could be linked, with some more objects."""
        archives = sorted({a for file in self.texts for a in self.commands.holding(target, file)[0]})
        for name in [*(a for a in archives if not self.commands.thin(a)), target]:
            path = self.commands.build / name
            if path not in self.aside:
                self.put_aside(path)
            objects = [str(one) for one in more] if name == target else []
            command = self.commands.last(name)
            for linker in (LINKER if name.startswith("tests/") else [], []):
                words = " ".join([command, *objects, *linker])
                status, _ = self.ran(["sh", "-c", words], 300, cwd=self.commands.build)
                if status == 0:
                    break
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()
            else:
                return False
        return True

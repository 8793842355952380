"""Which tests come to a fault at all: a call is put at the beginning of the block around each fault, every test runs
once with it, and a fault's own tests are those that made the call. A test that does not come there cannot see it.
"""
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import mutants  # noqa: E402

VARIABLE = "PLIMSOLL_REACHED"  # names the file in which byte K is 1 when fault K was come to
MOST = 1 << 15
DECLARATION = 'extern "C" void plimsoll_reached(int);\n'  # a line of its own: what follows may be an #include
SOURCE = """#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
extern "C" void plimsoll_reached(int fault);
extern "C" void plimsoll_reached(int fault) {
  static volatile unsigned char* const seen = [] {
    const char* path = getenv("%s");
    const int file = path == nullptr ? -1 : open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return static_cast<unsigned char*>(nullptr);
    void* bytes = mmap(nullptr, %d, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return bytes == MAP_FAILED ? nullptr : static_cast<unsigned char*>(bytes);
  }();
  if (seen != nullptr) seen[fault] = 1;
}
""" % (VARIABLE, MOST)
# What stands before the brace of a function, a lambda, a loop or a branch; a table's, a class's or a namespace's brace
# has something else there.
BEFORE = re.compile(r"(?:\)|\]|\b(?:else|do|const|noexcept|mutable|override)|->\s*[\w:<>,&* ]+)\s*$")


def place(plain, at):
    """Behind the brace of the innermost block of statements around `at`, which runs whenever what stands at `at` does;
    None: there is none (a table of a namespace)."""
    opened = []
    for i, c in enumerate(plain[:at]):
        if c == "{":
            opened.append(i)
        elif c == "}" and opened:
            opened.pop()
    for brace in reversed(opened):
        before = plain[:brace]
        if BEFORE.search(before) and not is_switch(before.rstrip()):
            return brace + 1
    return None


def is_switch(before):
    """Whether the bracket that ends `before` is a switch's: nothing stands in front of its first case."""
    if not before.endswith(")"):
        return False
    depth = 0
    for i in range(len(before) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(before[i], 0)
        if depth == 0:
            return before[:i].rstrip().endswith("switch")
    return False


def marked(text, faults):
    """(the text with a call for each (number, fault), the numbers that have one)."""
    plain = mutants.masked(text)
    places = [(place(plain, fault.begin), number) for number, fault in faults]
    calls = sorted(((at, number) for at, number in places if at is not None), reverse=True)
    for at, number in calls:
        text = f"{text[:at]} plimsoll_reached({number});{text[at:]}"
    return DECLARATION + text, {number for _, number in calls}


def one_each(texts):
    """A fault in each block of statements that has one: who comes to it comes to all that stand directly in the block."""
    found = {}
    for file, text in texts.items():
        plain = mutants.masked(text)
        for fault in mutants.sites(file, text):
            at = place(plain, fault.begin)
            if at is not None:
                found.setdefault((file, at), fault)
    return list(found.values())


class Record:
    """The file in which a program notes what it came to."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.clear()

    def clear(self):
        self.path.write_bytes(bytes(MOST))

    def take(self):
        found = {number for number, byte in enumerate(self.path.read_bytes()) if byte}
        if found:
            self.clear()
        return found

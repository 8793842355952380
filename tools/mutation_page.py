"""reports/mutation.md: what tools/mutate found. Folders that were not tried this time keep what is said of them."""
import dataclasses
import re

HEAD = """# Do the tests see a fault?

`tools/mutate` puts one fault at a time into a source (an operator exchanged, a constant changed, a statement dropped,
a branch swapped; drawn, the four kinds in turn), builds, and runs the tests that claim its folder. Written by it; a
folder's row is of the last time it was tried. *By pins alone*: seen by nothing but the record of what was planned
before (`tests/golden/program_pins.txt`, `wide_pins.txt`, and `tests/golden/transcripts` for folders of the planner), which says that
something changed and not what is right; they count as killed. *Equivalent*: the compiler makes the same code of it, or
`tests/mutation/equivalent.json` has the reason. Faults that did not compile are not counted; sources with a fault are
compiled with libstdc++'s assertions, as debug builds are, so that an index beyond a vector's end ends the test;
assertions (`ErrorKind::internal`) are left alone.

"""
COLUMNS = "| folder | seed | tried | killed | of these by pins alone | survived | equivalent | killed of those that are none |\n"
RULE = "| --- | --- | --: | --: | --: | --: | --: | --: |\n"


@dataclasses.dataclass
class Section:
    folder: str
    seed: str
    verdicts: list
    left_out: list

    def count(self, *outcomes):
        return sum(v.outcome in outcomes for v in self.verdicts)


def share(section):
    real = section.count("killed", "pinned", "survived")
    return f"{100 * section.count('killed', 'pinned') / real:.1f} %" if real else "–"


def summary(section):
    return (f"{section.folder}: {section.count('killed', 'pinned', 'survived', 'equivalent')} tried, "
            f"{section.count('killed', 'pinned')} killed ({section.count('pinned')} by pins alone), "
            f"{section.count('survived')} survived, {section.count('equivalent')} equivalent: {share(section)}")


def row(section):
    return (f"| `{section.folder}` | {section.seed} | {section.count('killed', 'pinned', 'survived', 'equivalent')} "
            f"| {section.count('killed', 'pinned')} | {section.count('pinned')} | {section.count('survived')} "
            f"| {section.count('equivalent')} | {share(section)} |\n")


def code(text):
    return "`` " + text.replace("`", "'") + " ``"


def survivors(section):
    """What is said of a folder below the table, or nothing."""
    lines = []
    for v in sorted(section.verdicts, key=lambda v: (v.mutant.file, v.line)):
        if v.outcome in ("survived", "pinned"):
            lines.append(f"* {v.mutant.file}:{v.line}{'' if v.outcome == 'survived' else ' (pins alone)'}: "
                         f"{code(v.shown[0])} → {code(v.shown[1])}\n")
    if section.left_out:
        lines.append("\nNot asked, because they take long: " + "; ".join(section.left_out) + ".\n")
    return f"## {section.folder}\n\n" + "".join(lines) + "\n" if lines else ""


def read(text):
    """{folder: (its row, its section)} of a page that was written before."""
    rows = {m.group(1): m.group(0) for m in re.finditer(r"^\| `([^`]+)` \|.*\n", text, re.MULTILINE)}
    sections = {m.group(1): m.group(0)
                for m in re.finditer(r"^## (\S+)\n(?:(?!## ).*\n)*", text, re.MULTILINE)}
    return {folder: (rows[folder], sections.get(folder, "")) for folder in rows}


def total(rows):
    """The sum of the rows of folders, as a row."""
    tried, killed, pinned, survived, equivalent = (
        sum(int(row.split("|")[column]) for row in rows) for column in range(3, 8))
    of = f"{100 * killed / (killed + survived):.1f} %" if killed + survived else "–"
    return f"| all | | {tried} | {killed} | {pinned} | {survived} | {equivalent} | {of} |\n"


def judged_equivalent(entries):
    lines = [f"* {e['file']}: {code(e['line'])} → {code(e['with'])}: {e['why']}\n" for e in entries]
    return "## Judged equivalent\n\n" + "".join(lines) if lines else ""


def write(path, sections, equivalent):
    known = read(path.read_text()) if path.exists() else {}
    for section in sections:
        known[section.folder] = (row(section), survivors(section))
    names = sorted(known)
    rows = [known[name][0] for name in names]
    page = HEAD + COLUMNS + RULE + "".join(rows) + total(rows) + "\n"
    page += "".join(known[name][1] for name in names) + judged_equivalent(equivalent)
    path.write_text(page.rstrip("\n") + "\n")

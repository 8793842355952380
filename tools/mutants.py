"""Faults that can be put into a C++ source: where, what stands there, and what would stand there instead.

Four kinds: an operator exchanged, a constant changed, a statement dropped, a branch swapped. Comments,
literals of text and preprocessor lines are left alone, and so are assertions (ErrorKind::internal): where the program
is right they hold, and a weaker one changes nothing. What does not compile is the compiler's to find.
"""
import dataclasses
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from check_sizes import blanked  # noqa: E402

KINDS = ("operator", "constant", "statement", "branch")
# clang-format puts blanks around binary operators, and none around template brackets.
OPERATORS = {
    " < ": " <= ", " <= ": " < ", " > ": " >= ", " >= ": " > ", " == ": " != ", " != ": " == ",
    " + ": " - ", " - ": " + ", " * ": " / ", " / ": " * ", " % ": " / ", " && ": " || ",
    " || ": " && ", " += ": " -= ", " -= ": " += ", " *= ": " /= ", " /= ": " *= "}
OPERATOR = re.compile(r" (?:<=|>=|==|!=|&&|\|\||\+=|-=|\*=|/=|[<>+\-*/%]) (?=\S)")
NEGATION = re.compile(r"(?<=[\s(,])!(?=[\w(])")
NUMBER = re.compile(r"(?<![\w.'])(?:\d[\d']*\.?[\d']*(?:e[+-]?\d+)?)(?![\w.'])|\b(?:true|false)\b")
WORDS = {"std::max": "std::min", "std::min": "std::max", "any_of": "all_of", "all_of": "any_of",
         "continue;": "break;", "break;": "continue;"}
WORD = re.compile("|".join(re.escape(word) for word in WORDS))
HEADER = re.compile(r"\s*(?:else\s+if|if constexpr|if|for|while|switch)\s*\(|\s*else\b|\s*do\b|"
                    r"\s*(?:case\s[^;{}?]*?(?<!:):(?!:)|default\s*:)")
# What a function cannot do without, and what declares a name that is used later.
KEPT = re.compile(r"(?:using|namespace|typedef|struct|class|enum|static_assert|template|friend|extern|throw|"
                  r"goto|break|continue|public|private|protected|const|constexpr|auto|static|inline)\b")
DECLARED = re.compile(r"[\w:]+(?:<.*>)?[&*]*\s+[&*]*\w+\s*(?:=(?!=)|\{|\(|;|$|,)", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Mutant:
    file: str
    begin: int
    end: int
    put: str
    kind: str

    def apply(self, text):
        return text[:self.begin] + self.put + text[self.end:]

    def line(self, text):
        return text.count("\n", 0, self.begin) + 1

    def shown(self, text):
        """(before, after): the lines that differ, on one line each."""
        first = text.rfind("\n", 0, self.begin) + 1
        last = text.find("\n", self.end)
        before = text[first:last]
        after = text[first:self.begin] + self.put + text[self.end:last]
        return " ".join(before.split()), " ".join(after.split())


def masked(text):
    """The text with comments, literals and preprocessor lines blanked; as long as it was."""
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda m: re.sub(r"[^\n]", " ", m.group(0)), blanked(text),
                  flags=re.MULTILINE)


def closing(text, at):
    """The position after the bracket that closes the one at `at`."""
    depth = 0
    for i in range(at, len(text)):
        if text[i] in "([{":
            depth += 1
        elif text[i] in ")]}":
            depth -= 1
            if depth == 0:
                return i + 1
    return len(text)


def operators(text):
    for found in OPERATOR.finditer(text):
        if not re.search(r"\boperator$", text[:found.start()]):
            yield found.start(), found.end(), OPERATORS[found.group(0)]
    for found in NEGATION.finditer(text):
        yield found.start(), found.end(), ""


def constants(text):
    for found in NUMBER.finditer(text):
        word = found.group(0)
        if word in ("true", "false"):
            yield found.start(), found.end(), "false" if word == "true" else "true"
            continue
        plain = word.replace("'", "")
        if plain.isdigit():
            yield found.start(), found.end(), str(int(plain) + 1)
            if int(plain) > 0:
                yield found.start(), found.end(), str(int(plain) - 1)
        else:
            yield found.start(), found.end(), repr(float(plain) * 1.25 or 1.0)


def is_block(text, at):
    """Whether the brace at `at` opens a block of statements, and not a list of values."""
    before = text[:at].rstrip()
    return before.endswith((")", "]", ";", "{", "}", "else", "do", "const", "noexcept", "mutable", "override")) or (
        re.search(r"(?:namespace|struct|class)\b[^;{}()]*$", before) is not None or
        re.search(r"->\s*[\w:<>,&* ]+$", before) is not None or before.endswith(":"))


def whole_statements(text):
    """(begin, end) of everything that a semicolon ends, lambdas' bodies too."""
    stack, start = [], 0
    for at, c in enumerate(text):
        if c == "(" or c == "[":
            stack.append((c, start))
        elif c == "{":
            stack.append(("{" if is_block(text, at) else "list", start))
            if stack[-1][0] == "{":
                start = at + 1
        elif c in ")]}" and stack:
            kind, outer = stack.pop()
            in_call = bool(stack) and stack[-1][0] in "(["
            start = at + 1 if kind == "{" and not in_call else outer
        elif c == ";" and (not stack or stack[-1][0] == "{"):
            if stack:
                yield start, at + 1
            start = at + 1


def statements(text):
    for begin, end in whole_statements(text):
        conditional = False
        while True:  # if (…), for (…), case …:
            found = HEADER.match(text, begin, end)
            if not found:
                break
            begin = closing(text, found.end() - 1) if found.group(0).endswith("(") else found.end()
            conditional = conditional or not found.group(0).strip().startswith(("case", "default"))
        words = text[begin:end].lstrip()
        begin = end - len(words)
        if words == ";" or begin >= end or KEPT.match(words):
            continue
        if words.startswith("return"):
            if conditional:
                yield begin, end, "{}"
        elif not DECLARED.match(words):
            yield begin, end, "{}"


def branches(text):
    for found in re.finditer(r"\bif \(", text):
        last = closing(text, found.end() - 1)
        inside = text[found.end():last - 1]
        if ";" not in inside:
            yield found.end(), last - 1, None
    for found in re.finditer(r"\s\?\s", text):
        colon = turning(text, found.end(), ":")
        last = turning(text, colon + 1, ",;") if colon else None
        if last:
            yield found.end(), last, (found.end(), colon, last)
    for found in WORD.finditer(text):
        yield found.start(), found.end(), WORDS[found.group(0)]


def turning(text, at, ends):
    """The next of `ends` outside of brackets that open after `at`, or the bracket that closes around it."""
    depth = nested = 0
    while at < len(text):
        c = text[at]
        if c in "([{":
            depth += 1
        elif c in ")]}":
            if depth == 0:
                return None if ends == ":" else at
            depth -= 1
        elif depth == 0 and c == "?":
            nested += 1
        elif depth == 0 and c == ":" and text[at - 1] != ":" and text[at + 1] != ":":
            if nested == 0 and ends == ":":
                return at
            nested -= 1
        elif depth == 0 and nested <= 0 and c in ends and c != ":":
            return at
        at += 1
    return None


def assertions(text):
    """(begin, end) of every call of check() that says the program itself is wrong."""
    for found in re.finditer(r"\bcheck\(", text):
        last = closing(text, found.end() - 1)
        if "ErrorKind::internal" in text[found.end():last]:
            yield found.start(), last


def sites(file, text):
    """Every fault that can be put into this file."""
    plain = masked(text)
    asserted = list(assertions(plain))
    for kind, found in (("operator", operators), ("constant", constants), ("statement", statements),
                        ("branch", branches)):
        for begin, end, put in found(plain):
            if any(first <= begin < last for first, last in asserted):
                continue
            if put is None:
                put = f"!({text[begin:end]})"
            elif isinstance(put, tuple):
                first, colon, last = put
                put = f"{text[colon + 1:last].strip()} : {text[first:colon].strip()}"
            yield Mutant(file, begin, end, put, kind)


def drawn(mutants, random):
    """The mutants in a drawn order in which the kinds take turns."""
    piles = [[m for m in mutants if m.kind == kind] for kind in KINDS]
    for pile in piles:
        random.shuffle(pile)
    while any(piles):
        for pile in piles:
            if pile:
                yield pile.pop()

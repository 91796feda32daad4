"""The text of a program: what may stand in it at all, and where its pieces are.

In: any string. Out: a `Source` and its Python syntax tree, which nothing ever executes.
Invariant: every refusal is a MirageError with its place, found in time linear in the text; Python's own parser
only ever sees short ASCII text with balanced brackets and none of the tokens that programs do not have.
"""

from __future__ import annotations

import ast
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from mirage_nb.errors import MirageError, ProgramSizeError, ProgramSyntaxError, SourceSpan, suggestion
from mirage_nb.ir.syntax import statements
from mirage_nb.lang.limits import MAX_NAME, MAX_NESTING, MAX_TEXT

_STRINGS = (
    "this text is not closed, or has braces or a backslash in it",
    'options and axes are: "mean", einsum("ij,jk->ik", X, W); comments start with #',
)
REFUSED: dict[str, tuple[str, str]] = {
    '"': _STRINGS, "'": _STRINGS,
    "\\": ("programs have no line continuation", "an open bracket lets an expression go on in the next line"),
    "&&": ("programs have no &&", "masks are joined with &: (X > 0) & (X < 1)"),
    "||": ("programs have no ||", "masks are joined with |: (X < 0) | (X > 1)"),
    "!": ("programs have no !", "one statement per line: NAME = expression"),
    "?": ("programs have no ?", "%mirage help lists the language"),
    "$": ("programs have no $", "sizes are names: B = 8"),
    "`": ("programs have no backquotes", "one statement per line: NAME = expression"),
}  # fmt: skip

_DEFINE = ("this is not how a function is defined", "write def block(x, w): and return its result, as in Python")
_OTHER = ("this Python statement is not part of the language", "statements are X: f16[2, 3], Y = ..., return Y")

KEYWORDS: dict[str, tuple[str, str]] = {
    "class": (
        "programs define no classes",
        "a forward is a program by itself: def forward(x: f16[8, 64], w: f16[64, 64]):, with its weights as inputs",
    ),
    **dict.fromkeys(("yield", "async", "await"), _DEFINE),
    **dict.fromkeys(("except", "finally", "global", "nonlocal", "try"), _OTHER),
}
_TOLD = KEYWORDS | REFUSED

_LOOKALIKES = {
    "×": "*", "·": "*", "∗": "*", "÷": "/", "−": "-", "–": "-", "—": "-", "²": "**2", "³": "**3", "√": "sqrt(x)",
    "≤": "<=", "≥": ">=", "≠": "!=", "‘": "'", "’": "'", "“": '"', "”": '"', "（": "(", "）": ")", "，": ",", "：": ":",
}  # fmt: skip
_CLOSES = {")": "(", "]": "[", "}": "{"}
_VALUE = r"\{[\w .+\-*/%\[\],]*=?(?::[\w.,+%<>^]*)?\}"
"""What stands in braces in a text, f"{D} is no multiple of {n // 2}": constants, parts of shapes, a format."""
_TOKEN = re.compile(
    r"(?P<space> +)|(?P<comment>\#.*)"
    r"|(?P<number>0[xX][0-9a-fA-F_]+|0[bB][01_]+|0[oO][0-7_]+|(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][+-]?\d+)?)"
    r"|(?P<text>\"[^\"\\{}]*\"|'[^'\\{}]*'"
    r"|[fF](?:\"(?:[^\"\\{}]|" + _VALUE + r")*\"|'(?:[^'\\{}]|" + _VALUE + r")*'))"
    r"|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<comparison>[<>=!]=)"
    r"|(?P<refused>" + "|".join(map(re.escape, sorted(REFUSED, key=len, reverse=True))) + ")"
    r"|(?P<operator>->|:=|\.\.\.|\*\*=?|//=?|[-+*/@%]=|[-+*/@%(),:;=.\[\]{}<>&|~^])",
    re.ASCII,
)
_OPENS = re.compile(r" *(def\b.*\)|(for|while|if|elif|else|with)\b[^:]*)$", re.ASCII)
"""A line that has others in it, without its colon."""
_SCALAR = re.compile(r":\s*\w+\[\s*\]", re.ASCII)
_WORD = re.compile(r"[A-Za-z0-9_.]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Source:
    """A program's text by lines; the `indent` leading spaces of its first statement are not part of it."""

    lines: tuple[str, ...]
    indent: int

    def cut(self, line: int) -> int:
        """How many leading spaces of a line Python's parser does not see; inside brackets a line may have fewer."""
        text = self.lines[line - 1]
        return min(self.indent, len(text) - len(text.lstrip(" ")))

    def span(self, line: int, column: int, width: int) -> SourceSpan:
        """Place of `width` characters from 1-based `line` and 1-based `column` of the given text."""
        return SourceSpan(line, column, max(1, width), self.lines[line - 1])

    def of(self, node: ast.expr | ast.stmt | ast.keyword) -> SourceSpan:
        """Place of a syntax node; one that goes on in further lines is marked to the end of its first."""
        line, cut = node.lineno, self.cut(node.lineno)
        stop = node.end_col_offset if node.end_lineno == line else None
        code = self.lines[line - 1].partition("#")[0].rstrip()
        end = len(code) if stop is None else stop + cut
        start = node.col_offset + cut
        return self.span(line, start + 1, end - start)

    def text_of(self, node: ast.expr) -> str:
        """The characters of a one-line node, such as a literal."""
        place = self.of(node)
        return place.text[place.column - 1 : place.column - 1 + place.width]


@dataclass(frozen=True, slots=True)
class Within(Source):
    """What stands elsewhere and is read as if it stood at one place of the program."""

    place: SourceSpan

    def of(self, node: ast.expr | ast.stmt | ast.keyword) -> SourceSpan:
        """That place."""
        return self.place


def read(text: str) -> tuple[Source, ast.Module]:
    """The source and its syntax tree.

    Raises:
        ProgramSizeError: too long, or nested too deep.
        ProgramSyntaxError: anything that is not an expression language of names, numbers and operators.
    """
    if len(text) > MAX_TEXT:
        raise ProgramSizeError(f"the program has {len(text):,} characters", hint=f"at most {MAX_TEXT:,} are read")
    lines = _without_docstrings(text.split("\n"))
    first = next((line for line in lines if _is_code(line)), "")
    source = Source(lines, len(first) - len(first.lstrip(" ")))
    _check_characters(source)
    _check_tokens(source)
    return source, _tree(source)


def _without_docstrings(lines: list[str]) -> tuple[str, ...]:
    """The lines, those of texts in three quotes blank: they are for readers, as comments are."""
    made, quotes, first = [], "", 0
    for number, line in enumerate(lines, start=1):
        opened, start = not quotes, line.lstrip(" ")
        if opened:
            quotes, first = next((q for q in ('"' * 3, "'" * 3) if start.startswith(q)), ""), number
        made.append("" if quotes else line)
        _, closed, behind = (start[3:] if opened else line).partition(quotes) if quotes else ("", "", "")
        if closed:
            quotes, made[-1] = "", " " * (len(line) - len(behind)) + behind if behind.strip() else ""
    if quotes:
        column = lines[first - 1].index(quotes) + 1
        place = SourceSpan(first, column, 3, lines[first - 1])
        raise ProgramSyntaxError("this text is never closed", hint=f"it ends with {quotes}", span=place)
    return tuple(made)


def _is_code(line: str) -> bool:
    return bool(line.strip(" ")) and not line.lstrip(" ").startswith("#")


def _check_characters(source: Source) -> None:
    """Refuse what one cannot see, anywhere, and what is not ASCII, outside of comments."""
    for number, line in enumerate(source.lines, start=1):
        if line.isascii() and line.isprintable():
            continue
        code = len(line.partition("#")[0])
        for column, char in enumerate(line, start=1):
            # Cc, Cf, Cs, Co, Cn: control and format characters and holes; Zl, Zp: other line ends.
            hidden = unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
            if hidden or (column <= code and not char.isascii()):
                raise _bad_character(char, source.span(number, column, 1))


def _bad_character(char: str, place: SourceSpan) -> MirageError:
    known = {
        "\t": ("a tab", "indent and align with spaces"),
        "\r": ("a carriage return", "save the text with Unix line ends (LF)"),
        "\ufeff": ("a byte order mark", "save the text as UTF-8 without BOM"),
    }
    name = f"U+{ord(char):04X} {unicodedata.name(char, '')}".rstrip()
    what, hint = known.get(char, (f"the character {name}", "names are made of ASCII letters, digits and _"))
    if char in _LOOKALIKES:
        hint = f"write {_LOOKALIKES[char]}"
    elif unicodedata.category(char) == "Zs":
        hint = "write a plain space"
    shown = "".join(c if c.isprintable() else " " for c in place.text)
    return ProgramSyntaxError(f"{what} in the program", hint=hint, span=SourceSpan(place.line, place.column, 1, shown))


def _check_tokens(source: Source) -> None:
    """Refuse tokens that programs do not have, and brackets that do not match."""
    opened: list[tuple[str, SourceSpan]] = []
    levels, deeper = [source.indent], False
    for number in range(1, len(source.lines) + 1):
        line = source.lines[number - 1]
        if not opened and _is_code(line):
            levels = _levels(source, number, levels, deeper)
            deeper = False
        for kind, token, column in _tokens(source, number):
            match kind:
                case ("name" | "refused") if token in _TOLD:
                    message, hint = _TOLD[token]
                    raise ProgramSyntaxError(message, hint=hint, span=source.span(number, column, len(token)))
                case "operator" if token in "([{":
                    opened.append((token, source.span(number, column, 1)))
                    if len(opened) > MAX_NESTING:
                        raise nested(opened[-1][1])
                case "operator" if token in _CLOSES:
                    if not opened or opened[-1][0] != _CLOSES[token]:
                        place = source.span(number, column, 1)
                        raise ProgramSyntaxError(f"this {token} closes nothing", hint=_expected(opened), span=place)
                    opened.pop()
            if kind not in ("space", "comment"):
                deeper = token == ":"
    if opened:
        token, place = opened[-1]
        raise ProgramSyntaxError(f"this {token} is never closed", hint=_expected(opened), span=place)


def _levels(source: Source, number: int, levels: list[int], deeper: bool) -> list[int]:
    """The columns of the statements that a line's statement stands in, its own last; a colon opens a `deeper` one."""
    line = source.lines[number - 1]
    leading = len(line) - len(line.lstrip(" "))
    if deeper:
        if leading > levels[-1]:
            return [*levels, leading]
        raise ProgramSyntaxError(
            "this line belongs to the one above, which ends with a colon",
            hint="indent what a for, an if or a def does",
            span=source.span(number, 1, leading),
        )
    before = next((n for n in range(number - 1, 0, -1) if _is_code(source.lines[n - 1])), number)
    code = source.lines[before - 1].partition("#")[0].rstrip()
    if leading > levels[-1] and _OPENS.match(code):
        hint = "for i in range(3):, if n > 1: and def f(x): end with one"
        raise ProgramSyntaxError("this line has no colon", hint=hint, span=source.span(before, len(code), 1))
    if leading not in levels:
        above = f"the line above by {levels[-1]}" if levels[1:] else f"the first statement by {levels[0]}"
        raise ProgramSyntaxError(
            f"this line is indented by {leading}, {above}",
            hint="statements of one block start in the same column",
            span=source.span(number, 1, leading),
        )
    return levels[: levels.index(leading) + 1]


def _tokens(source: Source, number: int) -> Iterator[tuple[str, str, int]]:
    """Kind, text and column of the tokens of one line, numbers checked."""
    line, position = source.lines[number - 1], 0
    while position < len(line):
        found = _TOKEN.match(line, position)
        # Every printable ASCII character begins some token, and no other character comes this far.
        assert found is not None and found.lastgroup is not None
        kind, token, column, position = found.lastgroup, found.group(), position + 1, found.end()
        if kind == "number" and (rest := _WORD.match(line, position)):
            word = token + rest.group()
            hint = "numbers are decimal: 16, 4_096, 0.5, 1e-5; names start with a letter"
            if rest.group() in ("j", "J"):
                hint = "there are no complex numbers: keep real and imaginary parts"
            elif rest.group()[0].isalpha():
                hint = f"a product is written with *: {token} * ..."
            span = source.span(number, column, len(word))
            raise ProgramSyntaxError(f"{word[:MAX_NAME]} is not a number", hint=hint, span=span)
        if kind in ("number", "name") and len(token) > MAX_NAME:
            place = source.span(number, column, len(token))
            raise ProgramSizeError(f"a {kind} of {len(token)} characters", hint=f"at most {MAX_NAME}", span=place)
        yield kind, token, column


def _expected(opened: list[tuple[str, SourceSpan]]) -> str:
    if not opened:
        return "remove it, or open a bracket before it"
    token, place = opened[-1]
    closing = next(close for close, opening in _CLOSES.items() if opening == token)
    return f"the {token} of line {place.line}, column {place.column} waits for {closing}"


def nested(place: SourceSpan | None) -> MirageError:
    return ProgramSizeError(
        f"an expression is nested more than {MAX_NESTING} levels deep",
        hint="give intermediate results names of their own",
        span=place,
    )


def _tree(source: Source) -> ast.Module:
    """Python's syntax tree, its depth checked without recursion."""
    # A comment may stand anywhere, so comment lines are blanked instead of cut.
    numbered = enumerate(source.lines, start=1)
    text = "\n".join(line[source.cut(number) :] if _is_code(line) else "" for number, line in numbered)
    try:
        tree = statements(text)
    except SyntaxError as error:
        raise _syntax(source, error) from None
    except (RecursionError, MemoryError):
        # Both mean that Python's parser met its own limit on depth.
        raise nested(None) from None
    pending: list[tuple[ast.AST, int, ast.stmt | None]] = [(tree, 0, None)]
    while pending:
        node, depth, statement = pending.pop()
        if isinstance(node, ast.stmt):
            depth, statement = 0, node
        if depth > MAX_NESTING:
            raise nested(None if statement is None else source.of(statement))
        pending.extend([(child, depth + 1, statement) for child in ast.iter_child_nodes(node)])
    return tree


def _syntax(source: Source, error: SyntaxError) -> MirageError:
    line = min(max(error.lineno or 1, 1), len(source.lines))
    cut = source.cut(line)
    column = min(max(1, (error.offset or 1) + cut), len(source.lines[line - 1]) + 1)
    stop = error.end_offset if error.end_lineno == error.lineno else None
    width = (stop + cut if stop else column + 1) - column
    hint = "statements are X: f16[2, 3], Y = expression, return Y"
    if _SCALAR.search(source.lines[line - 1].partition("#")[0]):
        hint = "a scalar is declared as x: f32; it is a tensor of one element"
    word = source.lines[line - 1].split(" ")[0]
    if word.startswith("%"):
        hint = "lines with a percent sign are a notebook's: the program is what stands below"
    elif word != "return":
        hint = suggestion(word.lower(), ("return",)) or hint
    reason = error.msg.split("(")[0].strip()
    return ProgramSyntaxError(f"this cannot be read: {reason}", hint=hint, span=source.span(line, column, width))

"""The text form of muGraphs: nested, readable, exact, and read back to an equal graph.

In: a kernel graph; out: its text, and the other way round: `parse_graph(print_graph(g)) == g`. One line an
operator, types at the right for the reader (checked when read), block and thread graphs in braces.
Reading takes time and memory in proportion to the text and refuses what is beyond the limits.

    mugraph 1
    input %0 X f16[2, 4096]
    %2 = Graph(%0, %1) grid=[96] loop=64 {
      %0 = InIter arg=0 imap=[*] fmap=1   : f16[2, 64]
      OutSaver(%8) omap=[1]
    }
    output %2 O
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from mirage_nb.errors import FormatError, GraphError, MirageError, ProgramSizeError, SourceSpan, suggestion
from mirage_nb.ir.dtypes import DTYPE_NAMES, TensorType
from mirage_nb.ir.fields import (
    INPUT_WORDS,
    INT,
    MAX_DIGITS,
    MAX_OPERATORS,
    Plain,
    check_launch,
    check_size,
    fraction,
    name,
    read_attrs,
    several,
    shown,
    whole,
    write_attrs,
)
from mirage_nb.ir.graph import BlockGraph, G, Graph, Input, KernelGraph, Op, Size, ThreadGraph
from mirage_nb.ir.ops import KINDS, OpKind, Shape
from mirage_nb.typed import typed

HEADER = "mugraph"
VERSION = 1
MAX_TEXT = 4_000_000
TYPE_COLUMN = 56
NODES = "lines are as %3 = Matmul(%0, %1), at the end output %3 Z"


class Lines(str):
    """A text for readers: a notebook shows its lines as they are, without `print`."""

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))


@typed
def print_graph(graph: KernelGraph) -> str:
    """The text of a graph, for `parse_graph`. Raises ProgramSizeError for constants of more than a thousand digits."""
    lines = [f"{HEADER} {VERSION}"]
    lines += [f"input %{value} {_quoted(i.name)} {i.type}{_known(i)}" for value, i in enumerate(graph.inputs)]
    lines += _operators(graph, "")
    lines += [
        f"output %{value} {_quoted(label)}" for value, label in zip(graph.outputs, graph.output_names, strict=True)
    ]
    return "\n".join(lines) + "\n"


def _known(i: Input) -> str:
    size = "" if i.size is None else f" size {_quoted(i.size.name)} {i.size.least} {i.size.most}"
    return size + "".join(f" {word}" for word in INPUT_WORDS if getattr(i, word))


def _operators(graph: Graph, indent: str) -> Iterator[str]:
    for op, values in graph.definitions():
        results = ", ".join(f"%{v}" for v in values)
        operands = f"({', '.join(f'%{v}' for v in op.inputs)})" if op.inputs else ""
        attrs = "".join(f" {field}={_shown(value)}" for field, value in write_attrs(op.attrs).items())
        line = f"{indent}{results + ' = ' if values else ''}{op.kind.value}{operands}{attrs}"
        match op.body:
            case None:
                types = ", ".join(str(graph.types[v]) for v in values)
                yield f"{line:<{TYPE_COLUMN}} : {types}" if values else line
            case BlockGraph(grid=grid, loop=loop):
                yield f"{line} grid={list(grid)} loop={loop} {{"
                yield from _operators(op.body, indent + "  ")
                yield f"{indent}}}"
            case ThreadGraph(outputs=outputs):
                yield f"{line} {{"
                yield from _operators(op.body, indent + "  ")
                yield f"{indent}  return {', '.join(f'%{v}' for v in outputs)}"
                yield f"{indent}}}"


def _shown(value: Plain) -> str:
    match value:
        case None:
            return "*"
        case list():
            return f"[{', '.join(map(_shown, value))}]"
        case str():
            return _quoted(value)
        case _:
            return str(value)


_BARE = re.compile(r"[A-Za-z_][A-Za-z_0-9]*\Z", re.ASCII)


def _quoted(text: str) -> str:
    """A string as it is where it can be read back so, else in double quotes."""
    return text if _BARE.match(text) else json.dumps(text)


TOKEN = re.compile(
    r"""[ \t]+ | (?P<value>%[0-9]+) | (?P<number>-?[0-9]+(?:/[0-9]+)?) | (?P<word>[A-Za-z_][A-Za-z_0-9]*)
      | (?P<string>"(?:[^"\\\n]|\\.)*") | (?P<mark>[=(){}\[\],:*])""",
    re.VERBOSE | re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Token:
    """One word of a line: its class, its text, and the column (from 1)."""

    kind: str
    text: str
    column: int


@typed
def parse_graph(text: str) -> KernelGraph:
    """The kernel graph in a text as `print_graph` writes it; types at the ends of lines may be left out.

    Raises:
        FormatError: with line and column.
        ProgramSizeError: beyond the limits on length, operators, dimensions, extents or digits.
    """
    if len(text) > MAX_TEXT:
        raise ProgramSizeError(f"a text of {len(text)} characters; at most {MAX_TEXT}")
    lines = [line for line in enumerate(text.split("\n"), start=1) if line[1].strip()]
    try:
        return _Reader(lines).graph()
    except FormatError as error:
        error.hint = error.hint or "print_graph(muGraph) writes what can be read"
        raise


class _Line:
    """The tokens of one line, read from left to right."""

    def __init__(self, number: int, text: str) -> None:
        self.number = number
        self.text = text.rstrip("\r")
        self.tokens = self._scan()
        self.at = 0

    def _scan(self) -> list[Token]:
        tokens: list[Token] = []
        position = 0
        while position < len(self.text):
            match = TOKEN.match(self.text, position)
            if match is None:
                raise self.error(f"unexpected character {self.text[position]!r}", position + 1)
            if match.lastgroup is not None:
                tokens.append(Token(match.lastgroup, match.group(), position + 1))
            position = match.end()
        return tokens

    def error(self, message: str, column: int | None = None, hint: str = "") -> FormatError:
        """A FormatError at a column, by default that of the next token."""
        if column is None:
            column = self.tokens[self.at].column if self.at < len(self.tokens) else len(self.text) + 1
        return FormatError(message, hint=hint, span=SourceSpan(self.number, column, 1, self.text))

    def peek(self) -> str:
        """The next token's text, empty at the end."""
        return self.tokens[self.at].text if self.at < len(self.tokens) else ""

    def take(self, kind: str, what: str) -> str:
        """The next token, which has to be of this class."""
        if self.at >= len(self.tokens) or self.tokens[self.at].kind != kind:
            raise self.error(f"expected {what}")
        self.at += 1
        return self.tokens[self.at - 1].text

    def skip(self, text: str) -> None:
        """The next token has to be this one."""
        if self.peek() != text:
            raise self.error(f"expected {text!r}")
        self.at += 1

    def found(self, text: str) -> bool:
        """Whether the next token is this one; if so it is taken."""
        if self.peek() != text:
            return False
        self.at += 1
        return True

    def end(self) -> None:
        """Nothing may follow."""
        if self.at < len(self.tokens):
            raise self.error("unexpected text at the end of the line")

    def integer(self, what: str) -> int:
        """A whole number of moderate length."""
        column = self.tokens[self.at].column if self.at < len(self.tokens) else None
        found = self._number(self.take("number", what))
        if not isinstance(found, int):
            raise self.error(f"expected {what}", column)
        return whole(found)

    def _number(self, text: str) -> int | Fraction:
        top, slash, bottom = text.partition("/")
        if max(len(top), len(bottom)) > MAX_DIGITS:
            raise ProgramSizeError(f"the number {shown(text)} has too many digits")
        return fraction(text) if slash else int(top)

    def value(self) -> int:
        """A value like %3."""
        text = self.take("value", "a value like %0")
        if len(text) > 12:
            raise ProgramSizeError(f"the value {shown(text)} is too long")
        return int(text[1:])

    def values(self) -> tuple[int, ...]:
        """Values between commas."""
        found = [self.value()]
        while self.found(","):
            found.append(self.value())
        return tuple(found)

    def label(self) -> str:
        """A name, bare or quoted."""
        token = self.tokens[self.at] if self.at < len(self.tokens) else None
        if token is None or token.kind not in ("word", "string"):
            raise self.error("expected a name")
        self.at += 1
        if token.kind == "word":
            return name(token.text)
        try:
            return name(json.loads(token.text))
        except json.JSONDecodeError as error:
            raise self.error("a string that cannot be read", token.column) from error

    def plain(self) -> Plain:
        """An attribute's value: a number, a name, * for none, or a flat list of them."""
        if not self.found("["):
            return self._scalar()
        items: list[Plain] = []
        while not self.found("]"):
            if items:
                self.skip(",")
            items.append(self._scalar())
        return items

    def _scalar(self) -> Plain:
        if self.found("*"):
            return None
        if self.at < len(self.tokens) and self.tokens[self.at].kind == "number":
            return self._number(self.take("number", "a number"))
        return self.label()

    def shape(self) -> Shape:
        """Extents in brackets."""
        start = self.tokens[self.at].column if self.at < len(self.tokens) else None
        found: Shape = several(INT).read(self.plain())
        if any(extent < 1 for extent in found):
            raise self.error("extents are at least 1", start)
        return found

    def type(self) -> TensorType:
        """dtype[extents]."""
        column = self.tokens[self.at].column if self.at < len(self.tokens) else None
        dtype = DTYPE_NAMES.get(self.take("word", "an element type"))
        if dtype is None:
            raise self.error("unknown element type", column)
        return TensorType(self.shape(), dtype)


class _Reader:
    """Reads a kernel graph line by line; nesting is at most kernel, block, thread."""

    def __init__(self, lines: list[tuple[int, str]]) -> None:
        self.lines = lines
        self.at = 0
        self.operators = 0

    def next(self, what: str) -> _Line:
        """The next line."""
        if self.at >= len(self.lines):
            raise FormatError(f"the text ends where {what} should follow")
        self.at += 1
        return _Line(*self.lines[self.at - 1])

    def graph(self) -> KernelGraph:
        """The whole text."""
        head = self.next("the header")
        head.skip(HEADER)
        version = head.integer("a version")
        if version != VERSION:
            raise head.error(f"version {version} of the text form; this program reads {VERSION}", 1)
        head.end()
        inputs: list[Input] = []
        outputs: list[int] = []
        names: list[str] = []
        graph = KernelGraph.start()
        while self.at < len(self.lines):
            line = self.next("an operator")
            if line.peek() == "input" and not graph.ops and not outputs:
                inputs.append(self._input(line, len(inputs)))
                graph = KernelGraph.start(*inputs)
            elif line.found("output"):
                outputs.append(line.value())
                names.append(line.label())
                line.end()
            elif outputs:
                raise line.error("an operator after the outputs")
            else:
                graph = self._operator(graph, line)
        return self._returning(graph, tuple(outputs), tuple(names))

    def _input(self, line: _Line, number: int) -> Input:
        line.skip("input")
        if number >= MAX_OPERATORS:
            raise ProgramSizeError(f"more than {MAX_OPERATORS} inputs")
        if line.value() != number:
            raise line.error(f"input %{number} comes here", 1)
        try:
            found = Input(line.label(), line.type())
            if line.found("size"):
                size = Size(line.label(), line.integer("the least extent"), line.integer("the largest extent"))
                found = replace(found, size=size)
            known: dict[str, Any] = {word: line.found(word) for word in INPUT_WORDS}
            found = replace(found, **known)
            line.end()
            check_size(found.type.shape)
        except MirageError as error:
            raise self._located(error, line) from error
        return found

    @staticmethod
    def _returning(graph: KernelGraph, outputs: tuple[int, ...], names: tuple[str, ...]) -> KernelGraph:
        try:
            return graph.returning(outputs, names) if outputs else graph
        except GraphError as error:
            raise FormatError(error.message, hint=error.hint) from error

    def _operator(self, graph: G, line: _Line) -> G:
        """`graph` with the operator on this line, and on those after it up to its closing brace."""
        try:
            return self._appended(graph, line)
        except MirageError as error:
            raise self._located(error, line) from error

    def _appended(self, graph: G, line: _Line) -> G:
        self.operators += 1
        if self.operators > MAX_OPERATORS:
            raise ProgramSizeError(f"more than {MAX_OPERATORS} operators")
        results: tuple[int, ...] = ()
        if line.peek().startswith("%"):
            results = line.values()
            line.skip("=")
        kind = KINDS.get(line.peek())
        if kind is None:
            called = line.tokens[line.at + 1 : line.at + 2]
            known = bool(called) and called[0].text == "("
            raise line.error("unknown operator", hint=suggestion(line.peek(), KINDS) if known else NODES)
        line.at += 1
        start = len(graph.types)
        longer = graph.append(self._complete(graph, line, kind, self._operands(line), self._attributes(line)))
        found = longer.types[start:]
        if results != tuple(range(start, start + len(found))):
            named = ", ".join(f"%{start + i}" for i in range(len(found))) or "no value"
            raise line.error(f"this operator defines {named}", 1)
        for t in found:
            check_size(t.shape)
        self._check_types(line, found)
        line.end()
        return longer

    def _operands(self, line: _Line) -> tuple[int, ...]:
        if not line.found("("):
            return ()
        found = line.values()
        line.skip(")")
        return found

    def _attributes(self, line: _Line) -> dict[str, Plain]:
        found: dict[str, Plain] = {}
        while line.at < len(line.tokens) and line.tokens[line.at].kind == "word":
            field = line.take("word", "an attribute")
            if field in found:
                raise line.error(f"{shown(field)} is given twice")
            line.skip("=")
            found[field] = line.plain()
        return found

    def _complete(
        self, graph: Graph, line: _Line, kind: OpKind, operands: tuple[int, ...], attrs: dict[str, Plain]
    ) -> Op:
        """The operator with its body, which the following lines give."""
        if any(v >= len(graph.types) for v in operands):
            raise line.error(f"{kind.value} reads a value that is not defined before it")
        types = tuple(graph.types[v] for v in operands)
        if kind is OpKind.GRAPH and isinstance(graph, KernelGraph):
            return Op(kind, operands, body=self._block(line, types, attrs))
        if kind is OpKind.FUSED and isinstance(graph, BlockGraph) and not attrs:
            return Op(kind, operands, body=self._thread(line, types))
        return Op(kind, operands, read_attrs(kind, attrs))

    def _block(self, line: _Line, args: tuple[TensorType, ...], attrs: dict[str, Plain]) -> BlockGraph:
        grid = several(INT).read(attrs.pop("grid", []))
        loop = whole(attrs.pop("loop", 1))
        read_attrs(OpKind.GRAPH, attrs)
        check_launch(grid, loop)
        graph = BlockGraph.start(args, grid, loop)
        self._open(line)
        while not (inner := self.next("a closing brace")).found("}"):
            graph = self._operator(graph, inner)
        inner.end()
        return graph

    def _thread(self, line: _Line, args: tuple[TensorType, ...]) -> ThreadGraph:
        graph = ThreadGraph.start(args)
        self._open(line)
        while not (inner := self.next("return")).found("return"):
            graph = self._operator(graph, inner)
        outputs = inner.values()
        inner.end()
        if any(v >= len(graph.types) for v in outputs):
            raise inner.error("returns a value that is not defined")
        last = self.next("a closing brace")
        last.skip("}")
        last.end()
        return graph.returning(outputs)

    @staticmethod
    def _open(line: _Line) -> None:
        line.skip("{")
        line.end()

    @staticmethod
    def _check_types(line: _Line, found: tuple[TensorType, ...]) -> None:
        """Types written at the right have to be the ones that follow from the operator."""
        if not line.found(":"):
            return
        for number, expected in enumerate(found):
            if number:
                line.skip(",")
            column = line.tokens[line.at].column if line.at < len(line.tokens) else None
            given = line.type()
            if (given.shape, given.dtype) != (expected.shape, expected.dtype):
                raise line.error(f"the type is {expected}", column)

    @staticmethod
    def _located(error: MirageError, line: _Line) -> MirageError:
        """The same with its place; what breaks a rule of graphs makes a text that cannot be read."""
        kind = ProgramSizeError if isinstance(error, ProgramSizeError) else FormatError
        return kind(error.message, hint=error.hint, span=error.span or line.error("", 1).span)

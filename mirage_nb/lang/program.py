"""Tensor programs: the result of parsing, and the statements that make one.

In: text, a name, sizes given from outside. Out: a frozen TensorProgram. Invariant: the graph holds every input in
the order of declaration and only operators that an output needs, each with its place in the text (paper section 2).
"""

from __future__ import annotations

import ast
import operator
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mirage_nb.errors import (
    DTypeError,
    DuplicateNameError,
    FormatError,
    MirageError,
    OptionError,
    ProgramSizeError,
    ProgramSyntaxError,
    ShapeError,
    SourceSpan,
    UnknownNameError,
)
from mirage_nb.ir import formula
from mirage_nb.ir.dtypes import DTYPE_NAMES, TensorType
from mirage_nb.ir.graph import KernelGraph
from mirage_nb.lang.builder import Builder, Value
from mirage_nb.lang.constants import Number, shorten
from mirage_nb.lang.expressions import Binding, Expressions, suggestion
from mirage_nb.lang.functions import defined
from mirage_nb.lang.limits import MAX_TEXT
from mirage_nb.lang.source import Source, read

_DECLARE = "an input is declared as X: f16[2, 3]"
_DEFINE = "a function is defined in one line: def softplus(x): return log(1 + exp(x))"


@dataclass(frozen=True, slots=True)
class Remark:
    """Something that is no mistake but hardly meant, such as a name that nothing reads."""

    message: str
    span: SourceSpan

    def __str__(self) -> str:
        return f"{self.message}\n{self.span.caret()}"


@dataclass(frozen=True, slots=True)
class TensorProgram:
    """A tensor program: its text and the kernel graph of pre-defined operators that it stands for.

    Attributes:
        name: what the program is called; may be empty.
        text: the program as it was written.
        graph: the operators, shapes concrete, outputs named after the returned variables.
        spans: the place in the text of every operator of `graph`.
        sizes: the integer constants with their final values, in the order of the text.
        remarks: what the author may want to know.
    """

    name: str
    text: str
    graph: KernelGraph
    spans: tuple[SourceSpan, ...]
    sizes: Mapping[str, int] = field(hash=False)
    remarks: tuple[Remark, ...] = ()

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs, in the order of declaration."""
        return tuple(i.name for i in self.graph.inputs)

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the outputs, in the order of `return`."""
        return self.graph.output_names


def parse(text: str, *, name: str = "", sizes: Mapping[str, int] | None = None) -> TensorProgram:
    """Read a tensor program; its text is never executed.

    Args:
        text: the program (see `reference()` for the language).
        name: what to call it.
        sizes: new values for integer constants of the program, by name.

    Raises:
        MirageError: one of its subclasses, with the place of the mistake and a hint.
    """
    source, tree = read(text)
    statements = _Statements(source, tree, _checked_sizes(sizes or {}))
    return statements.program(name, text)


def load(
    path: str | os.PathLike[str], *, name: str = "", sizes: Mapping[str, int] | None = None
) -> TensorProgram:
    """Read a tensor program from a UTF-8 file; its name is the file's unless given.

    A byte order mark and the line ends of other systems are part of the file, not of the program.

    Raises:
        FormatError: the file cannot be read, or is not UTF-8.
        MirageError: as `parse`.
    """
    file = Path(path)
    try:
        with file.open(encoding="utf-8-sig") as stream:
            text = stream.read(MAX_TEXT + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "it is not UTF-8 text"
        raise FormatError(f"{file} cannot be read: {reason}", hint="programs are UTF-8 text files") from None
    return parse(text, name=name or file.stem, sizes=sizes)


def _called(extent: ast.expr) -> str:
    """What a text calls an extent: K for K, 2B for 2 * B; nothing for a number and for other expressions."""
    match extent:
        case ast.Name(id=name):
            return name
        case ast.BinOp(left=ast.Constant(value=int(number)), op=ast.Mult(), right=ast.Name(id=name)):
            return f"{number}{name}"
        case _:
            return ""


def _checked_sizes(sizes: Mapping[str, int]) -> dict[str, Number]:
    checked: dict[str, Number] = {}
    for name, value in sizes.items():
        try:
            index = None if isinstance(value, bool) else operator.index(value)
        except TypeError:
            index = None
        if index is None:
            raise OptionError(f"size {name} is an integer, not {shorten(repr(value))}", hint=f"for example {name}=8")
        checked[name] = Number.of(index)
    return checked


class _Statements:
    """Reads the statements of one program from top to bottom."""

    def __init__(self, source: Source, tree: ast.Module, sizes: dict[str, Number]) -> None:
        self.source = source
        self.body = tree.body
        self.sizes = sizes
        self.builder = Builder()
        defined_in: dict[str, int] = {}
        for statement in tree.body:
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                    defined_in.setdefault(name, statement.lineno)
        self.expressions = Expressions(source, self.builder, defined_in)
        self.bindings = self.expressions.bindings
        self.outputs: tuple[tuple[str, Value], ...] = ()

    def program(self, name: str, text: str) -> TensorProgram:
        """The whole program."""
        for statement in self.body:
            if self.outputs:
                raise self._error(ProgramSyntaxError, "nothing may follow the return", "return comes last", statement)
            self.expressions.reads = set()
            self._statement(statement)
        self._check_overrides()
        if not self.outputs:
            raise self._no_return()
        graph, spans = self.builder.finish(self.outputs)
        sizes = {
            called: binding.term.integer
            for called, binding in self.bindings.items()
            if isinstance(binding.term, Number) and binding.term.integer is not None
        }
        return TensorProgram(name, text, graph, spans, sizes, self._remarks())

    def _statement(self, statement: ast.stmt) -> None:
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name) as target, annotation=annotation, value=None):
                self._declare(name, target, annotation)
            case ast.AnnAssign(target=ast.Name(), value=ast.expr() as value):
                raise self._error(ProgramSyntaxError, "an input has no value of its own", _DECLARE, value)
            case ast.Assign(targets=[ast.Name(id=name) as target], value=value):
                self._assign(name, target, value)
            case ast.Assign(targets=[_, target, *_]):
                hint = "write one assignment per line"
                raise self._error(ProgramSyntaxError, "an assignment defines one name", hint, target)
            case ast.Assign(targets=[target]) | ast.AnnAssign(target=target):
                raise self._error(ProgramSyntaxError, "only a name can be assigned", "write NAME = expression", target)
            case ast.FunctionDef():
                self._define(statement)
            case ast.Return(value=None):
                raise self._error(ProgramSyntaxError, "return names nothing", "write return Y", statement)
            case ast.Return(value=ast.expr() as value):
                self._return(value)
            case ast.Expr(value=value):
                hint = "write NAME = expression, or return expression"
                raise self._error(ProgramSyntaxError, "the value of this line is not used", hint, value)
            case _:
                hint = "statements are X: f16[2, 3], Y = expression, return Y"
                raise self._error(ProgramSyntaxError, "this is not a statement of the language", hint, statement)

    def _error(self, kind: type[MirageError], message: str, hint: str, node: ast.expr | ast.stmt) -> MirageError:
        return kind(message, hint=hint, span=self.source.of(node))

    def _new_name(self, name: str, node: ast.expr | ast.stmt) -> None:
        if name in self.expressions.functions:
            raise self._error(DuplicateNameError, f"{name} is a function", "choose another name", node)
        if (binding := self.bindings.get(name)) is not None:
            hint = f"names are defined once; the first is in line {binding.place.line}"
            raise self._error(DuplicateNameError, f"{name} is already defined", hint, node)

    def _define(self, statement: ast.FunctionDef) -> None:
        """`def f(x): return formula`: an elementwise function of the program's own."""
        match statement:
            case ast.FunctionDef(
                args=ast.arguments(
                    posonlyargs=[], args=[ast.arg(arg=argument, annotation=None)], vararg=None, kwonlyargs=[],
                    kwarg=None, defaults=[]
                ),
                body=[ast.Return(value=ast.expr() as value)],
            ):  # fmt: skip
                pass
            case _:
                raise self._error(ProgramSyntaxError, "this is not a function of one number", _DEFINE, statement)
        self._new_name(statement.name, statement)
        numbers = {
            name: binding.term.rational
            for name, binding in self.bindings.items()
            if isinstance(binding.term, Number) and binding.term.rational is not None
        }

        def blame(node: ast.expr, message: str, hint: str) -> MirageError:
            return self._error(ProgramSyntaxError, message, hint, node)

        try:
            text = formula.canonical(formula.of_node(value, argument, numbers, blame))
        except MirageError as error:
            raise type(error)(error.message, hint=error.hint, span=error.span or self.source.of(value)) from None
        self.expressions.functions[statement.name] = defined(statement.name, text)

    def _declare(self, name: str, target: ast.expr, annotation: ast.expr) -> None:
        """`X: f16[2*B, D]`."""
        self._new_name(name, target)
        if isinstance(annotation, ast.Constant):
            raise self._error(ProgramSyntaxError, "this is not a tensor type", f"a constant is {name} = 4", annotation)
        written = annotation.value if isinstance(annotation, ast.Subscript) else annotation
        if not isinstance(written, ast.Name):
            raise self._error(ProgramSyntaxError, "this is not a tensor type", _DECLARE, annotation)
        if written.id not in DTYPE_NAMES:
            hint = suggestion(written.id, DTYPE_NAMES) or f"dtypes are {', '.join(DTYPE_NAMES)}"
            raise self._error(DTypeError, f"there is no dtype {written.id}", hint, written)
        if not isinstance(annotation, ast.Subscript):
            hint = f"write {name}: {written.id}[2, 3]"
            raise self._error(ProgramSyntaxError, "this tensor type has no shape", hint, annotation)
        inside = annotation.slice
        extents = inside.elts if isinstance(inside, ast.Tuple) else [inside]
        if not extents:
            raise self._error(ShapeError, "a tensor has at least one dimension", _DECLARE, annotation)
        tensor = TensorType(tuple(self._extent(extent) for extent in extents), DTYPE_NAMES[written.id])
        try:
            value = self.builder.declare(name, tensor, tuple(map(_called, extents)))
        except ProgramSizeError as error:
            raise self._error(ProgramSizeError, error.message, error.hint, annotation) from None
        self._bind(name, target, value, is_input=True)

    def _extent(self, node: ast.expr) -> int:
        extent = self.expressions.integer(node, "an extent")
        if extent < 1:
            message = f"this extent is {shorten(str(extent))}"
            raise self._error(ShapeError, message, "extents are at least 1", node)
        return extent

    def _assign(self, name: str, target: ast.expr, value: ast.expr) -> None:
        """`Y = expression`, with the size from outside if there is one for this constant."""
        self._new_name(name, target)
        term = self.expressions.term(value)
        if name in self.sizes:
            if not isinstance(term, Number) or term.integer is None:
                hint = "sizes are integer constants, such as B = 8"
                raise self._error(OptionError, f"{name} is not a size", hint, target)
            term = self.sizes[name]
        self._bind(name, target, term)

    def _bind(self, name: str, target: ast.expr, term: Number | Value, is_input: bool = False) -> None:
        reads = frozenset(self.expressions.reads)
        self.bindings[name] = Binding(term, self.source.of(target), reads, is_input)

    def _return(self, value: ast.expr) -> None:
        """`return Y` or `return Y, Z`; expressions are named O, or O0, O1, ..."""
        nodes = value.elts if isinstance(value, ast.Tuple) else [value]
        if not nodes:
            raise self._error(ProgramSyntaxError, "return names nothing", "write return Y", value)
        found: dict[Value, str] = {}
        for index, node in enumerate(nodes):
            name = node.id if isinstance(node, ast.Name) else self._free_name("O" if len(nodes) == 1 else f"O{index}")
            term = self.expressions.term(node)
            if isinstance(term, Number):
                message = f"a program returns tensors, not the number {shorten(str(term))}"
                raise self._error(ShapeError, message, "return a tensor", node)
            if self.builder.definition(term) is None:
                hint = "return what is computed from the inputs"
                raise self._error(ProgramSyntaxError, f"{name} is an input, unchanged", hint, node)
            if term in found:
                message = f"{name} is the same tensor as {found[term]}" if name != found[term] else f"{name} again"
                raise self._error(DuplicateNameError, message, "return every tensor once", node)
            found[term] = name
        self.outputs = tuple((name, term) for term, name in found.items())

    def _free_name(self, name: str) -> str:
        while name in self.expressions.bindings:
            name += "_"
        return name

    def _check_overrides(self) -> None:
        """Every size from outside has changed a constant."""
        for name in self.sizes:
            binding = self.bindings.get(name)
            if binding is None:
                constants = [n for n, b in self.bindings.items() if isinstance(b.term, Number)]
                known = f"the sizes are {', '.join(constants)}" if constants else "the program has no sizes"
                raise UnknownNameError(
                    f"the program has no size {shorten(str(name))}", hint=suggestion(str(name), constants) or known
                )
            if binding.is_input:
                raise OptionError(
                    f"{name} is an input, not a size",
                    hint="sizes are integer constants, such as B = 8",
                    span=binding.place,
                )

    def _no_return(self) -> MirageError:
        if not self.body:
            return ProgramSyntaxError("the program is empty", hint=_DECLARE, span=self.source.span(1, 1, 1))
        made = [name for name, binding in self.bindings.items() if not binding.is_input]
        hint = f"end with: return {made[-1] if made else 'Y'}"
        return self._error(ProgramSyntaxError, "the program returns nothing", hint, self.body[-1])

    def _remarks(self) -> tuple[Remark, ...]:
        """Names on which no output depends."""
        pending, live = list(self.expressions.reads), set[str]()
        while pending:
            name = pending.pop()
            if name not in live:
                live.add(name)
                pending.extend(self.bindings[name].reads)
        return tuple(
            Remark(f"{name} is {'declared' if binding.is_input else 'defined'} and no output needs it", binding.place)
            for name, binding in self.bindings.items()
            if name not in live
        )

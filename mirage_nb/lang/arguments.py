"""Reads the arguments of calls: which belongs to which parameter, and what it is.

In: the node of a call, the row of its function. Out: one value per parameter, as its kind says. Invariant: a mistake
in an argument is told at that argument.
"""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from mirage_nb.errors import MirageError, ProgramSyntaxError, ShapeError, SourceSpan
from mirage_nb.lang.builder import Builder, Infinity, Nothing, Result, Term, Text, Value, is_tensor
from mirage_nb.lang.constants import Number, literal, shorten
from mirage_nb.lang.hints import suggestion
from mirage_nb.lang.names import PARAMETERS, shown
from mirage_nb.lang.sequences import named
from mirage_nb.lang.signature import REST, Function, Kind, Parameter
from mirage_nb.lang.source import Source


@dataclass(frozen=True, slots=True)
class Inlined:
    """A function that stands for its statements, anew wherever it is called.

    `parameters`: their names; `defaults`: the values of those that may be left out; `rest`: the name of all further
    positional arguments, if it takes any. `place`: of its definition, None for one of the language.
    """

    name: str
    parameters: tuple[str, ...]
    defaults: Mapping[str, Result]
    body: tuple[ast.stmt, ...]
    place: SourceSpan | None
    rest: str = ""
    keywords: tuple[str, ...] = ()
    """Parameters that only keywords give; all have defaults."""
    scope: ChainMap[str, Any] | None = None
    """The names that it sees, as they are where it is called."""
    functions: Mapping[str, Any] | None = None
    """The functions that it sees."""
    formula: Callable[[], Function | None] | None = None
    """What it is of elements, if it is that."""
    more: str = ""
    """The name of all further keywords, if it takes any."""
    reads: frozenset[Any] = frozenset()
    """What its defaults are made of."""

    @property
    def signature(self) -> str:
        """`block(x, w)`."""
        every = [name if name not in self.defaults else f"{name}=..." for name in self.parameters]
        rest = [f"{self.rest}..."] * bool(self.rest) + [f"**{self.more}"] * bool(self.more)
        return f"{self.called}({', '.join([*every, *rest])})"

    @property
    def called(self) -> str:
        """What programs call it: torch.max for one that is known as torch_max."""
        return self.name if self.place is not None else shown(self.name)


class Arguments:
    """What reading an argument needs of reading expressions."""

    source: Source
    builder: Builder

    @abstractmethod
    def term(self, node: ast.expr) -> Term:
        """What the expression stands for: one tensor or constant."""

    @abstractmethod
    def result(self, node: ast.expr) -> Result:
        """What the expression stands for, whatever it is."""

    @abstractmethod
    def lowered(self, node: ast.expr, rule: str, lower: Callable[..., Result], *arguments: object) -> Result:
        """The lowering of one node."""

    @abstractmethod
    def foreign(self, node: ast.expr) -> MirageError:
        """The error for an expression that Python has and programs have not."""

    @abstractmethod
    def family(self, node: ast.expr) -> str | None:
        """Of which library an expression is a module, if it is one."""

    @abstractmethod
    def settled(self, node: ast.expr, function: Callable[..., Any], *arguments: object) -> Any:
        """What a function of the reader says, its mistakes told at the node."""

    def integer(self, node: ast.expr, what: str) -> int:
        """An integer constant; `what` names its role in the error."""
        return self._integer(self.term(node), node, what)

    def index(self, term: Result, node: ast.expr, what: str) -> int:
        """An integer constant that is written as one: 1.0 and True are none, as in Python."""
        found, inner = self._integer(term, node, what), node.operand if isinstance(node, ast.UnaryOp) else node
        if isinstance(inner, ast.Constant) and isinstance(inner.value, bool | float):
            written = self.source.text_of(inner)
            raise ShapeError(f"{what} is an integer, not {written}", hint=f"write {found}", span=self.source.of(node))
        return found

    def _integer(self, term: Result, node: ast.expr, what: str) -> int:
        if isinstance(term, Number) and term.integer is not None:
            return term.integer
        found = shorten(self.source.text_of(node) if isinstance(term, Text) else str(term))
        raise ShapeError(
            f"{what} is an integer constant, not {found if isinstance(term, Number | Text) else 'a tensor'}",
            hint="constants are defined as NAME = 16; // divides without remainder",
            span=self.source.of(node),
        )

    def arguments(self, node: ast.Call, function: Function, first: ast.expr | None, loose: bool) -> list[object]:
        """One value per parameter, in order. `first`: the tensor whose method is called; `loose`: parameters that
        stand behind a * may be given by their place."""
        given = self._matched(node, function, first, loose)
        values: list[object] = []
        rank = 0
        for index, parameter in enumerate(function.parameters):
            value = self._argument(function, parameter, given[parameter.name], rank)
            if index == 0 and parameter.kind in (Kind.TENSOR, Kind.TENSORS, Kind.TERM):
                leading = value[0] if isinstance(value, tuple) and value else value
                rank = len(self.builder.shape(Value(leading))) if isinstance(leading, int) else 0
            values.append(value)
        return values

    def parameters(self, node: ast.Call, function: Inlined, first: ast.expr | None) -> dict[str, Result]:
        """What the parameters of a function stand for in a call of it."""
        names, hint = function.parameters, f"write {function.signature}"
        given: dict[str, Result] = {}
        rest: list[Result] = []
        more: dict[str, Result] = {}
        every = [*([first] if first is not None else []), *node.args]
        for index, argument in enumerate(every):
            if isinstance(argument, ast.Starred):
                raise self.foreign(argument)
            if index < len(names):
                given[names[index]] = self.result(argument)
            elif function.rest:
                rest.append(self.result(argument))
            else:
                message = f"{function.called} takes {count(len(names), 'argument')}, not {len(every)}"
                raise ProgramSyntaxError(message, hint=hint, span=self.source.of(argument))
        for keyword in node.keywords:
            place = self.source.of(keyword)
            if keyword.arg is None:
                raise ProgramSyntaxError("programs do not unpack with **", hint=hint, span=place)
            known = (*names, *function.keywords)
            name = meant(keyword.arg, known) if function.place is None else keyword.arg
            if name not in known and function.more and name not in more:
                more[name] = self.result(keyword.value)
                continue
            if name not in known or name in given:
                word = keyword.arg
                twice = name in known or name in more
                message = f"{word} is given twice" if twice else f"{function.called} has no keyword {word}"
                place = self.source.span(place.line, place.column, len(keyword.arg))
                near = "" if twice else suggestion(word, names)
                raise ProgramSyntaxError(message, hint=near or hint, span=place)
            given[name] = self.result(keyword.value)
        for name in (*names, *function.keywords):
            if name in function.defaults:
                given.setdefault(name, function.defaults[name])
            if name not in given:
                raise ProgramSyntaxError(f"{function.called} needs {name}", hint=hint, span=self.source.of(node))
        if function.rest:
            given[function.rest] = tuple(rest)
        if function.more:
            given[function.more] = named((Text(name), one) for name, one in more.items())
        return given

    def _matched(
        self, node: ast.Call, function: Function, first: ast.expr | None, loose: bool
    ) -> dict[str, list[ast.expr]]:
        """Which nodes belong to which parameter; defaults fill the gaps."""
        given: dict[str, list[ast.expr]] = {p.name: [] for p in function.parameters}
        places = [p for p in function.parameters if loose or not p.keyword_only]
        signature = f"write {function.signature}"
        every = [*([first] if first is not None else []), *node.args]
        for index, argument in enumerate(every):
            if isinstance(argument, ast.Starred):
                raise self.foreign(argument)
            if index >= len(places) and places[-1].kind not in REST:
                raise ProgramSyntaxError(
                    f"{function.name} takes {count(len(places), 'plain argument')}, not {len(every)}",
                    hint=signature,
                    span=self.source.of(argument),
                )
            given[places[min(index, len(places) - 1)].name].append(argument)
        for keyword in node.keywords:
            written, place = keyword.arg, self.source.of(keyword)
            if written is None:
                raise ProgramSyntaxError("programs do not unpack with **", hint=signature, span=place)
            place = self.source.span(place.line, place.column, len(written))
            name = meant(written, given)
            named = next((p for p in function.parameters if p.name == name), None)
            if named is None:
                near = suggestion(written, (p.name for p in function.parameters if p.kind not in REST))
                message = f"{function.name} has no keyword {written}"
                raise ProgramSyntaxError(message, hint=near or signature, span=place)
            if given[name]:
                raise ProgramSyntaxError(f"{name} is given twice", hint=signature, span=place)
            given[name].append(keyword.value)
        for parameter in function.parameters:
            if given[parameter.name] or parameter.kind is Kind.REST_AXES:
                continue
            if parameter.default is None:
                raise ProgramSyntaxError(
                    f"{function.name} needs {parameter.name}: {parameter.kind.value}",
                    hint=signature,
                    span=self.source.of(node),
                )
        return given

    def _argument(self, function: Function, parameter: Parameter, nodes: list[ast.expr], rank: int) -> object:
        """The value of one parameter: a Term, Number, int, tuple of int, bool, or None where that is the default."""
        what = f"the {parameter.name} of {function.name}"
        match parameter.kind:
            case Kind.REST_AXES:
                return tuple(self._axis(term, node, rank) for node, term in self._each(nodes))
            case Kind.REST_EXTENTS:
                return tuple(self._integer(term, node, "an extent") for node, term in self._each(nodes))
            case Kind.REST_TENSORS:
                return tuple(self._tensor(function, term, node) for node, term in self._each(nodes))
        if not nodes:
            return _default(parameter, rank)
        (node,) = nodes
        found = self.result(node)
        if isinstance(found, Nothing) and parameter.default == "None":
            return _default(parameter, rank)
        match parameter.kind:
            case Kind.AXES if function.name in ("max", "min") and not self._is_axis(found, rank):
                hint = f"{function.name}imum(x, y) compares two: relu is maximum(x, 0)"
                shown = f"axis {shorten(str(found))}" if isinstance(found, Number) else "such axis"
                raise ShapeError(f"there is no {shown} for {function.name}", hint=hint, span=self.source.of(node))
            case Kind.AXES:
                return self._axes(found, node, rank)
            case Kind.COUNTS if isinstance(found, tuple):
                return tuple(self._integer(element, node, what) for element in found)
            case Kind.TENSORS if isinstance(found, tuple):
                pairs = zip(found, places(node, found), strict=True)
                return tuple(self._tensor(function, one, at) for one, at in pairs)
            case Kind.TEXT if isinstance(found, Text):
                return found.value
            case Kind.TEXT:
                hint = f"write {function.example}"
                raise ProgramSyntaxError(f"{what} is {parameter.kind.value}", hint=hint, span=self.source.of(node))
            case Kind.FLAG:
                return self._flag(found, node, parameter, what)
            case Kind.CHOICE if isinstance(found, Infinity):
                return found
            case Kind.TERM if isinstance(found, Infinity) and parameter.default == "None":
                return None
        term = self.term_of(found, node)
        match parameter.kind:
            case Kind.TERM | Kind.CHOICE:
                return term
            case Kind.TENSOR | Kind.TENSORS:
                return self._tensor(function, term, node)
            case Kind.NUMBER if isinstance(term, Number):
                return term
            case Kind.NUMBER:
                message = f"{what} is a constant, not a tensor"
                raise ProgramSyntaxError(message, hint=f"write {function.signature}", span=self.source.of(node))
            case Kind.COUNT | Kind.COUNTS:
                return self._integer(term, node, what)
            case Kind.NEW_AXIS:
                return self._axis(term, node, rank + 1)
            case Kind.AXIS:
                return self._axis(term, node, rank)
        raise AssertionError(parameter.kind)  # the others returned above

    @abstractmethod
    def term_of(self, found: Result, node: ast.expr) -> Term:
        """What was found, which must be one tensor or constant."""

    def _flag(self, found: Result, node: ast.expr, parameter: Parameter, what: str) -> bool:
        plain = isinstance(node, ast.Constant) and not isinstance(node.value, bool)
        if isinstance(found, Number) and found.integer in (0, 1) and not plain:
            return bool(found.integer)
        raise ProgramSyntaxError(
            f"{what} is True or False", hint=f"write {parameter.name}=True", span=self.source.of(node)
        )

    def _each(self, nodes: list[ast.expr]) -> Iterable[tuple[ast.expr, Result]]:
        """`reshape(x, (2, 3))` is `reshape(x, 2, 3)`, as in NumPy."""
        if len(nodes) == 1 and isinstance(found := self.result(nodes[0]), tuple):
            return zip(places(nodes[0], found), found, strict=True)
        return [(node, self.term(node)) for node in nodes]

    def _tensor(self, function: Function, term: Result, node: ast.expr) -> Term:
        found = self.term_of(term, node)
        if isinstance(found, Number):
            message = f"{function.name} takes a tensor, not the number {shorten(str(found))}"
            raise ProgramSyntaxError(message, hint=f"write {function.signature}", span=self.source.of(node))
        lowered = self.lowered(node, "", Builder.tensor, found, function.name)
        assert is_tensor(lowered)
        return lowered

    def _axis(self, term: Result, node: ast.expr, rank: int) -> int:
        """A dimension counted from 0; negative axes count from the end."""
        axis = self._integer(term, node, "an axis")
        if not -rank <= axis < rank:
            raise ShapeError(
                f"there is no axis {shorten(str(axis))}: the tensor has {count(rank, 'dimension')}",
                hint=f"axes go from {-rank} to {rank - 1}",
                span=self.source.of(node),
            )
        return axis % rank

    def _is_axis(self, found: Result, rank: int) -> bool:
        number = found.integer if isinstance(found, Number) else None
        return isinstance(found, tuple) or (number is not None and -rank <= number < rank)

    def _axes(self, found: Result, node: ast.expr, rank: int) -> tuple[int, ...]:
        """One axis, or several in parentheses; each once."""
        elements = found if isinstance(found, tuple) else (found,)
        axes: list[int] = []
        for element, at in zip(elements, places(node, elements), strict=True):
            axis = self._axis(element, at, rank)
            if axis in axes:
                raise ShapeError(f"axis {axis} is named twice", hint="name each once", span=self.source.of(at))
            axes.append(axis)
        return tuple(sorted(axes))


def places(node: ast.expr, found: Sequence[object]) -> list[ast.expr]:
    """The nodes of the elements of a sequence: its own, where it is written out, else the whole."""
    written = node.elts if isinstance(node, ast.Tuple | ast.List) else []
    return written if len(written) == len(found) else [node] * len(found)


def is_text(node: ast.expr, text: str | None = None) -> TypeGuard[ast.Constant]:
    """Whether a text is written out here, or this one is."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and text in (None, node.value)


def meant(written: str, known: Iterable[str]) -> str:
    """The parameter that a keyword means: of its own name, or of another one that people know it by."""
    names = set(known)
    return written if written in names else next((n for n in PARAMETERS if written in PARAMETERS[n] and n in names), "")


def _default(parameter: Parameter, rank: int) -> object:
    """The value of an argument that is not given."""
    match parameter.kind, parameter.default:
        case Kind.AXES, "None":
            return tuple(range(rank))
        case Kind.AXIS, str(text) if text != "None":
            return int(text) % rank
        case (Kind.NEW_AXIS | Kind.COUNT | Kind.COUNTS), str(text) if text != "None":
            return int(text)
        case Kind.NUMBER, str(text) if text != "None":
            return literal(text)
        case Kind.FLAG, str(text):
            return text == "True"
    return None


def count(number: int, noun: str) -> str:
    """`1 tensor`, `2 tensors`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"

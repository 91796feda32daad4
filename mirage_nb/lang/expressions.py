"""Reads expressions: syntax nodes become terms, through the tables of functions and operators.

In: a syntax node and the names defined so far. Out: a tensor of the builder, or an exact constant. Invariant:
whatever goes wrong below, the error that leaves carries the place of the smallest node that is to blame.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import cast

from mirage_nb.errors import MirageError, ProgramSyntaxError, ShapeError, SourceSpan, UnknownNameError
from mirage_nb.lang.builder import Builder, Term, Value
from mirage_nb.lang.constants import Number, literal, shorten
from mirage_nb.lang.functions import FUNCTIONS, OPERATORS, REST, Function, Kind, Parameter
from mirage_nb.lang.source import Source


@dataclass(frozen=True, slots=True)
class Binding:
    """A name of the program: what it stands for, where it was defined, and the names read to make it."""

    term: Term
    place: SourceSpan
    reads: frozenset[str] = frozenset()
    is_input: bool = False


def suggestion(name: str, known: Iterable[str]) -> str:
    """`did you mean ...?` for the nearest known name, or nothing."""
    folded = {other.lower(): other for other in known}
    near = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.6)
    return f"did you mean {folded[near[0]]}?" if near else ""


class Expressions:
    """Reads the expressions of one program.

    `reads` collects the names that were looked up; `functions` are those of the language and of the program.
    """

    def __init__(self, source: Source, builder: Builder, defined_in: dict[str, int]) -> None:
        self.source = source
        self.builder = builder
        self.bindings: dict[str, Binding] = {}
        self.functions: dict[str, Function] = dict(FUNCTIONS)
        self.reads: set[str] = set()
        self._defined_in = defined_in

    def term(self, node: ast.expr) -> Term:
        """What the expression stands for."""
        match node:
            case ast.Name(id=name):
                return self._name(node, name)
            case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
                return self._lowered(node, "", lambda _: literal(self.source.text_of(node)))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
                row = OPERATORS[type(op)]
                return self._lowered(node, row.shape, row.lower, self.term(left), self.term(right))
            case ast.UnaryOp(op=op, operand=operand) if type(op) in OPERATORS:
                row = OPERATORS[type(op)]
                return self._lowered(node, row.shape, row.lower, self.term(operand))
            case ast.Attribute(value=inner, attr="T"):
                row = OPERATORS[ast.Attribute]
                return self._lowered(node, row.shape, row.lower, self.term(inner))
            case ast.Call(func=ast.Name(id=name)):
                function = self._function(node.func, name)
                return self._lowered(node, function.shape, function.lower, *self._arguments(node, function))
            case _:
                raise self._foreign(node)

    def integer(self, node: ast.expr, what: str) -> int:
        """An integer constant; `what` names its role in the error."""
        term = self.term(node)
        if isinstance(term, Number) and term.integer is not None:
            return term.integer
        found = f"not {shorten(str(term))}" if isinstance(term, Number) else "not a tensor"
        raise ShapeError(
            f"{what} is an integer constant, {found}",
            hint="constants are defined as NAME = 16; // divides without remainder",
            span=self.source.of(node),
        )

    def _lowered(self, node: ast.expr, rule: str, lower: Callable[..., Term], *arguments: object) -> Term:
        """The lowering of one node; its errors get the node's place, and the shape rule as their hint."""
        place = self.source.of(node)
        self.builder.place = place
        try:
            return lower(self.builder, *arguments)
        except MirageError as error:
            hint = error.hint or (f"shape rule: {rule}" if isinstance(error, ShapeError) and rule else "")
            raise type(error)(error.message, hint=hint, span=place) from None

    def _name(self, node: ast.expr, name: str) -> Term:
        if (binding := self.bindings.get(name)) is not None:
            self.reads.add(name)
            return binding.term
        if name in self.functions:
            message, hint = f"{name} is a function", f"call it: {self.functions[name].signature}"
        elif name in self._defined_in:
            message = f"{name} is used before it is defined"
            hint = f"its definition is in line {self._defined_in[name]}"
        else:
            message = f"there is no {name}"
            hint = suggestion(name, self.bindings) or "inputs are declared as X: f16[2, 3], constants as D = 64"
        raise UnknownNameError(message, hint=hint, span=self.source.of(node))

    def _function(self, node: ast.expr, name: str) -> Function:
        if name in self.bindings:
            raise ProgramSyntaxError(
                f"{name} is not a function", hint="a product is written with *", span=self.source.of(node)
            )
        if name not in self.functions:
            raise UnknownNameError(
                f"there is no function {name}",
                hint=suggestion(name, self.functions) or f"the functions are {', '.join(self.functions)}",
                span=self.source.of(node),
            )
        return self.functions[name]

    def _foreign(self, node: ast.expr) -> MirageError:
        """The error for an expression that Python has and programs have not."""
        message, hint = "this is not an expression of the language", "%mirage help lists the language"
        match node:
            case ast.Call(func=ast.Attribute(attr=name)) if name in self.functions:
                message = "functions are called by their plain names"
                hint = f"write {self.functions[name].signature}"
            case ast.Attribute(attr=name) | ast.Call(func=ast.Attribute(attr=name)):
                message, hint = f"tensors have no attribute {name}", ".T is the only one"
            case ast.Call():
                message, hint = "this is not a function", "a product is written with *"
            case ast.Subscript(value=ast.Name(id=name)) if name not in self.bindings:
                message, hint = "a tensor type stands behind a colon", "an input is declared as X: f16[2, 3]"
            case ast.Subscript():
                message, hint = "programs have no indexing", "transpose and reshape rearrange a tensor"
            case ast.Tuple() | ast.List():
                message, hint = "a sequence is not a tensor", "several axes are written axis=(0, 1)"
            case ast.Constant(value=value):
                message, hint = f"{value!r} is neither a tensor nor a number", "only options are True, False or None"
            case ast.UnaryOp(op=ast.UAdd()):
                message, hint = "programs have no unary +", "leave it out"
            case ast.Starred():
                message, hint = "programs do not unpack with *", "write the arguments out"
        return ProgramSyntaxError(message, hint=hint, span=self.source.of(node))

    # Arguments

    def _arguments(self, node: ast.Call, function: Function) -> list[object]:
        """One value per parameter, in order."""
        given = self._matched(node, function)
        values: list[object] = []
        rank = 0
        for parameter in function.parameters:
            value = self._argument(function, parameter, given[parameter.name], rank)
            if not values and not isinstance(value, Number):
                rank = len(self.builder.shape(Value(cast(int, value))))  # the first argument is a Term
            values.append(value)
        return values

    def _matched(self, node: ast.Call, function: Function) -> dict[str, list[ast.expr]]:
        """Which nodes belong to which parameter; defaults fill the gaps."""
        given: dict[str, list[ast.expr]] = {p.name: [] for p in function.parameters}
        places = [p for p in function.parameters if not p.keyword_only]
        signature = f"write {function.signature}"
        for index, argument in enumerate(node.args):
            if isinstance(argument, ast.Starred):
                raise self._foreign(argument)
            if index >= len(places) and places[-1].kind not in REST:
                raise ProgramSyntaxError(
                    f"{function.name} takes {_count(len(places), 'plain argument')}, not {len(node.args)}",
                    hint=signature,
                    span=self.source.of(argument),
                )
            given[places[min(index, len(places) - 1)].name].append(argument)
        for keyword in node.keywords:
            name, place = keyword.arg, self.source.of(keyword)
            if name is None:
                raise ProgramSyntaxError("programs do not unpack with **", hint=signature, span=place)
            place = self.source.span(place.line, place.column, len(name))
            named = next((p for p in function.parameters if p.name == name and p.kind not in REST), None)
            if named is None:
                near = suggestion(name, (p.name for p in function.parameters if p.kind not in REST))
                message = f"{function.name} has no keyword {name}"
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
                return tuple(self._axis(node, rank) for node in _unpacked(nodes))
            case Kind.REST_EXTENTS:
                return tuple(self.integer(node, "an extent") for node in _unpacked(nodes))
        if not nodes:
            return _default(parameter, rank)
        (node,) = nodes
        if isinstance(node, ast.Constant) and node.value is None and parameter.default == "None":
            return _default(parameter, rank)
        match parameter.kind:
            case Kind.TERM:
                return self.term(node)
            case Kind.TENSOR:
                return self._lowered(node, "", Builder.tensor, self.term(node), function.name)
            case Kind.NUMBER:
                if isinstance(term := self.term(node), Number):
                    return term
                raise ProgramSyntaxError(
                    f"{what} is a constant, not a tensor", hint=f"write {function.signature}", span=self.source.of(node)
                )
            case Kind.COUNT:
                return self.integer(node, what)
            case Kind.AXIS:
                return self._axis(node, rank)
            case Kind.AXES:
                return self._axes(node, rank)
            case Kind.FLAG:
                if isinstance(node, ast.Constant) and isinstance(node.value, bool):
                    return node.value
                raise ProgramSyntaxError(
                    f"{what} is True or False", hint=f"write {parameter.name}=True", span=self.source.of(node)
                )
        raise AssertionError(parameter.kind)  # the rest kinds returned above

    def _axis(self, node: ast.expr, rank: int) -> int:
        """A dimension counted from 0; negative axes count from the end."""
        axis = self.integer(node, "an axis")
        if not -rank <= axis < rank:
            raise ShapeError(
                f"there is no axis {shorten(str(axis))}: the tensor has {_count(rank, 'dimension')}",
                hint=f"axes go from {-rank} to {rank - 1}",
                span=self.source.of(node),
            )
        return axis % rank

    def _axes(self, node: ast.expr, rank: int) -> tuple[int, ...]:
        """One axis, or several in parentheses; each once."""
        nodes = node.elts if isinstance(node, ast.Tuple) else [node]
        axes: list[int] = []
        for element in nodes:
            axis = self._axis(element, rank)
            if axis in axes:
                raise ShapeError(f"axis {axis} is named twice", hint="name each once", span=self.source.of(element))
            axes.append(axis)
        return tuple(sorted(axes))


def _unpacked(nodes: list[ast.expr]) -> list[ast.expr]:
    """`reshape(x, (2, 3))` is `reshape(x, 2, 3)`, as in NumPy."""
    return nodes[0].elts if len(nodes) == 1 and isinstance(nodes[0], ast.Tuple) else nodes


def _default(parameter: Parameter, rank: int) -> object:
    """The value of an argument that is not given."""
    match parameter.kind, parameter.default:
        case Kind.AXES, "None":
            return tuple(range(rank))
        case Kind.AXIS, str(text):
            return int(text) % rank
        case Kind.NUMBER, str(text) if text != "None":
            return literal(text)
        case Kind.FLAG, str(text):
            return text == "True"
    return None


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"

"""Reads expressions: syntax nodes become terms, through the tables of functions and operators.

In: a syntax node and the names defined so far. Out: a tensor of the builder, or an exact constant. Invariant:
whatever goes wrong below, the error that leaves carries the place of the smallest node that is to blame.
"""

from __future__ import annotations

import ast
from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mirage_nb.errors import MirageError, ProgramSyntaxError, ShapeError, SourceSpan, UnknownNameError
from mirage_nb.ir.dtypes import DTYPE_NAMES
from mirage_nb.lang.builder import Builder, Infinity, Result, Term, Value
from mirage_nb.lang.constants import Number, literal, shorten
from mirage_nb.lang.functions import FUNCTIONS, OPERATORS
from mirage_nb.lang.hints import function_hint, suggestion
from mirage_nb.lang.limits import MAX_NESTING
from mirage_nb.lang.masks import take
from mirage_nb.lang.signature import REST, Function, Kind, Parameter
from mirage_nb.lang.source import Source, nested
from mirage_nb.lang.views import NEW_AXIS, Item, Range

INF = "inf"
"""The name of infinity."""


@dataclass(frozen=True, slots=True, eq=False)
class Binding:
    """A name of the program: what it stands for, where it was defined, and the bindings read to make it."""

    name: str
    term: Result
    place: SourceSpan
    reads: frozenset[Binding] = frozenset()
    is_input: bool = False


@dataclass(frozen=True, slots=True)
class Inlined:
    """A function of the program that stands for its statements, anew wherever it is called.

    `parameters`: their names with the values of those that may be left out. `place`: of its definition.
    """

    name: str
    parameters: Mapping[str, Result | None]
    body: tuple[ast.stmt, ...]
    place: SourceSpan

    @property
    def signature(self) -> str:
        """`block(x, w)`."""
        shown = (name if default is None else f"{name}=..." for name, default in self.parameters.items())
        return f"{self.name}({', '.join(shown)})"


class Expressions:
    """Reads the expressions of one program.

    `bindings` are the names in scope; `reads` collects those that were looked up; `functions` are those of the
    language and of the program; `inline` runs one of the latter's statements on arguments.
    """

    def __init__(
        self,
        source: Source,
        builder: Builder,
        defined_in: dict[str, int],
        inline: Callable[[Inlined, dict[str, Result], ast.Call], Result],
    ) -> None:
        self.source = source
        self.builder = builder
        self.bindings: ChainMap[str, Binding] = ChainMap()
        self.functions: dict[str, Function | Inlined] = dict(FUNCTIONS)
        self.reads: set[Binding] = set()
        self.depth = 0
        self._defined_in = defined_in
        self._inline = inline

    def term(self, node: ast.expr) -> Term:
        """What the expression stands for: one tensor or constant."""
        found = self.result(node)
        if isinstance(found, tuple):
            raise ProgramSyntaxError(
                f"these are {_count(len(found), 'tensor')}, not one",
                hint="name them: A, B = ..., or take one of them: ...[0]",
                span=self.source.of(node),
            )
        return found

    def several(self, node: ast.expr) -> Result:
        """What the expression stands for, where a sequence may stand."""
        if isinstance(node, ast.Tuple | ast.List):
            return tuple(self.term(element) for element in node.elts)
        return self.result(node)

    def result(self, node: ast.expr) -> Result:
        """What the expression stands for: a term, or what a function gives that has several."""
        self.check_depth(node)
        self.depth += 1
        try:
            return self._result(node)
        finally:
            self.depth -= 1

    def check_depth(self, node: ast.expr) -> None:
        """Raise ProgramSizeError beyond the limit: the text is no deeper, but functions that call each other may be."""
        if self.depth > MAX_NESTING:
            raise nested(self.source.of(node))

    def _result(self, node: ast.expr) -> Result:
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
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in OPERATORS:
                row = OPERATORS[type(op)]
                return self._lowered(node, row.shape, row.lower, self.term(left), self.term(right))
            case ast.Attribute(value=inner, attr="T"):
                row = OPERATORS[ast.Attribute]
                return self._lowered(node, row.shape, row.lower, self.term(inner))
            case ast.Subscript(value=inner, slice=index) if not self._is_type(inner):
                return self._subscript(node, self.result(inner), index)
            case ast.Call(func=ast.Name(id=name)):
                function = self._function(node.func, name)
                if isinstance(function, Inlined):
                    return self._inline(function, self._parameters(node, function), node)
                return self._lowered(node, function.shape, function.lower, *self._arguments(node, function))
            case _:
                raise self._foreign(node)

    def _is_type(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id not in self.bindings

    def _subscript(self, node: ast.Subscript, found: Result, index: ast.expr) -> Result:
        """x[...]: one of several tensors, or parts of a tensor."""
        items = index.elts if isinstance(index, ast.Tuple) else [index]
        if isinstance(found, tuple):
            at = self.integer(index, "an index")
            if not -len(found) <= at < len(found):
                raise ShapeError(
                    f"there are {_count(len(found), 'tensor')}",
                    hint=f"the first one is [0], the last one [{len(found) - 1}]",
                    span=self.source.of(index),
                )
            return found[at]
        row = OPERATORS[ast.Subscript]
        if isinstance(found, Number):
            return self._lowered(node, row.shape, lambda b: b.tensor(found, "an index"))
        if isinstance(index, ast.Name | ast.Call) and not isinstance(picked := self.term(index), Number):
            return self._lowered(node, row.shape, take, found, picked, 0)
        parts = self._items(node, items, len(self.builder.shape(found)))
        return self._lowered(node, row.shape, row.lower, found, parts)

    def _items(self, node: ast.Subscript, items: list[ast.expr], rank: int) -> list[Item]:
        """The items of an index into a tensor of so many dimensions, `...` written out."""
        dots = [item for item in items if isinstance(item, ast.Constant) and item.value is ...]
        held = len(items) - len(dots) - sum(isinstance(item, ast.Constant) and item.value is None for item in items)
        if len(dots) > 1:
            hint = "it stands for all other dimensions"
            raise ProgramSyntaxError("... stands twice", hint=hint, span=self.source.of(dots[1]))
        if held > rank:
            message = f"an index of {held} for {_count(rank, 'dimension')}"
            hint = "one for each dimension; None makes a new one"
            raise ShapeError(message, hint=hint, span=self.source.of(node))
        parts: list[Item] = []
        for item in items:
            match item:
                case ast.Constant(value=None):
                    parts.append(NEW_AXIS)
                case ast.Constant() if item in dots:
                    parts += [Range(None, None, None)] * (rank - held)
                case ast.Slice():
                    parts.append(self._range(item))
                case _:
                    parts.append(self.integer(item, "an index"))
        return parts

    def _range(self, node: ast.Slice) -> Range:
        bounds = [None if e is None else self.integer(e, "a bound") for e in (node.lower, node.upper, node.step)]
        if bounds[2] == 0:
            raise ShapeError("a step of 0", hint="steps are 1, 2, ..., or negative", span=self.source.of(node))
        return Range(*bounds)

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

    def _lowered(self, node: ast.expr, rule: str, lower: Callable[..., Result], *arguments: object) -> Result:
        """The lowering of one node; its errors get the node's place, and the shape rule as their hint."""
        place = self.source.of(node)
        self.builder.place = place
        try:
            return lower(self.builder, *arguments)
        except MirageError as error:
            hint = error.hint or (f"shape rule: {rule}" if isinstance(error, ShapeError) and rule else "")
            raise type(error)(error.message, hint=hint, span=place) from None

    def _name(self, node: ast.expr, name: str) -> Result:
        if (binding := self.bindings.get(name)) is not None:
            self.reads.add(binding)
            return binding.term
        if name in self.functions:
            message, hint = f"{name} is a function", f"call it: {self.functions[name].signature}"
        elif name == INF:
            message, hint = "inf stands as a choice of where only", "where(X > 0, X, -inf); clamp(x, low=0) has no high"
        elif name in self._defined_in:
            message = f"{name} is used before it is defined"
            hint = f"its definition is in line {self._defined_in[name]}"
        else:
            message = f"there is no {name}"
            hint = suggestion(name, self.bindings) or "inputs are declared as X: f16[2, 3], constants as D = 64"
        raise UnknownNameError(message, hint=hint, span=self.source.of(node))

    def _function(self, node: ast.expr, name: str) -> Function | Inlined:
        if (binding := self.bindings.get(name)) is not None:
            hint = f"line {binding.place.line} gives it another meaning" if name in self.functions else ""
            raise ProgramSyntaxError(
                f"{name} is not a function", hint=hint or "a product is written with *", span=self.source.of(node)
            )
        name = DTYPE_NAMES[name].value if name in DTYPE_NAMES and name not in self.functions else name
        if name not in self.functions:
            raise UnknownNameError(
                f"there is no function {name}",
                hint=function_hint(name, self.functions),
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
            case ast.Subscript(value=ast.Name(id=name)) if name in DTYPE_NAMES:
                message, hint = "a tensor type stands behind a colon", "an input is declared as X: f16[2, 3]"
            case ast.Subscript(value=ast.Name(id=name)) if name in self.functions:
                message, hint = f"{name} is a function", f"call it: {self.functions[name].signature}"
            case ast.Subscript(value=ast.Name() as inner):
                self._name(inner, inner.id)
            case ast.Tuple() | ast.List():
                message, hint = "a sequence is not a tensor", "stack([A, B]) and concat([A, B], axis=0) make one"
            case ast.Constant(value=value):
                message, hint = f"{value!r} is neither a tensor nor a number", "only options are True, False or None"
            case ast.Compare(ops=[_, _, *_]):
                message, hint = "one comparison at a time", "(0 < X) & (X < 1) is true where both are"
            case ast.Compare():
                message, hint = "this is no comparison of tensors", "comparisons are == != >= > <= <"
            case ast.ListComp() | ast.GeneratorExp() | ast.SetComp():
                message, hint = "programs have no comprehensions", "a loop is written for w in (A, B):"
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
        for index, parameter in enumerate(function.parameters):
            value = self._argument(function, parameter, given[parameter.name], rank)
            if index == 0 and parameter.kind in (Kind.TENSOR, Kind.TENSORS, Kind.TERM):
                first = value[0] if isinstance(value, tuple) and value else value
                rank = len(self.builder.shape(Value(first))) if isinstance(first, int) else 0
            values.append(value)
        return values

    def _parameters(self, node: ast.Call, function: Inlined) -> dict[str, Result]:
        """What the parameters of a function of the program stand for in a call of it."""
        names, hint = list(function.parameters), f"write {function.signature}"
        given: dict[str, Result] = {}
        for index, argument in enumerate(node.args):
            if isinstance(argument, ast.Starred):
                raise self._foreign(argument)
            if index >= len(names):
                message = f"{function.name} takes {_count(len(names), 'argument')}, not {len(node.args)}"
                raise ProgramSyntaxError(message, hint=hint, span=self.source.of(argument))
            given[names[index]] = self.several(argument)
        for keyword in node.keywords:
            place = self.source.of(keyword)
            if keyword.arg is None:
                raise ProgramSyntaxError("programs do not unpack with **", hint=hint, span=place)
            if keyword.arg not in names or keyword.arg in given:
                known = keyword.arg in names
                message = f"{keyword.arg} is given twice" if known else f"{function.name} has no keyword {keyword.arg}"
                place = self.source.span(place.line, place.column, len(keyword.arg))
                raise ProgramSyntaxError(message, hint=suggestion(keyword.arg, names) or hint, span=place)
            given[keyword.arg] = self.several(keyword.value)
        for name, default in function.parameters.items():
            if default is not None:
                given.setdefault(name, default)
            if name not in given:
                raise ProgramSyntaxError(f"{function.name} needs {name}", hint=hint, span=self.source.of(node))
        return given

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
            case Kind.REST_TENSORS:
                return tuple(self._tensor(function, node) for node in nodes)
        if not nodes:
            return _default(parameter, rank)
        (node,) = nodes
        if isinstance(node, ast.Constant) and node.value is None and parameter.default == "None":
            return _default(parameter, rank)
        match parameter.kind:
            case Kind.TERM:
                return self.term(node)
            case Kind.TENSOR:
                return self._tensor(function, node)
            case Kind.CHOICE:
                return self._infinity(node) or self.term(node)
            case Kind.TENSORS if isinstance(node, ast.Tuple | ast.List):
                return tuple(self._tensor(function, element) for element in node.elts)
            case Kind.TENSORS:
                found = self.result(node)
                return found if isinstance(found, tuple) else self._tensor(function, node)
            case Kind.TEXT:
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    return node.value
                raise ProgramSyntaxError(
                    f"{what} is {parameter.kind.value}", hint=f"write {function.example}", span=self.source.of(node)
                )
            case Kind.NUMBER:
                if isinstance(term := self.term(node), Number):
                    return term
                raise ProgramSyntaxError(
                    f"{what} is a constant, not a tensor", hint=f"write {function.signature}", span=self.source.of(node)
                )
            case Kind.COUNT:
                return self.integer(node, what)
            case Kind.COUNTS if isinstance(node, ast.Tuple | ast.List):
                return tuple(self.integer(element, what) for element in node.elts)
            case Kind.COUNTS:
                return self.integer(node, what)
            case Kind.NEW_AXIS:
                return self._axis(node, rank + 1)
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

    def _infinity(self, node: ast.expr) -> Infinity | None:
        """inf or -inf, if that is what is written."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            found = self._infinity(node.operand)
            return None if found is None else Infinity(-found.sign)
        return Infinity(1) if isinstance(node, ast.Name) and node.id == INF and INF not in self.bindings else None

    def _tensor(self, function: Function, node: ast.expr) -> Term:
        lowered = self._lowered(node, "", Builder.tensor, self.term(node), function.name)
        assert not isinstance(lowered, tuple)
        return lowered

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
        case Kind.AXIS, str(text) if text != "None":
            return int(text) % rank
        case (Kind.NEW_AXIS | Kind.COUNT | Kind.COUNTS), str(text) if text != "None":
            return int(text)
        case Kind.NUMBER, str(text) if text != "None":
            return literal(text)
        case Kind.FLAG, str(text):
            return text == "True"
    return None


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"

"""Reads expressions: syntax nodes become terms, through the tables of functions and operators.

In: a syntax node and the names defined so far. Out: a tensor of the builder, or an exact constant. Invariant:
whatever goes wrong below, the error that leaves carries the place of the smallest node that is to blame.
"""

from __future__ import annotations

import ast
import inspect
import itertools
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mirage_nb.errors import MirageError, ProgramSizeError, ProgramSyntaxError, ShapeError, SourceSpan, UnknownNameError
from mirage_nb.ir.dtypes import DTYPE_NAMES
from mirage_nb.lang import patterns, sequences
from mirage_nb.lang.arguments import Inlined, count, is_text
from mirage_nb.lang.builder import Builder, Callee, Extremes, Infinity, Nothing, Result, Term, Text, is_tensor
from mirage_nb.lang.constants import Number, literal
from mirage_nb.lang.functions import FUNCTIONS, OPERATORS
from mirage_nb.lang.hints import function_hint, suggestion
from mirage_nb.lang.limits import MAX_NESTING, MAX_STATEMENTS
from mirage_nb.lang.names import (
    BORROWED,
    CONSTANTS,
    EINOPS,
    EITHER,
    IGNORED,
    METHOD,
    MODULES,
    OWN,
    SPELLED,
    SYNONYMS,
    TORCH,
)
from mirage_nb.lang.prelude import prelude, shown
from mirage_nb.lang.refused import Refused
from mirage_nb.lang.signature import Function
from mirage_nb.lang.source import Source, Within, nested
from mirage_nb.lang.subscripts import Subscripts

INF = "inf"
"""The name of infinity."""
PI = "pi"


def built_in() -> dict[str, Function | Inlined]:
    """The functions of the language."""
    return {**FUNCTIONS, **prelude()}


Memory = list[SourceSpan]
"""What names share that stand for parts of one tensor, or for all of it: the places where it is written to."""


@dataclass(frozen=True, slots=True, eq=False)
class Binding:
    """A name of the program: what it stands for, where it was defined, and the bindings read to make it; the memory
    that it shares (None: with the caller of a function), and how often that was written to when the name was made."""

    name: str
    term: Result
    place: SourceSpan
    reads: frozenset[Binding] = frozenset()
    is_input: bool = False
    memory: Memory | None = field(default_factory=list)
    written: int = 0


class Expressions(Subscripts, Refused):
    """Reads the expressions of one program.

    `bindings` are the names in scope; `reads` collects those that were looked up; `functions` are those of the
    language and of the program, `own` the names of the latter; `modules` those that names stand for; `inline` runs
    the statements of a function on arguments.
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
        self.functions: dict[str, Function | Inlined] = built_in()
        self.own: set[str] = set()
        self.modules = dict(MODULES)
        self.reads: set[Binding] = set()
        self.depth = 0
        self.turns = 0
        self._defined_in = defined_in
        self._ahead: dict[ast.expr, Result] = {}
        self._inline = inline

    def term(self, node: ast.expr) -> Term:
        """What the expression stands for: one tensor or constant."""
        return self.term_of(self.result(node), node)

    def term_of(self, found: Result, node: ast.expr) -> Term:
        """What was found, which must be one tensor or constant."""
        if isinstance(found, Number) or is_tensor(found):
            return found
        if isinstance(found, Extremes):
            return self.term_of(found[0], node)
        place = self.source.of(node)
        if isinstance(found, Callee):
            raise UnknownNameError(f"{found.name} is a function", hint=f"call it: {found.signature}", span=place)
        if isinstance(found, Infinity):
            hint = "where(X > 0, X, -inf); clamp(x, low=0) has no high"
            raise UnknownNameError("inf stands as a choice of where only", hint=hint, span=place)
        if isinstance(found, tuple) and isinstance(node, ast.Tuple | ast.List):
            raise self.foreign(node)
        if isinstance(found, tuple):
            raise ProgramSyntaxError(
                f"these are {count(len(found), 'tensor')}, not one",
                hint="name them: A, B = ..., or take one of them: ...[0]",
                span=place,
            )
        shown = repr(found.value) if isinstance(found, Text) else "None"
        raise ProgramSyntaxError(
            f"{shown} is neither a tensor nor a number", hint="it may be an option of a function", span=place
        )

    def result(self, node: ast.expr) -> Result:
        """What the expression stands for: a term, several, or what only chooses."""
        if node in self._ahead:
            return self._ahead.pop(node)
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

    def truth(self, node: ast.expr) -> bool:
        """Whether a condition holds that is known while the program is read."""
        return bool(self.settled(node, sequences.truth, self.result(node)))

    def _result(self, node: ast.expr) -> Result:
        match node:
            case ast.Name(id=name):
                return self._name(node, name)
            case ast.Constant():
                return self._constant(node)
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                return self._sequence(node, (self.result(element) for element in self._spread(elements)))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
                return self.combined(node, op, self.result(left), self.result(right))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return Number.of(not self.truth(operand))
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self.term(operand)
            case ast.UnaryOp(op=op, operand=operand) if type(op) in OPERATORS:
                found = self.result(operand)
                if isinstance(found, Infinity) and isinstance(op, ast.USub):
                    return Infinity(-found.sign)
                row = OPERATORS[type(op)]
                return self.lowered(node, row.shape, row.lower, self.term_of(found, operand))
            case ast.BoolOp(op=op, values=values):
                turned = isinstance(op, ast.Or)  # the first that is true of `or`, that is false of `and`
                return Number.of(any(self.truth(v) is turned for v in values) is turned)
            case ast.IfExp(test=test, body=body, orelse=other):
                return self.result(body if self.truth(test) else other)
            case ast.Compare():
                return self._compared(node)
            case ast.Dict(keys=keys, values=values):
                words = [key.value if isinstance(key, ast.Constant) else None for key in keys]
                return self._named(node, words, values)
            case ast.ListComp(elt=element, generators=loops) | ast.GeneratorExp(elt=element, generators=loops):
                return self._sequence(node, self._each_of(loops, element))
            case ast.Attribute():
                return self._attribute(node)
            case ast.Subscript(value=inner, slice=index) if not self._is_type(inner):
                return self.subscript(node, self.result(inner), index)
            case ast.Call():
                return self._call(node)
            case _:
                raise self.foreign(node)

    def _constant(self, node: ast.Constant) -> Result:
        match node.value:
            case bool():
                return Number.of(node.value)
            case int() | float():
                return self.lowered(node, "", lambda _: literal(node.kind or self.source.text_of(node)))
            case str():
                return Text(node.value)
            case None:
                return Nothing()
        raise self.foreign(node)

    def combined(self, node: ast.expr, op: ast.operator, left: Result, right: Result) -> Result:
        """Arithmetic; sequences are joined with + and repeated with *."""
        left, right = (one[0] if isinstance(one, Extremes) else one for one in (left, right))
        if isinstance(left, tuple) and isinstance(right, tuple) and isinstance(op, ast.Add):
            return self._sequence(node, left + right)
        if isinstance(op, ast.Mult) and isinstance(left, tuple) and isinstance(right, Number) and right.integer:
            return self._sequence(node, left * min(max(right.integer, 0), MAX_STATEMENTS + 1))
        sides = (node.left, node.right) if isinstance(node, ast.BinOp) else (node, node)
        row, terms = OPERATORS[type(op)], map(self.term_of, (left, right), sides)
        return self.lowered(node, row.shape, row.lower, *terms)

    def _compared(self, node: ast.Compare) -> Result:
        """A comparison of tensors, or of what is known while the program is read."""
        results = [self.result(one) for one in (node.left, *node.comparators)]
        nodes = (node.left, *node.comparators)
        if any(map(is_tensor, results)) and len(node.ops) > 1:
            raise self.foreign(node)
        held = True
        for place, (op, (x, y)) in enumerate(zip(node.ops, itertools.pairwise(results), strict=True)):
            known = sequences.compared(op, x, y)
            if known is None and type(op) in OPERATORS:
                row = OPERATORS[type(op)]
                terms = (self.term_of(one, at) for one, at in zip((x, y), nodes[place:], strict=False))
                made = self.lowered(node, row.shape, row.lower, *terms)
                if not isinstance(made, Number):
                    return made
                known = sequences.truth(made)
            if known is None:
                raise self.foreign(node)
            held = held and known
        return Number.of(held)

    def _sequence(self, node: ast.expr, found: Iterable[Result]) -> tuple[Result, ...]:
        made: tuple[Result, ...] = self.settled(node, sequences.sequence, found)
        return made

    def _named(self, node: ast.expr, names: Sequence[object], values: Sequence[ast.expr]) -> Result:
        made: Result = self.settled(node, sequences.named, names, map(self.result, values))
        return made

    def _each_of(self, loops: Sequence[ast.comprehension], element: ast.expr) -> Iterator[Result]:
        """[x @ w for w in (A, B) if ...]: one for each."""
        if not loops:
            yield self.result(element)
            return
        outer, over, read = self.bindings, loops[0].iter, frozenset(self.reads)
        for turn in self.settled(over, partial(sequences.elements, self.builder), self.result(over)):
            self.turns += 1
            if self.turns > MAX_STATEMENTS:
                message = f"loops within expressions make more than {MAX_STATEMENTS:,} turns"
                raise ProgramSizeError(message, hint="a program is one kernel, or a few", span=self.source.of(over))
            self.bindings = outer.new_child()
            self.bind(loops[0].target, turn, read)
            if all(self.truth(test) for test in loops[0].ifs):
                yield from self._each_of(loops[1:], element)
        self.bindings = outer

    def bind(self, target: ast.expr, turn: Result, read: frozenset[Binding]) -> None:
        """Give a name, or several, what one turn of a loop is about; `read`: what the loop goes over."""
        if isinstance(target, ast.Name):
            self.bindings[target.id] = Binding(target.id, turn, self.source.of(target), read)
        elif isinstance(target, ast.Tuple) and isinstance(turn, tuple) and len(turn) == len(target.elts):
            for inner, part in zip(target.elts, turn, strict=True):
                self.bind(inner, part, read)
        else:
            hint = "write for i in range(3):, or for i, w in enumerate((A, B)):"
            raise ProgramSyntaxError("a loop has one name", hint=hint, span=self.source.of(target))

    def _known(self, name: str, family: str) -> Function | Inlined | None:
        """The function of a name: what modules or methods have, the program's own, the language's."""
        known = name if family == OWN and name in self.own else BORROWED.get((family, name), SYNONYMS.get(name, name))
        known = DTYPE_NAMES[known].value if known in DTYPE_NAMES and known not in self.functions else known
        hidden = name.startswith("_") and not isinstance(self.source, Within)
        return None if hidden else self.functions.get(known)

    def settled(self, node: ast.expr, function: Callable[..., Any], *arguments: object) -> Any:
        """What a function of the reader says, its mistakes told at the node."""
        try:
            return function(*arguments)
        except MirageError as error:
            raise type(error)(error.message, hint=error.hint, span=error.span or self.source.of(node)) from None

    def family(self, node: ast.expr) -> str | None:
        """Of which library an expression is a module, if it is one."""
        match node:
            case ast.Name(id=name) if name not in self.bindings:
                return self.modules.get(name)
            case ast.Attribute(value=inner):
                return self.family(inner)
        return None

    def _attribute(self, node: ast.Attribute) -> Result:
        """np.pi, X.T, X.shape."""
        if self.family(node.value) is not None:
            if node.attr in CONSTANTS:
                return CONSTANTS[node.attr]
            function = self._known(node.attr, self.family(node.value) or OWN)
            if function is None:
                raise self.foreign(node)
            return Callee(node.attr, function.signature, function)
        if node.attr not in sequences.PROPERTIES:
            if isinstance(node.value, ast.Name):
                self._name(node.value, node.value.id)
            raise self.foreign(node)
        found = self.result(node.value)
        return self.lowered(node, "", sequences.PROPERTIES[node.attr], found)

    def _call(self, node: ast.Call) -> Result:
        """A function, by its own name, behind a module, or as the method of a tensor."""
        if any(isinstance(argument, ast.Starred) for argument in node.args):
            node = ast.copy_location(ast.Call(node.func, self._spread(node.args), node.keywords), node)
        match node.func:
            case ast.Name(id=name) if name in sequences.FOLDED and name not in {*self.own, *self.bindings}:
                family, first = OWN, None
                if (found := self._folded(node, name)) is not None:
                    return found
            case ast.Attribute(value=inner, attr="prod") if self.family(inner) is not None and (
                (found := self._folded(node, "prod")) is not None
            ):
                return found
            case ast.Name(id="dict") if not node.args and "dict" not in {*self.own, *self.bindings}:
                return self._named(node, [k.arg for k in node.keywords], [k.value for k in node.keywords])
            case ast.Name(id="map") if "map" not in {*self.own, *self.bindings} and len(node.args) == 2:
                return self._mapped(node, *node.args)
            case ast.Name(id=name):
                family, first = OWN, None
            case ast.Attribute(value=ast.Subscript(value=ast.Attribute(value=inner, attr="at")) as part, attr=name):
                return self.at(node, ast.copy_location(ast.Subscript(inner, part.slice), part), name)
            case ast.Attribute(value=inner, attr=name):
                family = self.family(inner) or METHOD
                first = inner if family == METHOD else None
                if first is not None and (name in EITHER or name in ("max", "min")):
                    several = TORCH if len(node.args) > 2 else METHOD  # NumPy's have two arguments
                    family = next((SPELLED[k.arg] for k in node.keywords if k.arg in SPELLED), several)
            case _:
                raise self.foreign(node)
        if first is not None and name == "size":
            return self.size(node, first)
        if family in (OWN, EINOPS) and len(node.args) > 1 and name not in self.own:
            if name in patterns.NAMES and is_text(node.args[1]):
                return self._rearranged(node)
            if name == "einsum" and is_text(last := node.args[-1]):  # einops has the text last
                text = ast.copy_location(ast.Constant(patterns.lettered(str(last.value))), last)
                node = ast.copy_location(ast.Call(node.func, [text, *node.args[:-1]], node.keywords), node)
        if family in (OWN, METHOD) and name in sequences.SPECIAL and name not in self.bindings and (
            name not in self.own and (first is None or name == "float")
        ):
            given = [self.result(argument) for argument in ([first] if first is not None else node.args)]
            return self._settled_call(node, name, given)
        function = self._function(node.func, name, family)
        if isinstance(function, Inlined) and function.place is not None:
            return self._inline(function, self.parameters(node, function, first), node)
        node, dtype = self._options(node, function, first)
        if isinstance(function, Inlined):
            found = self._inline(function, self.parameters(node, function, first), node)
        else:
            loose = family in (TORCH, METHOD)
            found = self.lowered(node, function.shape, function.lower, *self.arguments(node, function, first, loose))
        return found if dtype is None else self._settled_call(node, "_cast", [found, dtype])

    def _options(
        self, node: ast.Call, function: Function | Inlined, first: ast.expr | None
    ) -> tuple[ast.Call, Result | None]:
        """A call without the keywords that say nothing here; the dtype of its result, where its operand has not got it
        instead."""
        known = set(function.parameters) if isinstance(function, Inlined) else {p.name for p in function.parameters}
        known |= set(function.keywords) if isinstance(function, Inlined) else set()
        kept = [k for k in node.keywords if k.arg in known or k.arg not in IGNORED or is_text(k.value, "F")]
        dtype = next((k for k in kept if k.arg == "dtype" and k.arg not in known), None)
        made = ast.copy_location(ast.Call(node.func, node.args, [k for k in kept if k is not dtype]), node)
        if dtype is None:
            return made, None
        wanted, operand = self.result(dtype.value), first if first is not None else next(iter(node.args), None)
        found = self.result(operand) if operand is not None else Nothing()
        if operand is None or not is_tensor(found):
            self._ahead.update({operand: found} if operand is not None else {})
            return made, wanted
        self._ahead[operand] = self._settled_call(node, "_cast", [found, wanted])
        return made, None

    def _rearranged(self, node: ast.Call) -> Result:
        """rearrange, reduce and repeat of einops."""
        given = [self.result(argument) for argument in (node.args[0], *node.args[2:])]
        words = {k.arg: self.result(k.value) for k in node.keywords if k.arg == "reduction"}
        fold = next((one.value for one in (*given[1:], *words.values()) if isinstance(one, Text)), "")
        extents = {k.arg: self.integer(k.value, "an extent") for k in node.keywords if k.arg and k.arg not in words}
        assert isinstance(node.args[1], ast.Constant)
        return self.lowered(node, "", patterns.rearranged, given[0], node.args[1].value, extents, fold)

    def _mapped(self, node: ast.Call, function: ast.expr, over: ast.expr) -> Result:
        """map(f, (A, B)): f of each."""
        calls = []
        for turn in self.settled(over, partial(sequences.elements, self.builder), self.result(over)):
            argument = ast.copy_location(ast.Name(""), over)
            self._ahead[argument] = turn
            calls.append(ast.copy_location(ast.Call(function, [argument], []), node))
        return self._sequence(node, map(self.result, calls))

    def _spread(self, nodes: Sequence[ast.expr]) -> list[ast.expr]:
        """The nodes, *t written out as t[0], t[1], ..."""
        made: list[ast.expr] = []
        for node in nodes:
            if not isinstance(node, ast.Starred):
                made.append(node)
                continue
            found = self.result(node.value)
            if not isinstance(found, tuple):
                raise self.foreign(node)
            for at in range(len(found)):
                index = ast.copy_location(ast.Constant(at, str(at)), node)
                made.append(ast.copy_location(ast.Subscript(node.value, index), node))
        return made

    def _folded(self, node: ast.Call, name: str) -> Result | None:
        """Python's own sum of a sequence, max and min of numbers; None where the call is of a tensor. What was read of
        the arguments is not read again."""
        given = tuple(self.result(argument) for argument in node.args)
        parts = given[0] if len(given) == 1 and isinstance(given[0], tuple) else given
        if node.keywords or (parts is given and (len(given) < 2 or not all(isinstance(g, Number) for g in given))):
            self._ahead.update(zip(node.args, given, strict=True))
            return None
        terms = [self.term_of(part, node) for part in parts]
        total: Result = terms[0] if terms else Number.of(name == "prod")
        for term in terms[1:]:
            total = self.lowered(node, "", sequences.FOLDED[name], total, term)
        return total

    def _settled_call(self, node: ast.Call, name: str, given: list[Result]) -> Result:
        function = sequences.SPECIAL[name]
        try:
            inspect.signature(function).bind(self.builder, *given)
        except TypeError:
            message = f"{name} does not take {count(len(given), 'argument')}"
            raise ProgramSyntaxError(message, hint="as in Python", span=self.source.of(node)) from None
        return self.lowered(node, "", function, *given)

    def _is_type(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id not in self.bindings

    def lowered(self, node: ast.expr, rule: str, lower: Callable[..., Result], *arguments: object) -> Result:
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
            if binding.memory is not None and len(binding.memory) > binding.written:
                line = binding.memory[binding.written].line
                hint = f"write {name} = ....clone() to keep what it was, or read it anew behind line {line}"
                message = f"{name} shares its elements with what line {line} writes to"
                raise ProgramSyntaxError(message, hint=hint, span=self.source.of(node))
            return binding.term
        if name in (INF, PI, "bool", "int", *DTYPE_NAMES):
            return CONSTANTS[name]
        if (function := self._known(name, OWN)) is not None:
            return Callee(name, function.signature, function)
        if name in self._defined_in:
            message = f"{name} is used before it is defined"
            hint = f"line {self._defined_in[name]} defines it; an input has a colon, as {name}: f16[2, 3]"
        else:
            message = f"there is no {name}"
            declared = f"inputs are declared as {name}: f16[2, 3], constants as {name} = 64"
            hint = suggestion(name, self.bindings) or declared
        raise UnknownNameError(message, hint=hint, span=self.source.of(node))

    def _function(self, node: ast.expr, name: str, family: str) -> Function | Inlined:
        """The function that is called by a name."""
        binding = self.bindings.get(name) if family == OWN else None
        if binding is not None and isinstance(binding.term, Callee):
            function = binding.term.function
            assert isinstance(function, Function | Inlined)
            return function
        if binding is not None:
            hint = f"line {binding.place.line} gives it another meaning" if name in self.functions else ""
            raise ProgramSyntaxError(
                f"{name} is not a function", hint=hint or "a product is written with *", span=self.source.of(node)
            )
        if family == METHOD and name in EITHER:
            raise ProgramSyntaxError(f"{name} may mean two things", hint=EITHER[name], span=self.source.of(node))
        found = self._known(name, family)
        if found is None and family in (METHOD, TORCH) and name.endswith("_"):
            found = self._known(name.rstrip("_"), family)  # what changes its tensor
        if found is None:
            if isinstance(node, ast.Attribute) and family == METHOD:
                self.result(node.value)
            hint = function_hint(name, map(shown, self.functions))
            raise UnknownNameError(f"there is no function {name}", hint=hint, span=self.source.of(node))
        return found


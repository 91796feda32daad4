"""Reads expressions: syntax nodes become terms, through the tables of functions and operators.

In: a syntax node and the names defined so far. Out: a tensor of the builder, or an exact constant. Invariant:
whatever goes wrong below, the error that leaves carries the place of the smallest node that is to blame.
"""

from __future__ import annotations

import ast
import inspect
from collections import ChainMap
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from mirage_nb.errors import MirageError, ProgramSyntaxError, ShapeError, UnknownNameError
from mirage_nb.ir.dtypes import DTYPE_NAMES
from mirage_nb.lang import patterns, sequences
from mirage_nb.lang.arguments import Inlined, count, is_text
from mirage_nb.lang.bindings import Binding, Memory, changed, root
from mirage_nb.lang.builder import (
    Builder,
    Callee,
    Extremes,
    Infinity,
    Named,
    Nothing,
    Picked,
    Result,
    Term,
    Text,
    is_tensor,
    plain,
    true,
)
from mirage_nb.lang.constants import Number, literal
from mirage_nb.lang.functions import FUNCTIONS, OPERATORS
from mirage_nb.lang.hints import NAMES, function_hint, suggestion
from mirage_nb.lang.limits import MAX_NESTING
from mirage_nb.lang.names import (
    CONSTANTS,
    EINOPS,
    EITHER,
    IGNORED,
    LAX,
    LINALG,
    METHOD,
    MODULES,
    OWN,
    SPELLED,
    TORCH,
    TRITON,
    borrowed,
    shown,
)
from mirage_nb.lang.operations import Operations
from mirage_nb.lang.prelude import prelude
from mirage_nb.lang.refused import Refused
from mirage_nb.lang.signature import Function
from mirage_nb.lang.source import Source, Within, nested
from mirage_nb.lang.ufuncs import Ufuncs

INF = "inf"
"""The name of infinity."""
PI = "pi"


def built_in() -> dict[str, Function | Inlined]:
    """The functions of the language."""
    return {**FUNCTIONS, **prelude()}


class Expressions(Operations, Ufuncs, Refused):
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
        self.imported: dict[str, ast.Attribute] = {}
        """What names stand for that were imported from a module."""
        self.reads: set[Binding] = set()
        self.library = OWN
        """What methods are of which NumPy and PyTorch think differently: see `bindings.library`."""
        self.depth = 0
        self.turns = 0
        self.turning = 0
        self.defined_in = defined_in
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
        if isinstance(found, Picked):
            self.lowered(node, "", Builder.tensor_of, found, "")
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
            case ast.Name() if (of := self._imported(node)) is not None:
                return self._attribute(ast.copy_location(of, node))
            case ast.Name(id=name):
                return self._name(node, name)
            case ast.Constant():
                return self._constant(node)
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                return self.sequence(node, (self.result(element) for element in self.spread(elements)))
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
                if isinstance(found, Picked):
                    return self.of_each(node, row, [found], [operand])
                made = self.lowered(node, row.shape, row.lower, self.term_of(found, operand))
                return true(made) if isinstance(op, ast.Invert) else made
            case ast.BoolOp(op=op, values=[*values, last]):  # the first that is true of `or`, that is false of `and`
                for value in values:
                    found = self.result(value)
                    if self.settled(value, sequences.truth, found) is isinstance(op, ast.Or):
                        return found
                return self.result(last)
            case ast.IfExp(test=test, body=body, orelse=other):
                return self.result(body if self.truth(test) else other)
            case ast.Compare():
                return self.compared(node)
            case ast.Dict(keys=keys, values=values) if None not in keys:
                pairs = [(self.result(k), self.result(v)) for k, v in zip(keys, values, strict=True) if k is not None]
                return self.named(node, pairs)
            case ast.DictComp(key=key, value=value, generators=loops):
                pair = ast.copy_location(ast.Tuple([key, value], ast.Load()), node)
                return self.named(node, [*self.each_of(loops, pair)])
            case ast.JoinedStr(values=values):
                return Text("".join(map(self.shown, values)))
            case ast.NamedExpr(target=ast.Name() as target, value=value) if not self.turning:
                read, self.reads = self.reads, set()
                found = self.result(value)
                self.bind(target, found, frozenset(self.reads))
                self.reads |= read
                return found
            case ast.Lambda(args=ast.arguments(posonlyargs=[], kwonlyargs=[], kwarg=None)):
                names, line = tuple(a.arg for a in node.args.args), ast.copy_location(ast.Return(node.body), node)
                given = zip(names[::-1], node.args.defaults[::-1], strict=False)
                defaults = {name: self.result(default) for name, default in given}
                rest, seen = node.args.vararg.arg if node.args.vararg else "", (self.bindings, self.functions)
                place = None if isinstance(self.source, Within) else self.source.of(node)  # None in the language itself
                function = Inlined("lambda", names, defaults, (line,), place, rest, (), *seen)
                called = f"f({', '.join(names)}), behind f = {ast.unparse(node)}"
                return Callee("this lambda", called, function)
            case ast.ListComp(elt=element, generators=loops) | ast.GeneratorExp(elt=element, generators=loops):
                return self.sequence(node, self.each_of(loops, element))
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

    def _known(self, name: str, family: str) -> Function | Inlined | None:
        """The function of a name: what modules or methods have, the program's own, the language's."""
        if family == OWN and name in self.own:
            return self.functions.get(name)
        known, given = borrowed(family, name), prelude()
        known = DTYPE_NAMES[known].value if known in DTYPE_NAMES and known not in given else known
        hidden = name.startswith("_") and not isinstance(self.source, Within)
        return None if hidden else given.get(known, FUNCTIONS.get(known))

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
            case ast.Attribute(value=inner, attr=name):
                found = self.family(inner)
                if found is not None and name in (LAX, LINALG):
                    return name
                return found if found is None or self._known(name, found) is None else None
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
            found = self.result(node.value) if isinstance(node.value, ast.Name | ast.Call) else None
            if isinstance(found, Named) and node.attr in found.names:
                return found[found.names.index(node.attr)]
            raise self.foreign(node)
        found = self.result(node.value)
        if node.attr == "T" and self.library != OWN and not isinstance(self.source, Within):
            rank = len(self.builder.shape(found)) if is_tensor(found) else 0
            if rank > 2:
                hint = ".mT swaps the last two; transpose(x, 2, 1, 0) says any order"
                message = f".T reverses all {rank} dimensions in {'PyTorch' if self.library == TORCH else 'NumPy'}"
                raise ProgramSyntaxError(message, hint=hint, span=self.source.of(node))
        return self.lowered(node, "", sequences.PROPERTIES[node.attr], found)

    def _imported(self, node: ast.expr) -> ast.Attribute | None:
        """What a name stands for that was imported."""
        if not isinstance(node, ast.Name) or isinstance(self.source, Within) or node.id in {*self.own, *self.bindings}:
            return None
        return self.imported.get(node.id)

    def change(self, target: ast.Name, made: Result) -> bool:
        """A name stands for what its elements were changed to, and others that share them for nothing any more;
        whether it stood for elements at all."""
        held = self.bindings.get(target.id)
        if held is None or not (is_tensor(held.term) or isinstance(held.term, tuple)):
            return False
        memory, place = Memory() if held.memory is None else held.memory, self.source.of(target)
        memory.write(place)
        written = len(memory.places)
        self.bindings[target.id] = Binding(target.id, made, place, frozenset(self.reads), False, memory, written)
        return True

    def _call(self, node: ast.Call) -> Result:
        """A call, and what it changes."""
        if (imported := self._imported(node.func)) is not None:
            func = ast.copy_location(imported, node.func)
            node = ast.copy_location(ast.Call(func, node.args, node.keywords), node)
        found, target = self.called(node), changed(node)
        if isinstance(target, ast.Name) and is_tensor(found):
            self.change(ast.copy_location(ast.Name(target.id), node), found)
        elif name := root(target):
            hint = f"leave the _ out where {name} is not read again, or write {name}[:, 0] = ..."
            raise ProgramSyntaxError(f"a part of {name} is changed here", hint=hint, span=self.source.of(node))
        return found

    def called(self, node: ast.Call) -> Result:
        """A function, by its own name, behind a module, or as the method of a tensor."""
        if any(isinstance(argument, ast.Starred) for argument in node.args) or None in [k.arg for k in node.keywords]:
            node = ast.copy_location(ast.Call(node.func, self.spread(node.args), self.spelled(node.keywords)), node)
        for read in (self.of_names, self.ufunc):
            if (found := read(node)) is not None:
                return found
        function: Function | Inlined | None = None
        match node.func:
            case ast.Lambda() | ast.Subscript() | ast.IfExp() if isinstance(made := self.result(node.func), Callee):
                assert isinstance(made.function, Function | Inlined)
                family, first, name, function = OWN, None, "", made.function
            case ast.Name(id=name) if name in sequences.FOLDED and name not in {*self.own, *self.bindings}:
                family, first = OWN, None
                if (found := self.folded(node, name)) is not None:
                    return found
            case ast.Attribute(value=inner, attr="prod") if self.family(inner) is not None and (
                (found := self.folded(node, "prod")) is not None
            ):
                return found
            case ast.Attribute(value=inner, attr="range" | "static_range") if self.family(inner) == TRITON:
                called = ast.copy_location(ast.Name("range"), node)
                return self.called(ast.copy_location(ast.Call(called, node.args, []), node))
            case ast.Name(id="dict") if not node.args and "dict" not in {*self.own, *self.bindings}:
                return self.named(node, [(Text(k.arg or ""), self.result(k.value)) for k in node.keywords])
            case ast.Name(id="map") if "map" not in {*self.own, *self.bindings} and len(node.args) == 2:
                return self.mapped(node, *node.args)
            case ast.Name(id=name):
                family, first = OWN, None
            case ast.Attribute(value=ast.Subscript(value=ast.Attribute(value=inner, attr="at")) as part, attr=name):
                return self.at(node, ast.copy_location(ast.Subscript(inner, part.slice), part), name)
            case ast.Attribute(value=inner, attr=name):
                family = self.family(inner) or METHOD
                if family == METHOD and isinstance(inner, ast.Attribute) and self.family(inner.value) is not None:
                    self.term(inner)  # no function has methods
                first = inner if family == METHOD else None
                if first is not None and (name in EITHER or name in ("max", "min")):
                    told = self.library if name in EITHER and not isinstance(self.source, Within) else OWN
                    several = TORCH if len(node.args) > 2 else told or METHOD  # NumPy's have two arguments
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
            words = {k.arg: self.result(k.value) for k in node.keywords if k.arg}
            return self._settled_call(node, name, given, words)
        function = function or self.function(node.func, name, family)
        if isinstance(function, Inlined) and function.formula is not None:
            function = function.formula() or function
        if isinstance(function, Inlined) and function.place is not None:
            return self._inline(function, self.parameters(node, function, first), node)
        if isinstance(function, Function) and (lead := first or next(iter(node.args), None)) is not None:
            found = self._ahead[lead] = self.result(lead)
            if isinstance(found, Picked):
                del self._ahead[lead]
                return self.of_picked(node, function, found, [lead, *node.args[first is None :]])
        node, dtype = self._options(node, function, first)
        if isinstance(function, Inlined):
            found = self._inline(function, self.parameters(node, function, first), node)
        else:
            loose = family in (TORCH, METHOD)
            values = self.arguments(node, function, first, loose)
            found = plain(self.lowered(node, function.shape, function.lower, *values))
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

    def _settled_call(
        self, node: ast.Call, name: str, given: list[Result], words: Mapping[str, Result] | None = None
    ) -> Result:
        function = partial(sequences.SPECIAL[name], **(words or {}))
        try:
            inspect.signature(function).bind(self.builder, *given)
        except TypeError:
            message = f"{name} does not take {', '.join([count(len(given), 'argument'), *(words or ())])}"
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
            if binding.memory is not None and len(binding.memory.places) > binding.written:
                line = binding.memory.places[binding.written].line
                hint = f"in NumPy and PyTorch {name} changes, too: what line {line} writes to begins with ....clone()"
                message = f"{name} shares its elements with what line {line} writes to"
                raise ProgramSyntaxError(message, hint=hint, span=self.source.of(node))
            return binding.term
        if name in (INF, PI, "bool", "int", *DTYPE_NAMES):
            return CONSTANTS[name]
        if (function := self._known(name, OWN)) is not None:
            return Callee(name, function.signature, function)
        message, hint = self._elsewhere(name, node)
        if not message:
            message = f"there is no {name}"
            declared = f"inputs are declared as {name}: f16[2, 3], constants as {name} = 64"
            hint = NAMES.get(name) or suggestion(name, self.bindings) or declared
        raise UnknownNameError(message, hint=hint, span=self.source.of(node))

    def _elsewhere(self, name: str, node: ast.expr) -> tuple[str, str]:
        """What to say of a name that another line defines, if one does: further down, or as a type."""
        if (line := self.defined_in.get(name)) is None:
            return "", ""
        what = "no tensor here" if line < self.source.of(node).line else "used before it is defined"
        return f"{name} is {what}", f"line {line} defines it; an input has a colon, as {name}: f16[2, 3]"

    def function(self, node: ast.expr, name: str, family: str) -> Function | Inlined:
        """The function that is called by a name."""
        binding = self.bindings.get(name) if family == OWN else None
        if binding is not None and isinstance(binding.term, Callee):
            function = binding.term.function
            self.reads.add(binding)
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
            message, hint = self._elsewhere(name, node) if family == OWN else ("", "")
            hint = hint or function_hint(name, [shown(known) for known in self.functions if known[0] != "_"])
            raise UnknownNameError(message or f"there is no function {name}", hint=hint, span=self.source.of(node))
        return found

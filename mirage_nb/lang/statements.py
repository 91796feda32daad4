"""The statements of a program, read from top to bottom: declarations, assignments, loops, functions, the return.

In: the syntax tree of a text, sizes given from outside. Out: `Read`: the graph, the places of its operators, sizes
and remarks. Invariant: names mean what they mean in Python: a name is what it was last assigned, a function sees its
own names before those of the program, a loop does its statements once for each number or tensor.
"""

from __future__ import annotations

import ast
import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mirage_nb.errors import (
    MirageError,
    OptionError,
    ProgramSizeError,
    ProgramSyntaxError,
    ShapeError,
    SourceSpan,
    UnknownNameError,
)
from mirage_nb.ir.dtypes import DTYPE_NAMES, DType
from mirage_nb.ir.graph import KernelGraph
from mirage_nb.lang import sequences
from mirage_nb.lang.arguments import Inlined
from mirage_nb.lang.bindings import Binding, Memory, changed, library, root
from mirage_nb.lang.builder import Builder, Result, Text, Value, is_tensor, plain
from mirage_nb.lang.constants import Number, shorten
from mirage_nb.lang.declarations import DECLARE, Declarations
from mirage_nb.lang.definitions import define, numbers_of
from mirage_nb.lang.expressions import Expressions, built_in
from mirage_nb.lang.hints import suggestion
from mirage_nb.lang.limits import MAX_STATEMENTS
from mirage_nb.lang.names import CONSTANTS, LAX, LINALG, LOGICAL, MODULES, borrowed
from mirage_nb.lang.parts import in_parts
from mirage_nb.lang.remarks import Remark, remarks
from mirage_nb.lang.returns import outputs_of
from mirage_nb.lang.signature import Function
from mirage_nb.lang.sizes import Ends
from mirage_nb.lang.source import Source, Within

_TARGETS = "this cannot be assigned", "write NAME = expression, A, B = ..., or Y[:, 0] = ..."
_STATEMENTS = "statements are X: f16[2, 3], Y = expression, return Y"
_FRAMES = 4
"""Levels of nesting that a call of a function of the program, or a loop, counts as: Python's stack is finite."""


class Leave(enum.Enum):
    """What `break` and `continue` leave."""

    LOOP = "break"
    TURN = "continue"


@dataclass(frozen=True, slots=True)
class Read:
    """What the statements say: see `TensorProgram`. ends: of the size that is known at launch, if there is one, and its
    place."""

    graph: KernelGraph
    spans: tuple[SourceSpan, ...]
    sizes: dict[str, int]
    remarks: tuple[Remark, ...]
    ends: tuple[Ends, SourceSpan] | None


class Statements(Declarations):
    """Reads the statements of one program, into one that is under construction if it is given."""

    def __init__(
        self, source: Source, tree: ast.Module, sizes: Mapping[str, Number | Ends], builder: Builder | None = None
    ) -> None:
        self.source = source
        self.body = tree.body
        self.sizes = sizes
        self.builder = Builder(weakly=True) if builder is None else builder
        every, defined_in = [*ast.walk(tree)], dict[str, int]()
        for statement in every:
            match statement:
                case ast.Assign(targets=[ast.Name(id=n)]) | ast.AnnAssign(target=ast.Name(id=n)) | ast.FunctionDef(n):
                    defined_in.setdefault(n, statement.lineno)
        self.expressions = Expressions(source, self.builder, defined_in, self._inlined)
        self.expressions.library = library(every)
        self.outputs: tuple[tuple[str, Value], ...] = ()
        self._default: DType | None = None
        self._types: dict[str, ast.expr] = {}
        """Names of tensor types."""
        self._made: list[Binding] = []
        self._known_sizes: dict[str, int] = {}
        self._size: tuple[Ends, Binding] | None = None
        self._loops = 0
        self._done = 0
        self._calls = 0
        """Functions that are being read, one within the other."""
        self._home: tuple[Source, dict[str, Function | Inlined]] | None = None
        """Text and functions of the program, while one of the language is read."""
        self._conditions: frozenset[Binding] = frozenset()
        """What decided that the present statement is done at all."""

    def read(self) -> Read:
        """The whole program."""
        for statement in [*self.body, *entry(self.body)]:
            if self.outputs:
                raise self._error(ProgramSyntaxError, "nothing may follow the return", "return comes last", statement)
            match statement:
                case ast.Return(value=None):
                    raise self._error(ProgramSyntaxError, "return names nothing", "write return Y", statement)
                case ast.Return(value=ast.expr() as value):
                    self.expressions.reads = set()
                    self._return(value)
                case ast.Import() | ast.ImportFrom():
                    self._import(statement)
                case _:
                    self._statement(statement)
                    if self.outputs:
                        break  # one of several ways through the program
        self._check_overrides()
        if not self.outputs:
            raise self._no_return()
        graph, spans = self.builder.finish(in_parts(self.builder, self.outputs))
        ends = (self._size[0], self._size[1].place) if self._size is not None else None
        return Read(graph, spans, self._known_sizes, remarks(self._made, self.expressions.reads), ends)

    # -- statements

    def _block(self, statements: Sequence[ast.stmt]) -> Result | Leave | None:
        """Statements one after the other, up to one that ends them: what it returns or leaves, if there was one."""
        for statement in statements:
            found = self._statement(statement)
            if found is not None:
                return found
        return None

    def _statement(self, statement: ast.stmt) -> Result | Leave | None:
        """One statement; what it returns if it ends a function, or what it leaves."""
        self._done += 1
        if self._done > MAX_STATEMENTS:
            raise self._error(
                ProgramSizeError, f"loops and functions make more than {MAX_STATEMENTS:,} statements",
                "a program is one kernel, or a few", statement,
            )  # fmt: skip
        self.expressions.reads = set(self._conditions)
        match statement:
            case ast.For() | ast.While() | ast.If() | ast.With():
                return self._compound(statement)
            case ast.AnnAssign(target=ast.Name(id=name) as target, annotation=annotation, value=None):
                self._declare(name, target, annotation)
            case ast.AnnAssign(target=ast.Name() as target, annotation=ast.Subscript() as of, value=ast.expr() as v):
                self._give(target, self._as_told(of, self.expressions.result(v), v), v)
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Lambda(args=arguments, body=lines) as made):
                returned = ast.copy_location(ast.Return(lines), lines)
                whole = ast.FunctionDef(name=name, args=arguments, body=[returned], decorator_list=[])
                self._define(ast.copy_location(whole, made))
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Subscript(value=ast.Name(id=word)) as made) if (
                word in DTYPE_NAMES and word not in self.expressions.bindings
            ):
                self._types[name] = made
            case ast.Assign(targets=targets, value=value):
                given = self.expressions.result(value)
                for left, right in zip(targets, (value, *targets), strict=False):  # a = b = c: the same elements
                    self._give(left, given, right)
            case ast.AnnAssign(target=ast.Name() as target, value=ast.expr() as value):
                self._give(target, self.expressions.result(value), value)
            case ast.AugAssign(target=ast.Name() as target, op=op, value=value):
                both = ast.BinOp(ast.copy_location(ast.Name(target.id), target), op, value)
                self._change(target, self.expressions.result(ast.copy_location(both, statement)))
            case ast.AugAssign(target=ast.Subscript() as target, op=op, value=value):
                self._write(target, self.expressions.result(value), op)
            case ast.AnnAssign(target=target) | ast.AugAssign(target=target):
                raise self._error(ProgramSyntaxError, *_TARGETS, target)
            case (ast.Break() | ast.Continue()) if self._loops:
                return Leave.LOOP if isinstance(statement, ast.Break) else Leave.TURN
            case ast.Assert(test=test, msg=said):
                if not self.expressions.truth(test):
                    raise self._refused(said, test)
            case ast.Raise(exc=made):
                told = made.args[0] if isinstance(made, ast.Call) and made.args else None
                raise self._refused(told, statement)
            case ast.Pass() | ast.Delete():
                return None
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr="to" | "contiguous" | "cuda")) as value):
                self.expressions.result(value)  # of what is not used it changes nothing
            case ast.Expr(value=ast.Call(func=ast.Name(id="print")) as value):
                raise self._error(ProgramSyntaxError, "programs print nothing", "leave it out, or return it", value)
            case ast.Return(value=ast.expr() as value) if self._calls:
                return self.expressions.result(value)
            case ast.Return() if self._loops:
                hint = "return what the loop has made behind it"
                raise self._error(ProgramSyntaxError, "this return stands in a loop", hint, statement)
            case ast.Return(value=ast.expr() as value):
                self._return(value)
            case ast.FunctionDef():
                self._define(statement)
            case ast.Expr(value=ast.Constant(value=str())):
                return None  # what a reader is told
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name() as target, attr=how), args=given)) if (
                how in sequences.GROWN
            ):
                several = [self.expressions.result(one) for one in (target, *given)]
                grown = self.expressions.settled(target, sequences.grown, self.builder, how, *several)
                self.expressions.change(target, grown)
            case ast.Expr(value=ast.Call() as value) if (elements := changed(value)) is not None:
                read = self.expressions.result if isinstance(elements, ast.Name) else self.expressions.called
                self._give(elements, read(value), value)
            case ast.Expr(value=value):
                declares = isinstance(value, ast.Subscript) and value.lineno == self.body[0].lineno
                hint = DECLARE if declares else "write NAME = expression, or return expression"
                raise self._error(ProgramSyntaxError, "the value of this line is not used", hint, value)
            case _:
                raise self._error(ProgramSyntaxError, "this is not a statement of the language", _STATEMENTS, statement)
        return None

    def _compound(self, statement: ast.For | ast.While | ast.If | ast.With) -> Result | Leave | None:
        """Statements that have others in them."""
        match statement:
            case ast.For(target=target, iter=over, body=body):
                return self._loop(target, over, body, statement.orelse)
            case ast.While(test=test, body=body):
                return self._while(test, body, statement.orelse)
            case ast.If(test=test, body=body, orelse=other):
                holds = self.expressions.truth(test)
                outer, self._conditions = self._conditions, self._conditions | self.expressions.reads
                found = self._block(body if holds else other)
                self._conditions = outer
                return found
            case ast.With(items=[ast.withitem(ast.Call(func=ast.Attribute(attr="no_grad" | "inference_mode")))]):
                return self._block(statement.body)  # there are no gradients here
        raise self._error(ProgramSyntaxError, "this is not a statement of the language", _STATEMENTS, statement)

    def _import(self, statement: ast.Import | ast.ImportFrom) -> None:
        """`import numpy as np`: its functions are known already, under the names that are given here."""
        base = statement.module or "" if isinstance(statement, ast.ImportFrom) else ""
        for alias in statement.names:
            whole = f"{base}.{alias.name}" if base else alias.name
            family = MODULES.get(whole.partition(".")[0])
            if family is None:
                hint = "np.exp, torch.exp and F.relu are known without an import; %mirage help lists all functions"
                raise self._error(ProgramSyntaxError, "programs import NumPy and PyTorch only", hint, statement)
            name, last = alias.asname or alias.name.partition(".")[0], (base or alias.name).rpartition(".")[2]
            family = last if last in (LAX, LINALG) and (base or alias.asname) else family
            if base and alias.name in CONSTANTS:
                self._bind(name, statement, CONSTANTS[alias.name])
            elif base and borrowed(family, alias.name) in built_in():
                self.expressions.modules[f".{family}"] = family
                module = ast.copy_location(ast.Name(f".{family}"), statement)
                self.expressions.imported[name] = ast.copy_location(ast.Attribute(module, alias.name), statement)
            else:
                self.expressions.modules[name] = alias.name if base and alias.name in (LAX, LINALG) else family

    def _error(self, kind: type[MirageError], message: str, hint: str, node: ast.expr | ast.stmt) -> MirageError:
        return kind(message, hint=hint, span=self.source.of(node))

    def _refused(self, said: ast.expr | None, place: ast.expr | ast.stmt) -> MirageError:
        """What the program itself refuses, in its own words if it has some."""
        told = self.expressions.result(said) if isinstance(said, ast.Constant | ast.JoinedStr) else None
        message = told.value if isinstance(told, Text) else "this does not hold"
        hint = "" if isinstance(self.source, Within) else "the program says so"
        return self._error(ShapeError, message, hint, place)

    def _inside(self) -> bool:
        """Whether a loop or a function is being run."""
        return bool(self._loops) or bool(self._calls)

    def _assign(self, target: ast.Name, found: Result, value: ast.expr | None = None, part: bool = False) -> None:
        """`Y = expression`, with the size from outside if there is one for this constant. part: of several."""
        name = target.id
        if not self._inside() and name not in self._known_sizes:
            if name in self.sizes and name not in self.expressions.bindings:
                if not isinstance(found, Number) or found.integer is None:
                    hint = "sizes are integer constants, such as B = 8"
                    raise self._error(OptionError, f"{name} is not a size", hint, target)
                return self._bind_size(name, target, self.sizes[name])
            if isinstance(found, Number) and found.integer is not None and name not in self.expressions.bindings:
                self._known_sizes[name] = found.integer
        memory = self._memory(value)
        self._bind(name, target, found, memory=Memory(memory) if part and memory is not None else memory)

    def _memory(self, value: ast.expr | None) -> Memory | None:
        """That of the elements that an expression is, if it makes none of its own."""
        held = self.expressions.bindings.get(root(value))
        return None if held is None else held.memory

    def _change(self, target: ast.Name, made: Result) -> None:
        """`Y += expression`: tensors change where they are, numbers become others."""
        if isinstance(made, Number) or not self.expressions.change(target, made):
            self._assign(target, made)
        elif not self._calls:
            self._made.append(self.expressions.bindings[target.id])

    def _define(self, statement: ast.FunctionDef) -> None:
        define(self.expressions, statement)

    def _give(self, target: ast.expr, found: Result, value: ast.expr, part: bool = False) -> None:
        """`Y = ...`, `A, (B, *C) = ...`, `Y[:, 0] = ...`: what was found, to what stands left of =."""
        match target:
            case ast.Name():
                self._assign(target, found, value, part)
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                self._unpack(targets, found, value)
            case ast.Subscript():
                self._write(target, found)
            case _:
                raise self._error(ProgramSyntaxError, *_TARGETS, target)

    def _unpack(self, targets: Sequence[ast.expr], found: Result, value: ast.expr) -> None:
        """`A, B = split(X, 2)`, and the rows of a tensor; one name with a * takes what the others leave."""
        starred = [at for at, target in enumerate(targets) if isinstance(target, ast.Starred)]
        if is_tensor(found) and (starred or self.builder.shape(found)[0] == len(targets)):
            found = self._elements(found, value)
        parts = found if isinstance(found, tuple) else (found,)
        if len(starred) == 1 and len(parts) >= len(targets) - 1:
            first, behind = starred[0], len(targets) - starred[0] - 1
            last = len(parts) - behind
            parts = (*parts[:first], parts[first:last], *parts[last:])
        if not isinstance(found, tuple) or len(parts) != len(targets) or len(starred) > 1:
            hint = "as many names as tensors stand left of ="
            raise self._error(ProgramSyntaxError, f"{len(targets)} names for {_tensors(len(parts))}", hint, value)
        written = value.elts if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(parts) else []
        nodes = written if not any(isinstance(node, ast.Starred) for node in (*written, *targets)) else []
        for target, part, node in zip(targets, parts, nodes or [value] * len(parts), strict=True):
            self._give(target.value if isinstance(target, ast.Starred) else target, part, node, not nodes)

    def _write(self, target: ast.Subscript, new: Result, op: ast.operator | None = None) -> None:
        """`Y[:, 0] = new`, `Y[:, 0] += new`: from here on Y is another tensor."""
        whole = target.value
        if not isinstance(whole, ast.Name | ast.Subscript):
            raise self._error(ProgramSyntaxError, *_TARGETS, target)
        made = self.expressions.written(target, new, op)
        if isinstance(whole, ast.Subscript):
            return self._write(whole, made)
        held = self.expressions.bindings[whole.id]
        if held.lent or held.memory is None or whole.id not in self.expressions.bindings.maps[0]:
            hint = f"write {whole.id} = {whole.id}.clone() before"
            message = f"{whole.id} belongs to what calls this function"
            raise self._error(ProgramSyntaxError, message, hint, target)
        held.memory.write(self.source.of(target))
        self._bind(whole.id, whole, made, memory=held.memory)

    def _bind(
        self, name: str, target: ast.expr | ast.stmt, term: Result, is_input: bool = False, memory: Memory | None = None
    ) -> None:
        reads, held = frozenset(self.expressions.reads), Memory() if memory is None else memory
        made = Binding(name, term, self.source.of(target), reads, is_input, held, len(held.places))
        self.expressions.bindings[name] = made
        if not self._calls:
            self._made.append(made)

    # -- loops and functions

    def _loop(
        self, target: ast.expr, over: ast.expr, body: Sequence[ast.stmt], other: Sequence[ast.stmt]
    ) -> Result | Leave | None:
        """`for i in range(3):` and `for w in (A, B):`, once for each."""
        turns, read = self._elements(self.expressions.result(over), over), self.expressions.reads

        def bound() -> Iterator[None]:
            for turn in turns:
                self.expressions.reads = set(read)
                self.expressions.bind(target, turn, frozenset(read), self._memory(over))
                yield

        return self._repeated(over, bound(), body, other)

    def _while(self, test: ast.expr, body: Sequence[ast.stmt], other: Sequence[ast.stmt]) -> Result | Leave | None:
        """`while n > 1:`, where n is known while the program is read."""

        outer = self._conditions

        def held() -> Iterator[None]:
            while self.expressions.truth(test):
                self._conditions = outer | self.expressions.reads
                yield

        return self._repeated(test, held(), body, other)

    def _repeated(
        self, place: ast.expr, turns: Iterator[None], body: Sequence[ast.stmt], other: Sequence[ast.stmt]
    ) -> Result | Leave | None:
        """The statements of a loop, once for each turn, and the others if no break leaves it; what they return."""
        outer, self._loops = self._conditions, self._loops + 1
        self._deeper(place, _FRAMES)
        try:
            for _ in turns:
                found = self._block(body)
                if found is Leave.LOOP:
                    return None
                if found is not None and found is not Leave.TURN:
                    return found
        finally:
            self.expressions.depth -= _FRAMES
            self._conditions, self._loops = outer, self._loops - 1
        return self._block(other)

    def _elements(self, found: Result, over: ast.expr) -> tuple[Result, ...]:
        try:
            return sequences.elements(self.builder, found)
        except MirageError as error:
            raise self._error(type(error), error.message, error.hint, over) from None

    def _deeper(self, node: ast.expr, levels: int) -> None:
        self.expressions.depth += levels
        self.expressions.check_depth(node)

    def _inlined(self, function: Inlined, given: dict[str, Result], call: ast.Call) -> Result:
        """What a function returns for these arguments."""
        expressions, loops, conditions, source = self.expressions, self._loops, self._conditions, self.source
        outer, read, functions = expressions.bindings, expressions.reads, expressions.functions
        self._deeper(call, _FRAMES)
        self._calls += 1
        self._loops, self._conditions = 0, frozenset(read)
        place, above = function.place or source.of(call), type(outer)() if function.scope is None else function.scope
        home = self._home
        if function.place is None:  # one of the language, which knows nothing of the program
            self._home = home or (source, functions)
            self.source = expressions.source = Within(source.lines, source.indent, place)
            expressions.functions = built_in()
        elif home is not None:  # one of the program, which one of the language was given
            (self.source, expressions.functions), self._home = home, None
            expressions.source = self.source
        expressions.functions = dict(expressions.functions if function.functions is None else function.functions)
        own = {name: Binding(name, term, place, memory=None, lent=True) for name, term in given.items()}
        if function.place is not None:  # what it writes to is its caller's
            words = ((k.arg or "", k.value) for k in call.keywords)
            for name, node in (*zip(function.parameters, call.args, strict=False), *words):
                if (held := outer.get(root(node))) is not None and held.memory is not None and name in own:
                    own[name] = replace(own[name], memory=held.memory, written=len(held.memory.places))
        expressions.bindings = type(outer)(own, *above.maps)
        try:
            result = self._block(function.body)
            if result is None or isinstance(result, Leave):
                hint = "each way through it ends with return RESULT"
                raise self._error(ProgramSyntaxError, f"{function.name} returns nothing", hint, call)
            return result if function.place is not None or function.name in LOGICAL else plain(result)
        except MirageError as error:
            if function.place is None and not error.hint and not function.name.startswith("_"):
                raise type(error)(error.message, hint=function.signature, span=error.span) from None
            if " calls" in error.hint or function.place is None:
                raise
            hint = f"{error.hint}; line {source.of(call).line} calls {function.name}".lstrip("; ")
            raise type(error)(error.message, hint=hint, span=error.span) from None
        finally:
            expressions.reads |= read | function.reads
            expressions.bindings, self._loops, self._conditions = outer, loops, conditions
            expressions.functions, expressions.source, self.source, self._home = functions, source, source, home
            self._calls -= 1
            expressions.depth -= _FRAMES

    # -- the end of a program

    def _return(self, value: ast.expr) -> None:
        inputs = {binding.name for binding in self._made if binding.is_input}
        self.outputs = outputs_of(self.expressions, value, inputs)

    def _check_overrides(self) -> None:
        """Every size from outside has changed a constant."""
        for name in self.sizes:
            binding = self.expressions.bindings.get(name)
            if binding is None:
                constants = list(numbers_of(self.expressions))
                known = f"the sizes are {', '.join(constants)}" if constants else "a size is a line such as B = 8"
                raise UnknownNameError(
                    f"the program has no size {shorten(str(name))}", hint=suggestion(str(name), constants) or known
                )
            if name not in self._known_sizes and (self._size is None or name != self._size[0].size.name):
                raise OptionError(
                    f"{name} is {'an input, not a size' if binding.is_input else 'not a size'}",
                    hint="sizes are integer constants, such as B = 8",
                    span=binding.place,
                )

    def _no_return(self) -> MirageError:
        if not self.body:
            return ProgramSyntaxError("the program is empty", hint=DECLARE, span=self.source.span(1, 1, 1))
        made = [binding.name for binding in self._made if not binding.is_input]
        hint = f"end with: return {made[-1] if made else 'Y'}"
        if isinstance(f := self.body[-1], ast.FunctionDef):
            hint = f"give all parameters types, as x: f16[2, 3]; or declare inputs, and behind it: return {f.name}(X)"
        return self._error(ProgramSyntaxError, "the program returns nothing", hint, self.body[-1])


def entry(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """What a program leaves out that ends with `def forward(x: f16[8, 64], w: f16[64, 64]):`: inputs, and the call."""
    if not body or not isinstance(function := body[-1], ast.FunctionDef):
        return []
    plain, defaults = function.args.args, function.args.defaults
    inputs = [(a, a.annotation) for a in plain[: len(plain) - len(defaults)] if a.annotation is not None]
    if not inputs or len(inputs) + len(defaults) < len(plain) or any(isinstance(s, ast.Return) for s in body):
        return []
    names = [ast.copy_location(ast.Name(a.arg, ast.Store()), a) for a, _ in inputs]
    declared = [ast.AnnAssign(name, of, None, 1) for name, (_, of) in zip(names, inputs, strict=True)]
    called = ast.copy_location(ast.Call(ast.copy_location(ast.Name(function.name), function), [*names], []), function)
    returned = ast.copy_location(ast.Return(called), function)
    return [*(ast.copy_location(one, one.target) for one in declared), returned]


def _tensors(count: int) -> str:
    return "1 tensor" if count == 1 else f"{count} tensors"

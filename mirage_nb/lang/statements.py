"""The statements of a program, read from top to bottom: declarations, assignments, loops, functions, the return.

In: the syntax tree of a text, sizes given from outside. Out: `Read`: the graph, the places of its operators, sizes
and remarks. Invariant: names mean what they mean in Python: a name is what it was last assigned, a function sees its
own names before those of the program, a loop does its statements once for each number or tensor.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mirage_nb.errors import (
    DTypeError,
    DuplicateNameError,
    MirageError,
    NamedSizeError,
    OptionError,
    ProgramSizeError,
    ProgramSyntaxError,
    ShapeError,
    SourceSpan,
    UnknownNameError,
)
from mirage_nb.ir.dtypes import DTYPE_NAMES, DType, TensorType
from mirage_nb.ir.graph import KernelGraph
from mirage_nb.lang import sequences
from mirage_nb.lang.arguments import Inlined
from mirage_nb.lang.builder import Builder, Result, Value
from mirage_nb.lang.constants import Number, shorten
from mirage_nb.lang.definitions import define, numbers_of
from mirage_nb.lang.expressions import Binding, Expressions, built_in
from mirage_nb.lang.hints import dtype_hint, suggestion
from mirage_nb.lang.limits import MAX_STATEMENTS
from mirage_nb.lang.names import MODULES, WHOLE
from mirage_nb.lang.remarks import Remark, behind, remarks
from mirage_nb.lang.sizes import SIZE, Ends, read_size
from mirage_nb.lang.source import Source, Within

_DECLARE = "an input is declared as X: f16[2, 3]"
_STATEMENTS = "statements are X: f16[2, 3], Y = expression, return Y"
_FRAMES = 4
"""Levels of nesting that a call of a function of the program, or a loop, counts as: Python's stack is finite."""
DEFAULT = "dtype"
"""The name in the line that says the element type of inputs without one."""


@dataclass(frozen=True, slots=True)
class Read:
    """What the statements say: see `TensorProgram`. ends: of the size that is known at launch, if there is one, and its
    place."""

    graph: KernelGraph
    spans: tuple[SourceSpan, ...]
    sizes: dict[str, int]
    remarks: tuple[Remark, ...]
    ends: tuple[Ends, SourceSpan] | None


class Statements:
    """Reads the statements of one program."""

    def __init__(self, source: Source, tree: ast.Module, sizes: Mapping[str, Number | Ends]) -> None:
        self.source = source
        self.body = tree.body
        self.sizes = sizes
        self.builder = Builder()
        defined_in: dict[str, int] = {}
        for statement in ast.walk(tree):
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                    defined_in.setdefault(name, statement.lineno)
        self.expressions = Expressions(source, self.builder, defined_in, self._inlined)
        self.outputs: tuple[tuple[str, Value], ...] = ()
        self._default: DType | None = None
        self._made: list[Binding] = []
        self._known_sizes: dict[str, int] = {}
        self._size: tuple[Ends, Binding] | None = None
        self._loops = 0
        self._done = 0
        self._calls = 0
        """Functions that are being read, one within the other."""
        self._conditions: frozenset[Binding] = frozenset()
        """What decided that the present statement is done at all."""

    def read(self) -> Read:
        """The whole program."""
        for statement in self.body:
            if self.outputs:
                raise self._error(ProgramSyntaxError, "nothing may follow the return", "return comes last", statement)
            match statement:
                case ast.Return(value=None):
                    raise self._error(ProgramSyntaxError, "return names nothing", "write return Y", statement)
                case ast.Return(value=ast.expr() as value):
                    self.expressions.reads = set()
                    self._return(value)
                case ast.FunctionDef():
                    define(self.expressions, statement)
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Lambda(args=arguments, body=body) as made):
                    returned = ast.copy_location(ast.Return(body), body)
                    whole = ast.FunctionDef(name=name, args=arguments, body=[returned], decorator_list=[])
                    define(self.expressions, ast.copy_location(whole, made))
                case ast.Import() | ast.ImportFrom():
                    self._import(statement)
                case _:
                    self._statement(statement)
        self._check_overrides()
        if not self.outputs:
            raise self._no_return()
        graph, spans = self.builder.finish(self.outputs)
        ends = (self._size[0], self._size[1].place) if self._size is not None else None
        return Read(graph, spans, self._known_sizes, remarks(self._made, self.expressions.reads), ends)

    # -- statements

    def _block(self, statements: Sequence[ast.stmt]) -> Result | None:
        """Statements one after the other, up to a return: what it returns, if there was one."""
        for statement in statements:
            found = self._statement(statement)
            if found is not None:
                return found
        return None

    def _statement(self, statement: ast.stmt) -> Result | None:
        """One statement; what it returns if it ends a function."""
        self._done += 1
        if self._done > MAX_STATEMENTS:
            raise self._error(
                ProgramSizeError, f"loops and functions make more than {MAX_STATEMENTS:,} statements",
                "a program is one kernel, or a few", statement,
            )  # fmt: skip
        self.expressions.reads = set(self._conditions)
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name) as target, annotation=annotation, value=None):
                self._declare(name, target, annotation)
            case ast.AnnAssign(target=ast.Name(), value=ast.expr() as value):
                raise self._error(ProgramSyntaxError, "an input has no value of its own", _DECLARE, value)
            case ast.Assign(targets=[ast.Name() as target], value=value):
                self._assign(target, self.expressions.result(value), value)
            case ast.Assign(targets=[ast.Tuple(elts=targets) | ast.List(elts=targets)], value=value):
                self._unpack(targets, value)
            case ast.Assign(targets=[_, target, *_]):
                hint = "write one assignment per line"
                raise self._error(ProgramSyntaxError, "an assignment defines one name", hint, target)
            case ast.AugAssign(target=ast.Name() as target, op=op, value=value):
                whole = ast.BinOp(ast.copy_location(ast.Name(target.id), target), op, value)
                self._assign(target, self.expressions.result(ast.copy_location(whole, statement)), value)
            case ast.Assign(targets=[target]) | ast.AnnAssign(target=target) | ast.AugAssign(target=target):
                raise self._error(ProgramSyntaxError, "only a name can be assigned", "write NAME = expression", target)
            case ast.For(target=target, iter=over, body=body, orelse=[]):
                return self._loop(target, over, body)
            case ast.If(test=test, body=body, orelse=other):
                holds = self.expressions.truth(test)
                outer, self._conditions = self._conditions, self._conditions | self.expressions.reads
                found = self._block(body if holds else other)
                self._conditions = outer
                return found
            case ast.Return(value=ast.expr() as value) if self._calls:
                return self.expressions.result(value)
            case ast.Return() if self._loops:
                hint = "return what the loop has made behind it"
                raise self._error(ProgramSyntaxError, "this return stands in a loop", hint, statement)
            case ast.Return(value=ast.expr() as value):
                self._return(value)
            case ast.FunctionDef():
                hint = "define it before, in a line of its own"
                raise self._error(ProgramSyntaxError, "this function stands in another or in a loop", hint, statement)
            case ast.Expr(value=ast.Constant(value=str())):
                return None  # what a reader is told
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name() as target, attr="append"), args=[value])):
                held, added = self.expressions.result(target), self.expressions.result(value)
                if not isinstance(held, tuple):
                    raise self._error(ProgramSyntaxError, f"{target.id} is no list", "it begins with [ ]", target)
                self._bind(target.id, target, sequences.sequence((*held, added)))
            case ast.Expr(value=value):
                declares = isinstance(value, ast.Subscript) and value.lineno == self.body[0].lineno
                hint = _DECLARE if declares else "write NAME = expression, or return expression"
                raise self._error(ProgramSyntaxError, "the value of this line is not used", hint, value)
            case _:
                raise self._error(ProgramSyntaxError, "this is not a statement of the language", _STATEMENTS, statement)
        return None

    def _import(self, statement: ast.Import | ast.ImportFrom) -> None:
        """`import numpy as np`: its functions are known already, under the names that are given here."""
        base = statement.module or "" if isinstance(statement, ast.ImportFrom) else ""
        for alias in statement.names:
            family = MODULES.get((base or alias.name).partition(".")[0])
            if family is None:
                hint = "np.exp, torch.exp and F.relu are known without an import; %mirage help lists all functions"
                raise self._error(ProgramSyntaxError, "programs import NumPy and PyTorch only", hint, statement)
            name = alias.asname or alias.name.partition(".")[0]
            if alias.name not in built_in():
                self.expressions.modules[name] = family

    def _error(self, kind: type[MirageError], message: str, hint: str, node: ast.expr | ast.stmt) -> MirageError:
        return kind(message, hint=hint, span=self.source.of(node))

    def _declare(self, name: str, target: ast.expr, annotation: ast.expr) -> None:
        """`X: f16[2*B, D]`, `X: [2*B, D]` of the default type, or the line that says that type."""
        if self._inside():
            hint = "inputs are declared once, before they are used"
            raise self._error(ProgramSyntaxError, "an input is declared in a loop or a function", hint, target)
        if (binding := self.expressions.bindings.get(name)) is not None:
            hint = f"the first definition is in line {binding.place.line}"
            raise self._error(DuplicateNameError, f"{name} is already defined", hint, target)
        if isinstance(annotation, ast.Constant):
            raise self._error(ProgramSyntaxError, "this is not a tensor type", f"a constant is {name} = 4", annotation)
        if name == DEFAULT and isinstance(annotation, ast.Name):
            self._default = self._dtype(annotation)
            return
        match annotation:
            case ast.Name(id=word) | ast.Call(func=ast.Name(id=word)) if word == SIZE:
                size = self.sizes.get(name) or read_size(name, annotation, self.expressions)
                return self._bind_size(name, target, size)
            case ast.List(elts=extents):
                if self._default is None:
                    hint = f"write {name}: f16[2, 3], or say dtype: f16 before"
                    raise self._error(DTypeError, f"{name} has no element type", hint, annotation)
                dtype = self._default
            case ast.Subscript(value=ast.Name() as written, slice=inside):
                dtype = self._dtype(written)
                extents = inside.elts if isinstance(inside, ast.Tuple) else [inside]
            case ast.Name():
                dtype, extents = self._dtype(annotation), [ast.copy_location(ast.Constant(1, "1"), annotation)]
            case _:
                raise self._error(ProgramSyntaxError, "this is not a tensor type", _DECLARE, annotation)
        if not extents:
            raise self._error(ShapeError, "a tensor has at least one dimension", _DECLARE, annotation)
        outer = self._extent(extents[0])
        batch = self._size[0].size if self._size is not None and self._depends_on_size() else None
        if batch is not None and outer % batch.most:
            hint = f"write {name}: {dtype.value}[{batch.name}, ...], or a multiple such as 2*{batch.name}"
            raise self._error(NamedSizeError, f"this extent is no multiple of {batch.name}", hint, extents[0])
        tensor = TensorType((outer, *map(self._inner_extent, extents[1:])), dtype)
        try:
            value = self.builder.declare(name, tensor, tuple(map(_called, extents)), batch)
        except ProgramSizeError as error:
            raise self._error(ProgramSizeError, error.message, error.hint, annotation) from None
        if isinstance(annotation, ast.Subscript | ast.Name) and _word(annotation) in WHOLE:
            self.builder.whole.add(value)
        self._bind(name, target, value, is_input=True)

    def _dtype(self, written: ast.Name) -> DType:
        if written.id in WHOLE:
            return DType.F32
        if written.id not in DTYPE_NAMES:
            hint = dtype_hint(written.id)
            raise self._error(DTypeError, f"there is no dtype {written.id}", hint, written)
        return DTYPE_NAMES[written.id]

    def _extent(self, node: ast.expr) -> int:
        extent = self.expressions.integer(node, "an extent")
        if extent < 1:
            message = f"this extent is {shorten(str(extent))}"
            raise self._error(ShapeError, message, "extents are at least 1", node)
        return extent

    def _inner_extent(self, node: ast.expr) -> int:
        read, self.expressions.reads = self.expressions.reads, set()
        extent = self._extent(node)
        if self._depends_on_size():
            message = "a size that is known at launch stands behind another dimension"
            raise self._error(NamedSizeError, message, "it may be the outermost dimension of an input", node)
        self.expressions.reads |= read
        return extent

    def _depends_on_size(self) -> bool:
        """Whether what was just read is made of the size that is known at launch."""
        return self._size is not None and self._size[1] in behind(self.expressions.reads)

    def _bind_size(self, name: str, target: ast.expr, ends: Number | Ends) -> None:
        if isinstance(ends, Number):
            assert ends.integer is not None
            self._known_sizes[name] = ends.integer
            return self._bind(name, target, ends)
        most = ends.size.most
        if self._size is not None:
            message = f"{self._size[0].size.name} is known at launch only, and {name} would be, too"
            raise self._error(NamedSizeError, message, f"one size may be; a constant is {name} = {most}", target)
        self._bind(name, target, Number.of(most))
        self._size = ends, self.expressions.bindings[name]

    def _inside(self) -> bool:
        """Whether a loop or a function is being run."""
        return bool(self._loops) or bool(self._calls)

    def _assign(self, target: ast.Name, found: Result, value: ast.expr) -> None:
        """`Y = expression`, with the size from outside if there is one for this constant."""
        name = target.id
        if not self._inside() and name not in self._known_sizes:
            if name in self.sizes and name not in self.expressions.bindings:
                if not isinstance(found, Number) or found.integer is None:
                    hint = "sizes are integer constants, such as B = 8"
                    raise self._error(OptionError, f"{name} is not a size", hint, target)
                return self._bind_size(name, target, self.sizes[name])
            if isinstance(found, Number) and found.integer is not None and name not in self.expressions.bindings:
                self._known_sizes[name] = found.integer
        self._bind(name, target, found)

    def _unpack(self, targets: Sequence[ast.expr], value: ast.expr) -> None:
        """`A, B = split(X, 2)`."""
        found = self.expressions.result(value)
        for target in targets:
            if not isinstance(target, ast.Name):
                raise self._error(ProgramSyntaxError, "only a name can be assigned", "write A, B = ...", target)
        count = len(found) if isinstance(found, tuple) else 1
        if not isinstance(found, tuple) or count != len(targets):
            hint = "as many names as tensors stand left of ="
            raise self._error(ProgramSyntaxError, f"{len(targets)} names for {_tensors(count)}", hint, value)
        for target, term in zip(targets, found, strict=True):
            assert isinstance(target, ast.Name)
            self._assign(target, term, value)

    def _bind(self, name: str, target: ast.expr, term: Result, is_input: bool = False) -> None:
        made = Binding(name, term, self.source.of(target), frozenset(self.expressions.reads), is_input)
        self.expressions.bindings[name] = made
        if not self._calls:
            self._made.append(made)

    # -- loops and functions

    def _loop(self, target: ast.expr, over: ast.expr, body: Sequence[ast.stmt]) -> Result | None:
        """`for i in range(3):` and `for w in (A, B):`, once for each."""
        turns = self._turns(over)
        read = self.expressions.reads
        self._loops += 1
        self._deeper(over, _FRAMES)
        for turn in turns:
            self.expressions.reads = set(read)
            self.expressions.bind(target, turn, frozenset(read))
            if isinstance(target, ast.Name) and not self._calls:
                self._made.append(self.expressions.bindings[target.id])
            found = self._block(body)
            if found is not None:
                return found
        self.expressions.depth -= _FRAMES
        self._loops -= 1
        return None

    def _turns(self, over: ast.expr) -> tuple[Result, ...]:
        found = self.expressions.result(over)
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
        place, above = function.place or source.of(call), outer.maps[-1]
        if function.place is None:  # one of the language, which knows nothing of the program
            self.source = expressions.source = Within(source.lines, source.indent, place)
            above, expressions.functions = {}, built_in()
        expressions.bindings = type(outer)({name: Binding(name, term, place) for name, term in given.items()}, above)
        try:
            result = self._block(function.body)
            if result is None:
                hint = "each way through it ends with return RESULT"
                raise self._error(ProgramSyntaxError, f"{function.name} returns nothing", hint, call)
            return result
        except MirageError as error:
            if " calls" in error.hint or function.place is None:
                raise
            hint = f"{error.hint}; line {call.lineno} calls {function.name}".lstrip("; ")
            raise type(error)(error.message, hint=hint, span=error.span) from None
        finally:
            expressions.reads |= read
            expressions.bindings, self._loops, self._conditions = outer, loops, conditions
            expressions.functions, expressions.source, self.source = functions, source, source
            self._calls -= 1
            expressions.depth -= _FRAMES

    # -- the end of a program

    def _return(self, value: ast.expr) -> None:
        """`return Y` or `return Y, Z`; expressions are named O, or O0, O1, ..."""
        nodes = value.elts if isinstance(value, ast.Tuple) else [value]
        if not nodes:
            raise self._error(ProgramSyntaxError, "return names nothing", "write return Y", value)
        if len(nodes) > 1:
            terms = tuple(self.expressions.term(node) for node in nodes)
        else:
            result = self.expressions.result(value)
            results = result if isinstance(result, tuple) else (result,)
            nodes = nodes * len(results)
            terms = tuple(self.expressions.term_of(one, value) for one in results)
        found: dict[Value, str] = {}
        for index, (node, term) in enumerate(zip(nodes, terms, strict=True)):
            name = self._output_name(node, "O" if len(nodes) == 1 else f"O{index}")
            shown = node.id if isinstance(node, ast.Name) else name
            if isinstance(term, Number):
                message = f"a program returns tensors, not the number {shorten(str(term))}"
                raise self._error(ShapeError, message, "return a tensor", node)
            if self.builder.definition(term) is None:
                hint = "return what is computed from the inputs"
                raise self._error(ProgramSyntaxError, f"{shown} is an input, unchanged", hint, node)
            if term in found:
                message = f"{name} is the same tensor as {found[term]}" if name != found[term] else f"{shown} again"
                raise self._error(DuplicateNameError, message, "return every tensor once", node)
            found[term] = name
        self.outputs = tuple((name, term) for term, name in found.items())

    def _output_name(self, node: ast.expr, made_up: str) -> str:
        """That of the variable, but not that of an input which it was before; else a name that the text has not."""
        bindings = self.expressions.bindings
        if isinstance(node, ast.Name) and not isinstance(bindings[node.id].term, tuple):
            name, taken = node.id, {binding.name for binding in self._made if binding.is_input}
        else:
            name, taken = made_up, set(bindings)
        while name in taken:
            name += "_"
        return name

    def _check_overrides(self) -> None:
        """Every size from outside has changed a constant."""
        for name in self.sizes:
            binding = self.expressions.bindings.get(name)
            if binding is None:
                constants = list(numbers_of(self.expressions))
                known = f"the sizes are {', '.join(constants)}" if constants else "the program has no sizes"
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
            return ProgramSyntaxError("the program is empty", hint=_DECLARE, span=self.source.span(1, 1, 1))
        made = [binding.name for binding in self._made if not binding.is_input]
        hint = f"end with: return {made[-1] if made else 'Y'}"
        if isinstance(self.body[-1], ast.FunctionDef):
            hint = f"inputs stand before the function, as X: f16[2, 3], and behind it: return {self.body[-1].name}(X)"
        return self._error(ProgramSyntaxError, "the program returns nothing", hint, self.body[-1])


def _tensors(count: int) -> str:
    return "1 tensor" if count == 1 else f"{count} tensors"


def _word(annotation: ast.Subscript | ast.Name) -> str:
    """The element type that an annotation names."""
    written = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    return written.id if isinstance(written, ast.Name) else ""


def _called(extent: ast.expr) -> str:
    """What a text calls an extent: K for K, 2B for 2 * B; nothing for a number and for other expressions."""
    match extent:
        case ast.Name(id=name):
            return name
        case ast.BinOp(left=ast.Constant(value=int(number)), op=ast.Mult(), right=ast.Name(id=name)):
            return f"{number}{name}"
        case _:
            return ""

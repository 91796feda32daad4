"""Functions that a program defines: elementwise ones by a formula, any other one by its statements.

In: the syntax tree of a definition. Out: a row of the functions that the program knows. Invariant: a function that
reads what nobody has defined is refused where it is defined, called or not.
"""

from __future__ import annotations

import ast
from collections import ChainMap
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from mirage_nb.errors import DuplicateNameError, MirageError, ProgramSyntaxError
from mirage_nb.ir import formula
from mirage_nb.ir.dtypes import DTYPE_NAMES
from mirage_nb.lang import patterns, sequences
from mirage_nb.lang.arguments import Inlined
from mirage_nb.lang.bindings import Binding
from mirage_nb.lang.constants import Number
from mirage_nb.lang.expressions import INF, PI, Expressions
from mirage_nb.lang.functions import defined
from mirage_nb.lang.names import OWN, SYNONYMS
from mirage_nb.lang.signature import Function


def _error(
    expressions: Expressions, kind: type[MirageError], message: str, hint: str, node: ast.expr | ast.stmt
) -> MirageError:
    return kind(message, hint=hint, span=expressions.source.of(node))


def define(expressions: Expressions, statement: ast.FunctionDef) -> None:
    """`def f(x): return formula` is an elementwise function, any other one stands for its statements."""
    arguments = statement.args
    placed = [*arguments.posonlyargs, *arguments.args]
    plain = [*placed, *arguments.kwonlyargs]
    expressions.reads = set()
    expressions.bindings.pop(statement.name, None)
    expressions.own.add(statement.name)
    formula_now: Callable[[], Function | None] | None = None
    if len(plain) == 1 and not (arguments.defaults or arguments.kwonlyargs or arguments.vararg or arguments.kwarg):
        match statement.body:
            case [ast.Return(value=ast.expr() as value)]:
                row = partial(_elementwise, expressions, statement.name, value, plain[0].arg, expressions.bindings)
                row()  # its mistakes are told where it is defined
                formula_now = row
    if not any(isinstance(line, ast.Return) and line.value is not None for line in _inside(statement.body)):
        hint = "its last line is return RESULT"
        raise _error(expressions, ProgramSyntaxError, f"{statement.name} returns nothing", hint, statement)
    names = tuple(a.arg for a in plain)
    rest, more = (one.arg if one is not None else "" for one in (arguments.vararg, arguments.kwarg))
    every = [*names, *filter(None, (rest, more))]
    if len(set(every)) < len(every):
        raise _error(expressions, DuplicateNameError, "two parameters have one name", "rename one", statement)
    nodes = [*[None] * (len(placed) - len(arguments.defaults)), *arguments.defaults, *arguments.kw_defaults]
    given = zip(names, nodes, strict=True)
    expressions.reads = set()
    defaults = {name: expressions.result(node) for name, node in given if node is not None}
    for grown in (node for node in ast.walk(statement) if isinstance(node, ast.Attribute)):
        if grown.attr in sequences.GROWN and isinstance(grown.value, ast.Name) and grown.value.id in defaults:
            message, hint = "in Python this list is one for all calls", f"begin with {grown.value.id} = []"
            raise _error(expressions, ProgramSyntaxError, message, hint, grown.value)
    reads = frozenset(expressions.reads)
    _check_names(expressions, statement, {*every})
    positional, keywords = tuple(a.arg for a in placed), tuple(a.arg for a in arguments.kwonlyargs)
    if rest:
        names = positional
    expressions.functions[statement.name] = Inlined(
        statement.name, names, defaults, tuple(statement.body), expressions.source.of(statement), rest,
        keywords if rest else (), expressions.bindings, expressions.functions, formula_now, more, reads,
    )  # fmt: skip


def _check_names(expressions: Expressions, statement: ast.FunctionDef, known: set[str]) -> None:
    """Refuse a function that reads what nobody has defined, also where nothing calls it."""
    lines = [*_inside(statement.body)]
    raised = {node for line in lines if isinstance(line, ast.Raise) for node in ast.walk(line)}  # never read
    every = (node for line in lines for node in ast.walk(line))
    names = [node for node in every if isinstance(node, ast.Name) and node not in raised]
    known |= {node.id for node in names if isinstance(node.ctx, ast.Store)}
    for line in _inside(statement.body):
        for inner in ast.walk(line):
            if isinstance(inner, ast.FunctionDef):
                known.add(inner.name)
            if isinstance(inner, ast.arguments):
                known |= {a.arg for a in ast.walk(inner) if isinstance(a, ast.arg)}
    known |= {statement.name, INF, PI, *sequences.SPECIAL, *expressions.functions, *expressions.bindings}
    known |= {*expressions.defined_in}  # further down, but before it is called
    known |= {*DTYPE_NAMES, *expressions.modules, *SYNONYMS, *patterns.NAMES, "dict", "map"}
    called = {node.func for line in lines for node in ast.walk(line) if isinstance(node, ast.Call)}
    for node in names:
        if node.id not in known:
            expressions.function(node, node.id, OWN) if node in called else expressions.result(node)


def numbers_of(expressions: Expressions) -> dict[str, Number]:
    """The constants in scope by their names."""
    return {n: b.term for n, b in expressions.bindings.items() if isinstance(b.term, Number)}


def _is_formula(expressions: Expressions, value: ast.expr, argument: str) -> bool:
    """Whether an expression uses nothing but its argument, numbers, and functions of formulas."""
    functions, numbers = expressions.functions, numbers_of(expressions)
    called = {id(node.func) for node in ast.walk(value) if isinstance(node, ast.Call)}
    for node in ast.walk(value):
        match node:
            case ast.Name(id=name) if id(node) in called:
                if name not in formula.SCALARS or isinstance(functions.get(name), Inlined):
                    return False
            case ast.Name(id=name):
                if name != argument and name not in numbers:
                    return False
            case ast.BinOp(op=op) if type(op) not in formula.ARITHMETIC:
                return False
            case ast.expr() if not isinstance(node, ast.Call | ast.BinOp | ast.UnaryOp | ast.Constant):
                return False
    return True


def _elementwise(
    expressions: Expressions, name: str, value: ast.expr, argument: str, scope: ChainMap[str, Binding]
) -> Function | None:
    """The function that an expression of one argument is where it is called, with the constants of its scope as they
    are there; None where it is no formula."""
    outer, expressions.bindings = expressions.bindings, scope
    try:
        held = _is_formula(expressions, value, argument)
        named = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
        expressions.reads |= {scope[one] for one in named if held and one in scope}
        return defined(name, _formula(expressions, value, argument)) if held else None
    finally:
        expressions.bindings = outer


def _formula(expressions: Expressions, value: ast.expr, argument: str) -> str:
    """The canonical text of an elementwise function of the program's own."""
    numbers = {name: n.rational for name, n in numbers_of(expressions).items() if n.rational is not None}

    def blame(node: ast.expr, message: str, hint: str) -> MirageError:
        return _error(expressions, ProgramSyntaxError, message, hint, node)

    try:
        return formula.canonical(formula.of_node(value, argument, numbers, blame))
    except MirageError as error:
        raise type(error)(error.message, hint=error.hint, span=error.span or expressions.source.of(value)) from None


def _inside(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements, and those in their branches and loops."""
    for statement in body:
        yield statement
        yield from _inside([*getattr(statement, "body", ()), *getattr(statement, "orelse", ())])

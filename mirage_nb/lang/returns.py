"""The end of a program: what its return names.

In: the expression behind `return`. Out: the outputs, a name and a tensor each. Invariant: names differ from each other
and from those of inputs; no tensor is returned twice, no input unchanged.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence

from mirage_nb.errors import DuplicateNameError, MirageError, ProgramSyntaxError, ShapeError
from mirage_nb.lang.builder import Builder, Extremes, Named, Result, Value
from mirage_nb.lang.constants import Number, shorten
from mirage_nb.lang.expressions import Expressions


def outputs_of(expressions: Expressions, value: ast.expr, inputs: Collection[str]) -> tuple[tuple[str, Value], ...]:
    """`return Y`, `return Y, Z`, `return {"y": Y}`; expressions are named O, or O0, O1, ..."""

    def error(kind: type[MirageError], message: str, hint: str, node: ast.expr) -> MirageError:
        return kind(message, hint=hint, span=expressions.source.of(node))

    found: dict[Value, str] = {}
    for index, (node, written, result, several) in enumerate(_results(expressions, value)):
        name = _name(expressions, node, written, f"O{index}" if several else "O", inputs)
        shown, term = node.id if isinstance(node, ast.Name) else "this", expressions.term_of(result, node)
        if isinstance(term, Number):
            message = f"a program returns tensors, not the number {shorten(str(term))}"
            raise error(ShapeError, message, "return a tensor", node)
        if expressions.builder.definition(term) is None:
            hint = "return what is computed from the inputs"
            raise error(ProgramSyntaxError, f"{shown} is an input, unchanged", hint, node)
        term = expressions.term_of(expressions.lowered(node, "", Builder.one, term), node)
        assert not isinstance(term, Number)
        if term in found:
            message = f"{name} is the same tensor as {found[term]}" if name != found[term] else f"{shown} again"
            raise error(DuplicateNameError, message, "return every tensor once", node)
        found[term] = name
    if not found:
        raise error(ProgramSyntaxError, "return names nothing", "write return Y", value)
    return tuple((name, term) for term, name in found.items())


def _results(expressions: Expressions, value: ast.expr) -> list[tuple[ast.expr, str, Result, bool]]:
    """Node, name if one is written, and result of every output, and whether there are several."""
    nodes: Sequence[ast.expr] = expressions.spread(value.elts) if isinstance(value, ast.Tuple) else [value]
    results = [expressions.result(node) for node in nodes]
    if len(nodes) == 1 and isinstance(found := results[0], tuple) and not isinstance(found, Extremes):
        names = found.names if isinstance(found, Named) else ("",) * len(found)
        return [(value, name, one, bool(name) or len(found) > 1) for name, one in zip(names, found, strict=True)]
    return [(node, "", one, len(nodes) > 1) for node, one in zip(nodes, results, strict=True)]


def _name(expressions: Expressions, node: ast.expr, written: str, made_up: str, inputs: Collection[str]) -> str:
    """What is written, or that of the variable, but not that of an input which it was before; else a name that the
    text has not."""
    bindings = expressions.bindings
    own = isinstance(node, ast.Name) and node.id in bindings and not isinstance(bindings[node.id].term, tuple)
    name, taken = written or (node.id if own and isinstance(node, ast.Name) else made_up), set(inputs)
    if not own and not written:
        taken = set(bindings)
    while name in taken:
        name += "_"
    return name

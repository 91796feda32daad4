"""Names of a program: what they stand for, what was read to make it, and which of them share elements.

In: results, places. Out: data. Invariant: a name that is assigned anew has another binding.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from mirage_nb.errors import SourceSpan
from mirage_nb.lang.builder import Result

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
    lent: bool = False
    """Whether it is a parameter, whose elements are those of what a call gave."""


_VIEWS = frozenset(
    "view reshape transpose permute t unsqueeze squeeze expand expand_as view_as swapaxes movedim moveaxis narrow "
    "select ravel flatten detach".split()
)
"""Methods whose results are other shapes of the same elements."""


def root(value: ast.expr | None) -> str:
    """The name of the tensor whose elements an expression is, if it makes none of its own."""
    match value:
        case ast.Name(id=name):
            return name
        case ast.Subscript(value=inner) | ast.Attribute(value=inner, attr="T" | "mT"):
            return root(inner)
        case ast.Call(func=ast.Attribute(value=inner, attr=attr)) if attr in _VIEWS:
            return root(inner)
        case ast.Call():
            return changed(value)
    return ""


def changed(call: ast.Call) -> str:
    """The name of the tensor that a call changes: x.add_(y).relu_(), F.relu(x, inplace=True)."""
    inner: ast.expr = call.func.value if isinstance(call.func, ast.Attribute) else call
    given = call.args[0] if call.args else inner
    told = [k.value for k in call.keywords if k.arg == "inplace"]
    if any(isinstance(one, ast.Constant) and one.value is True for one in told):
        return given.id if isinstance(given, ast.Name) else ""
    while isinstance(call.func, ast.Attribute) and call.func.attr.endswith("_"):
        inner = call.func.value
        if not isinstance(inner, ast.Call):
            return inner.id if isinstance(inner, ast.Name) else ""
        call = inner
    return ""

"""Names of a program: what they stand for, what was read to make it, and which of them share elements.

In: results, places. Out: data. Invariant: a name that is assigned anew has another binding.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field

from mirage_nb.errors import SourceSpan
from mirage_nb.lang.builder import Result
from mirage_nb.lang.names import LAX, MODULES, NUMPY, OWN, SCIPY, TORCH


class Memory:
    """What names share that stand for the same elements: the places where these are written to. A part of another
    memory is written to where that is, which is where any of its parts is."""

    def __init__(self, whole: Memory | None = None) -> None:
        self.places: list[SourceSpan] = []
        self._whole, self._parts = whole, list[Memory]()
        if whole is not None:
            whole._parts.append(self)

    def write(self, place: SourceSpan) -> None:
        """The elements are changed here."""
        above: Memory | None = self
        while above is not None:
            above.places.append(place)
            above = above._whole
        pending = [*self._parts]
        while pending:
            part = pending.pop()
            part.places.append(place)
            pending += part._parts


@dataclass(frozen=True, slots=True, eq=False)
class Binding:
    """A name of the program: what it stands for, where it was defined, and the bindings read to make it; the memory
    that it shares (None: with the caller of a function), and how often that was written to when the name was made."""

    name: str
    term: Result
    place: SourceSpan
    reads: frozenset[Binding] = frozenset()
    is_input: bool = False
    memory: Memory | None = field(default_factory=Memory)
    written: int = 0
    lent: bool = False
    """Whether it is a parameter, whose elements are those of what a call gave."""


_VIEWS = frozenset(
    "view reshape transpose permute t unsqueeze squeeze expand expand_as view_as swapaxes movedim moveaxis narrow "
    "select ravel flatten unflatten detach chunk split unbind tensor_split array_split hsplit vsplit diagonal "
    "expand_dims reshape_as permute_dims matrix_transpose adjoint unfold sliding_window_view".split()
)
"""Functions whose results are other shapes of the same elements, or parts of them."""


def library(every: Sequence[ast.AST]) -> str:
    """The one of NumPy and PyTorch that all nodes of a text name, if they name one of them only: what its methods
    are."""
    given = {n.id for n in every if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    named = {n.value.id for n in every if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)}
    named |= {a.name.partition(".")[0] for n in every if isinstance(n, ast.Import) for a in n.names}
    families = {MODULES.get(name) for name in named - given - {"math"}}
    found = {NUMPY if family in (LAX, SCIPY) else family for family in families} & {NUMPY, TORCH}
    return str(found.pop()) if len(found) == 1 else OWN


def root(value: ast.expr | None) -> str:
    """The name of the tensor whose elements an expression is, if it makes none of its own."""
    match value:
        case ast.Name(id=name):
            return name
        case ast.Subscript(value=inner) | ast.Attribute(value=inner, attr="T" | "mT"):
            return root(inner)
        case ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr=attr), args=[inner, *_]) if module in MODULES:
            return root(inner if attr in _VIEWS else changed(value))
        case ast.Call(func=ast.Name(id="enumerate" | "reversed" | "list" | "tuple"), args=[inner, *_]):
            return root(inner)
        case ast.Call(func=ast.Attribute(value=inner, attr=attr)) if attr in _VIEWS:
            return root(inner)
        case ast.Call():
            return root(changed(value))
    return ""


def changed(call: ast.Call) -> ast.expr | None:
    """The elements that a call changes: x of x.add_(y).relu_(), torch.relu_(x), F.relu(x, inplace=True) and
    np.add(y, z, out=x)."""
    inner = next((k.value for k in call.keywords if k.arg == "out"), None)
    if any(k.arg == "inplace" and isinstance(k.value, ast.Constant) and k.value.value is True for k in call.keywords):
        return call.args[0] if call.args else call.func.value if isinstance(call.func, ast.Attribute) else None
    while isinstance(call.func, ast.Attribute) and call.func.attr.endswith("_"):
        inner = call.func.value
        if isinstance(inner, ast.Name) and inner.id in MODULES:
            return call.args[0] if call.args else None
        if not isinstance(inner, ast.Call):
            break
        call = inner
    return inner

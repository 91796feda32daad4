"""Sizes that are known at launch, in programs: `B: size`, and `X: f16[B, 1024]`.

In: their declarations, and the same text at several numbers. Out: a `Size`, or what keeps it from being one.
Invariant: a size changes nothing in a program but extents. What is read at a number is the same graph as the one for
the whole range is at that extent (`ir.sizes.resized`).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from mirage_nb.errors import MirageError, NamedSizeError, ProgramSyntaxError, SourceSpan
from mirage_nb.ir.graph import KernelGraph, Size
from mirage_nb.ir.sizes import ROWS_ONLY, resized
from mirage_nb.lang.expressions import Expressions

SIZE, MOST = "size", 64
"""The word that declares a size that is known at launch, and how far it goes if nothing else is said."""
DIGITS = 18
"""Of a number in a command."""
PROBES, EVERY = 64, 2048
"""Numbers at which a text is read again where a size stands in declarations only, and how far it goes at most where it
stands elsewhere too: the text is read at every number then, as it may be another one at a single number."""
CHOOSING = (ast.IfExp, ast.BoolOp, ast.Compare, ast.FloorDiv, ast.Mod, ast.Pow)
"""What may single out numbers in the type of an input."""
EXTENTS = frozenset({"shape", "size", "len", "numel"})
"""Names by which a text asks for extents."""
_FORM = "a size that is known at launch is declared as B: size, or with its largest extent, B: size(64)"


@dataclass(frozen=True, slots=True)
class Ends:
    """A size, and the smaller extents up to which it shall have kernels of their own."""

    size: Size
    smaller: tuple[int, ...] = ()


def read_size(name: str, annotation: ast.expr, expressions: Expressions) -> Ends:
    """What `size`, `size(64)` or `size(1, 8, 64)` declares. Raises ProgramSyntaxError, NamedSizeError."""
    arguments = annotation.args if isinstance(annotation, ast.Call) else []
    place = expressions.source.of(annotation)
    if isinstance(annotation, ast.Call) and annotation.keywords:
        raise ProgramSyntaxError("this is not a size", hint=_FORM, span=place)
    ends = [expressions.integer(node, "an extent") for node in arguments] or [MOST]
    if len(ends) == 1 and ends[0] < 1:
        raise NamedSizeError(f"a size of {ends[0]}", hint=f"sizes are at least 1: {name}: size(64)", span=place)
    if any(a >= b for a, b in pairwise((0, *ends))):
        hint = f"for 1, for 2 to 8, and for 9 to 64: {name}: size(1, 8, 64)"
        raise NamedSizeError("the extents up to which there are kernels do not ascend", hint=hint, span=place)
    if ends[-1] < 2:
        raise NamedSizeError(f"{name} goes up to {ends[-1]}", hint=f"a constant is {name} = 1", span=place)
    return Ends(Size(name, 1, ends[-1]), tuple(ends[:-1]))


def given_size(text: str) -> tuple[str, int | range]:
    """What a command says of a size: `B=8`, or `B=1:64` for one that is known at launch. Raises ValueError, also for a
    range without members."""
    name, equals, number = text.partition("=")
    first, colon, last = number.strip().partition(":")
    numbers = (first, last) if colon else (first,)
    if not equals or not name.isidentifier() or not all(n.isdecimal() and len(n) <= DIGITS for n in numbers):
        raise ValueError(text)
    if colon and not 0 < int(first) <= int(last):
        raise ValueError(text)
    return name, range(int(first), int(last) + 1) if colon else int(first)


def check_size(
    graph: KernelGraph, size: Size, tree: ast.AST, place: SourceSpan, read: Callable[[int], KernelGraph]
) -> None:
    """Raise NamedSizeError unless a program says the same at numbers of the range; `read` reads its text at one."""
    if all(i.size is None for i in graph.inputs):
        raise NamedSizeError(f"no input has the size {size.name}", hint=f"X: f16[{size.name}, 1024]", span=place)
    computed = _is_computed_with(tree, size.name)
    if computed and size.most - size.least >= EVERY:
        hint = f"declare at most {EVERY} extents, or use {size.name} in the types of inputs only"
        raise NamedSizeError(f"{size.name} stands beyond declarations, in a range that is too wide for that", hint=hint,
                             span=place)  # fmt: skip
    for extent in reversed([*_probes(size, EVERY if computed else PROBES)]):
        try:
            same = read(extent) == resized(graph, extent)
        except MirageError as error:
            said = f"with {size.name} = {extent}: {error.message}"
            raise NamedSizeError(said, hint=ROWS_ONLY, span=error.span or place) from None
        if not same:
            message = f"with {size.name} = {extent} this is another program"
            hint = f"{size.name} may stand in extents only; a number that depends on it is an input of its own"
            raise NamedSizeError(message, hint=hint, span=place)


def _is_computed_with(tree: ast.AST, name: str) -> bool:
    """Whether a size, or an extent that may be one, stands anywhere but in declarations."""
    declared = {
        id(node)
        for one in ast.walk(tree)
        if isinstance(one, ast.AnnAssign) and not any(isinstance(node, CHOOSING) for node in ast.walk(one))
        for node in ast.walk(one)
    }
    names = {
        node.attr if isinstance(node, ast.Attribute) else node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute | ast.Name) and id(node) not in declared
    }
    return bool(names & {name, *EXTENTS})


def _probes(size: Size, most: int) -> Iterator[int]:
    """So many numbers of the range at most, both ends among them; all of them, if they are no more."""
    steps = min(size.most - size.least, most - 1)
    return (size.least + (size.most - size.least) * step // max(1, steps) for step in range(steps + 1))

"""Sequences, texts and questions about tensors: what is settled while a program is read.

In: results of expressions. Out: results: constants, tuples, texts. Invariant: none of it becomes an operator, but for
casts; a question about the values of a tensor has no answer here.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable

from mirage_nb.errors import DTypeError, ProgramSizeError, ProgramSyntaxError, ShapeError
from mirage_nb.ir.dtypes import DTYPE_NAMES
from mirage_nb.lang.builder import Builder, Extremes, Infinity, Named, Nothing, Result, Text, is_tensor
from mirage_nb.lang.constants import Number, function_of
from mirage_nb.lang.limits import MAX_STATEMENTS
from mirage_nb.lang.lowering import ZERO, add, cast, formula_of, is_whole, maximum, minimum, multiply
from mirage_nb.lang.masks import comparison, is_mask, table
from mirage_nb.lang.names import WHOLE
from mirage_nb.lang.views import indexed as indexed_tensor
from mirage_nb.lang.views import swap_last

MAX_LEVELS = 4
"""Of sequences within sequences."""


def numbers(values: range | tuple[int, ...]) -> tuple[Result, ...]:
    """Integers as a sequence of constants."""
    if len(values) > MAX_STATEMENTS:
        raise ProgramSizeError(f"a loop of more than {MAX_STATEMENTS:,} turns", hint="a loop is written out")
    return tuple(map(Number.of, values))


def sequence(found: Iterable[Result]) -> tuple[Result, ...]:
    """These one after the other. Raises ProgramSizeError for very many, and for sequences far within each other."""
    made = tuple(found)
    if _leaves(made) > MAX_STATEMENTS or _levels(made) > MAX_LEVELS:
        message = f"a sequence of more than {MAX_STATEMENTS:,} elements, or of more than {MAX_LEVELS} levels"
        raise ProgramSizeError(message, hint="stack and concat make one tensor of several")
    return made


def named(names: Iterable[object], found: Iterable[Result]) -> Named:
    """Results under these names. Raises ProgramSyntaxError where they are no words, or one stands twice."""
    words = tuple(name if isinstance(name, str) and name.isidentifier() else "" for name in names)
    if "" in words or len({*words}) < len(words):
        hint = 'write {"hidden": H, "scores": S}'
        raise ProgramSyntaxError("results are named by words, each by its own", hint=hint)
    made = Named(sequence(found))
    made.names = words
    return made


def _leaves(found: Result) -> int:
    return sum(map(_leaves, found)) + 1 if isinstance(found, tuple) else 1


def _levels(found: Result) -> int:
    return 1 + max(map(_levels, found), default=0) if isinstance(found, tuple) else 0


def _integers(given: tuple[Result, ...]) -> list[int]:
    found = [g.integer if isinstance(g, Number) else None for g in given]
    if None in found or not 1 <= len(found) <= 3:
        raise ProgramSyntaxError("this is not a range", hint="write range(3), range(1, 3) or range(0, 8, 2)")
    return [n for n in found if n is not None]


def ranged(b: Builder, *given: Result) -> Result:
    """range(stop), range(start, stop), range(start, stop, step)."""
    bounds = _integers(given)
    if bounds[2:] == [0]:
        raise ShapeError("a step of 0", hint="steps are 1, 2, ..., or negative")
    return numbers(range(*bounds))


def elements(b: Builder, x: Result = ()) -> tuple[Result, ...]:
    """The elements of a sequence, or the rows of a tensor."""
    if is_tensor(x) or isinstance(x, Extremes):
        whole = b.tensor_of(x, "a loop")
        return tuple(indexed_tensor(b, whole, [row]) for row in range(len(numbers(range(b.shape(whole)[0])))))
    if not isinstance(x, tuple):
        hint = "write for i in range(3):, or for w in (A, B):"
        raise ProgramSyntaxError("a loop goes over a range or several tensors", hint=hint)
    return x


def _filled(b: Builder, x: Result, value: Result) -> Result:
    """A tensor that is one number everywhere."""
    made = b.tensor_of(x, "full")
    if isinstance(value, Number | Infinity):
        b.fills[made] = value
    return made


def _length(b: Builder, x: Result) -> Result:
    return Number.of(len(x) if isinstance(x, tuple) else b.shape(b.tensor_of(x, "len"))[0])


def _zipped(b: Builder, *given: Result) -> Result:
    return sequence(tuple(row) for row in zip(*(elements(b, g) for g in given), strict=False))


def _numbered(b: Builder, x: Result) -> Result:
    return sequence((Number.of(place), one) for place, one in enumerate(elements(b, x)))


def _real(b: Builder, x: Result) -> Result:
    """float("-inf"); float(3) is 3, and of a tensor its cast to f32."""
    if isinstance(x, Text) and x.value.strip("+-") in ("inf", "infinity"):
        return Infinity(-1 if x.value.startswith("-") else 1)
    return x if isinstance(x, Number | Infinity) else cast(DTYPE_NAMES["float"])(b, b.tensor_of(x, "float"))


def _whole(b: Builder, x: Result) -> Result:
    if not isinstance(x, Number) or x.rational is None:
        raise ProgramSyntaxError("int takes a constant", hint="floor(x) makes the elements of a tensor whole")
    return Number.of(int(x.rational))


_TRUNCATED = formula_of("trunc", "sign(x) * floor(abs(x))")


def _cast(b: Builder, x: Result, dtype: Result) -> Result:
    if isinstance(dtype, Text) and dtype.value in WHOLE and not isinstance(x, Number):
        value = b.tensor_of(x, "a cast")
        if is_mask(b, value) or (is_whole(b, value) and dtype.value != "bool"):
            return value
        return comparison(ast.NotEq)(b, value, ZERO) if dtype.value == "bool" else _TRUNCATED(b, value)
    if not isinstance(dtype, Text) or dtype.value not in DTYPE_NAMES:
        raise DTypeError("this is not an element type", hint=f"for example f32(x); they are {', '.join(DTYPE_NAMES)}")
    return cast(DTYPE_NAMES[dtype.value])(b, x if isinstance(x, Number) else b.tensor_of(x, "a cast"))


SPECIAL: dict[str, Callable[..., Result]] = {
    "range": ranged,
    "len": _length,
    "zip": _zipped,
    "enumerate": _numbered,
    "tuple": elements,
    "list": elements,
    "reversed": lambda b, x: elements(b, x)[::-1],
    "float": _real,
    "int": _whole,
    "_cast": _cast,
    "_extremes": lambda b, x, at: Extremes((x, at)),
    "_table": table,
    "_filled": _filled,
    "_log2": lambda b, x: function_of("log2", math.log2, x),
    "_is_sequence": lambda b, x: Number.of(isinstance(x, tuple)),
    "_is_tensor": lambda b, x: Number.of(is_tensor(x)),
    "_is_mask": lambda b, x: Number.of(is_tensor(x) and is_mask(b, x)),
}
"""Functions of Python that are answered here; those with _ in front are the prelude's."""

FOLDED: dict[str, Callable[..., Result]] = {"sum": add, "max": maximum, "min": minimum, "prod": multiply}
"""What Python's functions of sequences and numbers do to two; of tensors they are functions of the language."""

PROPERTIES: dict[str, Callable[[Builder, Result], Result]] = {
    "T": lambda b, x: swap_last(b, b.tensor_of(x, ".T")),
    "mT": lambda b, x: swap_last(b, b.tensor_of(x, ".mT")),
    "shape": lambda b, x: numbers(b.shape(b.tensor_of(x, ".shape"))),
    "size": lambda b, x: Number.of(math.prod(b.shape(b.tensor_of(x, ".size")))),
    "ndim": lambda b, x: Number.of(len(b.shape(b.tensor_of(x, ".ndim")))),
    "dtype": lambda b, x: Text(b.dtype(b.tensor_of(x, ".dtype")).value),
    "values": lambda b, x: b.tensor_of(x, ".values"),
    "indices": lambda b, x: x[1] if isinstance(x, Extremes) else b.tensor_of(Nothing(), ".indices"),
}
"""What stands behind a tensor without being called; `values` and `indices` are those of a maximum."""


def truth(x: Result) -> bool:
    """Whether Python takes this for true."""
    match x:
        case Number():
            return x.integer != 0
        case Text(value=value):
            return bool(value)
        case tuple():
            return bool(x)
        case Nothing():
            return False
        case Infinity():
            return True
    raise ProgramSyntaxError(
        "the elements of a tensor are not known here",
        hint="where(X > 0, X, Y) chooses between elements; masks are joined with & | ~",
    )


def compared(op: ast.cmpop, x: Result, y: Result) -> bool | None:
    """What a comparison of results says that are no tensors, and not both numbers; None for the others."""
    if isinstance(op, ast.Is | ast.IsNot) and Nothing() in (x, y):
        return (x == y) is isinstance(op, ast.Is)
    if isinstance(op, ast.In | ast.NotIn) and isinstance(y, tuple) and not is_tensor(x):
        return (x in y) is isinstance(op, ast.In)
    odd = any(isinstance(one, Text | Nothing | tuple | Infinity) for one in (x, y))
    if isinstance(op, ast.Eq | ast.NotEq) and odd:
        return (x == y) is isinstance(op, ast.Eq)
    return None


def indexed(b: Builder, found: tuple[Result, ...], index: Result | slice) -> Result:
    """One of several, or a part of them."""
    if isinstance(index, slice):
        return found[index]
    if isinstance(found, Named) and isinstance(index, Text):
        if index.value not in found.names:
            raise ProgramSyntaxError(f"there is no {index.value!r}", hint=f"there are {', '.join(found.names)}")
        return found[found.names.index(index.value)]
    at = index.integer if isinstance(index, Number) else None
    if at is None:
        raise ShapeError("an index is an integer constant", hint="constants are defined as NAME = 16")
    return found[_place(found, at)]


def replaced(found: tuple[Result, ...], index: Result, new: Result) -> tuple[Result, ...]:
    """Several, one of them another; under a name, perhaps one more."""
    if isinstance(found, Named) and isinstance(index, Text):
        held = dict(zip(found.names, found, strict=True)) | {index.value: new}
        return named(held, held.values())
    at = index.integer if isinstance(index, Number) else None
    if at is None:
        raise ShapeError("an index is an integer constant", hint="constants are defined as NAME = 16")
    place = _place(found, at)
    return sequence((*found[:place], new, *found[place + 1 :]))


def _place(found: tuple[Result, ...], at: int) -> int:
    if not -len(found) <= at < len(found):
        several = "1 tensor" if len(found) == 1 else f"{len(found)} tensors"
        raise ShapeError(f"there are {several}", hint=f"the first one is [0], the last one [{len(found) - 1}]")
    return at % len(found)

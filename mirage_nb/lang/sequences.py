"""Sequences, texts and questions about tensors: what is settled while a program is read.

In: results of expressions. Out: results: constants, tuples, texts. Invariant: none of it becomes an operator, but for
casts; a question about the values of a tensor has no answer here.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterable
from fractions import Fraction
from math import inf

from mirage_nb.errors import DTypeError, ProgramSizeError, ProgramSyntaxError, ShapeError
from mirage_nb.ir.dtypes import BYTES, DTYPE_NAMES, FLOATS, FORMATS
from mirage_nb.lang.builder import (
    Builder,
    Callee,
    Extremes,
    Infinity,
    Named,
    Nothing,
    Picked,
    Result,
    Scalar,
    Text,
    Value,
    Whole,
    is_tensor,
    plain,
    true,
)
from mirage_nb.lang.constants import Number, function_of
from mirage_nb.lang.hints import NAMES
from mirage_nb.lang.limits import MAX_STATEMENTS
from mirage_nb.lang.lowering import (
    ROUND,
    ZERO,
    add,
    has_steps,
    is_mask,
    is_whole,
    maximum,
    minimum,
    multiply,
    told,
    trunc,
)
from mirage_nb.lang.masks import comparison, table
from mirage_nb.lang.names import WHOLE
from mirage_nb.lang.ranges import bounds
from mirage_nb.lang.reductions import masks
from mirage_nb.lang.views import indexed as indexed_tensor
from mirage_nb.lang.views import swap_last

MAX_LEVELS = 4
"""Of sequences within sequences."""


def numbers(values: range | tuple[int, ...]) -> tuple[Result, ...]:
    """Integers as a sequence of constants."""
    if len(values) > MAX_STATEMENTS:
        raise ProgramSizeError(f"a loop of more than {MAX_STATEMENTS:,} turns", hint="a loop is written out")
    return tuple(map(Number.of, values))


class Extents(tuple[Result, ...]):
    """Those of a tensor."""


def sequence(found: Iterable[Result]) -> tuple[Result, ...]:
    """These one after the other. Raises ProgramSizeError for very many, and for sequences far within each other."""
    made = tuple(found)
    if _leaves(made) > MAX_STATEMENTS or _levels(made) > MAX_LEVELS:
        message = f"a sequence of more than {MAX_STATEMENTS:,} elements, or of more than {MAX_LEVELS} levels"
        raise ProgramSizeError(message, hint="stack and concat make one tensor of several")
    return made


def named(pairs: Iterable[Result]) -> Named:
    """Results, each behind its name. Raises ProgramSyntaxError where they are no words, or one stands twice."""
    names, found = zip(*pairs, strict=True) if (pairs := tuple(pairs)) else ((), ())
    words = tuple(name.value if isinstance(name, Text) and name.value.isidentifier() else "" for name in names)
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
    if isinstance(x, Named):
        return tuple(map(Text, x.names))
    if not isinstance(x, tuple):
        hint = "write for i in range(3):, or for w in (A, B):"
        raise ProgramSyntaxError("a loop goes over a range or several tensors", hint=hint)
    return x


def filled(b: Builder, x: Result, value: Result) -> Result:
    """A tensor that is one number everywhere."""
    made = b.tensor_of(x, "full")
    if isinstance(value, Number | Infinity):
        b.fills[made] = value
    return made


def _length(b: Builder, x: Result) -> Result:
    return Number.of(len(x) if isinstance(x, tuple) else b.shape(b.tensor_of(x, "len"))[0])


def _zipped(b: Builder, *given: Result, strict: Result = ZERO) -> Result:
    rows = [elements(b, g) for g in given]
    if strict != ZERO and len({*map(len, rows)}) > 1:
        raise ShapeError(f"zip of {', '.join(str(len(row)) for row in rows)} elements", hint="strict: as many of each")
    return sequence(tuple(row) for row in zip(*rows, strict=False))


def _numbered(b: Builder, x: Result, start: Result = ZERO) -> Result:
    first = start.integer if isinstance(start, Number) else None
    return sequence((Number.of(place), one) for place, one in enumerate(elements(b, x), first or 0))


def _real(b: Builder, x: Result) -> Result:
    """float("-inf"); float(3) is 3, and of a tensor its cast to f32."""
    if isinstance(x, Text) and x.value.strip("+-") in ("inf", "infinity"):
        return Infinity(-1 if x.value.startswith("-") else 1)
    return x if isinstance(x, Number | Infinity) else _cast(b, x, Text("float"))


def _whole(b: Builder, x: Result) -> Result:
    if not isinstance(x, Number):
        raise ProgramSyntaxError("int takes a constant", hint="floor(x) makes the elements of a tensor whole")
    return Number.of(int(x.nearest if x.rational is None else x.rational))


def _limits(b: Builder, dtype: Result) -> Result:
    """torch.finfo and torch.iinfo; what no constant may be is left out."""
    word = dtype.value if isinstance(dtype, Text) else ""
    if DTYPE_NAMES.get(word) in FLOATS:
        digits, exponent = FORMATS[DTYPE_NAMES[word]]
        top, steps = (2 - Fraction(1, 2**digits)) * 2**exponent, {"eps": Fraction(1, 2**digits)}
        least = Fraction(2, 2**exponent)
        found = steps | ({"max": top, "min": -top, "tiny": least, "smallest_normal": least} if exponent < 1000 else {})
    elif (bits := re.fullmatch("[ui](?:nt)?([0-9]+)", word.replace("uint", "u"))) is not None:
        signed = word[0] == "i"
        found = {"max": 2 ** (int(bits[1]) - signed) - 1, "min": -(2 ** (int(bits[1]) - 1)) if signed else 0}
    else:
        raise DTypeError("this is not an element type", hint=f"they are {', '.join(DTYPE_NAMES)}")
    made = Named(map(Number.of, found.values()))
    made.names = tuple(found)
    return made


def _round(x: Result, digits: Result) -> Result:
    """Of a constant, as Python does."""
    if not isinstance(x, Number) or not isinstance(digits, Number):
        raise ProgramSyntaxError("round takes a tensor or a constant", hint="write round(x)")
    return Number.of(Fraction(round(Fraction(x.nearest), int(digits.nearest))))


def _nearest(x: Result) -> float:
    if not isinstance(x, Number):
        raise ProgramSyntaxError("sorted is of constants", hint="sort(X, axis) orders the elements of a tensor")
    return float(x.nearest)


def _cast(b: Builder, x: Result, dtype: Result) -> Result:
    if isinstance(x, Picked) and is_tensor(whole := _cast(b, x.whole, dtype)):
        return Picked(whole, x.mask)
    if isinstance(dtype, Text) and dtype.value in WHOLE and not isinstance(x, Number):
        value = b.tensor_of(x, "a cast")
        if dtype.value == "bool" and is_mask(b, value):
            return true(Value(int(value)))
        if is_mask(b, value) or (is_whole(b, value) and dtype.value != "bool"):
            return Value(Whole(value))
        return true(comparison(ast.NotEq)(b, value, ZERO)) if dtype.value == "bool" else trunc(b, value)
    if not isinstance(dtype, Text) or dtype.value not in DTYPE_NAMES:
        word = dtype.value.partition(":")[0] if isinstance(dtype, Text) else ""
        hint = NAMES.get(word, f"for example f32(x); they are {', '.join(DTYPE_NAMES)}")
        raise DTypeError("this is not an element type", hint=hint)
    if DTYPE_NAMES[dtype.value] in BYTES:
        raise DTypeError(f"nothing is rounded to {dtype.value}", hint="inputs may be stored so: X: f8e4m3[2, 3]")
    made = told(DTYPE_NAMES[dtype.value])(b, x if isinstance(x, Number) else b.tensor_of(x, "a cast"))
    return plain(made)


def _apart(b: Builder, x: Result, axis: Result) -> Value:
    """Places that are noted to be different ones along an axis."""
    places = b.tensor_of(x, "places")
    b.apart[places] = _axis(b, places, axis)
    return places


def _is_apart(b: Builder, x: Result, axis: Result) -> Number:
    places = b.tensor_of(x, "places")
    return Number.of(b.apart.get(places, -1) == _axis(b, places, axis))


def _axis(b: Builder, x: Value, axis: Result) -> int:
    held = axis.integer if isinstance(axis, Number) else None
    if held is None:
        raise ShapeError("an axis is an integer constant", hint="axes go from 0")
    return held % len(b.shape(x))


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
    "_apart": _apart,
    "_is_apart": _is_apart,
    "_table": table,
    "_filled": filled,
    "_log2": lambda b, x: function_of("log2", math.log2, x),
    "_any": lambda b, x: Number.of(any(map(truth, elements(b, x)))),
    "_all": lambda b, x: Number.of(all(map(truth, elements(b, x)))),
    "sorted": lambda b, x: tuple(sorted(elements(b, x), key=_nearest)),
    "_limits": _limits,
    "_has_steps": lambda b, x: Number.of(has_steps(b, x)),
    "_nearest": lambda b, x: ROUND(b, x),
    "_rounded": lambda b, x, digits=ZERO: _round(x, digits),
    "_is_sequence": lambda b, x: Number.of(isinstance(x, tuple)),
    "_is_function": lambda b, x: Number.of(isinstance(x, Callee)),
    "_is_tensor": lambda b, x: Number.of(is_tensor(x) or isinstance(x, Picked)),
    "_may_be_masked": lambda b, x: Number.of(is_tensor(x) and bool(masks(b, x))),
    "_never": lambda b, x, n: Number.of(_never(b, x, n)),
    "_is_mask": lambda b, x: Number.of(is_tensor(x) and is_mask(b, x)),
}
"""Functions of Python that are answered here; those with _ in front are the prelude's."""

FOLDED: dict[str, Callable[..., Result]] = {"sum": add, "max": maximum, "min": minimum, "prod": multiply}
"""What Python's functions of sequences and numbers do to two; of tensors they are functions of the language."""

GROWN = {"append": 1, "extend": 1, "insert": 2}
"""What makes lists longer, and of how many arguments."""


def grown(b: Builder, how: str, held: Result, *given: Result) -> tuple[Result, ...]:
    """A list with what a method of lists puts into it."""
    at = given[0].integer if how == "insert" and isinstance(given[0], Number) else None
    if not isinstance(held, tuple) or len(given) != GROWN[how] or (how == "insert" and at is None):
        raise ProgramSyntaxError(f"this is no list that grows by {how}", hint="outs = [ ], then outs.append(Y)")
    if how == "insert":
        return sequence((*held[:at], given[1], *held[at:]))
    return sequence((*held, *(elements(b, given[0]) if how == "extend" else given)))


PROPERTIES: dict[str, Callable[[Builder, Result], Result]] = {
    "T": lambda b, x: swap_last(b, b.tensor_of(x, ".T")),
    "mT": lambda b, x: swap_last(b, b.tensor_of(x, ".mT")),
    "shape": lambda b, x: Extents(numbers(_extents(b, b.tensor_of(x, ".shape")))),
    "size": lambda b, x: Number.of(math.prod(b.shape(b.tensor_of(x, ".size")))),
    "ndim": lambda b, x: Number.of(len(_extents(b, b.tensor_of(x, ".ndim")))),
    "dtype": lambda b, x: Text(b.dtype(b.tensor_of(x, ".dtype")).value),
    "values": lambda b, x: b.tensor_of(x, ".values"),
    "indices": lambda b, x: x[1] if isinstance(x, Extremes) else b.tensor_of(Nothing(), ".indices"),
}
"""What stands behind a tensor without being called; `values` and `indices` are those of a maximum."""


def _extents(b: Builder, x: Value) -> tuple[int, ...]:
    """What NumPy takes for the shape."""
    return () if isinstance(x, Scalar) else b.shape(x)


def _never(b: Builder, x: Result, n: Result) -> bool:
    """Whether a tensor of whole numbers never holds this one; inputs may hold any."""
    within = bounds(b, b.tensor_of(x, "a class"), -inf)
    return isinstance(n, Number) and within is not None and not within[0] <= n.nearest <= within[1]


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
    """What a comparison of results says that are neither tensors nor numbers; None for the others."""
    if isinstance(op, ast.Is | ast.IsNot) and Nothing() in (x, y):
        return (x == y) is isinstance(op, ast.Is)
    if isinstance(op, ast.In | ast.NotIn) and isinstance(y, tuple) and not is_tensor(x):
        return (x in y) is isinstance(op, ast.In)
    odd = any(isinstance(one, Text | Nothing | tuple) for one in (x, y))
    if isinstance(op, ast.Eq | ast.NotEq) and odd:
        return (x == y) is isinstance(op, ast.Eq)
    return None


def indexed(b: Builder, found: tuple[Result, ...], index: Result | slice) -> Result:
    """One of several, or a part of them."""
    if isinstance(index, slice):
        return found[index]
    if isinstance(found, Named) and isinstance(index, Text):
        if index.value not in found.names:
            hint = f"there are {', '.join(found.names)}" if found else "it is empty"
            raise ProgramSyntaxError(f"there is no {index.value!r}", hint=hint)
        return found[found.names.index(index.value)]
    return found[_place(found, index)]


def replaced(found: tuple[Result, ...], index: Result, new: Result) -> tuple[Result, ...]:
    """Several, one of them another; under a name, perhaps one more."""
    if isinstance(found, Named) and isinstance(index, Text):
        held = dict(zip(found.names, found, strict=True)) | {index.value: new}
        return named((Text(name), one) for name, one in held.items())
    place = _place(found, index)
    return sequence((*found[:place], new, *found[place + 1 :]))


def _place(found: tuple[Result, ...], index: Result) -> int:
    at = index.integer if isinstance(index, Number) else None
    if at is None:
        raise ShapeError("an index is an integer constant", hint="constants are defined as NAME = 16")
    if not -len(found) <= at < len(found):
        if isinstance(found, Extents):
            message = f"there is no axis {at}: the tensor has {len(found)} dimension{'s' * (len(found) != 1)}"
            raise ShapeError(message, hint=f"axes go from {-len(found)} to {len(found) - 1}")
        several = "1 tensor" if len(found) == 1 else f"{len(found)} tensors"
        raise ShapeError(f"there are {several}", hint=f"the first one is [0], the last one [{len(found) - 1}]")
    return at % len(found)

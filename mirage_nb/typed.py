"""Arguments of public functions, held to their annotations.

In: a function with annotations, or a class of such methods. Out: the same, for callers who may pass anything.
Invariant: what fits is handed on as it is; the first argument that does not is named in an ArgumentError, before
anything is begun.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from numbers import Integral, Real
from types import FunctionType, SimpleNamespace, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from mirage_nb.errors import ArgumentError

T = TypeVar("T", bound=Callable[..., Any])
CALLED = ("__init__", "__call__")
MOST_FLOAT = int(sys.float_info.max)
MADE = {
    "TensorProgram": "from_torch(module, inputs) reads one of PyTorch",
    "KernelGraph": "parse(text).graph and parse_graph(text) are such, and so is the graph of a winner or a candidate",
}
"""How what is no plain value is come by."""
NUMBERS: dict[Any, type] = {int: Integral, float: Real}


def typed(of: T) -> T:
    """A function, or a class with what its callers call: all of it, but what the class inherits. Raises ArgumentError
    for arguments that there are none of, or of other types than it says."""
    if not isinstance(of, type):
        return cast(T, _typed(of))
    for name, member in list(vars(of).items()):
        if isinstance(member, FunctionType) and (name in CALLED or not name.startswith("_")):
            setattr(of, name, _typed(member))
    return of


def _typed(function: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(function)
    *_, owner, name = ("", *function.__qualname__.split("."))
    called_as = owner if name in CALLED else name

    @functools.wraps(function)
    def called(*args: Any, **named: Any) -> Any:
        try:
            given = signature.bind(*args, **named).arguments
        except TypeError as error:
            known = ", ".join(name for name in signature.parameters if name != "self")
            raise ArgumentError(f"{called_as}: {error}", hint=f"it takes {known or 'none'}") from None
        check_types(function, given)
        return function(*args, **named)

    return called


def check_types(of: Callable[..., Any], given: Mapping[str, object]) -> None:
    """Raises ArgumentError for the first of these values that its annotation does not allow."""
    for name, value in given.items():
        wanted = _hints(of).get(name, Any)
        if not _fits(value, wanted):
            raise _misfit(name, value, wanted, inspect.get_annotations(of)[name])


def _misfit(name: str, value: object, wanted: Any, said: object) -> ArgumentError:
    """What to say of a value, or of the first value in a mapping that does not fit."""
    inner = next((get_args(one) for one in (wanted, *get_args(wanted)) if get_origin(one) is Mapping), None)
    if isinstance(value, Mapping) and inner is not None:
        for key, one in value.items():
            if _fits(key, inner[0]) and not _fits(one, inner[1]):
                said = inner[1].__name__ if isinstance(inner[1], type) else inner[1]
                return _misfit(f"{name}[{key!r}]", one, inner[1], said)
    whole = isinstance(value, int) and not -MOST_FLOAT < value < MOST_FLOAT
    text = f"{value:#x}" if whole else repr(value)
    text = text if len(text) <= 40 else f"{text[:40]}..."
    hint = "; ".join((f"it takes {said}", *(how for kind, how in MADE.items() if kind in str(said))))
    return ArgumentError(f"{name} is {text}, of type {type(value).__name__}", hint=hint)


@functools.cache
def _hints(of: Callable[..., Any]) -> dict[str, Any]:
    """Of what it takes: what it returns may be something that only type checkers import."""
    said = {name: text for name, text in inspect.get_annotations(of).items() if name != "return"}
    return get_type_hints(SimpleNamespace(__annotations__=said), vars(sys.modules[of.__module__]))


def _fits(value: object, wanted: Any) -> bool:
    while hasattr(wanted, "__value__"):  # an alias by a `type` statement, as NumPy's are from 2.5 on
        wanted = wanted.__value__
    origin, inner = get_origin(wanted), get_args(wanted)
    if origin in (Union, UnionType):
        return any(_fits(value, one) for one in inner)
    kind = Set if origin is frozenset else NUMBERS.get(wanted, origin or wanted)
    if wanted is Any or getattr(kind, "_is_protocol", False):
        return True
    if not isinstance(value, kind) or (isinstance(value, bool) and wanted in NUMBERS):
        return False
    match value:
        case Integral() if wanted is float:
            return abs(int(value)) <= MOST_FLOAT
        case str() | bytes():
            return True
        case Mapping():
            return all(_fits(key, inner[0]) and _fits(one, inner[1]) for key, one in value.items())
        case tuple() if origin is tuple and ... not in inner:
            return len(value) == len(inner) and all(map(_fits, value, inner))
        # An iterator would be used up, and what an array's type says is not said of its elements.
        case Collection() if inner and issubclass(kind, Iterable) and kind.__module__ != "numpy":
            return all(_fits(one, inner[0]) for one in value)
    return True

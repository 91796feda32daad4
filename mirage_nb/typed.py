"""Arguments of public functions, held to their annotations.

In: a function with annotations. Out: the same, for callers who may pass anything. Invariant: what fits is handed on as
it is; the first argument that does not is named in an ArgumentError, before anything is begun.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Set
from numbers import Integral, Real
from types import UnionType
from typing import Any, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from mirage_nb.errors import ArgumentError

P = ParamSpec("P")
R = TypeVar("R")
HINTS = functools.cache(get_type_hints)
NUMBERS: dict[Any, type] = {int: Integral, float: Real}


def typed(function: Callable[P, R]) -> Callable[P, R]:
    """`function`; raises ArgumentError for arguments that it does not have, or of other types than it says."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def called(*args: P.args, **named: P.kwargs) -> R:
        try:
            given = signature.bind(*args, **named).arguments
        except TypeError as error:
            known = ", ".join(name for name in signature.parameters if name != "self")
            raise ArgumentError(f"{function.__name__}: {error}", hint=f"it takes {known}") from None
        check_types(function, given)
        return function(*args, **named)

    return called


def check_types(of: Callable[..., Any], given: Mapping[str, object]) -> None:
    """Raises ArgumentError for the first of these values that its annotation does not allow."""
    for name, value in given.items():
        if not _fits(value, HINTS(of).get(name, Any)):
            text = repr(value) if len(repr(value)) <= 40 else f"{repr(value)[:40]}..."
            said = inspect.get_annotations(of)[name]
            raise ArgumentError(f"{name} is {text}, of type {type(value).__name__}", hint=f"it takes {said}")


def _fits(value: object, wanted: Any) -> bool:
    origin, inner = get_origin(wanted), get_args(wanted)
    if origin in (Union, UnionType):
        return any(_fits(value, one) for one in inner)
    kind = Set if origin is frozenset else NUMBERS.get(wanted, origin or wanted)
    if wanted is Any or getattr(kind, "_is_protocol", False):
        return True
    if not isinstance(value, kind) or (isinstance(value, bool) and wanted in NUMBERS):
        return False
    match value:
        case str() | bytes():
            return True
        case Mapping():
            return all(_fits(key, inner[0]) and _fits(one, inner[1]) for key, one in value.items())
        case tuple() if origin is tuple and ... not in inner:
            return len(value) == len(inner) and all(map(_fits, value, inner))
        case Collection() if inner:  # an iterator would be used up
            return all(_fits(one, inner[0]) for one in value)
    return True

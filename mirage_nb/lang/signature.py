"""What a row of the tables of functions and operators says: parameters, meaning, shape rule, example, lowering.

In: nothing. Out: the classes of rows. Invariant: a row is data; what its arguments become is decided by their kinds
(see expressions.py), what it computes by `lower`.
"""

from __future__ import annotations

import ast
import enum
from collections.abc import Callable
from dataclasses import dataclass

from mirage_nb.lang.builder import Result


class Kind(enum.Enum):
    """What an argument is; the value says it in words.

    Axes count dimensions of the first tensor; negative ones count from the end.
    """

    TENSOR = "a tensor"
    TENSORS = "a tensor, or several in [ ]"
    TERM = "a tensor or a constant"
    CHOICE = "a tensor, a constant, inf or -inf"
    NUMBER = "a constant"
    COUNT = "an integer constant"
    COUNTS = "an integer constant, or several in [ ]"
    AXIS = "an axis"
    NEW_AXIS = "an axis of the result"
    AXES = "an axis, several in ( ), or None for all"
    FLAG = "True or False"
    TEXT = 'letters for axes, as "ij,jk->ik"'
    REST_TENSORS = "tensors"
    """All further positional arguments."""
    REST_AXES = "axes"
    """All further positional arguments."""
    REST_EXTENTS = "integer constants"
    """All further positional arguments."""


REST = (Kind.REST_TENSORS, Kind.REST_AXES, Kind.REST_EXTENTS)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter; `default` is the text of an expression, None if the argument must be given."""

    name: str
    kind: Kind
    default: str | None = None
    keyword_only: bool = False


@dataclass(frozen=True, slots=True)
class Function:
    """One row: how it is called, what it computes, the shape of the result, and its lowering.

    The example uses the inputs of `EXAMPLE_INPUTS`; `same_as` writes it with simpler means, empty for primitives.
    `lower` takes a Builder and one value per parameter (see expressions.py for what each Kind yields).
    """

    name: str
    parameters: tuple[Parameter, ...]
    summary: str
    shape: str
    lower: Callable[..., Result]
    example: str
    same_as: str = ""

    @property
    def signature(self) -> str:
        """`sum(x, axis=None, *, keepdims=False)`."""
        shown: list[str] = []
        for parameter in self.parameters:
            if parameter.keyword_only and "*" not in shown:
                shown.append("*")
            if parameter.kind in REST:
                shown.append(f"{parameter.name}...")
            else:
                shown.append(parameter.name if parameter.default is None else f"{parameter.name}={parameter.default}")
        return f"{self.name}({', '.join(shown)})"


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of the notation: its syntax node, how it is written, and the same columns as a function."""

    node: type[ast.AST]
    form: str
    summary: str
    shape: str
    lower: Callable[..., Result]
    example: str
    same_as: str = ""

"""From nodes of an fx graph to a tensor program.

In: fx nodes in order, with the shapes and element types that tracing left in their `meta`. Out: a kernel graph, and
for each node what it stands for there, or why it has none. Invariant: a node's value has its shape and element type
(where tensors without dimensions do not count for it, as in PyTorch), or a narrower one, which `narrow` names.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from mirage_nb.errors import MirageError, SourceSpan
from mirage_nb.frontend.aten import LOOKUPS, ROWS, VIEWS, WHOLE
from mirage_nb.frontend.aten.terms import BYTES, DTYPES, At, Held, Left, Result, Row, full
from mirage_nb.ir.dtypes import DType, TensorType, promote
from mirage_nb.ir.ops import Shape
from mirage_nb.lang import lowering, masks
from mirage_nb.lang.builder import Builder, Term, Value, is_tensor
from mirage_nb.lang.constants import Number
from mirage_nb.lang.ranges import bounds

INTEGERS = frozenset({"torch.int64", "torch.int32", "torch.int16", "torch.int8", "torch.uint8"})
NARROW = {"torch.int16": range(-(2**15), 2**15), "torch.int8": range(-(2**7), 2**7), "torch.uint8": range(2**8)}
"""Types in which sums and products of positions leave their range, and the numbers that they hold."""
WITHIN = frozenset({"aten.bitwise_and.Scalar", "aten.__rshift__.Scalar", "aten.stack.default"}) | VIEWS | LOOKUPS
"""Rows whose results are no larger than what they read."""
STRIDED = "aten.as_strided.default"
OWN = {
    "aten.copy_.default": "PyTorch writes into what the model was given",
    "prims.pow.default": "a power by a tensor, which negative numbers have where that is whole alone",
    "prims.inductor_force_stride_order.default": "a result that does not lie row by row is put so by PyTorch",
}
"""Why operators have no rows, where that is not what PyTorch says of them."""


@dataclass
class Translation:
    """The program that nodes become. `terms`: what each stands for; `left`: why others have no term. `rows`: of the
    table; `is_whole`: whether there may be tensors of whole numbers and truth values from outside, in single precision,
    of complex numbers, as pairs, and tensors that are one number everywhere."""

    builder: Builder = field(default_factory=Builder)
    rows: Mapping[str, Row] = field(default_factory=lambda: ROWS)
    is_whole: bool = False
    terms: dict[Any, Result] = field(default_factory=dict)
    left: dict[Any, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def declare(self, node: Any, name: str) -> bool:
        """A node whose value comes from outside; False, and a reason in `left`, if programs have no such tensor."""
        try:
            shape, dtype = typed(node)
            if isinstance(node.meta["val"], tuple | list):
                raise Left(_absent(node))
            if self.is_whole and _is_complex(node) and _read_as_pairs(node):
                shape, dtype = (*shape, 2), DType.F32
            elif logical(node) or _read_as_numbers(node):
                dtype = BYTES.get(_dtype(node), DType.F32 if self.is_whole else None)
            if dtype is None:
                raise Left(f"programs have no tensors of type {node.meta['val'].dtype}")
            self.terms[node] = made = self.builder.declare(name, TensorType(shape, dtype))
            if logical(node):
                self.builder.masks.add(made)
            elif _is_whole(node):
                self.builder.whole.add(made)
        except (Left, MirageError) as error:
            self.left[node] = str(error).splitlines()[0]
            return False
        return True

    def add(self, node: Any) -> bool:
        """A node of the graph; False, and a reason in `left`, if it has no term."""
        try:
            self.terms[node] = self._term(node)
        except (Left, MirageError) as error:
            self.left[node] = str(error).splitlines()[0]
            return False
        return True

    def _term(self, node: Any) -> Result:
        if node.target is operator.getitem:
            source, index = node.args
            held = self._argument(source)
            if not isinstance(held, tuple) or index >= len(held) or held[index] is None:
                raise Left(f"result {index} of {source.name} has no term")
            made: Result = held[index].term
        else:
            row = self.rows.get(str(node.target))
            if row is None or _is_complex(node):
                raise Left(_absent(node))
            shape, dtype = typed(node)
            if str(node.target) == STRIDED and not _lies_in_order(node.args[0].meta["val"]):
                raise Left("a view by strides of what does not lie row by row")
            self._place(node)
            at = At(self.builder, shape, dtype, logical(node), self.is_whole)
            arguments = [self._argument(a) for a in node.args]
            try:
                made = row(at, *arguments, **{key: self._argument(a) for key, a in node.kwargs.items()})
            except TypeError as error:
                raise Left(f"{node.target} with these arguments: {error}") from None
            held = NARROW.get(_dtype(node)) if str(node.target) not in WITHIN else None
            if held is not None and not self._is_within(made, held):
                raise Left(f"whole numbers of type {_dtype(node)} go round where they get too large")
        if logical(node) and isinstance(made, Number | int):  # a sum of truth values is one of them
            made = masks.comparison(ast.NotEq)(self.builder, made, lowering.ZERO)
        return self._shaped(node, made) if is_tensor(made) else made

    def _is_within(self, made: Result, numbers: range) -> bool:
        """Whether it is known to hold these numbers alone."""
        if isinstance(made, Number):
            return made.nearest in numbers
        found = bounds(self.builder, made, -math.inf) if is_tensor(made) else None
        return found is not None and numbers[0] <= found[0] and found[1] <= numbers[-1]

    def _shaped(self, node: Any, term: Value) -> Term:
        shape, dtype = typed(node)
        if dtype is not None and dtype is not (held := self.builder.dtype(term)) and promote(held, dtype) is held:
            term = self.builder.tensor(lowering.cast(dtype)(self.builder, term), "a cast")
        return full(self.builder, term, shape)

    def _argument(self, argument: Any) -> Any:
        if isinstance(argument, list | tuple):
            return [self._argument(a) for a in argument]
        if not hasattr(argument, "op"):
            return argument
        if argument not in self.terms:
            raise Left(f"{argument.name} stays with PyTorch")
        held = self.terms[argument]
        if isinstance(held, tuple):
            return tuple(None if term is None else Held(term) for term in held)
        if isinstance(held, int):
            return Held(held, logical(argument))
        shape, dtype = typed(argument)
        return Held(held, logical(argument), TensorType(shape, dtype or DType.F32))

    def _place(self, node: Any) -> None:
        line = f"{node.name} = {called(node)}"
        self.lines.append(line)
        self.builder.place = SourceSpan(len(self.lines), 1, len(line), line)

    def value(self, node: Any) -> Value | None:
        """The value that a node is, computed or given; None for others, and where programs have no such type."""
        term = self.terms.get(node)
        if not is_tensor(term) or (typed(node)[1] is None and self.builder.dtype(term) not in BYTES.values()):
            return None
        return term

    def narrow(self, node: Any) -> bool:
        """Whether a node's value is of a type that holds less than PyTorch's."""
        value = self.value(node)
        _, wanted = typed(node)
        if value is None or wanted is None:
            return False
        held = self.builder.dtype(value)
        return promote(held, wanted) is not held


def _is_complex(node: Any) -> bool:
    return _dtype(node).startswith("torch.complex")


def _read_as_pairs(node: Any) -> bool:
    """Whether a complex tensor is read as real numbers alone."""
    return all(str(user.target) == "aten.view_as_real.default" for user in node.users)


def _is_whole(node: Any) -> bool:
    """Whether a tensor of PyTorch holds whole numbers."""
    held = node.meta["val"]
    return not held.is_floating_point() and not held.is_complex()


def _read_as_numbers(node: Any) -> bool:
    """Whether it is a tensor of integers that rows read, and nobody hands out: it names places, is compared, becomes a
    tensor of numbers, or others of which that is true."""
    return _dtype(node) in INTEGERS | BYTES.keys() and all(
        str(user.target) in LOOKUPS
        or logical(user)
        or user.meta.get("val") is None  # a check
        or _dtype(user) in DTYPES
        or ((user.target is operator.getitem or str(user.target) in WHOLE) and _read_as_numbers(user))
        for user in node.users
    )


def _absent(node: Any) -> str:
    """Why an operator has no row."""
    name, tags = str(node.target), getattr(node.target, "tags", ())
    if torch.Tag.nondeterministic_seeded in tags:
        return f"{name} draws random numbers"
    depends = torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags
    if depends and not (name in WHOLE and _is_sized(node)):
        return f"{name}: what comes of it, or how many elements, depends on values"
    if _is_complex(node):
        return f"{name} makes complex numbers, which are not taken apart here"
    if name in WHOLE:
        return f"{name} stays PyTorch's in a model, which has it as fast"
    return OWN.get(name, f"{name} is not in the table of operators")


def _is_sized(node: Any) -> bool:
    """Whether its extents are numbers."""
    return all(type(extent) is int for extent in node.meta["val"].shape)


def _lies_in_order(held: torch.Tensor) -> bool:
    """Whether its elements lie row by row from where its memory begins."""
    return held.is_contiguous() and held.storage_offset() == 0


def _dtype(node: Any) -> str:
    """The element type of a node's result, or of its results."""
    held = node.meta.get("val")
    return str(getattr(held[0] if isinstance(held, tuple | list) else held, "dtype", ""))


def typed(node: Any) -> tuple[Shape, DType | None]:
    """The shape and element type of a node's result, or of its first one. Raises Left where they are not fixed."""
    held = node.meta.get("val")
    while isinstance(held, tuple | list) and held:
        held = held[0]
    if not hasattr(held, "shape"):
        raise Left("no tensor")
    if (layout := getattr(held, "layout", torch.strided)) is not torch.strided:
        raise Left(f"programs have no tensors of layout {layout}")
    shape = tuple(held.shape)
    if not all(type(extent) is int for extent in shape):
        raise Left("sizes that are not fixed")
    if 0 in shape:
        raise Left("a tensor without elements")
    return shape or (1,), DTYPES.get(str(held.dtype))


def logical(node: Any) -> bool:
    """Whether a node's result holds truth values."""
    return str(getattr(node.meta.get("val"), "dtype", "")) == "torch.bool"


def called(node: Any) -> str:
    """A call as people write it: `aten.mm(x, permute)`."""
    shown = [*map(_shown, node.args), *(f"{key}={_shown(value)}" for key, value in node.kwargs.items())]
    return f"{str(node.target).removesuffix('.default')}({', '.join(shown)})"


def _shown(argument: Any) -> str:
    if isinstance(argument, list | tuple):
        return f"[{', '.join(map(_shown, argument))}]"
    return argument.name if hasattr(argument, "op") else str(argument)


def names_of(nodes: Sequence[Any], wanted: Mapping[Any, str]) -> dict[Any, str]:
    """A name for each node that programs take: as wanted, made of letters and digits, each once."""
    found: dict[Any, str] = {}
    for node in nodes:
        name = "".join(c if c.isascii() and c.isalnum() else "_" for c in wanted.get(node, node.name)).strip("_")
        name = name if name[:1].isalpha() else f"x{name}"
        name = name[-48:].lstrip("_0123456789") or "x"
        while name in found.values():
            name += "_"
        found[node] = name
    return found

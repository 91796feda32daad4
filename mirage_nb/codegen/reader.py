"""Reading a value of a block graph at an index: follows views, computes inline operators, loads leaves.

In: a value, a multi-index, the width of a vector along one dimension. Out: a C expression in f32, plus the
statements that it needs. Invariant: one reader emits each (value, index) once; what passes between inline
operators stays in registers (the thread graph of the paper).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mirage_nb.codegen.operators import CUDA, number
from mirage_nb.codegen.writer import Writer, c_type
from mirage_nb.ir import ConstAttrs, DimAttrs, InIterAttrs, Op, OpKind, RepeatAttrs, TensorType, ThreadGraph
from mirage_nb.optimize.access import Conditions, Leaf, Scope, locate, operand_leaf, view
from mirage_nb.tile.index import Index, Multi, broadcast_index, named, operand_dims
from mirage_nb.tile.rules.placement import Place
from mirage_nb.tile.staged.program import StagedProgram


@dataclass(slots=True)
class Text:
    """Writes statements of a staged program, whose values are read in a scope."""

    out: Writer
    scope: Scope
    program: StagedProgram


class Reader:
    """Emits loads and arithmetic for one element, or for `width` elements along one dimension at once; for vector `w`
    of `rows` of them: what lies across them is loaded `ahead`, for all of them."""

    def __init__(self, scope: Scope, width: int = 1, bound: dict[int, str] | None = None, rows: int = 1) -> None:
        self.scope = scope
        self.width, self.rows = width, rows
        self.bound = bound or {}
        self.ahead: list[str] = []
        self.loads: list[str] = []
        self.body: list[str] = []
        self._memo: dict[tuple[int, Multi, int | None], str] = {}
        self._count = 0

    def fresh(self, stem: str) -> str:
        """A new C name."""
        self._count += 1
        return f"{stem}_{self._count}"

    def read(self, value: int, index: Multi, dim: int | None) -> str:
        """A C expression for the value at `index` (+ v along `dim`)."""
        if value in self.bound:
            return self.bound[value]
        key = (value, index, dim)
        if key not in self._memo:
            self._memo[key] = self._emit(value, index, dim)
        return self._memo[key]

    def _emit(self, value: int, index: Multi, dim: int | None) -> str:
        scope = self.scope
        op, where = scope.ops[value], scope.plan.places[value]
        match where:
            case Place.LITERAL:
                return self._literal(value, index, dim)
            case Place.COUNTED:
                return self._counted(value, index, dim)
            case Place.DEVICE | Place.SHARED:
                if self.rows > 1 and (name := self._across(value, index, dim)):
                    return name
                return self._load(value, locate(scope, value, index, dim, self.width))
            case Place.VIEW:
                inner, inner_index, inner_dim = view(scope, op, index, dim)
                return self.read(inner, inner_index, inner_dim)
            case _:
                return self.compute(value, index, dim)

    def _literal(self, value: int, index: Multi, dim: int | None) -> str:
        op = self.scope.ops[value]
        match op.attrs:
            case ConstAttrs(value=constant):
                return number(constant)
            case InIterAttrs() as attrs:
                literal = number(self.scope.literals[attrs.arg])
                iteration = named("iteration", self.scope.block.loop)
                leaf = operand_leaf(self.scope, attrs, index, iteration, dim, self.width)
                if not leaf.inside:
                    return literal
                name = self.fresh(f"x{value}")
                varies = self.width > 1 and dim is not None
                condition = leaf.each_inside if varies else leaf.inside
                (self.body if varies else self.loads).append(f"const float {name} = {condition} ? {literal} : 0.0f;")
                return name
            case _:
                raise AssertionError(op.kind)

    def _counted(self, value: int, index: Multi, dim: int | None) -> str:
        leaf, name = locate(self.scope, value, index, dim, self.width), self.fresh(f"x{value}")
        if self.width > 1 and leaf.varies:
            self.body.append(f"const float {name} = {counted(leaf.element, leaf.each_inside)};")
        else:
            self.loads.append(f"const float {name} = {counted(leaf.offset, leaf.inside)};")
        return name

    def compute(self, value: int, index: Multi, dim: int | None) -> str:
        """As `read`, for the value that this step itself makes: computed even if its place is shared memory."""
        op, position = self.scope.ops[value], self.scope.results[value]
        match op.kind:
            case OpKind.FUSED:
                assert isinstance(op.body, ThreadGraph)
                return ThreadReader(self, op.body, op.inputs).read(op.body.outputs[position], index, dim)
            case OpKind.REPEAT:
                assert isinstance(op.attrs, RepeatAttrs)
                (source,) = op.inputs
                extent = self.scope.shape(source)[op.attrs.dim]
                wrapped = tuple(p % extent if d == op.attrs.dim else p for d, p in enumerate(index))
                return self.read(source, wrapped, dim)
            case OpKind.CONCAT:
                return self._concat(op, index, dim)
            case _:
                dims, operands = operand_dims(self.scope.block, op, dim, len(index)), []
                for value, along in zip(op.inputs, dims, strict=True):
                    operands.append(self.read(value, broadcast_index(index, self.scope.shape(value)), along))
                return self.statement(op, operands, dims, repeated(op, self.scope.block.types))

    def statement(self, op: Op, operands: list[str], dims: list[int | None], repeated: bool) -> str:
        """`const float x = op(operands);`, once for all elements of the vector where no operand varies.

        What many elements are divided by is inverted, which is done once for those of a vector or of fragments.
        """
        name = self.fresh(op.kind.value.lower().removeprefix("ew"))
        if op.kind is OpKind.DIV and repeated:
            place = self.loads if self.width > 1 and dims[1] is None else self.body
            place.append(f"const Divisor by_{name} = divisor({operands[1]});")
            self._place(dims).append(f"const float {name} = {operands[0]} / by_{name};")
            return name
        self._place(dims).append(f"const float {name} = {CUDA[op.kind](operands, op.attrs)};")
        return name

    def sum_of(self, total: str, factors: list[str], dims: list[int | None]) -> str:
        """The statement that adds a product of two factors to a sum; "" is none yet."""
        name = self.fresh("sum")
        made = f"fused_multiply_add({', '.join(factors)}, {total})" if total else " * ".join(factors)
        self._place(dims).append(f"const float {name} = {made};")
        return name

    def _place(self, dims: Sequence[int | None]) -> list[str]:
        """Where a statement belongs whose operands are vectors along `dims`."""
        return self.loads if self.width > 1 and all(d is None for d in dims) else self.body

    def _concat(self, op: Op, index: Multi, dim: int | None) -> str:
        """Both sides are read at an index that exists, then one is chosen."""
        assert isinstance(op.attrs, DimAttrs)
        left, right = op.inputs
        along = op.attrs.dim
        first, second = self.scope.shape(left)[along], self.scope.shape(right)[along]
        at = index[along]
        step = self.width if dim == along else 1
        low = Index(((f"({at} < {first} ? {at} : {first - step})", first - step + 1, 1),))
        high = Index(((f"({at} < {first} ? 0 : {at} - {first})", second - step + 1, 1),))
        sides = [
            self.read(side, tuple(part if d == along else p for d, p in enumerate(index)), dim)
            for side, part in ((left, low), (right, high))
        ]
        name = self.fresh("concat")
        self._place([dim]).append(f"const float {name} = {at} < {first} ? {sides[0]} : {sides[1]};")
        return name

    def _load(self, value: int, leaf: Leaf) -> str:
        name = self.fresh(f"x{value}")
        if self.width == 1 or not leaf.varies:
            self.loads += _load_one(name, leaf, leaf.offset, leaf.inside)
            return name
        if not leaf.whole:
            self.body += _load_one(name, leaf, leaf.element, leaf.each_inside)
            return name
        at = loaded(self.width, leaf)
        if leaf.copies == 1:
            self.loads.append(f"const auto {name} = to_floats({at});")
            return f"{name}[v]"
        more = f"load<{self.width}>({leaf.pointer} + q * {leaf.copy_elements} + {leaf.offset})"
        self.loads += [
            f"auto {name} = {at};",
            "MIRAGE_UNROLL",
            f"for (int q = 1; q < {leaf.copies}; ++q) {{",
            f"  const auto more = {more};",
            "  MIRAGE_UNROLL",
            f"  for (int v = 0; v < {self.width}; ++v) {name}[v] += more[v];",
            "}",
        ]
        return f"{name}[v]"

    def _across(self, value: int, index: Multi, dim: int | None) -> str:
        """An element of the vectors that lie across the vectors to be made, one for each of their elements; "" if those
        of this value do not."""
        rows, row = self.rows, ("w", self.rows, 1)
        last = next((d for d, part in enumerate(index) if row in part.terms), dim)
        if last is None or last == dim:
            return ""
        begin = [Index(tuple(term for term in part.terms if term != row), part.const) for part in index]
        if dim is not None:
            begin[dim] = begin[dim] + named("v", self.width)
        leaf = locate(self.scope, value, tuple(begin), last, rows)
        if not leaf.whole or leaf.copies > 1:
            return ""
        name, at = self.fresh(f"x{value}"), loaded(rows, leaf)
        if dim is None or self.width == 1:
            self.ahead.append(f"const auto {name} = {at};")
            return f"to_float({name}[w])"
        self.ahead += [
            f"Vec<{c_type(self.scope.plan.stored[value])}, {rows}> {name}[{self.width}];",
            "MIRAGE_UNROLL",
            f"for (int v = 0; v < {self.width}; ++v) {name}[v] = {at};",
        ]
        return f"to_float({name}[v][w])"


def loaded(width: int, leaf: Leaf, load: str = "load") -> str:
    """A C expression for a whole vector as it is stored; zeros beyond the end of the tensor. load: the function of the
    device library that reads it."""
    at = f"{leaf.pointer} + ({leaf.offset})"
    return f"load_inside<{width}>({at}, {leaf.inside})" if leaf.inside else f"{load}<{width}>({at})"


def counted(place: str, inside: Conditions) -> str:
    """A C expression for the number of a place; zero beyond the end of the tensor."""
    return f"{inside} ? (float)({place}) : 0.0f" if inside else f"(float)({place})"


def _load_one(name: str, leaf: Leaf, offset: str, inside: Conditions) -> list[str]:
    """Statements that load one element, adding up partial sums; zero beyond the end of the tensor."""
    if inside:
        return [f"const float {name} = {inside} ? to_float({leaf.pointer}[{offset}]) : 0.0f;"]
    if leaf.copies == 1:
        return [f"const float {name} = to_float({leaf.pointer}[{offset}]);"]
    more = f"{leaf.pointer}[q * {leaf.copy_elements} + {offset}]"
    return [
        f"float {name} = {leaf.pointer}[{offset}];",
        "MIRAGE_UNROLL",
        f"for (int q = 1; q < {leaf.copies}; ++q) {name} += {more};",
    ]


def repeated(op: Op, types: Sequence[TensorType]) -> bool:
    """Whether several elements of the first operand meet the same element of the last."""
    return types[op.inputs[0]].elements > types[op.inputs[-1]].elements


class ThreadReader:
    """Evaluates a thread graph in the registers of its block's reader, where its operands are values, and statements
    go. A product is one multiply-add after the other, each of elements at the same place along its summed axis."""

    def __init__(self, outer: Reader, graph: ThreadGraph, operands: tuple[int, ...]) -> None:
        self.outer, self.graph, self.operands = outer, graph, operands
        self.defined = {values[0]: op for op, values in graph.definitions()}
        self.memo: dict[tuple[int, Multi, int | None], str] = {}

    def read(self, value: int, index: Multi, dim: int | None) -> str:
        """A C expression for thread value `value`."""
        if value < self.graph.input_count:
            return self.outer.read(self.operands[value], index, dim)
        key = (value, index, dim)
        if key in self.memo:
            return self.memo[key]
        op = self.defined[value]
        if op.kind is OpKind.CONST:
            assert isinstance(op.attrs, ConstAttrs)
            found = number(op.attrs.value)
        elif op.kind is OpKind.MATMUL:
            found = self._multiplied(op, index, dim)
        else:
            dims, operands = operand_dims(self.graph, op, dim, len(index)), []
            for operand, along in zip(op.inputs, dims, strict=True):
                at = broadcast_index(index, self.graph.types[operand].shape)
                operands.append(self.read(operand, at, along))
            found = self.outer.statement(op, operands, dims, repeated(op, self.graph.types))
        self.memo[key] = found
        return found

    def _multiplied(self, op: Op, index: Multi, dim: int | None) -> str:
        """A result of a product by one multiply-add after the other."""
        (left, a), (right, b) = ((v, self.graph.types[v].shape) for v in op.inputs)
        dims, total = operand_dims(self.graph, op, dim, len(index)), ""
        for k in (Index(const=depth) for depth in range(a[-1])):
            x = self.read(left, broadcast_index((*index[:-1], k), a), dims[0])
            y = self.read(right, broadcast_index((*index[:-2], k, index[-1]), b), dims[1])
            total = self.outer.sum_of(total, [x, y], dims)
        return total

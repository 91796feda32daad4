"""The products of `bench mosaic`, how each may be computed here, and what the planner expects of every way.

In: nothing, or a shape. Out: shapes of LLaMA and Phi layers, ways with muGraph, options and estimate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from mirage_nb.ir import (
    AccumAttrs,
    AccumKind,
    BlockGraph,
    DType,
    InIterAttrs,
    Input,
    KernelGraph,
    Op,
    OpKind,
    OutSaverAttrs,
    TensorType,
)
from mirage_nb.optimize import Options, default_options
from mirage_nb.targets import Target
from mirage_nb.tile.instructions import rates
from mirage_nb.tile.instructions.schemes import Asked, Scheme, cycles, scheme
from mirage_nb.tile.rules import teams


@dataclass(frozen=True, slots=True)
class Shape:
    """left [batch, m, k] @ right [batch, k, n]. precision: f16, tf32, 3xtf32, f32 or f64."""

    name: str
    batch: int
    m: int
    n: int
    k: int
    precision: str

    @property
    def dtype(self) -> DType:
        """Of the operands."""
        return {"f16": DType.F16, "f64": DType.F64}.get(self.precision, DType.F32)

    @property
    def operations(self) -> int:
        """Additions and multiplications."""
        return 2 * self.batch * self.m * self.n * self.k


LAYERS: dict[str, tuple[int, int, int, int]] = {
    "LLaMA-3-8B q": (1, 2048, 4096, 4096),
    "LLaMA-3-8B kv": (1, 2048, 1024, 4096),
    "LLaMA-3-8B up": (1, 2048, 14336, 4096),
    "LLaMA-3-8B down": (1, 2048, 4096, 14336),
    "LLaMA-2-13B qkv": (1, 1024, 15360, 5120),
    "Phi-3 qkv": (1, 2048, 9216, 3072),
    "Phi-3 down": (1, 2048, 3072, 8192),
    "LLaMA-3-8B scores": (32, 1024, 1024, 128),
    "Phi-3 values": (32, 1024, 96, 1024),
}
"""batch, m, n, k of a product of every kind of layer."""
ODD: dict[str, tuple[int, int, int, str]] = {
    "65 up": (65, 14336, 4096, "3xtf32"),
    "129 up": (129, 14336, 4096, "3xtf32"),
    "67 wide": (67, 28672, 2048, "3xtf32"),
    "257 fc": (257, 8192, 2048, "3xtf32"),
    "129 up, f32": (129, 14336, 4096, "f32"),
    "133 qkv, f32": (133, 15360, 5120, "f32"),
    "257 fc, f32": (257, 8192, 2048, "f32"),
    "130 gate, f32": (130, 14336, 4096, "f32"),
    "129 up, tf32": (129, 14336, 4096, "tf32"),
    "257 fc, tf32": (257, 8192, 2048, "tf32"),
    "131 qkv, tf32": (131, 15360, 5120, "tf32"),
    "129 up, f16": (129, 14336, 4096, "f16"),
    "65 wide, f16": (65, 28672, 8192, "f16"),
    "257 fc, f16": (257, 8192, 8192, "f16"),
    "131 qkv, f16": (131, 15360, 5120, "f16"),
}
"""m, n, k and precision of products with 1 to 7 rows more than tiles have."""
SHAPES: tuple[Shape, ...] = (
    *(
        Shape(name, *layer, precision)
        for precision, names in (
            ("3xtf32", tuple(LAYERS)),
            ("f32", ("LLaMA-3-8B q", "LLaMA-3-8B kv", "Phi-3 down", "LLaMA-3-8B scores")),
            ("tf32", ("LLaMA-3-8B q", "LLaMA-3-8B up", "LLaMA-2-13B qkv", "Phi-3 qkv", "LLaMA-3-8B scores")),
            ("f16", ("LLaMA-3-8B q", "LLaMA-3-8B up", "Phi-3 qkv", "Phi-3 down")),
            ("f64", ("LLaMA-3-8B q", "LLaMA-3-8B kv", "Phi-3 down", "LLaMA-3-8B scores")),
        )
        for name in names
        for layer in (LAYERS[name],)
    ),
    *(Shape(name, 1, m, n, k, precision) for name, (m, n, k, precision) in ODD.items()),
)
FEW = "+few"
"""Behind the name of what multiplies: plain cores take a few rows."""
QUICK = ("LLaMA-3-8B q", "LLaMA-3-8B kv", "LLaMA-3-8B scores")


@dataclass(frozen=True, slots=True)
class Way:
    """One way to compute a product: its tile, what multiplies, the microseconds that the planner expects, and the
    cycles of one tile."""

    what: str
    rows: int
    columns: int
    options: Options
    step: int
    expected_us: float
    tile_cycles: float = 0.0

    @property
    def mixed(self) -> bool:
        """Whether two kinds of instructions share the tile."""
        return "+" in self.what

    @property
    def few(self) -> bool:
        """Whether plain cores take a few rows beyond those of the tile."""
        return self.what.endswith(FEW)

    @property
    def name(self) -> str:
        """What it is called in the table."""
        return f"{self.what} {self.rows}x{self.columns}"


TILES: dict[str, tuple[tuple[str, int, int], ...]] = {
    "f32": (("fma", 128, 128), ("fma", 256, 128), ("fma", 128, 256), ("fma", 128, 64), ("fma", 64, 128)),
    "3xtf32": (
        ("wgmma_3xtf32", 128, 128), ("wgmma_3xtf32", 128, 64), ("wgmma_3xtf32", 64, 128), ("mma_3xtf32", 128, 128),
    ),
    "tf32": (
        ("wgmma_tf32", 256, 128), ("wgmma_tf32", 128, 256), ("wgmma_tf32", 128, 128), ("wgmma_tf32", 64, 128),
        ("mma_tf32", 256, 128),
    ),
    "f16": (("wgmma", 128, 256), ("wgmma", 256, 128), ("wgmma", 128, 128), ("wgmma", 64, 256)),
    "f64": (
        ("mma_f64", 128, 128), ("mma_f64", 256, 64), ("mma_f64", 128, 64), ("mma_f64", 64, 128), ("fma_f64", 128, 64),
    ),
}  # fmt: skip
"""What multiplies, and in what tiles, where one kind does."""
MIXED: dict[str, tuple[tuple[str, int, int], ...]] = {
    "3xtf32": (("wgmma_3xtf32:64+fma:32", 128, 96), ("mma_3xtf32:64+fma:32", 128, 96)),
    "tf32": (("wgmma_tf32:64+fma:32", 128, 96),),
    "f64": (("mma_f64:64+fma_f64:32", 128, 96),),
}
"""The same where two kinds do, each some of the columns; of f16 no second unit comes near the first."""
BESIDE_FEW: dict[str, tuple[tuple[str, int, int], ...]] = {
    "f32": (("fma", 128, 128), ("fma", 64, 128)),
    "3xtf32": (("wgmma_3xtf32", 64, 128),),
    "tf32": (("wgmma_tf32", 128, 128), ("wgmma_tf32", 64, 128)),
    "f16": (("wgmma", 128, 128), ("wgmma", 64, 256)),
}
"""The same where plain cores take 1 to 7 rows beyond so many."""
ORDERS = {"f32": ("fma", "fma_lines"), "f64": ("mma_f64_zigzag", "mma_f64")}
"""The kinds of a precision whose instances go in zig-zag, and line by line; both in tiles of 128 x 128."""
COLD_SHARE = 0.75
"""Of the bandwidth of device memory, what tiles that are read once come with; measured."""


def ways(shape: Shape, target: Target) -> list[Way]:
    """All ways, the fastest expected first."""
    candidates = [(what, what, rows, columns) for what, rows, columns in TILES[shape.precision]]
    candidates += [(what, what, rows, columns) for what, rows, columns in MIXED.get(shape.precision, ())]
    for what, rows, columns in BESIDE_FEW.get(shape.precision, ()):
        height = math.ceil(shape.m / max(1, shape.m // rows))
        if teams.few(height) and height - teams.few(height) == rows:
            candidates.append((what, what + FEW, height, columns))
    found = [_way(shape, target, *candidate) for candidate in candidates]
    return sorted((way for way in found if way is not None), key=lambda way: (way.expected_us, way.tile_cycles))


def orders(shape: Shape, target: Target) -> tuple[Way, ...]:
    """The same tile in zig-zag and line by line; none where there is one order only, or tiles are not full."""
    kinds = ORDERS.get(shape.precision, ()) if shape.m % 128 == 0 else ()
    return tuple(way for kind in kinds if (way := _way(shape, target, kind, kind, 128, 128)) is not None)


def _way(shape: Shape, target: Target, precision: str, name: str, rows: int, columns: int) -> Way | None:
    """One of them; None where no scheme is there. precision: as it is asked for."""
    asked = Asked(rows, columns, shape.k, 1, ("k", "m"), shape.dtype)
    precision = "f32" if precision == "wgmma" else precision
    made = scheme(asked, precision) if shape.k % asked.step == 0 else None
    if made is None:
        return None
    options = replace(default_options(target), precision=precision)
    expected = expected_us(shape, asked, made, target)
    return Way(name, rows, columns, options, asked.step, expected, cycles(made, shape.k))


def expected_us(shape: Shape, asked: Asked, made: Scheme, target: Target) -> float:
    """Turns of the multiprocessors, each as long as its units take, side by side where there are two; at least as long
    as the operands take from memory."""
    turns = math.ceil(
        shape.batch * math.ceil(shape.m / asked.rows) * math.ceil(shape.n / asked.columns) / target.multiprocessors
    )
    moved = shape.batch * (shape.m * shape.k + shape.k * shape.n + shape.m * shape.n) * shape.dtype.size
    busy = turns * cycles(made, shape.k) * rates.cycle_us(target)
    return max(busy, moved / (COLD_SHARE * target.device_bandwidth * 1e3))


def product_graph(shape: Shape, way: Way) -> KernelGraph:
    """The product as one kernel of tiles of rows x columns."""
    lead = (shape.batch,) if shape.batch > 1 else ()
    at, one = len(lead), (1,) * len(lead)
    left = TensorType((*lead, shape.m, shape.k), shape.dtype)
    right = TensorType((*lead, shape.k, shape.n), shape.dtype)
    grid = (*lead, -(-shape.m // way.rows), -(-shape.n // way.columns))
    first = tuple(range(at))
    block = BlockGraph.start((left, right), grid, shape.k // way.step)
    for op in (
        Op(OpKind.IN_ITER, (), InIterAttrs(0, (*first, at, None), at + 1, (*one, way.rows, way.step))),
        Op(OpKind.IN_ITER, (), InIterAttrs(1, (*first, None, at + 1), at, (*one, way.step, way.columns))),
        Op(OpKind.MATMUL, (0, 1)),
        Op(OpKind.ACCUM, (2,), AccumAttrs(AccumKind.SUM, None)),
        Op(OpKind.OUT_SAVER, (3,), OutSaverAttrs((*first, at, at + 1), (*lead, shape.m, shape.n))),
    ):
        block = block.append(op)
    graph = KernelGraph.start(Input("A", left), Input("B", right))
    return graph.append(Op(OpKind.GRAPH, (0, 1), body=block)).returning((2,))

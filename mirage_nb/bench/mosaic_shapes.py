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
from mirage_nb.tile import rules
from mirage_nb.tile.schemes import BESIDE, MULTIPLIES, SIDE_BY_SIDE, Asked, shares


@dataclass(frozen=True, slots=True)
class Shape:
    """left [batch, m, k] @ right [batch, k, n]. precision: f16, tf32, 3xtf32 or f32; f64 is the library's alone."""

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
SHAPES: tuple[Shape, ...] = tuple(
    Shape(name, *layer, precision)
    for precision, names in (
        ("3xtf32", tuple(LAYERS)),
        ("f32", ("LLaMA-3-8B q", "LLaMA-3-8B kv", "Phi-3 down", "LLaMA-3-8B scores")),
        ("tf32", ("LLaMA-3-8B q", "LLaMA-3-8B up", "LLaMA-2-13B qkv", "Phi-3 qkv", "LLaMA-3-8B scores")),
        ("f16", ("LLaMA-3-8B q", "LLaMA-3-8B up", "Phi-3 qkv", "Phi-3 down")),
        ("f64", ("LLaMA-3-8B kv", "Phi-3 down")),
    )
    for name in names
    for layer in (LAYERS[name],)
)
QUICK = ("LLaMA-3-8B q", "LLaMA-3-8B kv", "LLaMA-3-8B scores")


@dataclass(frozen=True, slots=True)
class Way:
    """One way to compute a product: its tile, what multiplies, and the microseconds that the planner expects."""

    what: str
    rows: int
    columns: int
    options: Options
    step: int
    expected_us: float

    @property
    def mixed(self) -> bool:
        """Whether two kinds of instructions share the tile."""
        return "+" in self.what


TILES: dict[str, tuple[tuple[str, int, int], ...]] = {
    "f32": (("fma", 128, 128), ("fma", 256, 128), ("fma", 128, 64)),
    "3xtf32": (("wgmma_3xtf32", 128, 128), ("wgmma_3xtf32", 128, 64), ("mma_3xtf32", 128, 128)),
    "tf32": (("wgmma_tf32", 256, 128), ("wgmma_tf32", 128, 128), ("mma_tf32", 256, 128)),
    "f16": (("wgmma", 128, 256), ("wgmma", 256, 128), ("wgmma", 128, 128)),
}
"""What multiplies, and in what tiles, where one kind does."""
MIXED: dict[str, tuple[tuple[str, int, int], ...]] = {
    "3xtf32": (("wgmma_3xtf32:64+fma:32", 128, 96), ("mma_3xtf32:64+fma:32", 128, 96)),
    "tf32": (("wgmma_tf32:64+fma:32", 128, 96),),
}
"""The same where two kinds do; of f16 and f64 no second unit comes near the first."""
WGMMA_MULTIPLIES = 1448.0
"""Of a multiprocessor in a cycle, f16, measured; beside the rates in `tile.schemes`."""
CLOCK = 1755.0
"""Cycles of a microsecond."""


def ways(shape: Shape, target: Target) -> list[Way]:
    """All ways, the fastest expected first."""
    found = []
    for what, rows, columns in (*TILES.get(shape.precision, ()), *MIXED.get(shape.precision, ())):
        step = rules.STEP if shape.dtype is DType.F16 else rules.FLOAT_STEP
        options = replace(default_options(target), precision="f32" if what == "wgmma" else what)
        expected = _expected(shape, what, rows, columns, target)
        if expected is not None and shape.k % step == 0:
            found.append(Way(what, rows, columns, options, step, expected))
    return sorted(found, key=lambda way: way.expected_us)


def _expected(shape: Shape, what: str, rows: int, columns: int, target: Target) -> float | None:
    """Turns of the multiprocessors, each as long as its units take, side by side where there are two."""
    if "+" in what:
        asked = Asked(rows, columns, shape.k, 1, ("k", "m"))
        first, _, second = what.partition("+")
        widths = shares(asked, first, second)
    else:
        widths = {what: columns}
    if widths is None:
        return None
    rates = {**(BESIDE if "+" in what else MULTIPLIES), "wgmma": WGMMA_MULTIPLIES}
    times = [rows * n * shape.k / rates[kind] for kind, n in widths.items()]
    together = max(times) + (SIDE_BY_SIDE.lost * min(times) if len(times) > 1 else 0.0)
    turns = math.ceil(shape.batch * math.ceil(shape.m / rows) * math.ceil(shape.n / columns) / target.multiprocessors)
    return turns * together / CLOCK


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

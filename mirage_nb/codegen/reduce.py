"""Reductions of a tile along one dimension: Sum, Max, RescaledSum, alone or feeding an accumulator.

In: a reduction step. Out: statements in which a group of lanes (or the whole block) shares one result.
Invariant: warp collectives are reached by all lanes of every warp, also where results do not fill them;
a reduction that feeds an accumulator keeps one partial result per thread until the loop is over.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mirage_nb.codegen.index import named, unravel
from mirage_nb.codegen.maps import emit_fold, vectorizes
from mirage_nb.codegen.reader import Reader, Scope, locate
from mirage_nb.codegen.thread_values import Multi
from mirage_nb.codegen.writer import Writer, c_type
from mirage_nb.ir import AccumKind, DimAttrs, OpKind
from mirage_nb.tile.placement import Step

BLOCK_RESULTS = 4
"""Up to this many long reductions are done one after the other by the whole block."""


@dataclass(frozen=True, slots=True)
class Share:
    """How threads share a reduction of `shape` along `dim`.

    lanes: threads per result; slots: results per thread; width: consecutive elements per step.
    """

    shape: tuple[int, ...]
    dim: int
    width: int
    lanes: int
    slots: int
    whole_block: bool

    @property
    def kept(self) -> tuple[int, ...]:
        """The shape of the results."""
        return (*self.shape[: self.dim], 1, *self.shape[self.dim + 1 :])

    @property
    def results(self) -> int:
        """Number of results."""
        return math.prod(self.kept)

    @property
    def steps(self) -> int:
        """Vectors along the reduced dimension."""
        return self.shape[self.dim] // self.width

    @property
    def vector_dim(self) -> int | None:
        """The dimension of the vectors."""
        return self.dim if self.width > 1 else None


def share(scope: Scope, op_index: int) -> Share:
    """Split a reduction over the threads of the block."""
    op = scope.block.ops[op_index]
    assert isinstance(op.attrs, DimAttrs)
    shape, dim, threads = scope.shape(op.inputs[0]), op.attrs.dim, scope.threads
    extent, width = shape[dim], 1
    results = math.prod(shape) // extent
    if dim == len(shape) - 1:
        fitting = (w for w in (8, 4, 2) if extent % w == 0 and vectorizes(scope, op.inputs[0], dim, w))
        width = next(fitting, 1)
    steps = extent // width
    if results <= BLOCK_RESULTS and steps >= threads // 2:
        return Share(shape, dim, width, threads, results, True)
    lanes = 1
    while lanes < 32 and lanes * 2 <= steps and results * lanes < threads:
        lanes *= 2
    return Share(shape, dim, width, lanes, -(-results * lanes // threads), False)


def emit_reduce(out: Writer, scope: Scope, step: Step) -> None:
    """One reduction step: partial results into accumulator registers, or results into the shared tile."""
    op = scope.block.ops[step.op]
    shared = share(scope, step.op)
    kind = {OpKind.SUM: AccumKind.SUM, OpKind.MAX: AccumKind.MAX}.get(op.kind, AccumKind.RESCALE)
    with out.unrolled("s", shared.slots) as s, out.block():
        target, top = f"a{scope.first[step.accum]}[{s}]" if step.accum is not None else "result", "top"
        if step.accum is None:
            out.line(f"float result = {'NEGATIVE_INFINITY' if kind is AccumKind.MAX else '0.0f'};")
        if kind is AccumKind.RESCALE:
            out.line("float top = NEGATIVE_INFINITY;")
        at = _result_index(out, scope, shared, s)
        guard = "" if shared.results % _groups(scope, shared) == 0 else f"if (o < {shared.results}) "
        with out.block(f"{guard}for (int k = {_lane(shared)}; k < {shared.steps}; k += {shared.lanes})"):
            index = (*at[: shared.dim], named("k", shared.steps) * shared.width, *at[shared.dim + 1 :])
            emit_fold(out, Reader(scope, shared.width), op, kind, (target, top), index, shared.vector_dim)
        if step.value is not None:
            _combine(out, shared, kind, scope)
            result, value = "result", scope.first[step.op]
            if step.value != value:  # an elementwise operator on the result, by who has it
                reader = Reader(scope, 1, {value: result})
                result = reader.compute(step.value, at, None)
                out.lines([*reader.loads, *reader.body])
            _store_result(out, scope, step.value, shared, at, result)


def _lane(shared: Share) -> str:
    if shared.whole_block:
        return "thread"
    return f"thread % {shared.lanes}" if shared.lanes > 1 else "0"


def _groups(scope: Scope, shared: Share) -> int:
    return 1 if shared.whole_block else scope.threads // shared.lanes


def _result_index(out: Writer, scope: Scope, shared: Share, slot: str) -> Multi:
    """Name the result of this slot; lanes beyond the last one work on a result that exists and drop it."""
    if shared.whole_block:
        return unravel(named(slot, shared.results), shared.kept)
    groups = _groups(scope, shared)
    lane = f"thread / {shared.lanes}" if shared.lanes > 1 else "thread"
    out.line(f"const int o = {(named(lane, groups) + named(slot, shared.slots) * groups).bare};")
    return unravel(named("o", shared.results), shared.kept)


def _combine(out: Writer, shared: Share, kind: AccumKind, scope: Scope) -> None:
    """Partial results of a group of lanes become one."""
    if shared.lanes == 1:
        return
    if kind is AccumKind.RESCALE:
        out.line(f"const float highest = {_collective(scope, shared, 'max', 'top')};")
        out.line("result = rescaled(result, top, highest);")
    name = "max" if kind is AccumKind.MAX else "sum"
    out.line(f"result = {_collective(scope, shared, name, 'result')};")


def _collective(scope: Scope, shared: Share, name: str, value: str) -> str:
    if not shared.whole_block:
        return f"warp_{name}<{shared.lanes}>({value})"
    if scope.plan.options.bulk:
        return f"group_{name}({value}, scratch, 0, {scope.plan.options.warps}, 1)"
    return f"block_{name}({value}, scratch)"


def _store_result(out: Writer, scope: Scope, value: int, shared: Share, at: Multi, result: str) -> None:
    leaf = locate(scope, value, at, None)
    conditions = []
    if shared.lanes > 1:
        conditions.append(f"{_lane(shared)} == 0")
    if not shared.whole_block and shared.results % _groups(scope, shared):
        conditions.append(f"o < {shared.results}")
    guard = f"if ({' && '.join(conditions)}) " if conditions else ""
    target = c_type(scope.plan.stored[value])
    out.line(f"{guard}{leaf.pointer}[{leaf.offset}] = from_float<{target}>({result});")


def emit_finish_reduce(out: Writer, scope: Scope, step: Step, source: int) -> None:
    """Partial results of all threads become the accumulator's shared tile; `source` is the reduction."""
    assert step.value is not None
    shared = share(scope, source)
    kind = AccumKind.SUM if scope.block.ops[source].kind is OpKind.SUM else AccumKind.MAX
    with out.unrolled("s", shared.slots) as s, out.block():
        out.line(f"float result = a{step.value}[{s}];")
        at = _result_index(out, scope, shared, s)
        _combine(out, shared, kind, scope)
        _store_result(out, scope, step.value, shared, at, "result")

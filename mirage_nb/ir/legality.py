"""Definition 2.1 of the paper, said once: which graphs are muGraphs.

In: a kernel graph and, if memory counts, a target. Out: nothing, or a GraphError that names the place.
A legal graph (1) has operators that match their row of the table, with the types that follow from them,
(2) fits the memories of the target, and (3) passes every value of a block graph from input to output
through exactly one input iterator, exactly one accumulator if there is a loop, and exactly one saver. Tiles that
hang over the end of a tensor (`InIterAttrs.tile`, `OutSaverAttrs.shape`) each hold at least one of its elements.
Interpreters, planners and emitters may rely on all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from mirage_nb.errors import GraphError, ShapeError
from mirage_nb.ir.dtypes import MemSpace, TensorType
from mirage_nb.ir.graph import BlockGraph, Graph, KernelGraph, Op, ThreadGraph, result_count
from mirage_nb.ir.ops import OPS, AccumAttrs, AccumKind, InIterAttrs, OpKind, Trait
from mirage_nb.targets import Target

REGISTER_BYTES = 4
"""One register; every element that a thread graph works on takes at least one."""


def _nowhere(block: BlockGraph) -> bool:
    return False


def check(
    graph: KernelGraph, target: Target | None = None, in_registers: Callable[[BlockGraph], bool] = _nowhere
) -> None:
    """Raise GraphError, naming the operator, unless `graph` is legal (and fits the target). in_registers: whether the
    tensors of a block take registers of its threads, and no shared memory."""
    names = [i.name for i in graph.inputs]
    if len(set(names)) < len(names) or "" in names:
        raise GraphError(f"input names {names} are not distinct and non-empty")
    if any(i.type.space is not MemSpace.DEVICE for i in graph.inputs):
        raise GraphError("the inputs of a kernel graph lie in device memory")
    for number, op in enumerate(graph.ops):
        if op.kind is OpKind.GRAPH:
            if not isinstance(op.body, BlockGraph):
                raise GraphError(f"{_place('', number, op)}: a graph-defined operator needs a block graph")
            place = _place("", number, op)
            _check_block(op.body, f"{place}, ", target)
            if target is not None and not in_registers(op.body):
                _check_bytes("shared", peak_shared_bytes(op.body), target.shared_per_block, f"{place}, the block graph")
    _check_types(KernelGraph.start(*graph.inputs), graph, "")
    if not graph.outputs or any(not 0 <= v < len(graph.types) for v in graph.outputs):
        raise GraphError(f"outputs {graph.outputs}: at least one, each a value of the graph")
    if len(graph.output_names) != len(graph.outputs) or len(set(graph.output_names)) < len(graph.outputs):
        raise GraphError(f"output names {graph.output_names} do not name {len(graph.outputs)} outputs apart")
    if target is not None:
        _check_bytes("device", sum(t.nbytes for t in graph.types), target.device_memory, "the kernel graph")


def peak_shared_bytes(graph: BlockGraph) -> int:
    """Bytes of the shared tensors alive at once, see `alive`."""
    operators = [(op.kind, op.inputs, values) for op, values in graph.definitions()]
    return int(max(alive(operators, lambda value: graph.types[value].nbytes), default=0))


Operators = Sequence[tuple[OpKind, tuple[int, ...], tuple[int, ...]]]
"""Kinds, the values that are read, those that are made."""


def alive(operators: Operators, nbytes: Callable[[int], Any]) -> Iterator[Any]:
    """For every operator the bytes alive then, each value from its operator to its last reader; nbytes: of a value, a
    number or an array of them.

    What the loop body makes lives on within its iteration; accumulators live from the start of the loop; views and
    savers take nothing, nor does what a product or an elementwise operator makes for one elementwise operator, or a
    product for its accumulator: it is a thread graph's, which has it in registers (paper section 2). A plan may need
    more (stages of a ring) or less (values in registers).
    """
    change: list[Any] = [0] * (len(operators) + 1)
    passed, last = _passed_on(operators), _last_use(operators)
    for number, (kind, _, results) in enumerate(operators):
        for value in results:
            if value not in passed and not _is_view(kind) and kind is not OpKind.CONST:
                held, born = nbytes(value), 0 if kind is OpKind.ACCUM else number
                change[born] = change[born] + held
                change[last[value] + 1] = change[last[value] + 1] - held
    return accumulate(change[:-1])


def _last_use(operators: Operators) -> dict[int, int]:
    """For every value, the last operator that reads it, itself or through a view."""
    last: dict[int, int] = {}
    for number, (kind, read, made) in reversed([*enumerate(operators)]):
        for value in made:
            last.setdefault(value, number)
        until = max((last[value] for value in made), default=number) if _is_view(kind) else number
        for value in read:
            last[value] = max(last.get(value, 0), until)
    return last


def _is_view(kind: OpKind) -> bool:
    return kind in (OpKind.RESHAPE, OpKind.TRANSPOSE)


def _passed_on(operators: Operators) -> frozenset[int]:
    """Values that one operator makes for another in registers, views between them included."""
    uses: dict[int, list[int]] = {}
    for number, (_, read, _) in enumerate(operators):
        for value in read:
            uses.setdefault(value, []).append(number)
    found: set[int] = set()
    for kind, _, made in operators:
        product = kind is OpKind.MATMUL
        passed = made[0] if len(made) == 1 and (product or _elementwise(kind)) else None
        while passed is not None and len(uses.get(passed, ())) == 1:
            reader, _, others = operators[uses[passed][0]]
            if _elementwise(reader) or (product and reader is OpKind.ACCUM):
                found.add(made[0])
            passed = others[0] if _is_view(reader) else None
    return frozenset(found)


def _elementwise(kind: OpKind) -> bool:
    return Trait.ELEMENTWISE in OPS[kind].traits


def _place(place: str, number: int, op: Op) -> str:
    return f"{place}operator {number} ({op.kind.value})"


def _check_types(start: Graph, graph: Graph, place: str) -> None:
    """Every operator, appended again, has the operands, attributes and result types that the graph says."""
    built = start
    total = built.input_count
    if built.types != graph.types[:total]:
        raise GraphError(f"{place}the types of the inputs are not those of the operands")
    whole = replace(start, types=graph.types)  # as long as the types so far are the graph's, and operands among them
    for number, op in enumerate(graph.ops):
        try:
            _check_row(op)
            if any(not 0 <= v < total for v in op.inputs):
                raise GraphError("reads a value that is not defined before it")
            found = whole.results(op)
            if found != graph.types[total : total + len(found)]:
                raise GraphError(f"the graph says another result type than {found[0]}")
        except (GraphError, ShapeError) as error:
            raise GraphError(f"{_place(place, number, op)}: {error}") from error
        total += len(found)
    if total != len(graph.types):
        raise GraphError(f"{place}{len(graph.types)} types for {total} values")


def _check_row(op: Op) -> None:
    """The attributes are of the operator's class, and only graph-defined operators have a body."""
    expected = OPS[op.kind].attrs
    if (expected is None) != (op.attrs is None) or (expected and not isinstance(op.attrs, expected)):
        raise GraphError(f"attributes {op.attrs} instead of {expected.__name__ if expected else 'none'}")
    if (op.body is not None) != (op.kind in (OpKind.GRAPH, OpKind.FUSED)):
        raise GraphError("a body belongs to graph-defined and fused operators, and only to them")


def _check_block(graph: BlockGraph, place: str, target: Target | None) -> None:
    try:
        start = BlockGraph.start(graph.args, graph.grid, graph.loop)
    except GraphError as error:
        raise GraphError(f"{place}{error}") from error
    for number, op in enumerate(graph.ops):
        if op.kind is OpKind.FUSED and isinstance(op.body, ThreadGraph):
            _check_thread(op.body, f"{_place(place, number, op)}, ", target)
    _check_types(start, graph, place)
    if not graph.savers:
        raise GraphError(f"{place}no output saver")
    read = {op.attrs.arg for op in graph.ops if isinstance(op.attrs, InIterAttrs)}
    for arg in range(len(graph.args)):
        if arg not in read:
            raise GraphError(f"{place}operand {arg} is read by no input iterator")
    _check_used(graph, place)
    _check_paths(graph, place)


def _check_used(graph: BlockGraph | ThreadGraph, place: str) -> None:
    outputs = graph.outputs if isinstance(graph, ThreadGraph) else ()
    uses = graph.uses()
    for number, (op, values) in enumerate(graph.definitions()):
        for value in values:
            if not uses[value] and value not in outputs:
                raise GraphError(f"{_place(place, number, op)}: nothing reads its result %{value}")
    for value in range(graph.input_count):
        if not uses[value] and value not in outputs:
            raise GraphError(f"{place}nothing reads operand %{value}")


def _check_paths(graph: BlockGraph, place: str) -> None:
    """One iterator, one accumulator if there is a loop, one saver on every path; what is held stays."""
    stages = graph.stages()
    stage_of: list[int | None] = []
    varies: list[bool] = []
    for number, (op, stage) in enumerate(zip(graph.ops, stages, strict=True)):
        here = _place(place, number, op)
        read = [stage_of[v] for v in op.inputs]
        own = isinstance(op.attrs, InIterAttrs) and op.attrs.fmap is not None
        changing = own or any(varies[v] for v in op.inputs)
        if op.kind is OpKind.ACCUM:
            _check_accumulator(op, read, changing, here)
            changing = False
        elif op.kind is OpKind.OUT_SAVER:
            if read != [1]:
                what = "a constant" if read == [None] else "a value of the loop body"
                raise GraphError(f"{here}: saves {what}", hint="an accumulator carries it out of the loop")
        elif 0 in read and 1 in read:
            raise GraphError(
                f"{here}: reads a value of the loop body after the loop",
                hint="an accumulator carries it out of the loop",
            )
        stage_of += [stage] * result_count(op)
        varies += [changing] * result_count(op)


def _check_accumulator(op: Op, read: list[int | None], changing: bool, here: str) -> None:
    if any(stage != 0 for stage in read):
        what = "an accumulated value" if 1 in read else "a constant"
        raise GraphError(f"{here}: accumulates what is not of the loop body: {what}")
    if isinstance(op.attrs, AccumAttrs) and op.attrs.kind is AccumKind.HOLD and changing:
        raise GraphError(f"{here}: holds a value that changes with the iteration")


def _check_thread(graph: ThreadGraph, place: str, target: Target | None) -> None:
    for number, op in enumerate(graph.ops):
        if op.body is not None:
            raise GraphError(f"{_place(place, number, op)}: thread graphs hold no further graphs")
    _check_types(ThreadGraph.start(graph.inputs), graph, place)
    if not graph.ops or not graph.outputs:
        raise GraphError(f"{place}a thread graph has operators and outputs")
    if any(not 0 <= v < len(graph.types) for v in graph.outputs):
        raise GraphError(f"{place}outputs {graph.outputs}: each a value of the graph")
    _check_used(graph, place)
    if target is not None:
        widest = max(_register_bytes(graph, op, values) for op, values in graph.definitions())
        limit = target.registers_per_multiprocessor * REGISTER_BYTES
        _check_bytes("register", widest, limit, f"{place}the thread graph")


def _register_bytes(graph: ThreadGraph, op: Op, values: Iterable[int]) -> int:
    """Registers of one operator's operands and results in the whole block; constants are immediate."""
    tensors: Iterator[TensorType] = (graph.types[v] for v in {*op.inputs, *values})
    return sum(REGISTER_BYTES * t.elements for t in tensors if t.shape)


def _check_bytes(memory: str, needed: int, limit: int, what: str) -> None:
    if needed > limit:
        raise GraphError(f"{what} needs {needed} bytes of {memory} memory; the target has {limit}")

"""`emit`: a muGraph of graph-defined operators becomes one CUDA C++ translation unit and its launches.

In: a kernel graph, a target, options. Out: `Emitted`, a function of the input alone (no GPU, no
environment, same text in every run). Invariant: the source calls nothing but the device library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from mirage_nb.codegen.emitted import Emitted, Launch, LibraryCall, MapArg, Temporary, TensorArg
from mirage_nb.codegen.kernel import KernelText
from mirage_nb.codegen.lookup import lookup
from mirage_nb.codegen.roles.program import ProgramText
from mirage_nb.errors import EmitError
from mirage_nb.ir import BlockGraph, KernelGraph, OpKind
from mirage_nb.ir.fields import INDEX_LIMIT
from mirage_nb.ir.places import numbered
from mirage_nb.ir.sizes import sized
from mirage_nb.ir.windows import Window, as_matrix
from mirage_nb.optimize import BlockPlan, Options, Plan, as_planned, default_options
from mirage_nb.optimize import plan as plan_graph
from mirage_nb.optimize.reach import Reaches, reaches
from mirage_nb.optimize.tables import tensors_of
from mirage_nb.predefined import LOOKUP
from mirage_nb.predefined.lookups import looked_up
from mirage_nb.targets import Target
from mirage_nb.tile.planned import Planned

HEADER = '#include "mirage_device.cuh"\n\nusing namespace mirage;\n'


def emit(graph: KernelGraph, target: Target, options: Options | None = None) -> Emitted:
    """Emit `graph` for `target`.

    Raises:
        EmitError: a tensor of f64, or of more than 2^31 elements, in a graph-defined operator; or two outputs that
            are one value; or a kernel's program is not valid, which is a mistake of the planner.
        TargetError: a block needs more shared memory than the target has.
    """
    chosen = options or default_options(target)
    return emit_plan(plan_graph(graph, target, chosen), target, chosen)


def emit_plan(plan: Plan, target: Target, options: Options) -> Emitted:
    """Emit what a plan for `target` says. Raises as `emit`."""
    graph = plan.graph
    if len(set(graph.outputs)) < len(graph.outputs):
        raise EmitError(
            f"outputs {', '.join(graph.output_names)}: two of them are one value",
            hint="save the value twice: every output has memory of its own",
        )
    constants, where = graph.uniform(), sized(graph)
    parts, programs = [HEADER], list[Planned]()
    counted = numbered(graph)
    launches: list[Launch | LibraryCall] = []
    aliases, copies = _views(graph, plan.left_out)
    matched = {match.output: match for match in plan.library}
    for index, (op, values) in enumerate(graph.definitions()):
        if values[0] in constants or index in plan.left_out:
            continue
        if (match := matched.get(values[0])) is not None and match.row == LOOKUP:
            looked_up, kernel = lookup(index, match, graph)
            parts.append(kernel)
            launches.append(looked_up)
            continue
        if match is not None:
            by = match.launches[min(options.library, len(match.launches)) - 1]
            launches.append(LibraryCall(op, match.inputs, match.output, index, match, by))
            continue
        if op.kind is OpKind.RESHAPE and values[0] not in copies:
            continue
        block_plan = plan.kernels[index]
        if block_plan is None:
            launches.append(LibraryCall(op, op.inputs, values[0], index))
            continue
        literals = {i: constants[v] for i, v in enumerate(op.inputs) if v in constants}
        reach = reaches(graph, where, index, values, plan.windows)
        launch, text = _kernel(index, block_plan, literals, plan, values, reach)
        places = frozenset(i for i, v in enumerate(op.inputs) if v in counted)
        looked = text.lookups if isinstance(text, KernelText) else ((), ())
        programs.append(Planned(block_plan.block, text.program, literals, places, index, *looked))
        _check(launch, programs[-1], target)
        parts.append(text.text())
        launches.append(launch)
    temporaries = tuple(
        Temporary(value, graph.types[value], offset)
        for value, offset in zip(plan.temporaries, plan.workspace.offsets, strict=True)
    )
    said = as_planned(options, plan)
    needed = _needed(graph, launches, aliases)
    source, peak = "\n".join(parts), plan.workspace.peak
    return Emitted(graph, said, source, needed, temporaries, peak, aliases, programs=tuple(programs))


def _needed(
    graph: KernelGraph, launches: list[Launch | LibraryCall], aliases: tuple[tuple[int, int], ...]
) -> tuple[Launch | LibraryCall, ...]:
    """All launches but those that number places which no other one reads: kernels may count themselves."""
    read = set(graph.outputs)
    for launch in launches:
        read |= {*launch.inputs} if isinstance(launch, LibraryCall) else {arg.value for arg in launch.args}
    for view, original in aliases:
        read |= {original} if view in read else set()
    return tuple(
        launch
        for launch in launches
        if not isinstance(launch, LibraryCall) or launch.op.kind is not OpKind.ARANGE or launch.output in read
    )


def _views(graph: KernelGraph, left_out: frozenset[int]) -> tuple[tuple[tuple[int, int], ...], frozenset[int]]:
    """(view, original) pairs that share memory, in an order in which one of the two has its place; and the views that
    are copied: outputs whose original is an input, or has its place in another output."""
    constants = graph.uniform()
    original: dict[int, int] = {}
    for index, (op, values) in enumerate(graph.definitions()):
        if op.kind is OpKind.RESHAPE and values[0] not in constants and index not in left_out:
            original[values[0]] = original.get(op.inputs[0], op.inputs[0])
    placed = {*range(graph.input_count), *graph.outputs}
    first: list[tuple[int, int]] = []
    copies: set[int] = set()
    for view in (v for v in original if v in graph.outputs):
        if original[view] in placed:
            copies.add(view)
        else:
            placed.add(original[view])
            first.append((view, original[view]))
    others = [pair for pair in original.items() if pair[0] not in graph.outputs]
    return (*first, *others), frozenset(copies)


def _kernel(
    index: int,
    block_plan: BlockPlan,
    literals: dict[int, Fraction],
    plan: Plan,
    values: tuple[int, ...],
    reach: Reaches,
) -> tuple[Launch, KernelText | ProgramText]:
    graph, overlap = plan.graph, plan.overlaps[index]
    seen = {i: plan.windows[v] for i, v in enumerate(graph.ops[index].inputs) if v in plan.windows}
    looked = looked_up(graph.ops[index].inputs, plan.lookups, plan.windows)
    operands = tuple(seen[i].base if i in seen else v for i, v in enumerate(graph.ops[index].inputs))
    operands = tuple(looked[i].table if i in looked else v for i, v in enumerate(operands))
    outputs, name, program = tuple(graph.types[v] for v in values), f"kernel{index}", block_plan.program
    for type_ in (*outputs, *block_plan.block.args):
        if type_.elements >= INDEX_LIMIT:
            raise EmitError(f"a tensor of {type_} has more than 2^31 elements", hint="split it over several calls")
    text: KernelText | ProgramText
    if program is not None:
        text, grid, cut = ProgramText(name, program, overlap, reach), (program.blocks, 1, 1), None
    else:
        text = KernelText(name, block_plan, literals, outputs, overlap, reach, seen, looked, operands)
        x, y, z = (*block_plan.block.grid, 1, 1)[:3]
        grid, cut = (x, y, z), reach.cut
    args: tuple[TensorArg | MapArg, ...] = (
        *(TensorArg(operands[i]) for i in text.params()),
        *(TensorArg(v) for v in tensors_of(looked)),
        *(TensorArg(v) for v in values),
        *(_looked_at(arg, operands, block_plan.block, seen) for arg in text.tensor_maps().values()),
    )
    shared = max(block_plan.shared_bytes, overlap.least_shared) if block_plan.shared_bytes else 0
    early = overlap.behind, overlap.behind and overlap.trusting
    return Launch(name, grid, block_plan.threads, shared, args, index, *early, bool(reach), cut), text


def _check(launch: Launch, planned: Planned, target: Target) -> None:
    """What is not valid is not printed, nor what has other threads, or less shared memory, than its program."""
    findings, (threads, nbytes) = planned.findings(target), planned.asked
    if threads != launch.threads or nbytes > launch.shared_bytes:
        had = f"{launch.threads} and {launch.shared_bytes}"
        findings = (*findings, f"{threads} threads and {nbytes} bytes of shared memory, {had} are launched")
    if findings:
        what = f"{launch.kernel} is not printed, its program is not valid: {findings[0]}"
        raise EmitError(what, hint="this is a mistake of ours; other ways to emit it may be valid")


def _looked_at(arg: MapArg, operands: Sequence[int], block: BlockGraph, seen: Mapping[int, Window]) -> MapArg:
    """The tensor map of an operand as one of what lies there in memory."""
    window = seen.get(arg.value)
    if window is None:
        return replace(arg, value=operands[arg.value])
    lies = as_matrix(window, block.args[arg.value].shape, arg.columns)
    assert lies is not None, "else it is copied"
    return replace(arg, value=window.base, first=lies[0], pitch=lies[1])

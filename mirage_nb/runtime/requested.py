"""What a caller asks of a session, read: programs, budgets, the target that is meant.

In: arguments as a caller gives them, or the header of a stored session. Out: what the session takes, or an OptionError.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from mirage_nb.errors import MirageError, OptionError
from mirage_nb.ir import DType, KernelGraph
from mirage_nb.ir.text import print_graph
from mirage_nb.lang import TensorProgram, load, parse
from mirage_nb.runtime.gpu import Gpu
from mirage_nb.runtime.store import MAX_SEED, Header
from mirage_nb.search import Budget
from mirage_nb.search.session.findings import known_effort
from mirage_nb.targets import DEFAULT_TARGET, EXACT, PRECISIONS, Target, find_target

LEAST_RESERVE = 3.0
"""Seconds of a session that are kept for what follows the search, unless that is more than half of them."""


def written(header: Header) -> TensorProgram:
    """The program of a stored session, with its text where that says the same, else with the text of its graph."""
    try:
        program = parse(header.text, name=header.title, sizes=header.sizes)
    except MirageError:
        program = None
    if program is not None and program.graph == header.graph:
        return program
    return TensorProgram(header.title, print_graph(header.graph), header.graph, (), header.sizes)


def parsed(program: str | Path | TensorProgram, name: str, sizes: Mapping[str, int | range] | None) -> TensorProgram:
    match program:
        case TensorProgram():
            if sizes:
                raise OptionError("sizes belong to a text or a file, not to a parsed program")
            return program
        case Path():
            return load(program, sizes=sizes)
        case str() if program.endswith(".mirage"):  # no program ends so
            return load(program, name=name, sizes=sizes)
        case _:
            return parse(program, name=name, sizes=sizes)


def default_target(gpu: Gpu | None) -> Target:
    attached = gpu.target() if gpu is not None else None
    return attached if attached is not None else find_target(DEFAULT_TARGET)


def seconds(budget: float | None) -> float | None:
    if budget is not None and not 0 < budget < float("inf"):
        raise OptionError(f"a budget of {budget:g} seconds", hint="give a positive number")
    return budget


def seed(number: int) -> int:
    if not 0 <= number < MAX_SEED:
        raise OptionError(f"a seed of {number}", hint="give a number from 0 to below 2^62")
    return number


def reserve(gpu: Gpu | None, seconds: float) -> float:
    """Of so many seconds for a session, those for what follows the search: compiling, executing, timing, verifying."""
    share, most = (0.5, 30.0) if gpu is not None else (0.25, 15.0)
    return min(most, max(share * seconds, min(0.5 * seconds, LEAST_RESERVE)))


def budget(effort: str, max_block_ops: int | None) -> Budget:
    budget = known_effort(effort).budget
    if max_block_ops is None:
        return budget
    if max_block_ops < 1:
        raise OptionError(f"at most {max_block_ops} block operators", hint="give 1 or more")
    return replace(budget, max_block_ops=max_block_ops)


def tolerance(times: float) -> float:
    """How many times its program's own rounding a kernel may be off."""
    if not 0 < times < float("inf"):
        raise OptionError(f"a tolerance of {times:g}", hint="give a positive number; 1 is what rounding explains")
    return times


def precise(name: str | None, gpu: Gpu | None, precision: str, graph: KernelGraph) -> Target:
    """The target of this name, or the default one, with products of f32 computed so; exactly in a program without
    f32, whose tolerance then is its own."""
    target = find_target(name) if name is not None else default_target(gpu)
    if precision not in PRECISIONS:
        raise OptionError(f"a precision of {precision!r}", hint=f"one of {', '.join(PRECISIONS)}")
    floats = any(i.type.dtype is DType.F32 for i in graph.inputs)
    return replace(target, precision=precision if floats else EXACT)


def runs(gpu: Gpu | None, target: Target) -> Gpu | None:
    """The GPU, if it runs what is made for the target."""
    return gpu if gpu is not None and gpu.runs(target) else None

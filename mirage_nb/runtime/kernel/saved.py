"""Saving a muGraph as one Python file that runs without this package, and loading such a file as data.

In: an emitted muGraph, its cubin, the program that it computes. Out: a `Plan`, and a file: the modules that run
a plan, their sources as they are here, and the plan as a block of JSON. Invariant: loading a file reads the block
and executes nothing of the file, so that a file from a stranger is harmless until its kernel is called.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

from mirage_nb.codegen import Emitted, LibraryCall, MapArg
from mirage_nb.codegen import Launch as EmittedLaunch
from mirage_nb.errors import FormatError, StoreError
from mirage_nb.ir import ApplyAttrs, ConstAttrs, KernelGraph, OpKind, formula
from mirage_nb.ir.fields import write_attrs
from mirage_nb.ir.ops import Attrs
from mirage_nb.ir.sizes import open_reshapes, sized
from mirage_nb.runtime.execution.compile import CUDA_PARTS, DEVICE_FOLDER
from mirage_nb.runtime.kernel.call import Kernel
from mirage_nb.runtime.kernel.operators import OPERATORS
from mirage_nb.runtime.kernel.plan import (
    Apply,
    Argument,
    Drawn,
    KernelError,
    Launch,
    Plan,
    Size,
    Tensor,
    read_plan,
    write_plan,
)
from mirage_nb.typed import typed
from mirage_nb.verify.reals.places import Places, places
from mirage_nb.verify.reals.ranges import ranges

COPIED = (
    "mirage_nb.records", *(f"mirage_nb.runtime.kernel.{name}" for name in (
        "operators", "plan", "streams", "pytorch", "rows", "products", "library", "driver", "call",
    )),
)  # fmt: skip
"""The modules that a saved file is made of, in the order of their imports."""
BEGIN, END = "# -- the plan: a block of JSON ", "# -- end of the plan "
MAX_FILE = 2**24
MAX_CUBIN = 2**22
"""A larger cubin is left out of a file: its source is compiled at the first call."""
SIDE = "mirage_device.cuh"
SAVED = "Winner.save(path) writes a file that can be loaded"


def lower(
    emitted: Emitted,
    program: KernelGraph | None = None,
    *,
    arch: str,
    cubin: bytes = b"",
    about: Mapping[str, str] | None = None,
    scale: float = 1.0,
    tolerance: float = 5e-3,
    trusted: bool = False,
) -> Plan:
    """The plan of an emitted muGraph.

    Args:
        program: what it computes, of pre-defined operators; without it the plan runs, but cannot be checked or saved.
        arch: what the cubin was compiled for.
        cubin: may be empty; the source is then compiled at the first call.
        about: texts for a reader.
        scale: standard deviation of the inputs of a self-check.
        tolerance: the largest relative error that it lets through.
        trusted: whether whatever writes settled inputs has ended when the launch in front of a call begins.

    Raises:
        FormatError: an input is an output, or an operator has no plain form.
    """
    graph = emitted.graph
    if set(graph.outputs) & set(range(graph.input_count)):
        raise FormatError("an output that is an input has no kernel")
    slots = _slots(emitted)
    numbers = {value: n for n, value in enumerate(slots)}
    constants = {v[0]: float(op.attrs.value) for op, v in graph.definitions() if isinstance(op.attrs, ConstAttrs)}
    size, opened = emitted.size, open_reshapes(graph)
    steps: list[Launch | Apply] = []
    for step in emitted.launches:
        if isinstance(step, EmittedLaunch):
            steps.append(_launch(step, numbers, trusted))
        else:
            steps.append(_apply_step(replace(step, op=opened.ops[step.index]), numbers, constants))
    return Plan(
        about=dict(about or {}),
        arch=arch,
        tensors=tuple(slots.values()),
        steps=tuple(steps),
        workspace_bytes=emitted.workspace_bytes,
        program=tuple(_operators(program)) if program is not None else (),
        results=program.outputs if program is not None else (),
        scale=scale,
        tolerance=tolerance,
        source=flattened(emitted.source),
        cubin=cubin,
        size=Size(size.name, size.least, size.most) if size is not None else None,
        extent=emitted.extent or 0,
        drawn=_drawn(program) if program is not None else (),
    )


def _drawn(program: KernelGraph) -> tuple[Drawn, ...]:
    """How a self-check draws the inputs; where all are normal numbers, none says so."""
    whole, wanted = places(program), ranges(program)
    found = []
    for i in program.inputs:
        kind = wanted[i.name].name.lower() if i.name in wanted else "normal"
        place = whole.get(i.name, Places(0))
        found.append(Drawn(kind, place.least if kind == "normal" else max(place.least, 0), place.below, place.also))
    return tuple(found) if {*found} != {Drawn()} else ()


def _sized_dim(graph: KernelGraph, value: int) -> int | None:
    """The dimension of a value that has the size which is known at launch."""
    where = sized(graph)
    return where.dims[value] if where is not None else None


def _slots(emitted: Emitted) -> dict[int, Tensor]:
    """Every value in device memory: where it begins, and its name if it is an input or output itself."""
    graph = emitted.graph
    places: dict[int, tuple[str, int, str]] = {v: ("input", v, i.name) for v, i in enumerate(graph.inputs)}
    names = graph.output_names
    for number, value in enumerate(graph.outputs):
        places[value] = ("output", number, names[number] or f"output{number}")
    for temporary in emitted.temporaries:
        places[temporary.value] = ("workspace", temporary.offset, "")
    for view, original in emitted.aliases:
        if original in places:
            places.setdefault(view, (*places[original][:2], ""))
        elif view in places:
            places[original] = (*places[view][:2], "")
    return {
        value: Tensor(
            name, graph.types[value].dtype.value, graph.types[value].shape, place, at, _sized_dim(graph, value)
        )
        for value, (place, at, name) in sorted(places.items())
    }


def _launch(step: EmittedLaunch, numbers: Mapping[int, int], trusted: bool) -> Launch:
    args = tuple(
        Argument(
            numbers[arg.value],
            (arg.rows, arg.columns),
            arg.box,
            arg.swizzle,
            arg.first or None,
            arg.pitch or None,
            arg.matrices or None,
        )
        if isinstance(arg, MapArg)
        else Argument(numbers[arg.value])
        for arg in step.args
    )
    cut = (step.cut.axis, *step.cut.per.as_integer_ratio()) if step.cut is not None else None
    early = step.overlaps and (trusted or not step.trusting)
    return Launch(step.kernel, step.grid, step.threads, step.shared_bytes, args, early, step.sized, cut)


def _apply_step(step: LibraryCall, numbers: Mapping[int, int], constants: Mapping[int, float]) -> Apply:
    if step.match is not None:
        attrs = {**step.match.attrs, "by": step.by}
        return Apply(step.match.row, attrs, tuple(numbers[v] for v in step.inputs), numbers[step.output])
    scalars = tuple((n, constants[v]) for n, v in enumerate(step.inputs) if v in constants)
    inputs = tuple(numbers[v] for v in step.inputs if v not in constants)
    return Apply(_known(step.op.kind), plain_attrs(step.op.attrs), inputs, numbers[step.output], scalars)


def _operators(program: KernelGraph) -> list[Apply]:
    return [
        Apply(_known(op.kind), plain_attrs(op.attrs), op.inputs, results[0])
        for op, results in open_reshapes(program).definitions()
    ]


def _known(kind: OpKind) -> str:
    if kind.value not in OPERATORS:
        raise FormatError(f"{kind.value} cannot be saved: it has no form on plain arrays")
    return kind.value


def plain_attrs(attrs: Attrs | None) -> dict[str, Any]:
    """Attributes as JSON has them: rationals are texts, formulas nested lists."""
    if isinstance(attrs, ApplyAttrs):
        table = {name: partial(_listed, name) for name in formula.PRIMITIVES}
        argument: Any = "x"
        return {"formula": formula.fold(formula.read(attrs.formula), argument, str, table)}

    def plain(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [plain(v) for v in value]
        return value if value is None or isinstance(value, (int, str)) else str(value)

    return {name: plain(value) for name, value in write_attrs(attrs).items()}


def _listed(name: str, *operands: Any) -> list[Any]:
    return [name, *(o if isinstance(o, (str, list)) else str(o) for o in operands)]


def flattened(source: str) -> str:
    """Kernel text with the CUDA edition of the device library in place of its include."""
    umbrella = (DEVICE_FOLDER / SIDE).read_text()
    cuda, _, _ = umbrella.partition("#else")
    parts = [name for name in re.findall(r'#include "([^"]+)"', cuda) if name.startswith(CUDA_PARTS[1:])]
    library = "\n".join((DEVICE_FOLDER / name).read_text().replace("#pragma once", "") for name in parts)
    return source.replace(f'#include "{SIDE}"', library, 1)


# -- the file -----------------------------------------------------------------------------------------


def file_text(plan: Plan) -> str:
    """The Python file of a plan."""
    title = plan.about.get("name") or "a muGraph"
    head = [f"# {title}: saved by mirage_nb; runs on {plan.arch} with CuPy and NumPy alone. `python FILE --help`."]
    head += [f"#   {line}" for line in plan.about.get("program", "").splitlines()]
    kept = plan if len(plan.cubin) <= MAX_CUBIN else replace(plan, cubin=b"")
    # A quote ends the text that the block stands in; JSON knows another way to write it.
    block = json.dumps(write_plan(kept), indent=0, ensure_ascii=True).replace("'", "\\u0027")
    return "\n".join(
        [
            *(line.encode("ascii", "replace").decode() for line in head),
            "from __future__ import annotations",
            *(_module(name) for name in COPIED),
            BEGIN + "-" * 60,
            f"PLAN = r'''\n{block}\n'''",
            END + "-" * 60,
            "import json",
            "",
            "KERNEL = Kernel(read_plan(json.loads(PLAN)))",
            "run = KERNEL.__call__",
            "",
            'if __name__ == "__main__":',
            "    sys.exit(main(KERNEL, sys.argv[1:]))",
            "",
        ]
    )


def _module(name: str) -> str:
    """The source of a copied module, without what stands once in the file and without imports of its siblings."""
    package, _, leaf = name.rpartition(".")
    text = resources.files(package).joinpath(f"{leaf}.py").read_text(encoding="utf-8")
    lines: list[str | None] = [*text.splitlines()]
    for node in ast.parse(text).body:
        docstring = isinstance(node, ast.Expr) and node.lineno == 1
        module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
        if docstring or module == "__future__" or module.startswith("mirage_nb"):
            for number in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[number] = None
    return "\n".join(line for line in lines if line is not None).strip() + "\n"


def write_file(plan: Plan, path: str | Path) -> Path:
    """Write the file of a plan; returns its path. Raises StoreError when it cannot be written."""
    place = Path(path)
    try:
        place.write_text(file_text(plan), encoding="utf-8")
    except (OSError, ValueError) as error:
        hint = "give a file in a folder that you can write to"
        raise StoreError(f"{place} cannot be written: {_reason(error)}", hint=hint) from error
    return place


def _reason(error: OSError | ValueError) -> str:
    """ValueError: a name that no file can have."""
    return (isinstance(error, OSError) and error.strerror) or str(error)


@typed
def load_kernel(path: str | Path) -> Kernel:
    """The kernel in a file that `Winner.save` wrote. The file is read as data; nothing in it is executed.

    Calling the kernel runs its machine code on the GPU: call only what comes from somebody you trust.

    Raises:
        StoreError: the file cannot be read.
        FormatError: it is not such a file, or what it says does not hold together.
    """
    place = Path(path)
    try:
        if place.stat().st_size > MAX_FILE:
            raise FormatError(f"{place} has more than {MAX_FILE} bytes")
        text = place.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"{place} is no text") from error
    except (OSError, ValueError) as error:
        raise StoreError(f"{place} cannot be read: {_reason(error)}", hint=SAVED) from error
    _, _, behind = text.partition(f"\n{BEGIN}")
    dashes, opened, block = behind.partition("\nPLAN = r'''\n")
    block, closed, _ = block.partition(f"\n'''\n{END}")
    if not opened or not closed or dashes.strip("-"):
        raise FormatError(f"{place} holds no plan", hint=SAVED)
    try:
        return Kernel(read_plan(json.loads(block)))
    except (KernelError, ValueError, RecursionError) as error:
        raise FormatError(f"{place}: {error}", hint=SAVED) from error

"""The kernel of a lookup: rows of a table, or one element of every row, by numbers that a tensor holds.

In: a match of the row `lookup` (`predefined.rows`). Out: its launch and its text. Invariant: what is no number of a row
reads nothing, and finds zeros, as the product or sum that the program says.
"""

from __future__ import annotations

from collections.abc import Sequence

from mirage_nb.codegen.emitted import Launch, TensorArg
from mirage_nb.codegen.operators import CUDA
from mirage_nb.codegen.operators import number as literal
from mirage_nb.codegen.writer import c_type
from mirage_nb.ir import ConstAttrs, KernelGraph, ThreadGraph
from mirage_nb.predefined import Match
from mirage_nb.predefined.lookups import lookup_of
from mirage_nb.tile.index import named
from mirage_nb.tile.resident.program import Numbers, Table

THREADS = 256
VECTOR_BYTES = 16
TEXT = """extern "C" __global__ void __launch_bounds__({threads})
{name}(const {table}* __restrict__ table, {numbers}, {result}* __restrict__ result) {{
  const int e = ((int)blockIdx.x * {threads} + thread_index()) * {width};
  if (e >= {elements}) return;
  const int line = e / {columns};
{statements}  const int row = row_named({number}, {rows});
  Vec<{table}, {width}> found = load_inside<{width}>(table + ({place}), row >= 0);
  store(result + e, {stored});
}}
"""


def number_of(operands: Sequence[str], formula: ThreadGraph | None) -> tuple[list[str], str]:
    """A number as a C expression of these, and the statements that it needs."""
    if formula is None:
        return [], operands[0]
    values, statements = [*operands], list[str]()
    for place, op in enumerate(formula.ops):
        if isinstance(op.attrs, ConstAttrs):
            values.append(literal(op.attrs.value))
            continue
        values.append(f"number_{place}")
        statements.append(f"const float {values[-1]} = {CUDA[op.kind]([values[v] for v in op.inputs], op.attrs)};")
    return statements, values[formula.outputs[0]]


def lookup(index: int, match: Match, graph: KernelGraph) -> tuple[Launch, str]:
    """The launch of operator `index`, and the text of its kernel. Raises EmitError for f64."""
    table, result, found = graph.types[match.inputs[0]], graph.types[match.output], lookup_of(graph, match)
    lies = Table(0, 0, found.found, 0, (1,))
    widest = VECTOR_BYTES // max(table.dtype.size, result.dtype.size)
    width = next(w for w in (8, 4, 2, 1) if w <= widest and (w == 1 or lies.whole(0, w)))
    name, kind = f"kernel{index}", c_type(result.dtype)
    place = lies.place(named("e", result.elements), named("row", found.found.rows)).bare
    tensors = dict(zip(found.numbers, found.stored, strict=True))
    made = Numbers(tuple([*tensors].index(v) for v in found.numbers), found.formula, found.seen)
    places = made.places(named("line", result.elements // found.found.columns))
    statements, number = number_of([f"to_float(n{n}[{place.bare}])" for n, place in places], found.formula)
    pointers = [f"const {c_type(dtype)}* __restrict__ n{n}" for n, dtype in enumerate(tensors.values())]
    stored = "found" if table.dtype is result.dtype else f"from_floats<{kind}>(to_floats(found))"
    text = TEXT.format(
        name=name, threads=THREADS, table=c_type(table.dtype), numbers=", ".join(pointers), result=kind, width=width,
        elements=result.elements, rows=found.found.rows, columns=found.found.columns, place=place, stored=stored,
        number=number,
        statements="".join(f"  {line}\n" for line in statements),
    )  # fmt: skip
    args = tuple(TensorArg(v) for v in (found.table, *tensors, match.output))
    return Launch(name, (-(-result.elements // (THREADS * width)), 1, 1), THREADS, 0, args, index), text

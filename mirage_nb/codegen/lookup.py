"""The kernel of a lookup: rows of a table, or one element of every row, by numbers that a tensor holds.

In: a match of the row `lookup` (`predefined.rows`). Out: its launch and its text. Invariant: what is no number of a row
reads nothing, and finds zeros, as the product or sum that the program says.
"""

from __future__ import annotations

from mirage_nb.codegen.emitted import Launch, TensorArg
from mirage_nb.codegen.writer import c_type
from mirage_nb.ir import KernelGraph
from mirage_nb.predefined import Match

THREADS = 256
VECTOR_BYTES = 16
TEXT = """extern "C" __global__ void __launch_bounds__({threads})
{name}(const {table}* __restrict__ table, const {number}* __restrict__ numbers, {result}* __restrict__ result) {{
  const int e = ((int)blockIdx.x * {threads} + thread_index()) * {width};
  if (e >= {elements}) return;
  const float number = to_float(numbers[e / {columns}]);
  const int row = number >= 0.0f && number < {rows}.0f ? (int)number : 0;
  Vec<{table}, {width}> found = load_inside<{width}>(table + {place}, number == row);
  store(result + e, {stored});
}}
"""


def lookup(index: int, match: Match, graph: KernelGraph) -> tuple[Launch, str]:
    """The launch of operator `index`, and the text of its kernel. Raises EmitError for f64."""
    table, numbers, result = (graph.types[v] for v in (*match.inputs, match.output))
    apart = bool(match.attrs["apart"])
    rows, columns = (table.elements // result.elements, 1) if apart else table.shape
    widest = VECTOR_BYTES // max(table.dtype.size, result.dtype.size)
    width = next(w for w in (8, 4, 2, 1) if w <= widest and columns % w == 0)
    name, kind = f"kernel{index}", c_type(result.dtype)
    place = f"(long long)e * {rows} + row" if apart else f"(long long)row * {columns} + e % {columns}"
    stored = "found" if table.dtype is result.dtype else f"from_floats<{kind}>(to_floats(found))"
    text = TEXT.format(
        name=name, threads=THREADS, table=c_type(table.dtype), number=c_type(numbers.dtype), result=kind, width=width,
        elements=result.elements, rows=rows, columns=columns, place=place, stored=stored,
    )  # fmt: skip
    args = tuple(TensorArg(v) for v in (*match.inputs, match.output))
    return Launch(name, (-(-result.elements // (THREADS * width)), 1, 1), THREADS, 0, args, index), text

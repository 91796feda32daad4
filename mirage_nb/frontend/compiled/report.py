"""What became of a model: its regions, what replaced them or why nothing did, bytes and microseconds.

In: regions and kernels. Out: text and HTML. Invariant: times that were not measured are marked as estimates of the
cost model, and everything that stayed with PyTorch has its reason.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from torch._dynamo.utils import counters

from mirage_nb.frontend.compiled.kernels import Kernel, Settled
from mirage_nb.frontend.compiled.regions import Region
from mirage_nb.frontend.compiled.shapes import as_priced
from mirage_nb.ir import KernelGraph
from mirage_nb.search.axes import Prepared, prepare
from mirage_nb.search.sizes.coarse import coarse_us
from mirage_nb.search.sizes.library import library_us
from mirage_nb.targets import Target


class Estimate:
    """What a program takes, in microseconds, once somebody asks."""

    def __init__(self, graph: KernelGraph, target: Target) -> None:
        self.graph, self.target = graph, target

    @cached_property
    def apart_us(self) -> float:
        """As PyTorch's operators."""
        return sum(library_us(self.graph, op, self.target) for op in self.graph.ops)

    @cached_property
    def fused_us(self) -> float | None:
        """As one piece; None where that cannot be said."""
        return None if self._prepared.refused else coarse_us(self._prepared, self.target)

    @property
    def unsaid(self) -> str:
        """Why not."""
        return self._prepared.refused.partition("\n")[0]

    @cached_property
    def _prepared(self) -> Prepared:
        return prepare(as_priced(self.graph))


@dataclass
class Entry:
    """One region: what it covers, and estimates of it. `seams`: as of `seams.seams`, once it is settled."""

    region: Region
    kernel: Kernel | None
    estimate: Estimate
    taken: bool = False
    seams: tuple[int, ...] = ()

    @property
    def state(self) -> str:
        """In a few words."""
        kernel = self.kernel
        if kernel is None:
            return "not searched"
        if kernel.failed:
            return f"failed at a call, PyTorch's operators run: {kernel.failed}"
        if self.taken:
            return "replaced"
        if kernel.pending:
            return "being searched"
        if kernel.in_parts:
            return f"in parts: {kernel.why or 'these save more'}"
        if kernel.is_faster:
            seams = len(self.seams)
            return f"found; PyTorch fuses it with {seams} operators around it" if seams else "found, not yet in place"
        return f"left: {kernel.why}"

    @property
    def times(self) -> str:
        """Before and after; `≈` marks estimates."""
        found = self.kernel.found if self.kernel is not None else None
        if found is not None and found.us is not None and found.before_us is not None:
            return f"{found.before_us:.1f} -> {found.us:.1f} us"
        fused = self.estimate.fused_us
        one = "no estimate" if fused is None else f"≈{fused:.1f} us"
        return f"≈{self.estimate.apart_us:.1f} -> {one}"

    @property
    def moved(self) -> str:
        """Bytes through device memory, every operator by itself and all as one."""
        return f"{_bytes(self.region.apart_bytes)} -> {_bytes(self.region.least_bytes)}"


@dataclass
class GraphReport:
    """One traced graph: its regions, why other nodes are in none, and what went wrong if something did."""

    entries: list[Entry] = field(default_factory=list)
    left: Mapping[str, str] = field(default_factory=dict)
    trouble: str = ""

    @classmethod
    def of(cls, held: Iterable[tuple[Region, Kernel | None]], left: Mapping[str, str], target: Target) -> GraphReport:
        """Regions and what will run them, with estimates for a target, those of equal regions made once."""
        made: dict[str, Estimate] = {}
        entries = [Entry(r, k, made.setdefault(r.digest, Estimate(r.graph, target))) for r, k in held]
        return cls(entries, left)

    def settle(self, settled: Iterable[Settled]) -> None:
        """Regions, and parts of them that are not here yet, of which these run kernels from now on."""
        there = {id(entry.region): entry for entry in self.entries}
        self.entries, known = [], self.entries
        for one in settled:
            estimate = Estimate(one.region.graph, known[0].estimate.target)
            entry = there.get(id(one.region)) or Entry(one.region, one.kernel, estimate)
            entry.taken, entry.seams = one.taken, one.seams
            self.entries.append(entry)


SAID, LONGEST = ("Explanation", "Hint"), 240
"""What PyTorch says of code that it does not trace, and how many characters of it are shown."""
CALLED_BY = {
    "Unsupported functorch tracing attempt": "torch.vmap and torch.func call a compiled model without PyTorch's "
    "compiler; compile the function that calls them",
}  # fmt: skip
"""What it says at greater length."""
COLUMNS = ("region", "how often", "operators", "bytes", "microseconds", "state")
LEGEND = (
    "bytes and microseconds: each operator by itself -> the region as one; ≈ marks estimates of the cost model, "
    "others measured beside PyTorch's compiled code"
)


@dataclass
class ModelReport:
    """The graphs of a model. `print(report)` and `report.to_html()` show them. `untraced`: why PyTorch made no graph of
    parts of it, and how often."""

    graphs: list[GraphReport]
    untraced: Mapping[str, int] = field(default_factory=dict)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All regions, in order."""
        return tuple(entry for graph in self.graphs for entry in graph.entries)

    @property
    def replaced(self) -> int:
        """How many regions run kernels of the search."""
        return sum(entry.taken for entry in self.entries)

    def rows(self) -> list[tuple[str, ...]]:
        """One for each different region: digest, how often, what it covers, bytes, times, state."""
        groups: dict[tuple[str, str], list[Entry]] = {}
        for entry in self.entries:
            groups.setdefault((entry.region.digest, entry.state), []).append(entry)
        return [
            (digest[:8], str(len(group)), _operators(group[0].region), group[0].moved, group[0].times, state)
            for (digest, state), group in groups.items()
        ]

    def reasons(self) -> Counter[str]:
        """Why nodes are in no region, and how many for each reason."""
        return Counter(why for graph in self.graphs for why in graph.left.values())

    def remarks(self) -> list[str]:
        """What is to be said below the table: of numbers, of what was left to PyTorch, and why."""
        lines = [LEGEND] if self.entries else []
        unsaid = Counter(why for entry in self.entries if (why := entry.estimate.unsaid))
        lines += [f"without an estimate as one, {_count(n, 'region')}: {why}" for why, n in unsaid.most_common()]
        lines += [f"left to PyTorch, {_count(n, 'operator')}: {why}" for why, n in self.reasons().most_common()]
        lines += [f"not replaced after all: {graph.trouble}" for graph in self.graphs if graph.trouble]
        return lines + [f"not traced by PyTorch, {n}x: {why}" for why, n in self.untraced.items()]

    def __str__(self) -> str:
        rows = [COLUMNS, *self.rows()] if self.entries else []
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([self._headline(), *lines, *self.remarks()])

    def __repr__(self) -> str:
        return f"<ModelReport: {self._headline()}>"

    def _headline(self) -> str:
        kinds = len({entry.region.digest for entry in self.entries})
        regions = _count(len(self.entries), "region")
        regions += f" of {_count(kinds, 'kind')}" if kinds < len(self.entries) else ""
        return f"{_count(len(self.graphs), 'graph')}, {regions}, {self.replaced} replaced"

    def to_html(self) -> str:
        """A table, without scripts."""

        def row(cell: str, cells: Iterable[str]) -> str:
            opened = f"<{cell} style='text-align:left'>"
            return f"<tr>{''.join(f'{opened}{html.escape(_set(text))}</{cell}>' for text in cells)}</tr>"

        body = "".join(row("td", cells) for cells in self.rows())
        table = f"<table><thead>{row('th', COLUMNS)}</thead><tbody>{body}</tbody></table>" if body else ""
        rest = "".join(f"<li>{html.escape(_set(line))}</li>" for line in self.remarks())
        below = f"<ul>{rest}</ul>" if rest else ""
        return f'<div class="mirage-model"><p>{html.escape(self._headline())}</p>{table}{below}</div>'

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return self.to_html()


class Reports:
    """The graphs that were compiled, the oldest first. May be used from any thread."""

    def __init__(self) -> None:
        self._graphs: list[GraphReport] = []

    def add(self, graph: GraphReport) -> GraphReport:
        """Keep what became of one more graph."""
        self._graphs.append(graph)
        return graph

    def all(self) -> ModelReport:
        """Everything so far."""
        return ModelReport(list(self._graphs), untraced())


def untraced() -> Counter[str]:
    """What PyTorch says of the code that it left to Python, each in a line; it counts for the whole process."""
    found: Counter[str] = Counter()
    for text, times in (counters["unimplemented"] | counters["graph_break"]).items():
        first, *more = text.splitlines()
        if (known := CALLED_BY.get(first.strip())) is not None:
            found[known] += times
            continue
        said = (next((t.partition(f"{what}: ")[2] for t in more if f"{what}: " in t), "") for what in SAID)
        found[f"{first.strip()}: {' '.join(filter(None, said))}".removesuffix(": ")[:LONGEST]] += times
    return found


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _set(text: str) -> str:
    """What a terminal is shown, as a page has it."""
    return re.sub(r"(?<=\d) us\b", " µs", text.replace("->", "→"))


def _operators(region: Region) -> str:
    counted = Counter(region.operators)
    return ", ".join(name if n == 1 else f"{n} {name}" for name, n in counted.items())


def _bytes(count: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.3g} {unit}"
        count /= 1000
    raise AssertionError("the last unit takes everything")

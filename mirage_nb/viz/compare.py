"""Two muGraphs side by side: what is the same, what differs, and both pictures.

In: two candidates and the target. Out: HTML; facts that differ are marked with a sign, not by colour alone.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from dataclasses import replace
from html import escape

from mirage_nb.errors import MirageError
from mirage_nb.ir import BlockGraph, KernelGraph
from mirage_nb.ir.text import print_graph
from mirage_nb.optimize.plan import BlockPlan, Plan, Staged, plan
from mirage_nb.search.session.progress import Candidate
from mirage_nb.targets import Target
from mirage_nb.tile.roles.program import Program
from mirage_nb.viz.mugraph import mugraph_svg
from mirage_nb.viz.raster import trusted_only
from mirage_nb.viz.schedule import kilobytes
from mirage_nb.viz.svg import framed
from mirage_nb.viz.text import duration
from mirage_nb.viz.verdicts import brief, verdict_text


def compare_html(left: Candidate, right: Candidate, target: Target) -> str:
    """Facts, pictures and the difference of the texts of two candidates."""
    a, b = (_planned(c.graph, target) for c in (left, right))
    rows = "".join(_row(name, fact(left, a), fact(right, b)) for name, fact in (*FACTS.items(), *_PLANNED.items()))
    names = [f"µGraph {escape(c.digest[:8])}" for c in (left, right)]
    head = f"<tr><td></td><th scope='col'>{names[0]}</th><th scope='col'>{names[1]}</th></tr>"
    pictures = "".join(
        f"<figure><figcaption>{name}</figcaption>{framed(mugraph_svg(c.graph), f'picture of {name}')}</figure>"
        for name, c in zip(names, (left, right), strict=True)
    )
    return (
        f"<div class='mir-compare'><h4>{names[0]} and {names[1]}</h4>"
        f"<table class='mir-table'><thead>{head}</thead><tbody>{rows}</tbody></table>"
        + trusted_only(
            f"<div class='mir-pair'>{pictures}</div>"
            f"<details><summary>difference of the texts</summary>{_difference(left.graph, right.graph)}</details>"
        )
        + "</div>"
    )


def compare_text(left: Candidate, right: Candidate, target: Target) -> str:
    """The facts as a table of text; `!=` marks those that differ."""
    a, b = (_planned(c.graph, target) for c in (left, right))
    facts = [(name, fact(left, a), fact(right, b)) for name, fact in (*FACTS.items(), *_PLANNED.items())]
    rows = [("", left.digest[:8], right.digest[:8])]
    rows += [(f"{'!=' if x != y else '  '} {name}", _cut(x), _cut(y)) for name, x, y in facts]
    wide = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines = (f"{name:<{wide[0]}}  {x:<{wide[1]}}  {y}".rstrip() for name, x, y in rows)
    return "\n".join([*lines, "", *_changes(left.graph, right.graph)])


def _cut(text: str, most: int = 56) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _row(name: str, left: str, right: str) -> str:
    differs = left != right
    sign = "≠ " if differs else ""
    cls = " class='mir-differs'" if differs else ""
    return f"<tr{cls}><th scope='row'>{sign}{escape(name)}</th><td>{escape(left)}</td><td>{escape(right)}</td></tr>"


def _planned(graph: KernelGraph, target: Target) -> Plan | None:
    try:
        return plan(graph, target)
    except MirageError:
        return None  # its facts are shown as unknown


def _blocks(graph: KernelGraph) -> list[BlockGraph]:
    return [op.body for op in graph.ops if isinstance(op.body, BlockGraph)]


Fact = Callable[[Candidate, Plan | None], str]

FACTS: dict[str, Fact] = {
    "time": lambda c, _: duration(c),
    "verdict": lambda c, _: f"{c.verdict.kind.value}: {verdict_text(replace(c.verdict, note=brief(c.verdict.note)))}",
    "kernels": lambda c, _: str(c.kernels),
    "operators": lambda c, _: str(c.operators),
    "grid dims": lambda c, _: ", ".join("×".join(map(str, b.grid)) for b in _blocks(c.graph)) or "none",
    "for-loop range": lambda c, _: ", ".join(str(b.loop) for b in _blocks(c.graph)) or "none",
    "blocks": lambda c, _: ", ".join(str(math.prod(b.grid)) for b in _blocks(c.graph)) or "none",
    "configuration": lambda c, _: c.configuration,
    "error": lambda c, _: "not executed" if c.error is None else f"{c.error:.1e}",
}
_PLANNED: dict[str, Fact] = {
    "shared memory": lambda _, p: _each(p, lambda kernel: kilobytes(kernel.shared_bytes)),
    "threads per block": lambda _, p: _each(p, lambda kernel: str(kernel.threads)),
    "schedule": lambda _, p: _each(p, _schedule),
    "temporaries": lambda _, p: "unknown" if p is None else kilobytes(p.workspace.peak),
}


def _each(planned: Plan | None, what: Callable[..., str]) -> str:
    """One word per generated kernel."""
    if planned is None:
        return "unknown: it cannot be emitted for this target"
    return ", ".join(what(kernel) for kernel in planned.kernels if kernel is not None) or "none"


def _schedule(kernel: BlockPlan) -> str:
    """What its threads do, in a few words."""
    match kernel.strategy:
        case Program(roles=roles):
            return f"{len(roles)} roles"
        case Staged(steps=steps, barriers=barriers):
            return f"{len(steps)} steps, {len(barriers)} barriers"
    return "tiles in registers"


def _difference(left: KernelGraph, right: KernelGraph) -> str:
    shown = "".join(
        f"<span class='mir-line{' mir-gone' * line.startswith('-')}{' mir-new' * line.startswith('+')}'>"
        f"{escape(line)}\n</span>"
        for line in _changes(left, right)
    )
    return f"<pre class='mir-source' tabindex='0'>{shown or 'the texts are equal'}</pre>"


def _changes(left: KernelGraph, right: KernelGraph) -> list[str]:
    """The unified difference of two texts."""
    a, b = (print_graph(graph).splitlines() for graph in (left, right))
    return list(difflib.unified_diff(a, b, "left", "right", lineterm="", n=2))

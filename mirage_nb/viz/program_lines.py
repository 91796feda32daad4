"""The program beside its muGraph: which lines an operator of the muGraph serves.

In: a tensor program with the places of its operators, and a muGraph of it. Out: HTML of its lines, which name the
operators of the muGraph by their places, as the picture and the CUDA source do. A search keeps no record of what
became of an operator, and fused kernels compute several in one; so an operator of the muGraph belongs to the lines
that compute with the same operator from the same inputs, or from those most like them. Iterators belong to the line
that declares what they read, savers to the `return`, views and accumulators to what their operand belongs to.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from mirage_nb.ir import OPS, BlockGraph, KernelGraph, Op, OpKind, Trait
from mirage_nb.ir.graph import ThreadGraph
from mirage_nb.lang import TensorProgram
from mirage_nb.viz.mugraph import place_of

_ALIKE = {OpKind.CONCAT_MATMUL: OpKind.MATMUL, OpKind.RESCALED_SUM: OpKind.SUM, OpKind.SQR: OpKind.MUL}
"""Operators that do the work of another one."""


@dataclass(frozen=True, slots=True)
class _Made:
    """What computes a value: the operator, and the inputs of the program that it depends on."""

    kind: OpKind
    inputs: frozenset[int]
    lines: frozenset[int] = frozenset()


def program_html(program: TensorProgram, graph: KernelGraph) -> str:
    """The text of the program; a line is an element with `data-ops`. Empty for a program that has no text, and for
    what is no muGraph of it."""
    if len(program.spans) != len(program.graph.ops) or graph.input_count != program.graph.input_count:
        return ""
    owners = _owners(program, graph)
    shown = []
    for number, text in enumerate(program.text.splitlines(), 1):
        ops = f" data-ops='{' '.join(owners[number])}'" if number in owners else ""
        shown.append(f"<span class='mir-line'{ops}><i>{number}</i>{escape(text)}\n</span>")
    return f"<pre class='mir-program' tabindex='0' role='region' aria-label='program'>{''.join(shown)}</pre>"


def _owners(program: TensorProgram, graph: KernelGraph) -> dict[int, list[str]]:
    """For every line, the operators of the muGraph that serve it."""
    found: dict[int, list[str]] = defaultdict(list)
    for place, lines in _Related(program).of(graph):
        for line in lines:
            found[line].append(place)
    return found


class _Related:
    """The lines of one program."""

    def __init__(self, program: TensorProgram) -> None:
        lines = program.text.splitlines()
        self.declared = [_first(lines, rf"\s*{re.escape(name)}\s*:") for name in program.input_names]
        self.returned = _first(lines, r"\s*return\b")
        self.program: list[_Made] = []
        held = [frozenset({number}) for number in range(program.graph.input_count)]
        for op, span in zip(program.graph.ops, program.spans, strict=True):
            inputs = frozenset[int]().union(*(held[v] for v in op.inputs))
            held.append(inputs)
            self.program.append(_Made(_kind(op), inputs, frozenset({span.line})))

    def of(self, graph: KernelGraph) -> Iterator[tuple[str, frozenset[int]]]:
        """The operators of a muGraph by their places, each with its lines."""
        held = [_Made(OpKind.IN_ITER, frozenset({n}), self.declared[n]) for n in range(graph.input_count)]
        yield from self._walked(graph.definitions(), held, ())

    def _walked(
        self, ops: Iterator[tuple[Op, tuple[int, ...]]], held: list[_Made], path: tuple[int, ...],
        operands: Sequence[_Made] = (),
    ) -> Iterator[tuple[str, frozenset[int]]]:  # fmt: skip
        """The operators of one graph; what they define is added to `held`."""
        for number, (op, values) in enumerate(ops):
            reads = [held[v] for v in op.inputs]
            if op.body is None:
                arg = getattr(op.attrs, "arg", 0)
                made = operands[arg] if op.kind is OpKind.IN_ITER else self._made(op, reads)
                held += [made] * len(values)
                lines = self.returned if op.kind is OpKind.OUT_SAVER else made.lines
                yield place_of(path, number), lines
                continue
            inner = list(reads) if isinstance(op.body, ThreadGraph) else []
            below = list(self._walked(op.body.definitions(), inner, (*path, number), reads))
            yield from below
            saved = [one.inputs[0] for one in op.body.ops if one.kind is OpKind.OUT_SAVER]
            results = saved if isinstance(op.body, BlockGraph) else op.body.outputs
            held += [inner[v] for v in results]

    def _made(self, op: Op, reads: Sequence[_Made]) -> _Made:
        inputs = frozenset[int]().union(*(read.inputs for read in reads))
        if reads and (op.kind in (OpKind.ACCUM, OpKind.OUT_SAVER) or Trait.VIEW in OPS[op.kind].traits):
            return _Made(reads[0].kind, inputs, reads[0].lines)
        return _Made(_kind(op), inputs, self._lines(_kind(op), inputs))

    def _lines(self, kind: OpKind, inputs: frozenset[int]) -> frozenset[int]:
        """The lines that compute with such an operator, from inputs most like these."""
        alike = [one for one in self.program if one.kind is kind] or self.program
        near = [_overlap(one.inputs, inputs) for one in alike]
        best = max(near, default=0.0)
        return frozenset[int]().union(*(one.lines for one, n in zip(alike, near, strict=True) if n == best))


def _kind(op: Op) -> OpKind:
    return _ALIKE.get(op.kind, op.kind)


def _overlap(first: frozenset[int], second: frozenset[int]) -> float:
    return len(first & second) / len(first | second) if first | second else 1.0


def _first(lines: Sequence[str], pattern: str) -> frozenset[int]:
    return frozenset([n for n, line in enumerate(lines, 1) if re.match(pattern, line)][:1])

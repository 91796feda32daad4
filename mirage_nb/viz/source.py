"""CUDA source beside its muGraph: which lines compute which operator.

In: the source that `codegen` emitted and the muGraph that it was emitted from (`Emitted.graph`). Out: lines that
name the operators they belong to, and HTML of them. The emitter heads every step with a comment in muGraph terms
(`// %5 = Sum(%3): ...`); a step lasts until the next one, a barrier, or the end of the block it stands in.
Invariant: operators that no comment names were computed inside the steps that read them, and belong to those.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from mirage_nb.ir import BlockGraph, KernelGraph, OpKind
from mirage_nb.viz.mugraph import place_of

_KERNEL = re.compile(r"^kernel(\d+)\(")
_STEP = re.compile(r"^\s*// (?:%(?P<value>\d+)|output (?P<output>\d+)) = ")
_INTO = re.compile(r", into %(\d+)$")
_BUFFER = re.compile(r"// .*, %(\d+)$")
_REGISTERS = re.compile(r"^\s*float a(\d+)\[")
_BARRIER = re.compile(r"^\s*(?:block_sync|barrier_sync)\(")


@dataclass(frozen=True, slots=True)
class Line:
    """One line: the places of the operators that it helps to compute, and whether all threads meet here."""

    text: str
    owners: tuple[str, ...] = ()
    barrier: bool = False


@dataclass(frozen=True, slots=True)
class _Kernel:
    """The operators of one block graph, and what comments call them."""

    number: int
    block: BlockGraph
    of_value: Mapping[int, int]
    savers: tuple[int, ...]

    @classmethod
    def of(cls, number: int, block: BlockGraph) -> _Kernel:
        """The tables of graph-defined operator `number`."""
        definitions = list(block.definitions())
        return cls(
            number,
            block,
            {value: index for index, (_, values) in enumerate(definitions) for value in values},
            tuple(index for index, (op, _) in enumerate(definitions) if op.kind is OpKind.OUT_SAVER),
        )

    def named(self, line: str) -> tuple[int, ...]:
        """The operators that a line names, the one that it computes first."""
        step = _STEP.match(line)
        if step is not None:
            first = self.of_value[int(step["value"])] if step["value"] else self.savers[int(step["output"])]
            into = _INTO.search(line)
            return (first, self.of_value[int(into[1])]) if into else (first,)
        found = _BUFFER.search(line) or _REGISTERS.match(line)
        return (self.of_value[int(found[1])],) if found else ()

    def inlined(self, op: int, mentioned: frozenset[int]) -> Iterator[int]:
        """The operators whose work is done inside the step of `op`."""
        for value in self.block.ops[op].inputs:
            source = self.of_value[value]
            if source not in mentioned and self.block.ops[source].kind is not OpKind.CONST:
                yield source
                yield from self.inlined(source, mentioned)

    def owners(self, ops: Iterable[int], mentioned: frozenset[int] | None = None) -> tuple[str, ...]:
        """Places of operators and, where it is known what has a step of its own, of all that is inlined in them."""
        found = dict.fromkeys(ops)
        if mentioned is not None:
            for op in tuple(found):
                found.update(dict.fromkeys(self.inlined(op, mentioned)))
        return tuple(place_of((self.number,), op) for op in found)


def source_lines(source: str, graph: KernelGraph) -> tuple[Line, ...]:
    """The lines of `source` with the operators of `graph` that they compute."""
    texts = source.splitlines()
    found = [Line(text) for text in texts]
    starts = [(n, int(m[1])) for n, text in enumerate(texts) if (m := _KERNEL.match(text))]
    for (start, number), (end, _) in pairwise([*starts, (len(texts), -1)]):
        body = graph.ops[number].body
        if isinstance(body, BlockGraph):
            found[start:end] = _kernel_lines(_Kernel.of(number, body), texts[start:end])
    return tuple(found)


def _kernel_lines(kernel: _Kernel, texts: list[str]) -> Iterator[Line]:
    stepped = {kernel.named(text)[0] for text in texts if _STEP.match(text)}
    mentioned = frozenset(stepped.union(*(kernel.named(text) for text in texts if _STEP.match(text))))
    owners: tuple[str, ...] = ()
    depth = 0
    for text in texts:
        indent = len(text) - len(text.lstrip())
        barrier = _BARRIER.match(text) is not None
        if _STEP.match(text):
            owners, depth = kernel.owners(kernel.named(text), mentioned), indent
        elif barrier or (text.strip() and indent < depth):
            owners = ()
        yield Line(text, owners or kernel.owners(kernel.named(text)), barrier)


def source_html(lines: Iterable[Line]) -> str:
    """The listing: a line is an element with `data-ops`, barriers are told apart, words and comments are coloured."""
    known = tuple(lines)
    shown = []
    for number, (line, text) in enumerate(zip(known, _coloured([line.text for line in known]), strict=True), start=1):
        cls = " mir-barrier" if line.barrier else ""
        ops = f" data-ops='{' '.join(line.owners)}'" if line.owners else ""
        shown.append(f"<span class='mir-line{cls}'{ops}><i>{number}</i>{text}\n</span>")
    return f"<pre class='mir-source' tabindex='0' role='region' aria-label='CUDA source'>{''.join(shown)}</pre>"


_COLOURED = {"Keyword": "word", "Comment": "comment", "Number": "number", "String": "number"}
"""Kinds of tokens, as Pygments calls them, and the class that colours them."""


def _coloured(texts: Sequence[str]) -> list[str]:
    """Lines of CUDA C++ as HTML; without Pygments, which comes with IPython, in one colour."""
    try:
        from pygments.lexers.c_cpp import CppLexer  # their package replaces itself while it loads
    except ImportError:
        return [escape(text) for text in texts]
    shown = [""]
    for kind, text in CppLexer(stripnl=False, ensurenl=False).get_tokens("\n".join(texts)):
        cls = next((_COLOURED[part] for part in map(str, kind) if part in _COLOURED), "")
        first, *others = text.split("\n")
        for number, part in enumerate((first, *others)):
            if number:
                shown.append("")
            shown[-1] += f"<b class='mir-{cls}'>{escape(part)}</b>" if cls and part.strip() else escape(part)
    return shown

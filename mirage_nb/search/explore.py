"""Explore one configuration: close it, and extract its muGraphs.

In: a prepared program, a configuration, an effort and a budget. Out: a `ConfigurationResult`. Nothing is
shared between configurations, so they may run in any process in any order; equal inputs give equal results.
Seconds are those that this thread computes: a pause, or others on the same cores, cut nothing.
Whatever was left out is named in `cut` (paper section 4).

Larger bounds explore a configuration again only if one of them kept something out of it (`reached`), and then from its
start. Closing takes 4 to 15 % of what the configurations of the workloads take, and none of their closures comes near
its cap; the rest are sizes and verdicts, which a worker remembers. A closure that is kept to be continued would hold
its algebra and arrays in one worker for the length of a session, and be lost with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from typing import TypeVar

from mirage_nb.ir import OpKind
from mirage_nb.search.axes import Prepared, prepare
from mirage_nb.search.derive import free_loops
from mirage_nb.search.pieces.assemble import Assembly, Part, cheapest, part_drafts
from mirage_nb.search.pieces.piece import HEAVY, Piece, pieces
from mirage_nb.search.saturation.closure import Closure
from mirage_nb.search.saturation.events import Counts, Prefix, merge_counts
from mirage_nb.search.saturation.extract import Choice, Extraction
from mirage_nb.search.saturation.sample import Sample
from mirage_nb.search.saturation.semantics import Semantics
from mirage_nb.search.saturation.values import BLOCK, ITER, Value
from mirage_nb.search.space import Budget, Configuration, Effort, configurations, last_grids, why_refused
from mirage_nb.search.structure import Source, Structure
from mirage_nb.search.two_kernels import Pairing, Second, concats, kernel_of, offers
from mirage_nb.targets import DEFAULT_TARGET, TARGETS

T = TypeVar("T")

CLOSURE_SHARE = 0.7
"""Part of a configuration's seconds that its closures may take."""
LOOKED_AT = 50
"""Graphs looked at for every one that is kept."""
PARTS_KEPT = 4
"""Structures of a piece that are combined with those of the others, chosen alike."""
WAYS = 256
"""Combinations of parts, cheapest first, that these are chosen from."""
NEAR = 1.5
"""What is estimated at more than this many times the best of all is not kept for its number of kernels."""
SMALL_PIECE = 2
"""Matmuls of a piece that may be computed by two kernels."""
JOINED = 64
"""Graphs that are read of one kernel for every operator that joins a maximum, or follows from that."""
MORE = "; a higher effort takes more"
"""What can be done about a cap of the effort."""
MAX_FINAL_SETS = 64
"""Combinations of equal-valued outputs that are tried for a program with several outputs."""


@dataclass(frozen=True, slots=True)
class ConfigurationResult:
    """What exploring one configuration found.

    `saturated`: every value that can still reach the target was generated. `cut`: what was left out, one
    sentence each; empty when every graph up to the effort's size was extracted. `reached`: the fields of the
    budget that kept something out; raising another one changes nothing.
    """

    counts: Counts
    structures: tuple[Structure, ...]
    saturated: bool
    cut: tuple[str, ...]
    prefixes: tuple[Prefix, ...]
    seconds: float
    values: int = 0
    reached: frozenset[str] = frozenset()


def run_configuration(
    prepared: Prepared,
    configuration: Configuration,
    effort: Effort,
    budget: Budget,
    report: Callable[[Counts], None] = lambda counts: None,
    stopped: Callable[[], bool] = lambda: False,
) -> ConfigurationResult:
    """Explore one configuration.

    Args:
        report: takes the event counts so far, every few milliseconds.
        stopped: polled every few milliseconds; the work ends when it returns True.
    """
    return _Explorer(prepared, configuration, effort, budget, report, stopped).run()


@dataclass(slots=True)
class _Explorer:
    """The work on one configuration; `cut` collects what is left out."""

    prepared: Prepared
    configuration: Configuration
    effort: Effort
    budget: Budget
    report: Callable[[Counts], None]
    stopped: Callable[[], bool]
    started: float = field(default_factory=time.thread_time)
    cut: list[str] = field(default_factory=list)
    reached: set[str] = field(default_factory=set)
    counts: Counts = field(default_factory=dict)
    values: int = 0
    saturated: bool = True

    def run(self) -> ConfigurationResult:
        """Close, extract, and say what was left out."""
        if self.configuration.cut is not None:
            return self.assembled(self.configuration.cut)
        semantics, note = semantics_for(self.prepared, self.effort)
        self.cut.extend(note)
        sample = Sample(semantics, self.configuration.label, self.effort.prefixes)
        first = self.close(semantics, self.configuration.grid, self.configuration.loop, semantics.tensors, sample)
        if self.configuration.kernels == 1:
            structures = list(self.one_kernel(first, semantics))
        else:
            structures = list(self.two_kernels(first, semantics, sample))
        return self.result(structures, sample.prefixes)

    def result(self, structures: Sequence[Structure], prefixes: Sequence[Prefix]) -> ConfigurationResult:
        """These, with what else is to be said now."""
        return ConfigurationResult(
            counts=dict(self.counts),
            structures=tuple(structures),
            saturated=self.saturated,
            cut=tuple(dict.fromkeys(self.cut)),
            prefixes=tuple(prefixes),
            seconds=time.thread_time() - self.started,
            values=self.values,
            reached=frozenset(self.reached),
        )

    def assembled(self, cut: Sequence[int]) -> ConfigurationResult:
        """The cheapest muGraphs whose kernels compute the pieces of a cut."""
        made = pieces(self.prepared.graph, frozenset(cut))
        prefixes: list[Prefix] = []
        found = [self.parts(piece, len(made), prefixes) for piece in made]
        picks = cheapest([[us for us, _ in parts] for parts in found], WAYS)
        chosen = ([parts[i] for parts, i in zip(found, pick, strict=True)] for pick in picks)
        ranked = [(sum(us for us, _ in parts), Assembly.of([part for _, part in parts])) for parts in chosen]
        structures = [structure for _, structure in of_every_kind(ranked, _kernels_of_parts, self.effort.assemblies)]
        kept = [s for s in structures if s.can_be_tried and s.launches <= max(self.effort.pieces, len(made))]
        if (ways := prod(map(len, found))) > (kept_of := self.effort.assemblies):
            self.cut.append(
                f"pieces: of {ways} ways to put the pieces of a cut together only the {kept_of} that should be best"
                " are kept; others have slower parts, and would be verified one by one"
            )
        return self.result(kept, prefixes[: self.effort.prefixes])

    def parts(self, piece: Piece, count: int, prefixes: list[Prefix]) -> list[tuple[float, Part]]:
        """What can compute one of `count` pieces, the best estimates for the default target first."""
        prepared = prepare(piece.graph, seed=self.prepared.seed)
        tried = [Part(piece, prepared, None)] if piece.in_library else []
        effort = self.effort_within(piece)
        if piece.graph.ops != self.prepared.graph.ops and why_refused(prepared, effort) is None:
            until = time.thread_time() + (self.budget.seconds - (time.thread_time() - self.started)) / count
            for configuration in configurations(prepared, effort):
                left = until - time.thread_time()
                if self.halted() or left <= 0:
                    self.reached.add("seconds")
                    self.cut.append(f"{self.configuration}: stopped before every piece was searched")
                    break
                if configuration.kernels > 1 and not _splits_reduction(configuration):
                    continue
                budget = replace(self.budget, seconds=left)
                part = run_configuration(prepared, configuration, effort, budget, self.progress, self.stopped)
                self.take(part, prefixes)
                tried += [Part(piece, prepared, structure) for structure in part.structures]
        target, limits = TARGETS[DEFAULT_TARGET], self.effort.limits
        best = [(found[0].cost.us, part) for part in tried if (found := part_drafts(part, target, 1, limits))]
        return of_every_kind(sorted(best, key=lambda pair: pair[0]), _kernels_of_part, PARTS_KEPT)

    def effort_within(self, piece: Piece) -> Effort:
        """The effort for one piece: fewer graphs, and two kernels only if it is small."""
        small = sum(op.kind in HEAVY for op in piece.graph.ops) <= SMALL_PIECE
        return replace(
            self.effort,
            kernels=self.effort.kernels if small and not self.configuration.single else 1,
            pieces=0,
            cuts=0,
            structures=min(self.effort.piece_structures, self.effort.structures),
            pairs=replace(self.effort.pairs, kept=min(self.effort.piece_structures // 2, self.effort.pairs.kept)),
            prefixes=self.effort.prefixes // 8,
        )

    def take(self, part: ConfigurationResult, prefixes: list[Prefix]) -> None:
        """Count what exploring a piece did as this configuration's own."""
        prefixes.extend(part.prefixes)
        self.reached |= part.reached
        self.counts = merge_counts([self.counts, part.counts])
        self.values += part.values
        self.saturated &= part.saturated
        if part.cut:
            kept = self.effort.piece_structures
            self.cut.append(
                f"pieces: only the {kept} smallest graphs of each configuration of a piece are looked at; searched as"
                " a program of its own, a piece has all of them"
            )

    def halted(self) -> bool:
        """Whether the caller or the clock ends the work."""
        return self.stopped() or time.thread_time() - self.started > self.budget.seconds

    def saturating_halted(self) -> bool:
        """The same for closures: a part of the time is kept for reading graphs off what they found."""
        return self.stopped() or time.thread_time() - self.started > self.budget.seconds * CLOSURE_SHARE

    def progress(self, counts: Counts) -> None:
        """Pass the counts of the running closure on, with those of the closures before it."""
        self.report(merge_counts([self.counts, counts]))

    def close(
        self, semantics: Semantics, grid: Sequence[int], loop: int | None, leaves: Sequence[Value], sample: Sample
    ) -> Closure:
        """One saturated closure, or as much of it as the budget allows."""
        rules = replace(self.effort.rules, max_values=self.budget.max_values)
        closure = Closure(
            semantics, frozenset(grid), loop, leaves, rules, sample, self.progress, self.saturating_halted
        )
        closure.run()
        self.values += len(closure.values)
        self.saturated &= closure.saturated
        self.counts = merge_counts([self.counts, closure.counts])
        if closure.capped:
            self.reached.add("max_values")
            self.cut.append(
                f"{self.configuration}: the closure stopped at its cap of {rules.max_values} values; "
                "extend(max_values=...) raises it"
            )
        elif not closure.saturated:
            self.reached.add("seconds")
            self.cut.append(f"{self.configuration}: the closure was stopped before it was saturated")
        return closure

    def one_kernel(self, closure: Closure, semantics: Semantics) -> Iterator[Structure]:
        """The graphs of this configuration that compute the program in one kernel, smallest first."""
        roots = list(root_sets(closure, semantics, self.cut))
        graphs = Extraction(closure.values)
        most = self.effort.structures
        found = self.choices(graphs, roots, lambda c: splits(closure, c), most=max(most, JOINED * semantics.joining))
        if semantics.joining:  # running maxima, which take an operator more, come before axes that are kept whole
            found = iter(sorted(found, key=lambda one: concats(one[0]))[:most])
        for chosen, roots_ in found:
            kernel = kernel_of(closure, graphs, chosen, roots_)
            structure = Structure((kernel,), tuple(Source(output, 0) for output in range(len(roots_))))
            yield structure
            if self.effort.free_loops:
                yield from free_loops(structure, self.prepared)

    def two_kernels(self, first: Closure, semantics: Semantics, sample: Sample) -> Iterator[Structure]:
        """The graphs of two kernels whose first one has this configuration, those with few concats first."""
        if len(semantics.targets) > 1:
            self.cut.append("two kernels: the second kernel writes every output")
        offered = offers(first, semantics, parts=self.effort.parts)
        pairing = Pairing(
            first,
            offered,
            len(semantics.tensors),
            self.budget.max_block_ops,
            lambda c: splits(first, c),
            self.halted,
            self.effort.pairs,
        )
        leaves = [*semantics.tensors, *(offer.leaf for offer in offered)]
        seconds = [*product(last_grids(self.prepared), (None, *self.prepared.reduced))]
        for joined, (grid, loop) in enumerate(seconds):
            if self.saturating_halted():
                told = f"{joined} of {len(seconds)} grids and loops of the second kernel, {len(pairing.pairs):,} pairs"
                self.cut.append(f"{self.configuration}: {told} of graphs, were looked at in time")
                self.reached.add("seconds")
                break
            second = self.close(semantics, grid, loop, leaves, sample)
            roots = list(root_sets(second, semantics, self.cut))
            graphs = Extraction(second.values)
            for chosen, roots_ in self.choices(graphs, roots, accepted(second, pairing), more=semantics.joining):
                pairing.add(Second(second, graphs, chosen, roots_, pairing.needs(chosen)))
        if pairing.topped:
            self.reached.add("max_block_ops")
        if self.halted():
            self.reached.add("seconds")
        yield from pairing.best()
        self.cut += [f"two kernels: {what}" for what in sorted(pairing.left_out)]

    def choices(
        self, graphs: Extraction, roots: Sequence[tuple[int, ...]], accept: Callable[[Choice], bool], *,
        more: int = 0, most: int = 0,
    ) -> Iterator[tuple[Choice, tuple[int, ...]]]:  # fmt: skip
        """Accepted graphs for any of the root sets, smallest first, up to the effort's size and number. What one output
        does behind its sum others may do behind theirs: each of these may take an operator more; all, so many `more`.
        `most`: another number.
        """
        most = most or self.effort.structures
        top = self.budget.max_block_ops
        extra = self.effort.extra + more + max((len({*r}) for r in roots), default=1) - 1
        sizes = [size for r in roots if (size := graphs.minimum(sorted(set(r)), top, self.halted)) is not None]
        if len(sizes) < len(roots) or (sizes and min(sizes) + extra > top):
            self.reached.add("max_block_ops")
        if self.halted():
            self.reached.add("seconds")
        if roots and not sizes and not self.halted():
            self.cut.append(
                f"{self.configuration}: all graphs have more than {top} operators; extend(max_block_ops=...) takes more"
            )
        if not sizes:
            return
        found = looked = 0
        for size in range(max(1, min(sizes)), min(top, min(sizes) + extra) + 1):
            for r in roots:
                for chosen in graphs.graphs(sorted(set(r)), size, self.halted):
                    looked += 1
                    if found == most or looked > LOOKED_AT * self.effort.structures:
                        self.cut.append(f"{self.configuration}: only the {found} smallest graphs are taken{MORE}")
                        return
                    if accept(chosen):
                        found += 1
                        yield chosen, r
        if self.halted():
            self.reached.add("seconds")
            self.cut.append(f"{self.configuration}: stopped before every graph was extracted")


def of_every_kind(ranked: Sequence[tuple[float, T]], kind: Callable[[T], object], count: int) -> list[tuple[float, T]]:
    """`count` of those ranked, each with its estimate, in their order: the best of every kind whose estimate is near
    the best of all, then by rank. An estimate errs alike on what is alike."""
    limit = NEAR * min((us for us, _ in ranked), default=0.0)
    first: dict[object, int] = {}
    for place, (us, item) in enumerate(ranked):
        if us <= limit:
            first.setdefault(kind(item), place)
    places = [*dict.fromkeys((*first.values(), *range(len(ranked))))][:count]
    return [ranked[place] for place in sorted(places)]


def _kernels_of_part(part: Part) -> int:
    return len(part.structure.kernels) if part.structure is not None else 0


def _kernels_of_parts(assembly: Assembly) -> tuple[int, ...]:
    return tuple(map(_kernels_of_part, assembly.parts))


def _splits_reduction(configuration: Configuration) -> bool:
    """Whether the first of two kernels splits a reduced axis: what else two kernels do other cuts do."""
    return bool(configuration.grid) and configuration.loop in (None, *configuration.grid)


def semantics_for(prepared: Prepared, effort: Effort) -> tuple[Semantics, list[str]]:
    """The semantics under the axioms of the effort, and a note on those that are not in force.

    A closure has every part of a sum, under every factor: written out, some programs have more than anyone can look
    through, and they keep their products of sums factored.
    """
    semantics, options = Semantics(prepared, effort.options), effort.options
    if options.products == "factored" or (parts := semantics.oracle.parts()) <= effort.written_out:
        return semantics, []
    factored = replace(options, products="factored")
    restricted = sorted(set(factored.limits()) - set(options.limits()))
    note = (
        f"products of sums stay factored ({', '.join(restricted)}): written out, {parts:,} sums are parts"
        f" of one sum of the program, each again under every factor, and at most {effort.written_out} are looked"
        " through; the pruning factored_products, switched off, writes all of them out, which may take days"
    )
    return Semantics(prepared, factored), [note]


def splits(closure: Closure, choice: Choice) -> bool:
    """Whether a graph reads some input split by the loop, and by every axis of the grid."""
    leaves = [closure.values[v].type for v, (operator, _) in choice.items() if operator.kind is OpKind.IN_ITER]
    looped = closure.loop is None or any(type_[closure.loop] & ITER for type_ in leaves)
    return looped and all(any(type_[axis] & BLOCK for type_ in leaves) for axis in closure.grid)


def accepted(second: Closure, pairing: Pairing) -> Callable[[Choice], bool]:
    """Whether a graph of the second kernel reads tensors of the first, not too many, and uses its grid and loop."""
    return lambda choice: splits(second, choice) and pairing.fits(choice)


def root_sets(closure: Closure, semantics: Semantics, cut: list[str]) -> Iterator[tuple[int, ...]]:
    """For every output of the program one of the values that equal it, in every combination.

    Every block of a split axis must write a part of its own, so the values are split as the grid is.
    """
    finals = [
        [value.id for value in closure.finals(target) if all(value.type[axis] & BLOCK for axis in closure.grid)]
        for target in semantics.targets
    ]
    for number, roots in enumerate(product(*finals)):
        if number == MAX_FINAL_SETS:
            cut.append(f"only {MAX_FINAL_SETS} combinations of equal outputs were tried")
            return
        yield roots

"""The program without a search: its own operators, and library kernels with everything between them fused.

In: a tensor program, a target. Out: an instance of its operators, each a pre-defined kernel, and `Composition`s in
which every product is a library's, and what else one kernel of a library computes whole (`mirage_nb.predefined`), and
the operators between these are as few generated kernels as pay, each the operators of its piece as they stand; rows
that no block holds, and columns that no thread holds, are folded in parts (`search.wordings.wide_rows`). Nothing is
explored, so all are there within milliseconds: whatever a search finds or does not find, there is something that runs,
and nothing is called the best that is slower than it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from mirage_nb.ir import OPS, KernelGraph, OpKind
from mirage_nb.predefined import LOOKUP, Match, matches
from mirage_nb.search.axes import Prepared, over_axes
from mirage_nb.search.limits import NO_LIMITS, Limits
from mirage_nb.search.pieces.assemble import Assembly, Part, beside, joined, part_drafts, part_instances, tiny_parts
from mirage_nb.search.pieces.grain import COMPOSED, FOLDING, Grain
from mirage_nb.search.pieces.looks import Looks
from mirage_nb.search.pieces.partition import IsOver, never, partition
from mirage_nb.search.pieces.piece import VIEWS, Piece, Whole, is_heavy
from mirage_nb.search.sizes.coarse import longest_row
from mirage_nb.search.sizes.drafts import Instance
from mirage_nb.search.sizes.instantiate import small_program, tiny_extents
from mirage_nb.search.sizes.written import written_cost
from mirage_nb.search.structure import as_they_stand, looped
from mirage_nb.search.wordings import aligned, deep, depths, factors, one_row, running, short, squares
from mirage_nb.search.wordings.coalesced import coalesced, restored
from mirage_nb.search.wordings.wide_rows import PART, Longest, folds, in_parts
from mirage_nb.targets import Target
from mirage_nb.tile.rules.register_resident import LONGEST_COLUMN

OWN_OPERATORS = "the program's own operators"
LIBRARY_AND_FUSED = "library products, the rest fused"
LIBRARY_KERNELS = "library kernels, the rest fused"
ROWS_FUSED = "products of one row fused"
PRODUCTS_FUSED = "generated products, the rest fused"
SUMS_APART = "generated products, sums apart"
DEEP_IN_PARTS = "deep products summed in parts"
COLUMNS_FUSED = "columns and long rows folded in parts"
CROSSED_FUSED = "rows and parts of columns folded together"
RUNNING_FUSED = "running sums fused"
SHORT_FUSED = "short folds of pairs written out"
PADDED_FUSED = "library products of padded operands, the rest fused"
PADDED_PRODUCTS = "generated products of padded operands, the rest fused"
COMPOSED_ROWS = (LOOKUP, "attention", "group_norm", "softmax", "log_softmax", "running_sum", "linear")
"""Library kernels that several operators of a composition are left to: all but norms of rows, which a generated kernel
fuses with what stands around them. Lookups, which are no library's, are left to their row, or to kernels that hold what
they read."""
GENERATED_PRODUCTS = tuple(row for row in COMPOSED_ROWS if row not in ("linear", "softmax", "log_softmax"))
"""The same where kernels are generated for products, too: those fuse the softmax of their rows, or a kernel of its own
fuses it with what stands around it."""
FEW, PRODUCTS, RANK = 64, 16, 64
"""Rows that products share in one kernel at most, products of one, and what such a product folds of another's result:
the rest of what it multiplies is held."""
RENAMES = frozenset({OpKind.RESHAPE, OpKind.CONST})
"""Operators that are no kernel."""
MOVES = VIEWS | {OpKind.CONCAT}
"""Operators that compute nothing."""
SHARED = 2048
"""Elements of a column that sums run along and threads share, at most: of more, few columns are left for a block."""
TINY_PART = 4
"""Elements of a part of a row of a small program."""


def own_operators(program: KernelGraph, target: Target) -> Instance:
    """The program itself: every operator is a pre-defined kernel."""
    return Instance({}, program, written_cost(program, target))


@dataclass(frozen=True, slots=True)
class Composition:
    """A muGraph that nobody searched for: its parts, the instance that is estimated best, and its small pair."""

    assembly: Assembly
    instance: Instance
    small: tuple[KernelGraph, KernelGraph]


def library_and_fused(
    program: KernelGraph,
    target: Target,
    limits: Limits = NO_LIMITS,
    seed: int = 0,
    rows: Sequence[str] = (),
    said_as: Words | None = None,
    is_over: IsOver = never,
) -> Composition | None:
    """Library products, library kernels of these rows, and generated kernels between them, in as few dimensions as say
    the program; None where that is the program itself, no kernel is of these rows, if there are any, or its time
    is over before that is there. said_as: other words for the program first; None where it has nothing to say with
    them."""
    fewest = said = coalesced(program)
    pairs: list[Pair] = []
    if said_as is not None:
        if not said_as.where(fewest):
            return None
        said, pairs = _said(fewest, said_as.wordings, seed)
        if said is fewest and not said_as.as_is(said):
            return None
    if said_as is not None or not rows:
        widest = Longest(row=longest_row(said, target))
        said, more = _said(said, [_in_parts(widest, Longest(row=1, part=TINY_PART))], seed)
        pairs += more
    library = _matched(said, rows)
    if rows and said_as is None and not library:
        return None
    whole = {match.output for match in library}
    computed: list[tuple[Part, Instance]] = []
    grain = said_as.grain if said_as is not None else COMPOSED
    pieces = partition(said, target, grain, library=library, is_over=is_over)
    by_library = [p for p in pieces if not whole.isdisjoint(p.writes) or (_multiplies(p) and not grain.products)]
    looks = Looks.of(said, library, by_library)
    for piece in pieces:
        if is_over():
            return None
        as_it_is = piece in by_library or looks.are_all(piece)
        plain = _computed(piece, looks.prepared(piece, seed), target, limits, as_it_is)
        if not as_it_is and (other := looks.writing(piece)) is not None:
            both = _computed(other, looks.prepared(other, seed), target, limits, as_it_is)
            if looks.pays(both[1], piece, plain[1], target):
                looks.unwritten.difference_update(other.writes)
                plain = both
        computed.append(plain)
    fused = any(part.structure is not None for part, _ in computed)
    as_given = said is fewest and (fewest is program or all(part.prepared.refused for part, _ in computed))
    if not fused and as_given:
        return None
    assembly = Assembly.of([part for part, _ in computed])
    chosen = [instance for _, instance in computed]
    instance = joined(said, assembly.pieces, chosen, target)
    instance = replace(instance, graph=restored(instance.graph, program))
    small = tiny_parts(assembly, instance.overhanging)
    if pairs:
        first, second = zip(small, *pairs, strict=True)
        small = beside(first), beside(second)
    return Composition(assembly, instance, small)


Pair = tuple[KernelGraph, KernelGraph]
Replaced = Mapping[int, tuple[int, ...]]


def _by_axes(said: Callable[[KernelGraph], KernelGraph]) -> Callable[[KernelGraph, int], Pair]:
    """A small pair of a program that can be said over axes."""

    def small(piece: KernelGraph, seed: int) -> Pair:
        prepared = over_axes(piece, seed=seed)
        found = small_program(prepared, tiny_extents(prepared))
        return found, said(found)

    return small


@dataclass(frozen=True, slots=True)
class Wording:
    """Another way to say parts of a program: what makes which values of which others, the program with all of these
    said otherwise, and of what is replaced, and a seed, a small pair."""

    replaced: Callable[[KernelGraph], Replaced]
    said: Callable[[KernelGraph], KernelGraph]
    small: Callable[[KernelGraph, int], Pair]


@dataclass(frozen=True, slots=True)
class Words:
    """Wordings, one after the other, and how large pieces of a program in these words may become; as_is: where such
    pieces are other ones although these say nothing otherwise; where: the programs that they are for."""

    wordings: tuple[Wording, ...]
    grain: Grain = COMPOSED
    as_is: Callable[[KernelGraph], bool] = lambda _: False
    where: Callable[[KernelGraph], bool] = lambda _: True


def _in_parts(longest: Longest, tiny: Longest) -> Wording:
    """Rows and columns that are longer, in parts; of a small program those that are longer than tiny ones."""
    return Wording(lambda p: folds(p, longest), lambda p: in_parts(p, longest), _by_axes(lambda p: in_parts(p, tiny)))


def _if_running(wording: Wording) -> Wording:
    """The wording, of programs with running sums."""

    def replaced(program: KernelGraph) -> Replaced:
        running = any(op.kind is OpKind.RUNNING_SUM for op in program.ops)
        return wording.replaced(program) if running else {}

    return replace(wording, replaced=replaced)


ONE_ROW = Words(
    (
        Wording(one_row.uneven, one_row.evened, _by_axes(one_row.halved)),
        Wording(one_row.products, one_row.as_sums, _by_axes(one_row.as_sums)),
    )
)
"""Products of one row are no library's."""
GENERATED = Words(
    (
        Wording(
            partial(one_row.uneven, most=FEW),
            partial(one_row.evened, most=FEW),
            _by_axes(partial(one_row.halved, most=FEW)),
        ),
        Wording(factors.scaled, factors.behind, _by_axes(factors.behind)),
        Wording(depths.joined, depths.parted, _by_axes(partial(depths.parted, least=1))),
        Wording(depths.uneven, depths.evened, _by_axes(depths.halved)),
    ),
    replace(COMPOSED, products=PRODUCTS, rank=RANK),
    as_is=lambda program: any(is_heavy(program, op) for op in program.ops),
)
"""A product is a kernel with a loop, with what stands behind it, where that is estimated below a library; those that
share rows, or are added, are one."""
APART = replace(
    GENERATED,
    grain=replace(GENERATED.grain, folds=False),
    as_is=lambda program: GENERATED.as_is(program) and any(OPS[op.kind].traits & FOLDING for op in program.ops),
)
"""The same with kernels for products alone: warps with roles fold nothing else."""
IN_PARTS = replace(COMPOSED, row=PART, column=LONGEST_COLUMN)
COLUMNS = Words(
    (
        Wording(squares.of_more, squares.about_own, _by_axes(squares.about_own)),
        _in_parts(
            Longest(row=PART, column=LONGEST_COLUMN),
            Longest(row=1, part=TINY_PART, column=1, column_part=TINY_PART),
        ),
    ),
    IN_PARTS,
    as_is=IN_PARTS.is_exceeded,
)
"""Columns that no thread holds, and rows that registers hardly do, in parts."""
CROSSED = Words(
    (_in_parts(Longest(crossed=True), Longest(row=1, part=TINY_PART, column=1, column_part=TINY_PART)),),
    IN_PARTS,
)
"""Columns of what is folded along rows, too, in parts whose rows a block holds: gradients of norms and of their gains
read everything once."""
DEEP = Words(
    (*GENERATED.wordings, Wording(deep.products, deep.in_parts, _by_axes(deep.halved)), *COLUMNS.wordings),
    replace(APART.grain, row=IN_PARTS.row, column=IN_PARTS.column),
    where=lambda program: bool(deep.products(program)),
)
"""Deep products of few results are summed in parts, and so are the columns beside them."""
RUNNING = Words(
    (
        Wording(running.sums, running.as_running, running.small),
        _if_running(
            _in_parts(
                Longest(row=PART, column=SHARED),
                Longest(row=1, part=TINY_PART, column=1, column_part=TINY_PART),
            )
        ),
    ),
    replace(COMPOSED, row=PART, column=SHARED),
)
"""Running sums by the threads that hold rows, or share columns, as long as these are no longer."""
WRITTEN = Words(
    (Wording(short.folds, short.written_out, _by_axes(short.small)), *COLUMNS.wordings),
    IN_PARTS,
    where=lambda program: bool(short.folds(program)),
)
"""Folds of a few elements of pairs, written out, and what folds these in parts."""
PADDED = Words(
    (Wording(aligned.products, aligned.padded, _by_axes(partial(aligned.padded, chunk=3, work=0))),),
    where=lambda program: bool(aligned.products(program)),
)
"""Products whose rows begin anywhere are left to a library with zeros behind their operands."""
PADDED_GENERATED = replace(GENERATED, wordings=(*PADDED.wordings, *GENERATED.wordings), where=PADDED.where)
"""Or to a kernel that computes what stands behind them, too."""
COMPOSITIONS: Mapping[str, tuple[Sequence[str], Words | None]] = {
    LIBRARY_AND_FUSED: ((), None),
    LIBRARY_KERNELS: (COMPOSED_ROWS, None),
    ROWS_FUSED: (COMPOSED_ROWS, ONE_ROW),
    PRODUCTS_FUSED: (GENERATED_PRODUCTS, GENERATED),
    SUMS_APART: (GENERATED_PRODUCTS, APART),
    DEEP_IN_PARTS: (GENERATED_PRODUCTS, DEEP),
    COLUMNS_FUSED: ((), COLUMNS),
    CROSSED_FUSED: ((), CROSSED),
    RUNNING_FUSED: ((), RUNNING),
    SHORT_FUSED: ((), WRITTEN),
    PADDED_FUSED: (COMPOSED_ROWS, PADDED),
    PADDED_PRODUCTS: (GENERATED_PRODUCTS, PADDED_GENERATED),
}
"""Every composition by its name, in the order in which they are made: a library's kernels, and other words."""
UNSEARCHED = frozenset({OWN_OPERATORS, *COMPOSITIONS})
"""The configurations of candidates that nobody searched for."""


def _matched(said: KernelGraph, rows: Sequence[str]) -> list[Match]:
    """What kernels of these rows compute. Rows of tables are looked up whatever is asked for: products with ones at
    their places are spoilt by any of the table that is no number."""
    found = matches(said, [row for row in COMPOSED_ROWS if row in (LOOKUP, *rows)])
    return [match for match in found if match.row in rows or not match.attrs["apart"]]


def _said(program: KernelGraph, wordings: Sequence[Wording], seed: int) -> tuple[KernelGraph, list[Pair]]:
    """The program in these wordings, each as often as it has something for it; and small pairs of what was replaced and
    what it became."""
    pairs: list[Pair] = []
    for wording in wordings:
        while replaced := wording.replaced(program):
            pairs += _small(program, replaced, wording, seed)
            program = wording.said(program)
    return program, pairs


def with_running_sums(program: KernelGraph, seed: int = 0) -> tuple[KernelGraph, list[Pair]]:
    """The program with running sums that it says as products as what they are, and small pairs of these: none where it
    has none."""
    return _said(program, RUNNING.wordings[:1], seed)


def _small(program: KernelGraph, replaced: Replaced, wording: Wording, seed: int) -> Iterator[Pair]:
    """What makes each of these values, small, and the same said otherwise; equal ones once."""
    whole, known = Whole.of(program), set[str]()
    for value, sources in replaced.items():
        piece = whole.part({*sources}, [value])
        if piece.digest not in known:
            known.add(piece.digest)
            yield wording.small(piece.graph, seed)


def _multiplies(piece: Piece) -> bool:
    """Whether it has a product, of more than a few elements for each of its own."""
    return any(is_heavy(piece.graph, op) for op in piece.graph.ops)


def _computed(
    piece: Piece, prepared: Prepared, target: Target, limits: Limits, as_it_is: bool
) -> tuple[Part, Instance]:
    """What computes a piece, and how: a library its product, or all of it, one kernel anything else that fits one; of
    several products, and of what only moves elements, whatever takes less. as_it_is: its operators are a library's, or
    kernels read what it says where that lies."""
    simple = bool(piece.reads) and not prepared.refused and len({*prepared.outputs}) == len(prepared.outputs)
    simple = simple and any(op.kind not in RENAMES for op in piece.graph.ops)
    able = simple and not as_it_is
    multiplies = _multiplies(piece)
    if able and (structure := looped(prepared) if multiplies else as_they_stand(prepared)) is not None:
        fused = Part(piece, prepared, structure)
        given = multiplies or all(op.kind in MOVES for op in piece.graph.ops)
        limit = written_cost(piece.graph, target).us if given else math.inf
        drafts = part_drafts(fused, target, 1, limits)
        if any(draft.cost.us < limit for draft in drafts):
            return fused, drafts[0].made()
    plain = Part(piece, prepared, None)
    return plain, part_instances(plain, None, target, 1, limits)[0]

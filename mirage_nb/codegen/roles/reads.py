"""What a role reads of global tensors between products, element by element as it lies in an instruction's fragments.

In: a `Read`. Out: the loads, where it stands, so that they come while something else is waited for; and a thread's
element, where it is used. Of rows and columns a thread keeps what it loaded as it is stored. Where a tensor's rows
allow it, each of the four lanes of a row loads 16 bytes of it, and they pass words among themselves before the first
use. Invariant: every lane takes part in the exchange, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from mirage_nb.codegen.roles.access import TOGETHER, Access, Part
from mirage_nb.codegen.writer import Writer, c_index, c_type, stored_type
from mirage_nb.optimize.reach import Reach
from mirage_nb.tile.roles.program import Index, Program, Read, Tile
from mirage_nb.tile.rules.sharing import COLUMN_TILE
from mirage_nb.tile.rules.teams import HEIGHT


@dataclass(frozen=True, slots=True)
class Element:
    """A thread's element: its subtile, which of its two rows there, its fragment and its column there, in C."""

    i: str
    h: str
    j: str = ""
    e: str = ""


@contextmanager
def each_row(out: Writer, subtiles: int) -> Iterator[tuple[str, str]]:
    """A thread's rows: the subtile, and which of its two rows there."""
    with out.unrolled("i", subtiles) as i, out.unrolled("h", 2) as h:
        yield i, h


def row_of(i: str, h: str) -> str:
    """Where that row is in the part's tile, in C."""
    return f"{HEIGHT} * {i} + 16 * (warp % 4) + lane / 4 + 8 * {h}"


def load_pairs(
    out: Writer, to: str, fragments: tuple[str, int], first: Callable[[str], str], access: Callable[[str], Access],
    element: Callable[[str], str],
) -> None:  # fmt: skip
    """Two neighbours of a row of each of so many fragments, as they are stored. fragments: the loop's variable, and its
    count; first: where a fragment begins; access, element: of a column."""
    name, count = fragments
    with out.unrolled(name, count) as q:
        out.line(f"const int column = {first(q)} + 2 * (lane % 4);")
        found = access("column")
        if found.paired:
            out.line(f"{to}[{q}] = {found.vector('&' + element('column'), 2)};")
            return
        with out.unrolled("e", 2) as e:
            place = f"column + {e}"
            out.line(f"{to}[{q}][{e}] = {access(place).asked(element(place), f'{stored_type(found.tile.dtype)}{{}}')};")


@dataclass(slots=True)
class ReadText:
    """Writes one. axes: those along which it varies; scores: the register tile beside which it is used."""

    out: Writer
    program: Program
    ends: dict[str, Reach]
    made: Read
    axes: tuple[str, ...]
    scores: Tile
    waiting: bool = field(default=False, init=False)
    part: Part = field(init=False)

    def __post_init__(self) -> None:
        (rows, columns), (height, width) = self.scores.axes, self.scores.shape
        self.part = Part(self.program, self.ends, (rows, columns), (height, width))

    @property
    def _rows(self) -> bool:
        return self.scores.axes[0] in self.axes

    @property
    def _columns(self) -> bool:
        return self.scores.axes[1] in self.axes

    @property
    def _wide(self) -> bool:
        """Whether lanes load words for each other."""
        whole = self.scores.shape[1] % (TOGETHER * COLUMN_TILE) == 0
        return self._rows and self._columns and whole and self._access().wide

    def _access(self, column: str = "column") -> Access:
        return self.part.access(self.made.source, self.made.at, column)

    def _inner(self, column: str = "column") -> str:
        """An element from the part's first one on, which is found where no counter of a loop is hidden by another."""
        at = (Index(),) * len(self.made.at)
        return f"{self.made.name}_at[{self.part.access(self.made.source, at, column).offset}]"

    def load(self) -> None:
        """The loads."""
        out, name, subtiles = self.out, self.made.name, self.scores.shape[0] // HEIGHT
        tile, first = self.program.tile(self.made.source), Index()
        stride = tile.elements
        for extent, index in zip(tile.shape, self.made.at, strict=True):
            stride //= extent
            first = first + index * stride
        out.line(f"const {stored_type(tile.dtype)}* const {name}_at = {tile.name} + {c_index(first)};")
        if not self._rows and not self._columns:
            out.line(f"const float {name} = {self._one('to_float({})', '0.0f')};")
            return
        if not self._columns:
            out.line(f"float {name}[{subtiles}][2];")
            with self._each_row(subtiles) as (i, h):
                out.line(f"{name}[{i}][{h}] = {self._one('to_float({})', '0.0f')};")
            return
        if self._wide:
            self._load_words(subtiles)
            return
        type_, fragments = stored_type(self.program.tile(self.made.source).dtype), self.scores.shape[1] // COLUMN_TILE
        if self._rows:
            out.line(f"Vec<{type_}, 2> {name}[{subtiles}][2][{fragments}];")
            with self._each_row(subtiles) as (i, h):
                self._load_pairs(f"{name}[{i}][{h}]", fragments)
            return
        out.line(f"Vec<{type_}, 2> {name}[{fragments}];")
        self._load_pairs(name, fragments)

    def _load_pairs(self, to: str, fragments: int) -> None:
        load_pairs(self.out, to, ("j", fragments), lambda j: f"{COLUMN_TILE} * {j}", self._access, self._inner)

    def _one(self, said: str, none: str) -> str:
        """One element, `none` where there is none."""
        return self._access().asked(said.format(self._inner()), none)

    def _load_words(self, subtiles: int) -> None:
        """16 bytes of a row: of one fragment of four that lie side by side."""
        out, name, groups = self.out, self.made.name, self.scores.shape[1] // (TOGETHER * COLUMN_TILE)
        out.line(f"alignas(16) uint32_t {name}[{subtiles}][2][{groups}][4]{' = {}' if self._access().inside else ''};")
        with self._each_row(subtiles) as (i, h), out.unrolled("g", groups) as g:
            inside = self._access("wide").inside
            out.line(f"const int wide = {TOGETHER * COLUMN_TILE} * {g} + {COLUMN_TILE} * (lane % 4);")
            with out.block(f"if ({inside})" if inside else ""):
                out.line(f"load_words({name}[{i}][{h}][{g}], &{self._inner('wide')});")
        self.waiting = True

    def exchange(self) -> None:
        """Each lane gets its own words, if it has not yet."""
        if not self.waiting:
            return
        self.waiting = False
        groups = self.scores.shape[1] // (TOGETHER * COLUMN_TILE)
        with each_row(self.out, self.scores.shape[0] // HEIGHT) as (i, h), self.out.unrolled("g", groups) as g:
            self.out.line(f"transpose_words<4, 1>({self.made.name}[{i}][{h}][{g}]);")

    def element(self, at: Element) -> str:
        """The C expression of a thread's element."""
        name = self.made.name
        if not self._columns:
            return f"{name}[{at.i}][{at.h}]" if self._rows else name
        if self._wide:
            type_ = c_type(self.program.tile(self.made.source).dtype)
            word = f"unpack2<{type_}>({name}[{at.i}][{at.h}][{at.j} / {TOGETHER}][{at.j} % {TOGETHER}])"
            return f"({at.e} ? {word}.y : {word}.x)"
        return f"to_float({name}{f'[{at.i}][{at.h}]' if self._rows else ''}[{at.j}][{at.e}])"

    @contextmanager
    def _each_row(self, subtiles: int) -> Iterator[tuple[str, str]]:
        with each_row(self.out, subtiles) as (i, h):
            self.out.line(f"const int row = {row_of(i, h)};")
            yield i, h

"""What is wrong with the marks of a tile program: of tiles that data hides altogether, where they are left out.

In: a tile program. Out: findings in words. Invariant: what is left out is computed by a role that chooses its scores
from minus infinity by every value that is marked, of the same operands.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Mapping

from mirage_nb.ir import OPS, DType, OpKind, Trait, WhereAttrs
from mirage_nb.tile.instructions.table import Place
from mirage_nb.tile.places import Coordinates, Places
from mirage_nb.tile.roles.program import (
    Computed,
    Count,
    Layout,
    Loop,
    Map,
    Mark,
    Number,
    Product,
    Program,
    Read,
    Statement,
    Tile,
    flat,
)

Said = tuple[object, ...]
"""What a value is computed of, wherever that begins."""


def wrongly_marked(program: Program) -> Iterator[str]:
    """All findings."""
    marks = [s for s in program.every if isinstance(s, Mark)]
    for mark in marks:
        tile = program.tile(mark.target)
        if len(marks) > 1 or not _of_marks(tile):
            yield f"tile {tile.name} cannot be marked"
    for role, statements in program.code:
        known = {s.name: s for s in flat(statements) if isinstance(s, Computed)}
        for loop in (s for s in flat(statements) if isinstance(s, Loop)):
            asked = program.marks.get(loop.only.tile) if loop.only is not None else None
            if asked is not None:
                yield from (f"{role}: {what}" for what in _left_out(program, asked, loop, known))
            elif loop.only is not None:
                yield f"{role}: nobody marks {loop.only.tile}"


def _of_marks(tile: Tile) -> bool:
    line = tile.dtype is DType.BOOL and len(tile.shape) == 1 and tile.layout is Layout.ROWS
    return line and tile.place is Place.SHARED


def _left_out(program: Program, mark: Mark, loop: Loop, known: Mapping[str, Statement]) -> Iterator[str]:
    """Whether what iterations multiply are the tiles that are marked, and their scores chosen by what is marked."""
    sides, products = dict(mark.sides), [s for s in loop.body if isinstance(s, Product)]
    for tile in (program.tile(name) for product in products for name in (product.left, product.right)):
        pairs = zip(tile.axes, tile.shape, strict=True)
        if tile.place is Place.SHARED and any(sides.get(axis, extent) != extent for axis, extent in pairs):
            yield f"{tile.name} is another tile than what is marked"
    inside: dict[str, Statement] = {s.name: s for s in mark.body}
    masks = (s for s in loop.body if isinstance(s, Map) and isinstance(s.attrs, WhereAttrs) and s.attrs.infinite < 0)
    asked = {_said(program, known, s.operands[0], sides) for s in masks}
    for value in mark.values if products else ():
        if _said(program, inside, value, sides) not in asked:
            yield f"{value} is marked, which no mask asks"


def places_marked(places: Places, mark: Mark, count: int) -> Generator[str, None, Coordinates]:
    """Where tiles begin that are marked, by the counter of so many of them, as far as the value says so."""
    program, sides, known, at = places.program, dict(mark.sides), set[str](), Coordinates()
    for made in mark.body:
        here = Coordinates()
        match made:
            case Read(_, source, start):
                tile = places.tensor(source)
                if tile is None or source in program.outputs or len(start) != len(tile.axes):
                    yield f"{source} is no tensor to read at {len(start)} indices"
                    return at
                box = {axis: sides.get(axis, 1) for axis in tile.axes}
                for number in (0, count - 1):
                    places.bound[mark.counter] = number
                    yield from places.bounds(tile, start, box, engine=False)
                places.bound.pop(mark.counter)
                here = {axis: place for axis, place in places.placed(tile, start).items() if axis in sides}
            case Count(_, axis, first) if axis in sides:
                here = {axis: places.index(first)}
            case Map(_, kind, _, operands):
                if not is_elementwise(kind, len(operands)) or not known.issuperset(operands):
                    yield f"{kind.value} of {', '.join(operands)} is nothing elementwise, or not there"
            case Number():
                pass
            case _:
                yield f"{type(made).__name__} may not stand here"
                return at
        if any(at[axis] != place for axis, place in here.items() if axis in at):
            yield f"{made.name} is of another place than what it meets"
        known.add(made.name)
        at |= here
    for value in {*mark.values} - known:
        yield f"there is no value {value}"
    return at


def _said(program: Program, known: Mapping[str, Statement], name: str, sides: Collection[str]) -> Said:
    """What a value is, at places that do not move along the sides of a tile."""
    match known.get(name):
        case Number(_, value):
            return "number", value
        case Count(_, axis):
            return "count", axis
        case Read(_, source, at):
            axes = program.tile(source).axes
            apart = tuple(place for axis, place in zip(axes, at, strict=False) if axis not in sides)
            return "read", program.operand(source), axes, apart
        case Map(_, kind, attrs, operands):
            return kind, attrs, *(_said(program, known, operand, sides) for operand in operands)
    return "tile", name


def is_elementwise(kind: OpKind, operands: int) -> bool:
    """Whether an operator takes so many, element by element."""
    spec = OPS[kind]
    return Trait.ELEMENTWISE in spec.traits and (spec.arity or operands) == operands

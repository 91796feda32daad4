"""The registers that roles of a tile program need for their tiles.

In: a tile program. Out: the register tiles of a statement, and what a thread of a role holds of all of them.
"""

from __future__ import annotations

from mirage_nb.tile.instructions.table import Place
from mirage_nb.tile.roles.program import (
    GROUP,
    LANES,
    REGISTER_BYTES,
    Clear,
    Product,
    Program,
    Role,
    Set,
    Statement,
    Tile,
    flat,
)


def register_tiles(program: Program, statement: Statement) -> tuple[Tile, ...]:
    """The register tiles that a statement multiplies, adds to or keeps."""
    match statement:
        case Product(_, result, left):
            names: tuple[str, ...] = (result, left)
        case Clear(result) | Set(result):
            names = (result,)
        case _:
            return ()
    return tuple(t for t in program.tiles if t.name in names and t.place is Place.REGISTER)


def registers(program: Program, role: Role) -> int:
    """Of a thread of the role, for its register tiles; what has rows only is in all four lanes of a row."""
    held = {tile.name: tile for s in flat(program.statements(role.name)) for tile in register_tiles(program, s)}
    return sum(
        -(-tile.nbytes // (REGISTER_BYTES * LANES * GROUP)) if len(tile.shape) > 1 else tile.elements // (LANES)
        for tile in held.values()
    )

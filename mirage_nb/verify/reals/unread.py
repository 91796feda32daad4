"""Rows of tables that nobody reads: what stands there is none of a kernel's business.

In: a program, inputs. Out: the program as one that chooses rows; where lookups alone read a table, inputs with numbers
that leave rows out, and then with no numbers in these. A product with ones at the places of rows is equal over the
reals, and spoilt by any of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_nb.interp.reference import evaluate
from mirage_nb.ir import BYTES, DimAttrs, KernelGraph, Op, OpKind, ReshapeAttrs, WhereAttrs
from mirage_nb.ir.rewrite import Rewrite, saying
from mirage_nb.predefined import LOOKUP, Match, matches
from mirage_nb.predefined.lookups import lookup_of
from mirage_nb.predefined.patterns import parts_of_lookup
from mirage_nb.predefined.reading import Reading

Array = NDArray[Any]

UNREAD = "unread rows of "
MOST = 2**24
"""Elements that are chosen from for all rows of a lookup, at most."""


def choosing(program: KernelGraph) -> KernelGraph | None:
    """The program with sums of what is chosen for products that look rows up, which elements that are not read leave
    alone; None where that takes too many elements."""
    looked = {m.output: m for m in matches(program, [LOOKUP]) if not m.attrs["apart"]}
    sizes = (program.types[v].elements * lookup_of(program, m).found.rows for v, m in looked.items())
    if max(sizes, default=0) > MOST:
        return None

    def say(made: Rewrite[KernelGraph], value: int, op: Op) -> int:
        hot, table = made.places(op.inputs)
        shape, like = program.types[op.inputs[0]].shape, program.types[value]
        ones = made.add(Op(OpKind.RESHAPE, (hot,), ReshapeAttrs((*shape, 1))))
        chosen = made.add(Op(OpKind.WHERE, (ones, table), WhereAttrs()))
        summed = made.add(Op(OpKind.SUM, (chosen,), DimAttrs(len(shape) - 1)))
        return made.add(Op(OpKind.RESHAPE, (summed,), ReshapeAttrs(like.shape)))

    return saying(program, looked.keys(), say)


def tables(program: KernelGraph) -> dict[str, list[Match]]:
    """The inputs that lookups of rows alone read, as they lie, with these."""
    if not any(op.kind is OpKind.MATMUL for op in program.ops):
        return {}
    reading, found = Reading(program), dict[int, list[Match]]()
    for match in matches(program, [LOOKUP]):
        table = reading.reshaped(match.inputs[0])
        rows = lookup_of(program, match).found
        dense = rows.first == 0 and rows.run == rows.columns == rows.step
        if not match.attrs["apart"] and table < program.input_count and dense:
            found.setdefault(table, []).append(match)
    return {
        program.inputs[table].name: mine
        for table, mine in found.items()
        if program.inputs[table].type.dtype not in BYTES and _readers(program, table) == {m.output for m in mine}
    }


def _readers(program: KernelGraph, table: int) -> set[int]:
    """What is computed of a value, or of other shapes of it."""
    named, found = {table}, set(program.outputs) & {table}
    for op, (value, *_) in program.definitions():
        if not named.isdisjoint(op.inputs):
            (named if op.kind is OpKind.RESHAPE and value not in program.outputs else found).add(value)
    return found


def leaving_out(program: KernelGraph, name: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Inputs by name, with whole numbers that are even where they say rows of this table."""
    reading, made = Reading(program), dict(inputs)
    for match in tables(program)[name]:
        index = reading.window(parts_of_lookup(reading, match.output)[0]).base
        if index < program.input_count:
            given = program.inputs[index].name
            made[given] = inputs[given] - np.mod(inputs[given], 2)
    return made


def spoilt(program: KernelGraph, name: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Inputs by name, with no numbers in the rows of this table that these say nothing of."""
    reading, mine = Reading(program), tables(program)[name]
    said = program.returning(tuple(dict.fromkeys(parts_of_lookup(reading, match.output)[0] for match in mine)))
    rows, table = lookup_of(program, mine[0]).found.rows, np.array(inputs[name], copy=True)
    read = np.concatenate([np.ravel(numbers) for numbers in evaluate(said, inputs)])
    table.reshape(rows, -1)[~np.isin(np.arange(rows), read)] = np.nan
    return {**inputs, name: table}


def is_spoilt(program: KernelGraph, graph: KernelGraph) -> bool:
    """Whether a muGraph of the program reads a table otherwise than by lookups, by which alone the program reads it."""
    return not tables(program).keys() <= tables(graph).keys()

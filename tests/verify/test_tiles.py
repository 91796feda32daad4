"""Tile programs beside the block graphs that they were planned of: right ones have no findings, changed ones do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirage_nb.ir import ConstAttrs, DType, Op
from mirage_nb.optimize import plan
from mirage_nb.tile.planned import Planned
from mirage_nb.tile.roles.validate import validate
from mirage_nb.verify.tiles import compare
from tests.codegen.mugraphs import linear
from tests.codegen.test_specialised import FEW, H200
from tests.tile.mutants import mutants
from tests.tile.test_tile_programs import NAMED, planned, right

SMALL = ("64 x 64, no maximum, one iteration", "causal, 64 x 64")


def named(name: str) -> Planned:
    block, program = planned(name)
    args = block.block.args
    places = frozenset(i for i, t in enumerate(args) if t.dtype is DType.F32 and len(t.shape) == 1)
    return Planned(block.block, program, places=places)


@pytest.mark.parametrize("name", NAMED)
def test_what_was_planned_is_the_block_graph(name: str) -> None:
    assert compare(named(name), FEW, seed=3)[1] == ()


def test_one_point_of_a_large_walk_costs_what_it_reads() -> None:
    """Operands of half a gigabyte and more, which nobody draws whole."""
    block = plan(linear(32768, 256, 16384, 128, 256), H200).kernels[0]
    assert block is not None and block.program is not None
    assert compare(Planned(block.block, block.program), H200, seed=3)[1] == ()


@pytest.mark.parametrize("name", SMALL)
def test_what_no_validator_sees_is_found_by_running(name: str) -> None:
    """Mutants that are valid and wrong: exchanged statements, values of another kind."""
    found = []
    for what, changed in mutants(planned(name)[1]):
        if not validate(changed, FEW) and not right(name, changed):
            whole = named(name)
            found.append((what, compare(Planned(whole.block, changed, places=whole.places), FEW, seed=3)[1]))
    assert found
    assert [what for what, findings in found if not findings] == []


def test_a_symbol_is_its_number_in_a_tile_program() -> None:
    """1/sqrt(d) is an unknown of a muGraph, and a number of what is printed for it; residues are no infinities'."""

    def named_constants(op: Op) -> Op:
        if isinstance(op.attrs, ConstAttrs):
            return replace(op, attrs=replace(op.attrs, symbol="d^(-1/2)"))
        inner = op.body
        return replace(op, body=replace(inner, ops=tuple(map(named_constants, inner.ops)))) if inner else op

    whole = named("128 x 64, three iterations")
    block = replace(whole.block, ops=tuple(map(named_constants, whole.block.ops)))
    assert block != whole.block
    assert compare(replace(whole, block=block), FEW, seed=3)[1] == ()
